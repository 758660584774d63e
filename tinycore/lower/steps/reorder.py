"""Reorder: permute loops (loop interchange).

Floor 3'.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinycore.lower.legality import Loops
from tinycore.lower.loops import Number, loops_of, substitute_once, text_of, values_of
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, AxisKind, Op


@dataclass(frozen=True)
class Reorder:
    """Put loops in this order, outermost first. Loops not named keep their place inside."""

    axes: tuple[Number, ...]

    def __str__(self) -> str:
        return f"reorder({text_of(*self.axes)})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done, to everything that closes one of the loops."""
        replacements = {}
        for closer in kernel.toposort():
            if closer.op in CLOSERS:
                loops = loops_of(closer)
                by_number = {r.number: r for r in loops}
                front = [by_number[a] for a in self.axes if a in by_number]
                back = [r for r in loops if r not in front]
                replacements[closer] = closer.with_src((*values_of(closer), *front, *back))
        return substitute_once(kernel, replacements)

    def objection(self, loops: Loops, limits: Limits) -> str | None:
        """Why the step is illegal; None if it is legal."""
        axes = self.axes
        if missing := [a for a in axes if a not in loops.by_number]:
            return f"there is no loop {missing[0]}"
        for end in (n for n in loops.nodes if n.op is Op.END):
            before = [r.arg for r in end.src[1:]]
            named = [loops.by_number[a].arg for a in axes if loops.by_number[a] in end.src[1:]]
            after = [*named, *(a for a in before if a not in named)]
            if before == after:
                continue
            if any(a.kind is AxisKind.ORDERED for a in before):
                return "its steps happen in order"
            if before[0].kind is AxisKind.PARALLEL and after[0] != before[0]:
                return "the loop that threads share stays outermost"
        return None
