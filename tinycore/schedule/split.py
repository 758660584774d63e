"""Split a reduction: into parts and what they give, or into the sums of products that it adds.

Floor 3. There are three reasons. Where there are few results, all threads can work on the parts:
sum over n of a vector becomes a sum of c partial sums. Where sums of products read each element
many times, what a part reads is little enough to stay in near memory until it is read again. And
products that are added before they are summed, as the slopes of what several layers read, are
better done one by one.
See docs/decisions/0043-long-sums.md and docs/decisions/0047-sums-of-products.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tinycore.schedule.fuse import is_leaf
from tinycore.schedule.kernel import numel
from tinycore.schedule.target import limits_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import Size

LONG_REDUCTION: Final = 1 << 15
FEW_RESULTS: Final = 64
"""Results that are too few to share among threads."""
FEW_COLUMNS: Final = 256
"""Results beside each other that a thread should have, as it goes through memory row by row."""
MOST_PARTS: Final = 512
ENOUGH_PARTS: Final = 16
"""How many an outer axis must give to be cut in place of a longer one inside of it."""

LONG_PRODUCT: Final = 1 << 13
"""Terms of a sum whose operands are read again and again, from which on it is cut."""
SHORTEST_PART: Final = 1 << 10
LEAST_AGAIN: Final = 8
"""In how many terms each element is where operands are read again and again."""
SMALLER: Final = 4
"""How many times fewer the partial results are than what is read."""
LEAST_TERMS: Final = 1 << 6
"""Terms of a sum from which on passing through memory takes little of the time it saves."""
LEAST_PRODUCT: Final = 1 << 20
"""Terms of all sums of a product from which on one more kernel pays."""

IsMemory = Callable[[UOp], bool]


def split_reductions(node: UOp, is_memory: IsMemory) -> tuple[UOp, list[UOp]]:
    """`node` with its long reductions made shorter, and the partial results it then reads."""
    replacements: dict[UOp, UOp] = {}
    partial: list[UOp] = []
    whole: list[Reduction] = []

    def is_computed(n: UOp) -> bool:
        return n is node or not is_memory(n)

    for n in node.toposort(is_computed):
        if n.op is not Op.REDUCE_AXIS or (n is not node and is_memory(n)):
            continue
        reduction = Reduction(n, is_memory)
        if sums := reduction.sums:
            *before, replacements[n] = itertools.accumulate(sums)
            partial += before
        elif (parts := reduction.parts) > 1:
            inner = reduction.partial(parts)
            replacements[n] = reduction.whole(parts, inner)
            partial.append(inner)
        elif reduction.is_product:
            whole.append(reduction)
    partial += shorter_products(whole)
    return node.substitute(replacements, is_computed) if replacements else node, partial


def shorter_products(found: list[Reduction]) -> list[UOp]:
    """Of products beside each other, those whose sums are not as long as the longest.

    Each would have loops of its own in one kernel, where no plan suits both.
    """
    if any(a.node in b.below for a in found for b in found):
        return []
    longest = max((r.length for r in found), default=0)
    return [r.node for r in found if r.length < longest]


@dataclass(frozen=True)
class Reduction:
    """One REDUCE_AXIS, asked whether to cut one of its axes in parts."""

    node: UOp
    is_memory: IsMemory

    @property
    def source(self) -> UOp:
        """What is reduced."""
        return self.node.src[0]

    @cached_property
    def sizes(self) -> dict[int, int]:
        """The reduced axes of fixed size."""
        shape = self.source.shape
        return {a: shape[a] for a in self.node.arg[1] if not isinstance(shape[a], Size)}

    @cached_property
    def length(self) -> int:
        """How many terms each result has."""
        return math.prod(self.sizes.values())

    @cached_property
    def below(self) -> list[UOp]:
        """What is computed for it, and the memory that is read."""
        node, is_memory = self.node, self.is_memory
        below = node.toposort(lambda n: n is node or not (is_leaf(n) or is_memory(n)))
        return [n for n in below if n is not node and n.shape_or_none is not None]

    @cached_property
    def read(self) -> list[int]:
        """How many elements each memory holds that is read."""
        memory = (n for n in self.below if n.op is not Op.CONST)
        return [numel(n) for n in memory if self.is_read(n)]

    @cached_property
    def reads_again(self) -> bool:
        """Whether each element is in many terms, as in a product of matrices.

        Not where that is so because windows overlap: they share what is near already.
        """
        return self.has_shared_operands and not any(n.op is Op.SKEW for n in self.below)

    @cached_property
    def has_shared_operands(self) -> bool:
        """Whether each element is in many terms, for whatever reason."""
        return 0 < max(self.read, default=0) * LEAST_AGAIN <= self.work

    @cached_property
    def work(self) -> int:
        """How many terms all results have together."""
        return numel(self.node) * self.length

    @cached_property
    def is_product(self) -> bool:
        """Whether it is a sum of products that one more kernel is nothing to."""
        enough = self.length >= LEAST_TERMS and self.work >= LEAST_PRODUCT
        return self.node.arg[0] is Op.ADD and enough and self.has_shared_operands

    @cached_property
    def goes_down_columns(self) -> bool:
        """Whether neighboring terms lie apart in the largest memory that is read."""
        pitches = self.pitches(max(self.sizes))
        return bool(pitches) and pitches[max(pitches, key=numel)] > 1

    def pitches(self, axis: int) -> dict[UOp, int]:
        """How far apart the steps of an axis lie in what is read, as far as that is plain."""
        found: dict[UOp, int] = {}
        seen = {(self.source, axis)}
        stack = [(self.source, axis)]
        while stack:
            node, at = stack.pop()
            if self.is_read(node) or (node.op is Op.RESHAPE and self.is_read(node.src[0])):
                found[node] = math.prod(node.shape[at + 1 :])
                continue
            below = [(s, axis_below(node, at, s)) for s in node.src]
            stack += [(s, a) for s, a in below if a is not None and (s, a) not in seen]
            seen.update(stack)
        return found

    def is_read(self, node: UOp) -> bool:
        """Whether a node is memory."""
        return is_leaf(node) or self.is_memory(node)

    @cached_property
    def most_parts(self) -> int:
        """How many parts are worth it; 1 where the reduction is fine as it is."""
        results, limits = numel(self.node), limits_of(self.node.device)
        room = (sum(self.read) or results * self.length) // (results * SMALLER)
        by_column = limits.grid is None and self.goes_down_columns
        few = max(FEW_COLUMNS * limits.threads - 1, FEW_RESULTS) if by_column else FEW_RESULTS
        if self.length >= LONG_REDUCTION and results <= few:
            return min(room, MOST_PARTS)
        if limits.grid is not None or not self.reads_again:
            return 1
        return min(room, MOST_PARTS, self.length // SHORTEST_PART)

    @cached_property
    def axis(self) -> int:
        """The axis to cut: the outermost that has enough steps, or else the longest."""
        enough = (a for a, n in self.sizes.items() if n >= min(self.most_parts, ENOUGH_PARTS))
        return next(enough, max(self.sizes, key=self.sizes.__getitem__))

    @cached_property
    def parts(self) -> int:
        """Into how many parts to cut the axis: so many that the least is left over.

        Of equals more for few results, for threads; fewer for products, which are short enough.
        """
        if self.length < LONG_PRODUCT or self.most_parts < 2:
            return 1
        size = self.sizes[self.axis]
        most, more = min(self.most_parts, size), 1 if self.reads_again else -1
        some = range(max(most // 2, 2), most + 1)
        return min(some, key=lambda n: (size % n, more * n), default=1)

    # --- the sums of products

    @cached_property
    def sums(self) -> list[UOp]:
        """The sums of products that this is the sum of, where they are better done one by one.

        All of them, as each reads its operands again and again; else none.
        """
        op, axes = self.node.arg
        if self.source.op is not Op.ADD or not self.is_product:
            return []
        found = [reduce_axes(term, op, axes) for term in self.terms(self.source)]
        return found if all(Reduction(n, self.is_memory).reads_again for n in found) else []

    def terms(self, node: UOp) -> Iterator[UOp]:
        """What is added, from left to right."""
        if node.op is not Op.ADD or self.is_memory(node):
            yield node
            return
        for source in node.src:
            yield from self.terms(source)

    # --- the two reductions

    def partial(self, parts: int) -> UOp:
        """The reduction of each part.

        Where operands are read again the parts are the outermost axis, so that each of them is like
        a product of its own; elsewhere they stay in place, so that memory is read in order.
        """
        op, axes = self.node.arg
        axis, size = self.axis, self.sizes[self.axis] // parts
        main = self.between(0, parts * size)
        shape = (*main.shape[:axis], parts, size, *main.shape[axis + 1 :])
        main = UOp(Op.RESHAPE, main.dtype, (main,), shape)
        if not self.reads_again:
            return reduce_axes(main, op, tuple(a + (a >= axis) for a in axes))
        order = (axis, *(a for a in range(len(shape)) if a != axis))
        main = UOp(Op.PERMUTE, main.dtype, (main,), order)
        return reduce_axes(main, op, tuple(a + 1 for a in axes))

    def whole(self, parts: int, partial: UOp) -> UOp:
        """The reduction of what the parts gave, and of the steps that are left over."""
        op, axes = self.node.arg
        total = reduce_axes(partial, op, (0 if self.reads_again else self.axis,))
        total = UOp(Op.RESHAPE, self.node.dtype, (total,), self.node.shape)
        size = self.sizes[self.axis]
        if size % parts == 0:
            return total
        rest = reduce_axes(self.between(size - size % parts, size), op, axes)
        return UOp(op, self.node.dtype, (total, rest))

    def between(self, start: int, stop: int) -> UOp:
        """The source between some steps of the axis."""
        shape = self.source.shape
        if (start, stop) == (0, shape[self.axis]):
            return self.source
        box = tuple((start, stop) if a == self.axis else (0, n) for a, n in enumerate(shape))
        return UOp(Op.SHRINK, self.source.dtype, (self.source,), box)


def axis_below(node: UOp, axis: int, source: UOp) -> int | None:
    """The axis of a source that moves with an axis of a node; None where that is not plain."""
    shape = source.shape_or_none
    if not shape or node.op in (Op.SKEW, Op.UNSKEW, Op.REDUCE_AXIS, Op.GATHER):
        return None
    if node.op is Op.PERMUTE:
        return int(node.arg[axis])
    if node.op is Op.RESHAPE:
        place = node.shape[axis], math.prod(node.shape[axis + 1 :])
        places = [(size, math.prod(shape[a + 1 :])) for a, size in enumerate(shape)]
        return places.index(place) if place in places else None
    return axis if len(shape) == len(node.shape) and shape[axis] > 1 else None


def reduce_axes(node: UOp, op: Op, axes: tuple[int, ...]) -> UOp:
    """REDUCE_AXIS of `node` over `axes`."""
    return UOp(Op.REDUCE_AXIS, node.dtype, (node,), (op, axes))
