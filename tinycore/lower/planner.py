"""A plan in the making: its steps so far, and what the kernel looks like after them.

Floor 3'. Facts that `heuristic.py` decides by: loops, accesses, lanes, work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tinycore.dtype import dtypes
from tinycore.lower.tile import Merge, Reorder, Step, apply_plan, overwrites_what_it_reads
from tinycore.render.base import Limits
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, CLOSERS, COMPOUND, RECURRENCES, AxisKind, Op

SERIAL_WORK: Final = 200_000
"""Operations below which waking other threads costs more than it saves."""

WORK: Final = ALU | {Op.DOT, Op.LOAD, Op.STORE}
"""Ops that take time, but for those of addresses."""


@dataclass
class Planner:
    """Builds a plan step by step, looking at the kernel as the steps so far have made it."""

    kernel: UOp
    limits: Limits
    steps: list[Step] = field(default_factory=list)
    seen: tuple[UOp, list[UOp]] | None = None
    """The kernel whose nodes were last looked at, and these."""

    def do(self, *steps: Step) -> None:
        """Add steps to the plan."""
        self.kernel = apply_plan(self.kernel, steps)
        self.steps += steps

    def undo(self, kernel: UOp, steps: int) -> None:
        """Take back what was done after so many steps, when the kernel looked like this."""
        self.kernel = kernel
        del self.steps[steps:]

    @property
    def roots(self) -> tuple[UOp, ...]:
        """What is planned: the whole kernel."""
        return (self.kernel,)

    def below(self, root: UOp) -> list[UOp]:
        """A node of what is planned and all below it, sources first."""
        return root.toposort()

    def nodes(self) -> list[UOp]:
        """All nodes of what is planned, sources first."""
        if self.seen is None or self.seen[0] is not self.kernel:
            self.seen = self.kernel, self.below(UOp.sink(*self.roots))
        return self.seen[1]

    @property
    def outputs(self) -> list[UOp]:
        """The loops over outputs whose steps may happen in any order, outermost first.

        Loops of which only a launch knows the length stay as they are, and are not among them.
        """
        whole = UOp.sink(*self.roots)
        below = whole.toposort(lambda n: n.op in COMPOUND)
        ends = [n for n in below if n.op is Op.END]
        loops = [r for n in ends for r in n.src[1:] if r.is_fixed]
        return [r for r in loops if r.arg.kind is not AxisKind.ORDERED]

    @property
    def overwrites(self) -> bool:
        """Whether memory that is stored to is loaded, too: then no step may be done twice."""
        return any(map(overwrites_what_it_reads, self.roots))

    @property
    def reductions(self) -> list[UOp]:
        """The REDUCE nodes."""
        return [n for n in self.nodes() if n.op is Op.REDUCE]

    @property
    def has_scan(self) -> bool:
        """Whether values of a loop's steps are folded one after the other."""
        return any(n.op in (Op.SCAN, Op.RECUR) for n in self.nodes())

    @property
    def has_recurrence(self) -> bool:
        """Whether what a step gives decides what the next one reads: lanes would go apart."""
        return any(n.op in RECURRENCES for n in self.nodes())

    def accesses(self) -> list[UOp]:
        """Every INDEX: what is loaded and stored."""
        return [n for n in self.nodes() if n.op is Op.INDEX]

    def loads(self) -> set[UOp]:
        """The places that sums read."""
        return {n for r in self.reductions for n in self.below(r) if n.op is Op.INDEX}

    # --- the order of sums

    def order_sums(self) -> None:
        """Put reduced loops in the order in which what they read lies, the longest moves outside.

        So windows are inside of channels: what neighboring windows share is read again at once.
        Left as they are where two operands want different orders.
        """
        for nest in dict.fromkeys(n.src[1:] for n in self.reductions):
            members = (n for n in self.reductions if n.src[1:] == nest)
            places = {n.src[1] for m in members for n in self.below(m) if n.op is Op.INDEX}
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
        nests = {tuple(n.src[1:]) for n in self.nodes() if n.op in CLOSERS}
        values = [n for n in self.nodes() if n.op is not Op.RANGE]
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
        return self.limits.vector_bytes // self.itemsize()

    def itemsize(self) -> int:
        """The bytes of the widest value loaded or computed."""
        values = [n.src[1] if n.op is Op.STORE else n for n in self.nodes()]
        plain = ("index", "bool", "void")
        sizes = [
            n.dtype.itemsize
            for n in values
            if (n.op in ALU or n.op in (Op.LOAD, Op.CONST)) and n.dtype.kind not in plain
        ]
        return max([*sizes, 1])

    def reduced(self) -> list[UOp]:
        """The loops of fixed length over what is reduced, each once."""
        loops = [r for n in self.reductions for r in n.src[1:] if r.op is Op.RANGE]
        return list(dict.fromkeys(r for r in loops if r.is_fixed))

    @property
    def is_fixed(self) -> bool:
        """Whether all loops are of fixed length; only then operands are kept and staged."""
        return all(n.is_fixed for n in self.kernel.toposort() if n.op is Op.RANGE)

    def are_side_by_side(self, sums: list[UOp]) -> bool:
        """Whether sums are over the same loops, and none is of another."""
        inner = {n for total in sums for n in total.toposort() if n is not total}
        return inner.isdisjoint(sums) and len({total.src[1:] for total in sums}) == 1

    def all_of(self, kind: AxisKind) -> list[UOp]:
        """Every loop of a kind."""
        return [n for n in self.nodes() if n.op is Op.RANGE and n.arg.kind is kind]

    @cached_property
    def work(self) -> int:
        """Loads, stores and arithmetic of the whole kernel, roughly."""
        return work_of(self.nodes())


def work_of(nodes: Iterable[UOp]) -> int:
    """Loads, stores and arithmetic of some nodes in all steps of their loops, roughly."""
    return sum(
        math.prod(r.extent for r in n.ranges)
        for n in nodes
        if n.dtype is not dtypes.index and n.op in WORK
    )
