"""Reorder: permute loops (loop interchange).

Floor 3'.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinycore.errors import ArgumentError
from tinycore.lower.loops import Number, loops_of, text_of, values_of
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, AxisKind
from tinycore.uop.rewrite import rebuilt


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
