"""Estimate of a kernel's operations and memory traffic, from its graph.

Floor 4.
"""

from __future__ import annotations

import math
from collections import Counter

from tinycore.dtype import PointerDType, dtypes
from tinycore.engine.counters import Estimate
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPARISON, Op

FREE = frozenset({Op.CAST, Op.BITCAST, Op.WHERE}) | COMPARISON
"""Arithmetic that is not counted as floating-point or integer work."""


def steps(ranges: frozenset[UOp]) -> int:
    """The number of iterations of nested loops."""
    return math.prod(r.extent for r in ranges)


def estimate(ast: UOp) -> Estimate:
    """Operations and bytes of one launch of a kernel. A COPY reads and writes every byte once."""
    if ast.op is Op.COPY:
        return Estimate(0, 2 * buffer_bytes(ast.src[0]))
    ops = 0
    touched: Counter[UOp] = Counter()
    for node in ast.toposort():
        if node.op is Op.REDUCE:
            ops += steps(
                node.src[0].ranges | frozenset(s for s in node.src[1:] if s.op is Op.RANGE)
            )
        elif (
            node.op in ALU and node.op not in FREE and node.dtype not in (dtypes.index, dtypes.bool)
        ):
            ops += steps(node.ranges) * (2 if node.op is Op.MULACC else 1)
        elif node.op in (Op.LOAD, Op.STORE):
            index = node.src[0]
            touched[pointer_of(index)] += steps(index.ranges)
    memory = {p: n for p, n in touched.items() if p.op is Op.DEFINE_GLOBAL}
    moved = sum(min(n * p.dtype.itemsize, buffer_bytes(p)) for p, n in memory.items())
    return Estimate(ops, moved)


def buffer_bytes(pointer: UOp) -> int:
    """Bytes of the whole buffer behind a pointer."""
    assert isinstance(pointer.dtype, PointerDType)
    return pointer.dtype.size * pointer.dtype.itemsize
