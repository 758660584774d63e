"""Bind, Unite, Reorder: what runs the steps of loops, and the order of the loops.

Floor 3'. Bind maps a loop to vector lanes, copies, threads or the grid (TVM's vectorize, unroll,
bind). Unite has the same threads of a group run loops of several nests, one after another, as TVM
binds such loops to one `threadIdx.x`: a thread then has the same index in each of them, so elements
that it loaded for one need not be loaded again for the next. Reorder permutes loops (loop
interchange).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.expand import WRITTEN_OUT
from tinycore.lower.loops import PLAIN_KINDS, Number, counter_of, loops_of, text_of, values_of
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import CLOSERS, AxisKind
from tinycore.uop.rewrite import rebuilt

COPYING: Final = (*WRITTEN_OUT, AxisKind.VECTOR)
"""Kinds of loops that become copies of their body, or lanes."""


@dataclass(frozen=True)
class Bind:
    """Give a loop its kind: unrolled, lanes of a vector, shared among threads, ..."""

    axis: Number
    kind: AxisKind

    def __str__(self) -> str:
        return f"{self.kind.value}({text_of(self.axis)})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError for a loop that is bound already, or
        whose steps happen in order, and for copies or threads of a number known at launch only."""
        counter = counter_of(kernel, self.axis)
        if counter.kind not in PLAIN_KINDS:
            raise ArgumentError(f"{self}: the loop is {counter.kind.value} already")
        if not counter.is_fixed and self.kind not in (AxisKind.GRID, AxisKind.PARALLEL):
            raise ArgumentError(f"{self}: how often the loop runs is known at launch only")
        return kernel.substitute({counter: counter.replace(arg=Axis(self.axis, self.kind))})


@dataclass(frozen=True)
class Unite:
    """Share loops as long as each other among the threads of a group, all of them alike."""

    axes: tuple[Number, ...]
    """The loops; that of the first counts for all."""

    def __str__(self) -> str:
        return f"unite({', '.join(map(text_of, self.axes))})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError for loops of different or symbolic
        lengths, those that are bound already, and those of which one is inside of another.
        """
        loops = {counter_of(kernel, axis) for axis in self.axes}
        is_plain = all(loop.is_fixed and loop.kind in PLAIN_KINDS for loop in loops)
        is_nested = any(len(loops & {*n.ranges, *n.src}) > 1 for n in kernel.toposort())
        if len({loop.src for loop in loops}) > 1 or not is_plain or is_nested:
            raise ArgumentError(f"{self}: the loops are not as long as each other, free and apart")
        thread = counter_of(kernel, self.axes[0]).replace(arg=Axis(self.axes[0], AxisKind.GROUP))
        return kernel.substitute(dict.fromkeys(loops, thread))


@dataclass(frozen=True)
class Reorder:
    """Put loops in this order, outermost first. Loops not named keep their place inside."""

    axes: tuple[Number, ...]

    def __str__(self) -> str:
        return f"reorder({text_of(*self.axes)})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done, to everything that closes one of the loops.

        Raises ArgumentError for loops whose steps happen in order.
        """

        def change(old: UOp, new: UOp) -> UOp:
            if old.op not in CLOSERS:
                return new
            loops = loops_of(new)
            by_number = {r.number: r for r in loops}
            front = [by_number[a] for a in self.axes if a in by_number]
            back = [r for r in loops if r not in front]
            if (*front, *back) != loops and any(r.kind is AxisKind.ORDERED for r in loops):
                raise ArgumentError(f"{self} changes the order of steps that happen in order")
            return new.with_src((*values_of(new), *front, *back))

        return rebuilt(kernel, change)
