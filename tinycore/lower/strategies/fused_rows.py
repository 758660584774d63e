"""Fused rows: kernels of several nests, which go through the same rows strip by strip.

Floor 3'. Each nest is planned like a separate kernel, inside of the loops over strips, which are
then distributed over threads. `schedule/row_fusion.py` makes such kernels.
"""

from __future__ import annotations

from dataclasses import replace

from tinycore.lower.draft import Draft, Nest
from tinycore.lower.loops import stores_of
from tinycore.lower.strategies.loops import plan_loops
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def nests_of(kernel: UOp) -> list[frozenset[UOp]]:
    """The memory that each nest of a kernel writes, in their order; [] for a kernel of one nest."""
    whole = kernel.src[0]
    body = whole.src[0] if whole.op is Op.END else whole
    if len(kernel.src) > 1 or body.op is not Op.GROUP:
        return []
    awaited = {s for n in kernel.every(Op.AFTER) for s in n.src[1:]}
    if awaited.isdisjoint(body.src) and not all(n.op is Op.END for n in body.src):
        return []
    return [frozenset(pointer_of(n.src[0]) for n in stores_of(nest)) for nest in body.src]


def plan_nests(draft: Draft, nests: list[frozenset[UOp]]) -> None:
    """Plan each nest in turn, for one thread inside of the loops over strips."""
    every, limits = frozenset().union(*nests), draft.limits
    (whole,) = draft.kernel.src
    around = tuple(r.number for r in whole.src[1:]) if whole.op is Op.END else ()
    for written in nests:
        nest = Nest(written, every - written, around, limits.threads)
        alone = replace(limits, threads=1)
        inner = replace(draft, limits=alone, nest=nest, known=None)
        plan_loops(inner)
        draft.kernel, draft.steps, draft.sizes = inner.kernel, inner.steps, inner.sizes
