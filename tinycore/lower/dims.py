"""Map GRID and BLOCK loops to the indices a device launches with.

Floor 3'.
"""

from __future__ import annotations

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

LAUNCHED = {AxisKind.GRID: "grid", AxisKind.BLOCK: "block"}


def loops_to_launch(kernel: UOp) -> UOp:
    """The kernel with SPECIAL indices in place of GRID and BLOCK loops, the last axis outermost."""
    replacements: dict[UOp, UOp] = {}
    for kind, prefix in LAUNCHED.items():
        counters = [n for n in kernel.toposort() if n.op is Op.RANGE and n.arg.kind is kind]
        counters.sort(key=lambda n: n.arg.number, reverse=True)
        for axis, counter in enumerate(counters):
            replacements[counter] = UOp(
                Op.SPECIAL, dtypes.index, (counter.src[0],), f"{prefix}{axis}"
            )
    if not replacements:
        return kernel
    opened: dict[UOp, UOp] = {}
    for node in kernel.toposort():
        rebuilt = node.with_src(tuple([opened[s] for s in node.src]))
        if node.op is Op.END:
            ranges = tuple(r for r in rebuilt.src[1:] if r.op is Op.RANGE)
            rebuilt = rebuilt.with_src((rebuilt.src[0], *ranges)) if ranges else rebuilt.src[0]
        opened[node] = replacements.get(node, rebuilt)
    return opened[kernel]
