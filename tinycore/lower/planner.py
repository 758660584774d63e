"""A plan in the making: its steps so far, and what the kernel looks like after them.

Floor 3'. What planners decide by is asked of `facts.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tinycore.dtype import dtypes
from tinycore.lower.facts import KernelFacts
from tinycore.lower.tile import Merge, Reorder, Step, apply_plan
from tinycore.render.base import Limits
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, Op

SERIAL_WORK: Final = 200_000
"""Operations below which waking other threads costs more than it saves."""


@dataclass
class Planner:
    """Builds a plan step by step, looking at the kernel as the steps so far have made it."""

    kernel: UOp
    limits: Limits
    steps: list[Step] = field(default_factory=list)
    seen: KernelFacts | None = None
    """The facts that were asked for last."""

    @property
    def facts(self) -> KernelFacts:
        """The access table of the kernel as the steps so far have made it."""
        if self.seen is None or self.seen.kernel is not self.kernel:
            self.seen = self.found()
        return self.seen

    def found(self) -> KernelFacts:
        """The facts of what is planned: the whole kernel."""
        return KernelFacts(self.kernel, (self.kernel,))

    def do(self, *steps: Step) -> None:
        """Add steps to the plan."""
        self.kernel = apply_plan(self.kernel, steps)
        self.steps += steps

    def undo(self, kernel: UOp, steps: int) -> None:
        """Take back what was done after so many steps, when the kernel looked like this."""
        self.kernel = kernel
        del self.steps[steps:]

    # --- the order of sums

    def order_sums(self) -> None:
        """Put reduced loops in the order in which what they read lies, the longest moves outside.

        So windows are inside of channels: what neighboring windows share is read again at once.
        Left as they are where two operands want different orders.
        """
        for nest in dict.fromkeys(n.src[1:] for n in self.facts.reductions):
            members = (n for n in self.facts.reductions if n.src[1:] == nest)
            places = {n.src[1] for m in members for n in self.facts.below(m) if n.op is Op.INDEX}
            moves = {r: [coefficient(place, r) for place in places] for r in nest if r.is_fixed}
            if len(moves) < len(nest) or any(m is None for found in moves.values() for m in found):
                continue
            far = {r: [abs(m or 0) for m in found] for r, found in moves.items()}
            order = sorted(nest, key=lambda r: -max(far[r], default=0))
            falls = (
                all(b <= a or a == 0 for a, b in zip(far[outer], far[inner], strict=True))
                for outer, inner in itertools.combinations(order, 2)
            )
            if order != [*nest] and all(falls):
                self.do(Reorder(tuple(r.arg.number for r in order)))

    # --- loops that are one

    def merge_loops(self) -> None:
        """Join neighboring loops that every address sees as one."""
        while (pair := next(self.mergeable(), None)) is not None:
            self.do(Merge(pair[0].arg.number, pair[1].arg.number))

    def mergeable(self) -> Iterator[tuple[UOp, UOp]]:
        """Neighbors (outer, inner) where addresses move by a whole inner loop per outer step."""
        nests = {tuple(n.src[1:]) for n in self.facts.nodes if n.op in CLOSERS}
        values = [n for n in self.facts.nodes if n.op is not Op.RANGE]
        for nest in sorted(nests, key=lambda nest: [r.arg.number for r in nest]):
            for outer, inner in itertools.pairwise(nest):
                if outer.is_fixed and inner.is_fixed and self.seen_as_one(values, outer, inner):
                    yield outer, inner

    @staticmethod
    def seen_as_one(nodes: list[UOp], outer: UOp, inner: UOp) -> bool:
        """Whether the counters occur only in addresses, always as outer * extent + inner."""
        size = inner.extent
        for node in nodes:
            for position, source in enumerate(node.src):
                if source.dtype is not dtypes.index or not source.ranges & {outer, inner}:
                    continue
                if node.op in CLOSERS or node.dtype is dtypes.index:
                    continue
                a, b = coefficient(source, outer), coefficient(source, inner)
                if (
                    node.op is not Op.INDEX
                    or position != 1
                    or a is None
                    or b is None
                    or a != b * size
                ):
                    return False
        return True

    # --- facts

    def lanes(self) -> int:
        """How many of the widest values loaded or computed fit in a vector register."""
        return self.limits.vector_bytes // self.facts.itemsize

    @cached_property
    def work(self) -> int:
        """Loads, stores and arithmetic of the whole kernel, roughly."""
        return self.facts.work
