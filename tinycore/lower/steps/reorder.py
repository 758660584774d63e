"""Reorder: permute loops (loop interchange).

Floor 3'.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinycore.errors import ArgumentError
from tinycore.lower.loops import Number, loops_of, substitute_once, text_of, values_of
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, AxisKind


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
        replacements = {}
        for closer in kernel.toposort():
            if closer.op in CLOSERS:
                loops = loops_of(closer)
                by_number = {r.number: r for r in loops}
                front = [by_number[a] for a in self.axes if a in by_number]
                back = [r for r in loops if r not in front]
                if (*front, *back) != loops and any(r.kind is AxisKind.ORDERED for r in loops):
                    raise ArgumentError(f"{self} changes the order of steps that happen in order")
                replacements[closer] = closer.with_src((*values_of(closer), *front, *back))
        return substitute_once(kernel, replacements)
