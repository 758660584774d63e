"""`Draft`: a plan under construction, with the kernel after its steps.

Floor 3'. The facts behind a decision are in `kernel_facts.py`. This file also has two preparations
of plans for loops: ordering the reduced loops, and fusing loops that access memory as one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from tinycore.dtype import dtypes
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number, arrays_of, stores_of
from tinycore.lower.tile import (
    Bind,
    Fuse,
    Reorder,
    Split,
    Step,
    Tail,
    apply_plan,
)
from tinycore.render.base import Limits, pointer_of
from tinycore.uop.affine import coefficient, digit_size
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, COMPOUND, AxisKind, Op


@dataclass(frozen=True)
class Nest:
    """The nest of loops to plan, of a kernel with several that share loops over strips of rows."""

    written: frozenset[UOp]
    """Memory that the nest writes."""
    others: frozenset[UOp]
    """Memory that the other nests write."""
    around: tuple[Number, ...]
    """The loops over strips, outermost first."""
    threads: int
    """Threads that the loops around are shared among."""

    def statements(self, statement: UOp) -> Iterator[UOp]:
        """The outermost statements that write to nothing but the memory of the nest."""
        written = {pointer_of(n.src[0]) for n in stores_of(statement)}
        if written <= self.written:
            yield statement
        elif statement.op in COMPOUND:
            for inner in statement.src if statement.op is not Op.END else statement.src[:1]:
                yield from self.statements(inner)


@dataclass
class Draft:
    """Builds a plan step by step, on the kernel as the steps so far have made it."""

    kernel: UOp
    limits: Limits
    steps: list[Step] = field(default_factory=list)
    nest: Nest | None = None
    """The part of the kernel to plan; None: all of it."""
    known: KernelFacts | None = None
    """The facts of the present kernel, once computed."""
    asked: Mapping[str, int] = field(default_factory=dict)
    """Sizes that a search has chosen, by name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that the steps so far depend on."""

    @property
    def facts(self) -> KernelFacts:
        """The access table of the part to plan, after the steps so far."""
        if self.known is None or self.known.kernel is not self.kernel:
            nest, kernel, varies = self.nest, self.kernel, self.limits.loops_vary
            self.known = (
                KernelFacts(kernel, (kernel,), varies=varies)
                if nest is None
                else KernelFacts(kernel, tuple(nest.statements(kernel)), nest.others, varies)
            )
        return self.known

    @property
    def around(self) -> tuple[Number, ...]:
        """The loops over strips of rows around the part to plan, outermost first."""
        return () if self.nest is None else self.nest.around

    def do(self, *steps: Step) -> None:
        """Add steps to the plan. Raises ArgumentError for one that cannot be done."""
        self.kernel = apply_plan(self.kernel, steps)
        self.steps += steps

    def size(self, name: str, own: int, most: int = 1 << 30, least: int = 1) -> int:
        """A size that a plan depends on: the planner's own, or what a search has chosen.

        A search varies each of them: whatever is worth trying is asked for here.
        """
        name = f"{name} {sum(known.startswith(name) for known in self.sizes)}"
        self.sizes[name] = found = max(min(self.asked.get(name, own), most), least)
        return found

    def present(self, *axes: Number) -> tuple[Number, ...]:
        """Numbers of the loops that exist: a split leaves none where one step remains."""
        numbers = {n.number for n in self.kernel.every(Op.RANGE)}
        return tuple([axis for axis in axes if axis in numbers])

    def cut(
        self,
        number: Number,
        by: int,
        kind: AxisKind,
        tail: Tail = Tail.AUTO,
        around: AxisKind | None = None,
    ) -> Number:
        """Split a loop into blocks whose steps are of a kind (strip-mining); the loop over blocks,
        which is of the kind `around`, or stays as it is."""
        outer = () if around is None else (Bind((*number, 0), around),)
        self.do(Split(number, by, tail), *outer, Bind((*number, 1), kind))
        return (*number, 0)

    def stage(self, step: Step) -> range:
        """Stage operands; the numbers of their arrays. Raises ArgumentError if there are none."""
        first = len(arrays_of(self.kernel))
        self.do(step)
        return range(first, len(arrays_of(self.kernel)))

    def launch(self) -> None:
        """A group for each step of what can be launched."""
        self.do(*(Bind(counter.number, AxisKind.GRID) for counter in self.facts.launchable))

    def copy(self) -> Draft:
        """A draft to try steps on."""
        return replace(self, steps=list(self.steps), sizes=dict(self.sizes))

    def become(self, other: Draft) -> None:
        """Adopt the steps of a copy."""
        self.kernel, self.steps, self.known = other.kernel, other.steps, other.known
        self.sizes = other.sizes

    @cached_property
    def work(self) -> int:
        """Loads, stores and arithmetic of the whole kernel, roughly."""
        return self.facts.work

    def lanes(self) -> int:
        """Lanes of a vector register for the widest values loaded or computed."""
        return self.limits.vector_bytes // self.facts.itemsize


PROPOSAL: Final = "proposal"
"""The name of the size that is the rank by cost of a proposal; the cheapest is 0."""
UNROLLED: Final = 4
"""Steps of a longer loop that are unrolled, whose loads are under way at once."""


def order_reductions(draft: Draft) -> None:
    """Order reduced loops by the strides of their loads, the longest outside.

    So windows run inside of channels, and elements that neighboring windows share are soon read
    again. The order stays if two operands want different ones.
    """
    for nest in dict.fromkeys(n.src[1:] for n in draft.facts.reductions):
        facts = draft.facts
        far = {r: [abs(facts.stride(n, r) or 0) for n in facts.loads] for r in nest}
        order = sorted(nest, key=lambda r: -max(far[r], default=0))
        moves = ((far[a], far[b]) for a, b in itertools.pairwise(order))
        # An operand that stands still along the outer loop does not mind.
        falls = all(b <= a or a == 0 for both in moves for a, b in zip(*both, strict=True))
        if order != [*nest] and falls and all(r.is_fixed for r in nest):
            draft.do(Reorder(tuple(r.number for r in order)))


def fuse_loops(draft: Draft) -> None:
    """Join neighboring loops that every address sees as one."""
    while (pair := next(fusible(draft), None)) is not None:
        draft.do(Fuse(pair[0].number, pair[1].number))


def split_digits(draft: Draft) -> bool:
    """Split output loops that all addresses divide by one size, such as heads and their features.

    An address has a stride along each of the two loops, but none along the loop before the split.
    True if there are any.
    """
    loops = [r for r in draft.facts.launchable if r.is_fixed]
    sizes = {r.number: digit_size(r, draft.facts.nodes) for r in loops}
    steps = [Split(number, size) for number, size in sizes.items() if size is not None]
    draft.do(*steps)
    return bool(steps)


def fusible(draft: Draft) -> Iterator[tuple[UOp, UOp]]:
    """Neighbors (outer, inner) where addresses move by a whole inner loop per outer step."""
    nodes = draft.facts.nodes
    nests = {tuple(n.src[1:]) for n in nodes if n.op in CLOSERS}
    for nest in sorted(nests, key=lambda nest: [r.number for r in nest]):
        for outer, inner in itertools.pairwise(nest):
            if outer.is_fixed and inner.is_fixed and are_one_loop(nodes, outer, inner):
                yield outer, inner


def are_one_loop(nodes: list[UOp], outer: UOp, inner: UOp) -> bool:
    """True if the counters occur only in addresses, always as outer * extent + inner."""
    size = inner.extent
    for node in nodes:
        for position, source in enumerate(node.src):
            if source.dtype is not dtypes.index or not source.ranges & {outer, inner}:
                continue
            if node.op in CLOSERS or node.dtype is dtypes.index:
                continue
            a, b = coefficient(source, outer), coefficient(source, inner)
            if node.op is not Op.INDEX or position != 1 or a is None or b is None or a != b * size:
                return False
    return True


def unroll_loop(draft: Draft, loop: UOp, most: int) -> None:
    """Unroll a loop of at most so many steps, or a few steps of a longer one."""
    if loop.extent <= most:
        draft.do(Bind(loop.number, AxisKind.UNROLL))
    elif loop.extent % (times := draft.size("unrolled", UNROLLED)) == 0 and times > 1:
        draft.cut(loop.number, times, AxisKind.UNROLL)


def unroll_sums(draft: Draft) -> None:
    """Unroll a few steps of the innermost loop of a sum."""
    for loop in draft.facts.innermost:
        if loop.kind is AxisKind.REDUCE and loop.is_fixed:
            unroll_loop(draft, loop, UNROLLED)
