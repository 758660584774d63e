"""A plan for a kernel of several nests, which go through the same rows strip by strip.

Floor 3'. Each nest is planned like a kernel of its own, inside of the loops over strips; these are
then shared among threads. `schedule/row_fusion.py` makes such kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tinycore.lower.facts import KernelFacts
from tinycore.lower.heuristic import LoopPlanner
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.stage import Dimension, Stage
from tinycore.lower.stage_planner import MOST_SCRATCH
from tinycore.lower.tile import Plan, stores_of
from tinycore.lower.tile_planner import LEAST_CHUNKS
from tinycore.render.base import Limits, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import COMPOUND, Op


@dataclass
class NestPlanner(LoopPlanner):
    """Plans one nest: the loops that write some memory, and no others."""

    written: frozenset[UOp] = frozenset()
    """What the nest writes."""
    others: frozenset[UOp] = frozenset()
    """What the other nests write."""
    around: tuple[Number, ...] = field(default=())
    """The loops over strips, outermost first."""
    sharers: int = 1
    """Threads that the loops around are shared among."""

    def found(self) -> KernelFacts:
        """The facts of the nest: its loops, in however many parts they are by now."""
        return KernelFacts(self.kernel, tuple(self.parts(self.kernel)), self.others)

    def parts(self, statement: UOp) -> Iterator[UOp]:
        """The outermost statements that write to nothing but the memory of the nest."""
        written = {pointer_of(n.src[0]) for n in stores_of(statement)}
        if written <= self.written:
            yield statement
        elif statement.op in COMPOUND:
            for inner in statement.src if statement.op is not Op.END else statement.src[:1]:
                yield from self.parts(inner)

    def stage_panel(self, at: Number | None, panel: Dimension) -> bool:
        """Stage all panels before the first strip, where that leaves enough to share."""
        outer = self.around[:-1]
        steps = math.prod(counter_of(self.kernel, axis).extent for axis in outer)
        if outer and at is not None and steps >= self.sharers * LEAST_CHUNKS:
            every = Stage(outer[-1], (((at, 1),), *self.depth(), panel, *self.paired()))
            if self.stage(every, MOST_SCRATCH):
                return True
        return super().stage_panel(at, panel)

    def loop_before(self, axis: Number) -> Number | None:
        """The loop right around another, the innermost over strips around the outermost."""
        return super().loop_before(axis) or (self.around[-1] if self.around else None)


def nests_of(kernel: UOp) -> list[frozenset[UOp]]:
    """What each nest of a kernel writes, in the order of the nests; one for a kernel of one."""
    whole = kernel.src[0]
    body = whole.src[0] if whole.op is Op.END else whole
    if len(kernel.src) > 1 or body.op is not Op.GROUP:
        return [frozenset()]
    awaited = {s for n in kernel.toposort() if n.op is Op.AFTER for s in n.src[1:]}
    if awaited.isdisjoint(body.src) and not all(n.op is Op.END for n in body.src):
        return [frozenset()]
    return [frozenset(pointer_of(n.src[0]) for n in stores_of(nest)) for nest in body.src]


def plan_nests(kernel: UOp, limits: Limits) -> tuple[Plan, UOp]:
    """A plan for each nest in turn, then for the loops over strips, and the kernel with it done."""
    nests = nests_of(kernel)
    every = frozenset().union(*nests)
    (whole,) = kernel.src
    around = tuple(r.arg.number for r in whole.src[1:]) if whole.op is Op.END else ()
    steps: Plan = ()
    for written in nests:
        alone, others = replace(limits, threads=1), every - written
        planner = NestPlanner(kernel, alone, [], None, written, others, around, limits.threads)
        planner.order_sums()
        planner.merge_loops()
        planner.plan_loops()
        kernel, steps = planner.kernel, (*steps, *planner.steps)
    outer = LoopPlanner(kernel, limits)
    outer.share_among_threads()
    return (*steps, *outer.steps), outer.kernel
