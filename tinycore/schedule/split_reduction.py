"""Split reductions: split-K into partial results, and one reduction per term of a sum of products.

Floor 3. There are three reasons to split. With few results, all threads can share the work: the sum
over n elements becomes a sum of c partial sums. Where operands are read many times (a contraction),
the operands of one part of K stay in near memory until they are read again. And the sum of a sum of
products, as gradients of a value that several layers read, is faster as one contraction per term.
See docs/decisions/0043-long-sums.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tinycore.config import settings
from tinycore.dtype import DType
from tinycore.render.base import Limits
from tinycore.render.chains import Sizes, refusal_by_unit, units_of
from tinycore.schedule.collectives import narrow
from tinycore.schedule.kernel import nbytes, numel
from tinycore.schedule.limits import LAUNCH_CLOCKS, limits_of, multiplies_by_lanes, rate_of_unit
from tinycore.schedule.storage import Storage, is_leaf, region_of, replaced
from tinycore.uop.movement import axis_along, moved
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import Size

LONG_REDUCTION: Final = 1 << 15
"""Terms from which a sum of few results is cut into parts for threads to share."""
FEW_RESULTS: Final = 64
"""Results that are too few to distribute over threads."""
FEW_COLUMNS: Final = 256
"""Adjacent results a thread should own when it reads memory row by row."""
MOST_FACTOR: Final = 512
"""Most parts of a sum, so that adding them up is little work for one thread."""
ENOUGH_FACTOR: Final = 16
"""Parts that an outer axis must give to be split in place of a longer inner one."""

LONG_PRODUCT: Final = 1 << 13
"""Terms of a contraction from which K is split for reuse in near memory."""
SHORTEST_PART: Final = 1 << 10
"""Terms of a part, at least, of sums with results for some threads."""
LEAST_AGAIN: Final = 8
"""Terms each operand element takes part in, from which it counts as reused."""
LEAST_BESIDE: Final = 2
"""The same on cards whose lanes cannot add up a sum that they share: a thread has a part of it."""
SMALLER: Final = 4
"""Elements read for each partial result, at least."""
LEAST_TERMS: Final = 1 << 6
"""Terms of a sum from which storing its result is cheap compared with computing it."""
LEAST_PRODUCT: Final = 1 << 20
"""Multiply-adds of a contraction from which one more kernel launch is amortized."""

GROUP_RESULTS: Final = 1 << 13
"""Results of a group of a card that reads its operands once for many of them."""
GROUP_TERMS: Final = 1 << 6
"""Terms of a part of K, at least: a few fills of shared memory."""
SMALL_TILES: Final = 3
"""Time of a contraction in tiles that are small enough for all units, in that of large ones."""
SHARED_RESULTS: Final = 1 << 11
"""Results of a group of a card whose lanes share sums: a thread has as many as in a large tile."""
SHARED_SUMS: Final = 1.3
"""Time of a contraction whose sums lanes share, in that of large tiles: more is copied to shared
memory for each result, and the parts of lanes are added up."""
LEAST_BUSY: Final = 0.75
"""Part of a card's units that have such a group at least."""
MEMORY_CLOCKS: Final = 2
"""Time of partial results that go to memory, in that of those that the cache of all units holds:
memory has a third of its rate, and some are stored while others are computed."""
MULTIPLY_ADDS: Final = 128
"""Multiply-adds of a unit in a clock; matrix units do several times as many."""
MATRIX_MULTIPLY_ADDS: Final = 512
"""The same of matrix units: half of what a unit of an A100 can do for float16."""

IsMemory = Callable[[UOp], bool]


def split_reductions(storage: Storage, nodes: Iterable[UOp]) -> dict[UOp, UOp]:
    """The nodes at and below some that become others, over stored partial results."""
    values: dict[UOp, UOp] = {}

    def is_memory(node: UOp) -> bool:
        return storage.is_memory(node) or node in values

    def add(node: UOp, is_part: bool = False) -> None:
        computed, partials = split_below(node, is_memory, is_part)
        for partial in partials:
            add(partial, is_part=True)
        values[node] = computed

    for node in storage.ordered():
        if numel(node):
            add(node)
    changes = {old: new for old, new in values.items() if old is not new}
    done = replaced(nodes, changes) if changes else {}
    storage.change(done, values)
    return done


def split_below(node: UOp, is_memory: IsMemory, is_part: bool = False) -> tuple[UOp, list[UOp]]:
    """`node` over its reductions after the split, and the partial results they read.

    `is_part` says that it is such a result itself.
    """
    replacements: dict[UOp, UOp] = {}
    partials: list[UOp] = []
    unsplit: list[Reduction] = []
    others: list[Reduction] = []

    def is_fused(n: UOp) -> bool:
        return n is node or not is_memory(n)

    for n in node.toposort(is_fused):
        if n.op is not Op.REDUCE_AXIS or (n is not node and is_memory(n)):
            continue
        reduction = Reduction(n, is_memory, is_part)
        if sums := reduction.terms_apart:
            *before, replacements[n] = itertools.accumulate(sums)
            partials += before
        elif (factor := reduction.factor) > 1:
            partial = reduction.partial(factor)
            replacements[n] = reduction.combine(factor, partial)
            partials.append(partial)
        elif reduction.is_contraction:
            unsplit.append(reduction)
        else:
            others.append(reduction)
    partials += contractions_apart(unsplit, others)
    return node.substitute(replacements, is_fused) if replacements else node, partials


def contractions_apart(found: list[Reduction], others: list[Reduction]) -> list[UOp]:
    """Contractions of one kernel that get a separate kernel each, of those `found` there.

    In one kernel each would have loops of its own, and no tiling suits both. Those with the longest
    K stay. If one is inside of `others`, as a tap of a transposed convolution, it stays alone: the
    sums of a tap are more than those of all taps, which the kernel may cut.
    """
    if len(found) < 2 or any(a.node in b.below for a in found for b in found):
        return []
    whole = {r.node: outermost(r, found, others) for r in found}
    inside = [r for r in found if whole[r.node] is not r.node]
    if inside:
        kept = max(inside, key=lambda r: r.length)
        return [whole[r.node] for r in found if r is not kept]
    longest = max(r.length for r in found)
    return [r.node for r in found if r.length < longest]


def outermost(inner: Reduction, found: list[Reduction], others: list[Reduction]) -> UOp:
    """The last of `others` that reduces one contraction and no second one, or that itself."""
    above = [
        r.node
        for r in others
        if inner.node in r.below and not any(f.node in r.below for f in found if f is not inner)
    ]
    return above[-1] if above else inner.node


def is_made_of_sums(node: UOp, dtype: DType) -> bool:
    """True if a node has what is made of sums, rounded to a type, or that widened again."""
    is_rounded = node.op is Op.CAST and dtype in (node.dtype, node.src[0].dtype)
    return is_rounded and any(n.op is Op.REDUCE_AXIS for n in node.toposort())


@dataclass(frozen=True)
class Reduction:
    """The analysis of one REDUCE_AXIS: whether and how to split it."""

    node: UOp
    is_memory: IsMemory
    is_part: bool = False
    """True for a part of a reduction, of which a card has enough for its units."""

    @property
    def source(self) -> UOp:
        """The operand."""
        return self.node.src[0]

    @cached_property
    def sizes(self) -> dict[int, int]:
        """The sizes of the reduced axes of fixed size."""
        shape = self.source.shape
        return {a: shape[a] for a in self.node.arg[1] if not isinstance(shape[a], Size)}

    @cached_property
    def length(self) -> int:
        """The terms of each result: K, for a contraction."""
        return math.prod(self.sizes.values())

    @cached_property
    def below(self) -> list[UOp]:
        """The nodes fused into the reduction, and the memory that is read."""
        return region_of(self.node, self.is_memory)[:-1]

    @cached_property
    def operands(self) -> list[UOp]:
        """The memory that is read."""
        return [n for n in self.below if self.is_read(n) and n.op is not Op.CONST]

    @cached_property
    def reuses_operands(self) -> bool:
        """True if operands are reused as in a matrix product.

        Overlapping windows do not count: they share elements that are near already.
        """
        return self.has_shared_operands and not any(n.op is Op.SKEW for n in self.below)

    @cached_property
    def has_shared_operands(self) -> bool:
        """True if each operand element takes part in many terms, for whatever reason."""
        limits = limits_of(self.node.device)
        is_alone = multiplies_by_lanes(limits) and self.node.dtype not in limits.shuffles
        least = LEAST_BESIDE if is_alone else LEAST_AGAIN
        return 0 < max(map(numel, self.operands), default=0) * least <= self.work

    @cached_property
    def work(self) -> int:
        """The terms of all results together."""
        return numel(self.node) * self.length

    @cached_property
    def is_contraction(self) -> bool:
        """True if this is a contraction large enough to amortize an extra kernel launch."""
        enough = self.length >= LEAST_TERMS and self.work >= LEAST_PRODUCT
        return self.node.arg[0] is Op.ADD and enough and self.has_shared_operands

    @cached_property
    def goes_down_columns(self) -> bool:
        """True if the reduced axis has a stride above 1 in the largest memory that is read."""
        strides = self.strides(max(self.sizes))
        return bool(strides) and strides[max(strides, key=numel)] > 1

    def strides(self, axis: int) -> dict[UOp, int]:
        """The stride of an axis in each operand, where it is statically known."""
        found: dict[UOp, int] = {}
        seen = {(self.source, axis)}
        stack = [(self.source, axis)]
        while stack:
            node, at = stack.pop()
            if self.is_read(node) or (node.op is Op.RESHAPE and self.is_read(node.src[0])):
                found[node] = math.prod(node.shape[at + 1 :])
                continue
            below = [(s, axis_along(node, at, s)) for s in node.src]
            stack += [(s, a) for s, a in below if a is not None and (s, a) not in seen]
            seen.update(stack)
        return found

    def is_read(self, node: UOp) -> bool:
        """True if a node is read from memory."""
        return is_leaf(node) or self.is_memory(node)

    @cached_property
    def most_factor(self) -> int:
        """The largest useful split factor; 1 for a reduction that should stay whole."""
        results, limits = numel(self.node), limits_of(self.node.device)
        room = (sum(map(numel, self.operands)) or results * self.length) // (results * SMALLER)
        by_column = limits.grid is None and self.goes_down_columns
        few = max(FEW_COLUMNS * limits.threads - 1, FEW_RESULTS) if by_column else FEW_RESULTS
        if self.length >= LONG_REDUCTION and results <= few:
            return min(room, MOST_FACTOR)
        if limits.grid is not None or not self.reuses_operands:
            return 1
        return min(room, MOST_FACTOR, self.length // SHORTEST_PART)

    @cached_property
    def axis(self) -> int:
        """The axis to split: the outermost that is long enough, else the longest.

        Not the one along which a card reads vectors of an operand, if there is another.
        """
        sizes = self.sizes
        if limits_of(self.node.device).units and self.has_shared_operands:
            apart = {a: n for a, n in sizes.items() if 1 not in self.strides(a).values()}
            sizes = apart or sizes
        enough = (a for a, n in sizes.items() if n >= min(self.most_factor, ENOUGH_FACTOR))
        return next(enough, max(sizes, key=sizes.__getitem__))

    @cached_property
    def factor(self) -> int:
        """The split factor with the smallest remainder.

        Of equal remainders the larger factor for few results, which has more for threads to share;
        the smaller one for contractions, whose parts are short enough.
        """
        if (limits := limits_of(self.node.device)).grid is not None and self.has_shared_operands:
            return 1 if self.is_part else self.factor_for_units(limits)
        if self.length < LONG_PRODUCT or self.most_factor < 2:
            return 1
        size = self.sizes[self.axis]
        most, more = min(self.most_factor, size), 1 if self.reuses_operands else -1
        some = range(max(most // 2, 2), most + 1)
        return min(some, key=lambda n: (size % n, more * n), default=1)

    def factor_for_units(self, limits: Limits) -> int:
        """The split factor of a contraction that has fewer groups than a card has units.

        1 where partial results take longer than smaller tiles, which have enough groups, and for
        sums of symbolic length.
        """
        if not self.sizes or self.may_end_a_chain(limits):
            return 1
        widest = max(n.dtype.itemsize for n in self.operands)
        results, size, units = numel(self.node), self.sizes[self.axis], limits.units
        allowed = [u for u in limits.matrix if settings.ALLOW_TF32 or not u.rounds]
        is_matrix = any(u.a.itemsize == widest for u in allowed)
        # Without matrix units a group computes half as many results, and two groups on a unit hide
        # each other's waits for memory: four times as many groups.
        wanted = units * (1 if is_matrix else 4) // max(results // GROUP_RESULTS, 1)
        computed = self.work / (MATRIX_MULTIPLY_ADDS if is_matrix else MULTIPLY_ADDS)
        rate = rate_of_unit(limits)
        groups = -(-results // GROUP_RESULTS)
        slower: float = SMALL_TILES
        by_lanes = not is_matrix and self.node.dtype in limits.shuffles
        if by_lanes and results // SHARED_RESULTS >= units * LEAST_BUSY:
            slower = SHARED_SUMS
        if multiplies_by_lanes(limits):
            slower = min(slower, limits.unevenness(groups))
        saved = (slower - 1) * max(computed, sum(map(nbytes, self.operands)) / rate)
        written = 2 * nbytes(self.node) / rate
        if 2 * nbytes(self.node) > limits.l2_bytes > 0:
            written *= MEMORY_CLOCKS
        most = min(wanted, self.length // GROUP_TERMS, (saved - LAUNCH_CLOCKS * units) // written)
        return max((n for n in range(1, int(most) + 1) if size % n == 0), default=1)

    def may_end_a_chain(self, limits: Limits) -> bool:
        """True if one kernel may compute this product and that of which an operand is made."""
        return any(
            rows
            and refusal_by_unit(
                limits, unit, Sizes(1, rows, self.length, (unit.k,), (numel(self.node) // rows,))
            )
            is None
            for unit in units_of(limits)
            for rows in {numel(n) // self.length for n in self.below if is_made_of_sums(n, unit.a)}
        )

    # --- sums of products

    @cached_property
    def terms_apart(self) -> list[UOp]:
        """One reduction per added term, if each of them is a contraction that reuses operands."""
        op, axes = self.node.arg
        if self.source.op is not Op.ADD or not self.is_contraction:
            return []
        found = [reduce_axes(term, op, axes) for term in self.terms(self.source)]
        return found if all(Reduction(n, self.is_memory).reuses_operands for n in found) else []

    def terms(self, node: UOp) -> Iterator[UOp]:
        """The added terms, from left to right."""
        if node.op is not Op.ADD or self.is_memory(node):
            yield node
            return
        for source in node.src:
            yield from self.terms(source)

    # --- split-K

    def partial(self, factor: int) -> UOp:
        """The partial results: the reduction of each part.

        The parts of a contraction become the outermost axis, so that each is a matrix product with
        a shorter K; elsewhere they stay in place, so that memory is read in order.
        """
        op, axes = self.node.arg
        axis, size = self.axis, self.sizes[self.axis] // factor
        main = narrow(self.source, self.axis, 0, factor * size)
        shape = (*main.shape[:axis], factor, size, *main.shape[axis + 1 :])
        main = moved(Op.RESHAPE, main, shape)
        if not self.reuses_operands:
            return reduce_axes(main, op, tuple(a + (a >= axis) for a in axes))
        order = (axis, *(a for a in range(len(shape)) if a != axis))
        main = moved(Op.PERMUTE, main, order)
        return reduce_axes(main, op, tuple(a + 1 for a in axes))

    def combine(self, factor: int, partial: UOp) -> UOp:
        """The reduction of the partial results, and of the remainder of the axis."""
        op, axes = self.node.arg
        total = reduce_axes(partial, op, (0 if self.reuses_operands else self.axis,))
        total = moved(Op.RESHAPE, total, self.node.shape).alu(Op.VALUE)
        size = self.sizes[self.axis]
        if size % factor == 0:
            return total
        rest = narrow(self.source, self.axis, size - size % factor, size)
        rest = reduce_axes(rest, op, axes)
        return UOp(op, self.node.dtype, (total, rest))


def reduce_axes(node: UOp, op: Op, axes: tuple[int, ...]) -> UOp:
    """REDUCE_AXIS of `node` over `axes`."""
    return UOp(Op.REDUCE_AXIS, node.dtype, (node,), (op, axes))
