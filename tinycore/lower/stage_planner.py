"""When staging pays, and how the loops that fill a stage run.

Floor 3'. Facts only: how often what is staged is read again, how large it is, and how its address
moves with each loop.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.lower.loops import Number
from tinycore.lower.planner import Planner
from tinycore.lower.stage import WITHIN, Dimension, Stage, nest_of, staged_values
from tinycore.lower.tile import Assign, Reorder, Split
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

LEAST_REUSE: Final = 4
"""How often an element must be read again for a copy to pay."""

STRIP_GROUPS: Final = 8
MOST_SCRATCH: Final = 2 << 20
"""Bytes of one stage, which lies on a stack."""


class StagePlanner(Planner):
    """Adds stages to a plan, and plans the loops that fill them."""

    def stage_panel(self, at: Number | None, panel: Dimension) -> bool:
        """Stage what the tiles below the loop `at` share, reduced loops outside and `panel` inside.

        Done where it is read often enough, and does not lie like that already. It is read from end
        to end, which goes at nearly full speed from a far cache, too.
        """
        most = min(2 * self.limits.cache_bytes, MOST_SCRATCH)
        return self.stage(Stage(at, (*self.depth(), panel, *self.paired())), most)

    def stage_rows(self, at: Number, groups: Number, rows: Number, scattered: bool) -> bool:
        """Stage what the rows below the loop `at` read: scattered ones as groups side by side.

        They are read as one long stream, so that they need not be in a near cache. Others stay
        below each other, and are just computed once for all columns.
        """
        group: tuple[Dimension, ...] = (((groups, 1),),)
        row: tuple[Dimension, ...] = (((rows, 1),),)
        inside = (*self.depth(), *row) if scattered else (*row, *self.depth())
        return self.stage(Stage(at, (*group, *inside, *self.paired())), MOST_SCRATCH)

    def depth(self) -> tuple[Dimension, ...]:
        """Every reduced loop as a dimension, but for steps of pairs."""
        plain = (r for r in self.facts.reduced if r.arg.kind is not AxisKind.PAIR)
        return tuple(((r.arg.number, 1),) for r in plain)

    def paired(self) -> tuple[Dimension, ...]:
        """The two steps of a pair as a dimension, if there are pairs."""
        inside = (r for r in self.facts.reduced if r.arg.kind is AxisKind.PAIR)
        return tuple(((r.arg.number, 1),) for r in inside)

    def stage(self, step: Stage, most_bytes: int) -> bool:
        """Add a Stage if it pays for all that it stages, and plan the loops that fill it."""
        if not step.axes <= {r.arg.number for r in self.facts.loops}:
            return False  # some loop has but one step
        values = staged_values(self.kernel, step)
        if not values or not all(self.pays(value, step, most_bytes) for value in values):
            return False
        first = sum(n.op is Op.DEFINE_LOCAL for n in self.kernel.toposort())
        self.do(step)
        for number in range(first, first + len(values)):
            self.plan_fill(number)
        return True

    def pays(self, value: UOp, step: Stage, most_bytes: int) -> bool:
        """Whether a copy of a value is worth its time and its place."""
        loops = {r.arg.number: r for r in value.ranges}
        size = math.prod(
            sum((loops[axis].extent - 1) * factor for axis, factor in dimension) + 1
            for dimension in step.dimensions
        )
        inside = self.inside(step.at)
        again = math.prod(r.extent for r in inside if r.arg.number not in step.axes)
        return (
            again >= LEAST_REUSE
            and size * value.dtype.itemsize <= most_bytes
            and not self.lies_like(value, step)
        )

    def inside(self, at: Number | None) -> list[UOp]:
        """The loops inside of the loop `at` in which no value is written out."""
        own = set(self.facts.nodes)
        plain = [r for r in nest_of(self.kernel) if r in own and r.arg.kind not in WITHIN]
        place = next((i for i, r in enumerate(plain) if r.arg.number == at), -1)
        return plain[place + 1 :]

    @staticmethod
    def lies_like(value: UOp, step: Stage) -> bool:
        """Whether a value is just loaded from memory in the layout of the stage."""
        if value.op is not Op.LOAD or len(value.src) > 1:
            return False
        loops = {r.arg.number: r for r in value.ranges}
        pitch = 1
        for dimension in reversed(step.dimensions):
            for axis, factor in dimension:
                if coefficient(value.src[0].src[1], loops[axis]) != pitch * factor:
                    return False
            pitch *= sum((loops[axis].extent - 1) * factor for axis, factor in dimension) + 1
        return True

    def plan_fill(self, number: int) -> None:
        """Vectors along the rows of a stage, loaded as vectors or by transposing squares."""
        lanes = self.limits.vector_bytes // self.array(number).dtype.itemsize
        loops = self.fill_loops(number)
        if self.paired():
            self.fill_pairs(loops, lanes // 2)
            return
        row = loops[-1].arg.number
        loads = [n for n in self.content(number).toposort() if n.op is Op.LOAD]
        if len(loops) > 2 and self.reach(loads, loops[0]) < self.reach(loads, loops[1]):
            self.fill_in_strips(loops)
            loops = self.fill_loops(number)
        across = [r for r in loops[:-1] if any(coefficient(n.src[0].src[1], r) == 1 for n in loads)]
        along = any(coefficient(n.src[0].src[1], loops[-1]) == 1 for n in loads)
        if loops[-1].extent < lanes or lanes < 2:
            return
        if loops[-1].extent > lanes:
            self.do(Split(row, lanes))
            vector, vectors = (*row, 1), [(*row, 0)]
        else:
            vector, vectors = row, []
        self.do(Assign(vector, AxisKind.VECTOR))
        if across and not along and across[-1].extent >= lanes:
            square = across[-1].arg.number
            self.do(Split(square, lanes), Assign((*square, 1), AxisKind.UNROLL))
            outer = [r.arg.number for r in loops[:-1] if r is not across[-1]]
            self.do(Reorder((*outer, (*square, 0), *vectors)))

    def fill_pairs(self, loops: list[UOp], lanes: int) -> None:
        """Vectors of pairs along the rows of a stage whose elements are pairs."""
        row, step = loops[-2:]
        if row.extent < lanes or lanes < 2:
            return
        number = row.arg.number
        if row.extent > lanes:
            self.do(Split(number, lanes))
            number = (*number, 1)
        self.do(Assign(number, AxisKind.VECTOR), Assign(step.arg.number, AxisKind.PAIR))

    def fill_in_strips(self, loops: list[UOp]) -> None:
        """Fill some groups at a time, so that whole lines are read and few are written at once."""
        groups = loops[0].arg.number
        self.do(Split(groups, min(STRIP_GROUPS, loops[0].extent)))
        self.do(Reorder(((*groups, 0), *(r.arg.number for r in loops[1:-1]), (*groups, 1))))

    @staticmethod
    def reach(loads: list[UOp], counter: UOp) -> int:
        """How far apart the steps of a loop read."""
        moves = [coefficient(n.src[0].src[1], counter) for n in loads]
        return max((abs(m) for m in moves if m is not None), default=0)

    def array(self, number: int) -> UOp:
        """The DEFINE_LOCAL of a stage."""
        nodes = self.kernel.toposort()
        return next(n for n in nodes if n.op is Op.DEFINE_LOCAL and n.arg == number)

    def fill_loops(self, number: int) -> list[UOp]:
        """The loops that fill a stage, outermost first."""
        return list(self.fill_of(number).src[1:])

    def content(self, number: int) -> UOp:
        """What a stage is filled with."""
        return self.fill_of(number).src[0].src[1]

    def fill_of(self, number: int) -> UOp:
        """The END of the loops that fill a stage."""
        array = self.array(number)
        after = next(n for n in self.kernel.toposort() if n.op is Op.AFTER and n.src[0] is array)
        return after.src[1]
