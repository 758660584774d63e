"""Fuse: two loops become one, as in Halide and TVM; OpenMP calls it collapse.

Floor 3'.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tinycore.lower.legality import Loops
from tinycore.lower.loops import Number, closer_of, closing, counter_of, substitute_once, text_of
from tinycore.lower.steps.bind import COPYING
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify


@dataclass(frozen=True)
class Fuse:
    """Fuse two loops, the inner right inside the outer, to one; it keeps the number of `outer`."""

    outer: Number
    inner: Number

    def __str__(self) -> str:
        return f"fuse({text_of(self.outer, self.inner)})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with one counter in place of `outer * extent(inner) + inner`."""
        outer, inner = counter_of(kernel, self.outer), counter_of(kernel, self.inner)
        size = inner.extent
        fused = UOp.range(outer.extent * size, self.outer, outer.arg.kind)
        exchange: dict[UOp, tuple[UOp, ...]] = {outer: (fused,), inner: ()}
        swapped = {c: closing(c, exchange) for c in closer_of(kernel, outer)}
        kernel = substitute_once(kernel, swapped)
        kernel = kernel.substitute({outer: fused // size, inner: fused % size})
        return rewrite(kernel, simplify, name="simplify fused loops")

    def objection(self, loops: Loops, limits: Limits) -> str | None:
        """Why the step is illegal; None if it is legal."""
        if problem := loops.undecided(self.outer) or loops.undecided(self.inner):
            return problem
        a, b = loops.by_number[self.outer], loops.by_number[self.inner]
        closers = loops.closers(a)
        if a.arg.kind is not b.arg.kind or closers != loops.closers(b):
            return "the loops are not closed together"
        for closer in closers:  # loops of copies and lanes have no place in the order
            order = [r for r in closer.src[1:] if r.arg.kind not in COPYING]
            if (a, b) not in itertools.pairwise(order):
                return "the loops are not neighbors"
        return None
