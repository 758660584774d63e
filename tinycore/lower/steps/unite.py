"""Unite: the same threads of a group run loops of several nests, one after another.

Floor 3'. TVM binds such loops to one `threadIdx.x`. A thread then has the same index in each of
them, so elements that it loaded for one need not be loaded again for the next.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tinycore.lower.legality import Loops
from tinycore.lower.loops import Number, counter_of, text_of
from tinycore.lower.steps.bind import Bind
from tinycore.render.base import Limits
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import AxisKind


@dataclass(frozen=True)
class Unite:
    """Share loops as long as each other among the threads of a group, all of them alike."""

    axes: tuple[Number, ...]
    """The loops; that of the first counts for all."""

    def __str__(self) -> str:
        return f"unite({', '.join(map(text_of, self.axes))})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done."""
        first = counter_of(kernel, self.axes[0])
        thread = first.replace(arg=Axis(self.axes[0], AxisKind.GROUP))
        return kernel.substitute({counter_of(kernel, axis): thread for axis in self.axes})

    def objection(self, loops: Loops, limits: Limits) -> str | None:
        """Why the step must not be done; None when it may."""
        for axis in self.axes:
            if problem := Bind(axis, AxisKind.GROUP).objection(loops, limits):
                return problem
        counters = [loops.by_number[axis] for axis in self.axes]
        if len({c.extent for c in counters}) != 1 or len(set(counters)) < len(counters):
            return "they are not several loops that are as long"
        for one, other in itertools.permutations(counters, 2):
            if any(other in {*n.src[0].ranges, *n.src[1:]} for n in loops.closers(one)):
                return f"loop {text_of(one.number)} runs inside of another of them"
        return None
