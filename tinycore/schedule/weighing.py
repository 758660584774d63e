"""Values weighed by a softmax of products, and their gradients, over a region of the scores.

Floor 3. A product that reads weights is R = A @ V, where A is made of W = softmax(S) by elementwise
steps, and S of P = Q @ K.T. Over some rows and keys it is computed from parts of Q, K and V, and
results are combined by the logarithms of their totals (T. Dao et al., "Flash-Decoding for
long-context inference", 2023). Gradients are such products as well: of queries, A = dS and V = K;
of keys and values, A has keys in rows. Which regions are computed is up to `attention.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tinycore.dtype import DType, Scalar, dtypes
from tinycore.schedule.collectives import expanded_constant, narrow, pad
from tinycore.uop.movement import moved, source_below
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.product import (
    Product,
    again,
    matrix,
    product_at,
    product_of,
    row_fold,
    turned,
)
from tinycore.uop.softmax import Softmax, Weighing

ROW_AXIS: Final = -2
"""The axis of scores along rows."""
COLUMN_AXIS: Final = -1
"""The axis along which a softmax weighs."""


class Seen(NamedTuple):
    """Attention to some keys: a fold over these, and (-inf, 0) where all are hidden."""

    logarithm: UOp
    """log of the sum of exp(score) of each row."""
    mean: UOp
    """The values, weighed by exp(score - logarithm)."""


@dataclass(frozen=True)
class Block:
    """A region of all scores: some rows, and some keys."""

    rows: slice
    seen: slice
    is_padded = False
    """True if there may be scores of no key."""

    def queries(self, x: UOp) -> UOp:
        """Queries of the region, or other rows of (.., rows, features) that go with them."""
        return cut(x, ROW_AXIS, self.rows)

    def keys(self, x: UOp) -> UOp:
        """Keys of the region, or other rows of (.., seen, features) that go with them."""
        return cut(x, ROW_AXIS, self.seen)

    def scores(self, x: UOp) -> UOp:
        """Scores of the region, of a matrix (.., rows, seen) of all."""
        return cut(self.queries(x), COLUMN_AXIS, self.seen)


@dataclass(frozen=True)
class Parts:
    """The region of all keys in parts of one length, along an axis before rows; the rows of
    `shared` heads, which have keys in common, as one."""

    count: int
    length: int
    shared: int = 1
    is_padded: bool = False

    def queries(self, x: UOp) -> UOp:
        """The rows of heads one after another, seen by each part."""
        *outer, rows, width = self.together(x).shape
        return moved(Op.RESHAPE, x, (*outer, *(() if self.count == 1 else (1,)), rows, width))

    def keys(self, x: UOp) -> UOp:
        """The rows of a matrix, for each part."""
        x = x if self.shared == 1 else once(x, self.shared)
        if self.count == 1:
            return x
        *outer, _, width = x.shape
        return moved(Op.RESHAPE, self.whole(x, ROW_AXIS), (*outer, self.count, self.length, width))

    def scores(self, x: UOp) -> UOp:
        """The columns of a matrix, for each part."""
        x = self.together(x)
        if self.count == 1:
            return x
        x = moved(Op.RESHAPE, self.whole(x, COLUMN_AXIS), (*x.shape[:-1], self.count, self.length))
        *outer, rows, count, length = range(len(x.shape))
        return moved(Op.PERMUTE, x, (*outer, count, rows, length))

    def together(self, x: UOp) -> UOp:
        """The rows of heads that share keys as one."""
        if self.shared == 1:
            return x
        *outer, heads, rows, last = x.shape
        return moved(Op.RESHAPE, x, (*outer, heads // self.shared, self.shared * rows, last))

    def whole(self, x: UOp, axis: int) -> UOp:
        """Zeros behind keys of which there are fewer than parts hold: they are not read."""
        place = len(x.shape) + axis
        return pad(x, place, 0, self.count * self.length - x.shape[place])


Region = Block | Parts


def logarithm_of(weighing: Weighing) -> UOp:
    """The shift of the scores of each row: weights are exp of the difference."""
    softmax = weighing.softmax
    return shift_of(softmax.total.alu(Op.LOG) + softmax.top, softmax.has_empty_rows)


def part_of(weighing: Weighing, region: Region) -> Weighing:
    """The same of a region, as if that were all."""
    known = {
        p.node: product_of(
            region.queries(matrix(p.rows, -2)), region.keys(matrix(p.columns, -3)), p.node.dtype
        )
        for p in weighing.products
    }
    scores = again(weighing.softmax.scores, region.scores, known)
    if region.is_padded:
        there = region.scores(number_like(weighing.softmax.scores, True, dtypes.bool))
        scores = there.where(scores, number_like(scores, -math.inf))
    top = row_fold(scores, Op.MAX)
    shift = finite(top) if region.is_padded or weighing.may_hide else top
    power = weighing.power(scores - repeated(shift, scores), is_rounded=True)
    total = row_fold(power, Op.ADD)
    divisor = divisor_of(total, weighing.softmax.has_empty_rows)
    softmax = Softmax(power / repeated(divisor, power), scores, power, top, shift, total, divisor)
    known[weighing.softmax.node] = softmax.node
    made = again(weighing.made, region.scores, known)
    value = (region.queries if weighing.is_turned else region.keys)(weighing.value)
    node = product_of(weighing.turn(made), turned(value), weighing.last.node.dtype)
    # Not by `weighing_at`: nothing is repeated in a region of one key, which is no softmax there.
    first, last = product_at(known[weighing.first.node]), product_at(node)
    assert first is not None, "it is written like that of all"
    assert last is not None, "it is written like that of all"
    return Weighing(softmax, first, made, last, weighing.is_turned)


def seen_of(weighing: Weighing, is_rounded: bool, may_be_empty: bool) -> Seen:
    """The values weighed; with exact weights where these are not rounded."""
    # Dividing the weighed values is less work than dividing every weight. The total comes first
    # in the product, and so do the kernels that it needs: it ties each factor to its piece.
    power = weighing.power(weighing.softmax.power.src[0], is_rounded)
    total = row_fold(power, Op.ADD)
    inverse = divisor_of(total, may_be_empty).alu(Op.RECIPROCAL)
    made = weighing.made if is_rounded else weighing.made.src[0]
    weights = again(made, same, {weighing.softmax.node: power})
    weighed = product_of(weights, turned(weighing.value), weighing.last.node.dtype)
    logarithm = total.alu(Op.LOG) + weighing.softmax.shift
    return Seen(logarithm, repeated(inverse, weighed) * weighed)


def gradient_of(weighing: Weighing, logarithm: UOp, is_rounded: bool, is_apart: bool) -> UOp:
    """The product, given the logarithms of rows.

    Scores are other nodes than those of the forward pass, whose numbers would be kept until
    then: one operand is negated, that which stays with the rows of a kernel. If it `is_apart`,
    other nodes once more, for a kernel of its own, whose registers the weights fit.
    """

    def product(p: Product) -> UOp:
        rows, columns = matrix(p.rows, -2), matrix(p.columns, -3)
        if p is weighing.first and is_apart:
            return -weighing.turn(product_of(rows, -columns, p.node.dtype))
        one, other = (columns, rows) if weighing.is_turned else (rows, columns)
        if p is weighing.first:
            return -product_of(-one, other, p.node.dtype)
        return product_of(one, other, p.node.dtype)

    def end(node: UOp) -> UOp:
        return product(products[node]) if node in products else weighing.turn(node)

    products, known = {p.node: p for p in weighing.products}, dict[UOp, UOp]()
    scores = again(weighing.softmax.scores, end, known)
    shift = weighing.turn(moved(Op.EXPAND, logarithm, weighing.softmax.scores.shape))
    known[weighing.softmax.node] = (scores - shift).alu(Op.EXP)
    slopes = again(weighing.made if is_rounded else weighing.made.src[0], end, known)
    return product_of(slopes, turned(weighing.value), weighing.last.node.dtype)


def unless(x: UOp, number: float, other: float) -> UOp:
    """A value, but another number in place of one."""
    return x.eq(number_like(x, number)).where(number_like(x, other), x)


def finite(top: UOp) -> UOp:
    """A maximum that can be subtracted: 0 in place of -inf, where all is hidden."""
    return unless(top, -math.inf, 0)


def divisor_of(total: UOp, may_be_zero: bool) -> UOp:
    """A total that can be a divisor: 1 in place of 0, if there may be rows that see nothing."""
    return unless(total, 0, 1) if may_be_zero else total


def shift_of(logarithm: UOp, has_empty_rows: bool) -> UOp:
    """The shift of scores whose powers are weights: inf where nothing is seen, so these are 0."""
    return unless(logarithm, -math.inf, math.inf) if has_empty_rows else logarithm


def weights_of_parts(
    logarithms: Sequence[UOp], fold: Callable[[Op, Sequence[UOp]], UOp], may_be_empty: bool
) -> tuple[UOp, list[UOp]]:
    """The logarithm of all parts of the keys, and the weight of each part, as by a softmax."""
    top = finite(fold(Op.MAX, logarithms))
    powers = [(n - repeated(top, n)).alu(Op.EXP) for n in logarithms]
    total = fold(Op.ADD, powers)
    inverse = divisor_of(total, may_be_empty).alu(Op.RECIPROCAL)
    return total.alu(Op.LOG) + top, [power * repeated(inverse, power) for power in powers]


def one_by_one(op: Op, values: Sequence[UOp]) -> UOp:
    """The fold of some values."""
    return functools.reduce(lambda a, b: a.alu(op, b), values)


def in_memory(seen: Seen) -> Seen:
    """The same in memory: weights that are not added up before they are needed are stored."""
    return Seen(*[n.alu(Op.CONTIGUOUS) for n in seen])


def with_more(seen: Seen, more: Seen, may_be_empty: bool) -> Seen:
    """Attention to some keys and more of them.

    Not to all pieces at once: kernels run in the order of sources, and the maximum of all pieces
    would be a source of every factor. The scores of all pieces would then be alive at the same
    time.
    """
    parts = seen, more
    logarithm, weights = weights_of_parts([n.logarithm for n in parts], one_by_one, may_be_empty)
    means = [repeated(w, n.mean) * n.mean for w, n in zip(weights, parts, strict=True)]
    return in_memory(Seen(logarithm, one_by_one(Op.ADD, means)))


def mean_of(parts: Seen, may_be_empty: bool) -> Seen:
    """Attention to all parts of the keys, along the axis before rows, whose logarithms lie side by
    side in a kernel of its own."""
    *outer, count, rows, _ = parts.logarithm.shape
    logarithms = turned(moved(Op.RESHAPE, parts.logarithm, (*outer, count, rows)))
    logarithms, means = logarithms.alu(Op.CONTIGUOUS), parts.mean.alu(Op.CONTIGUOUS)
    logarithm, (weights,) = weights_of_parts(
        [logarithms], lambda op, values: row_fold(values[0], op), may_be_empty
    )
    weights = moved(Op.RESHAPE, turned(weights.alu(Op.CONTIGUOUS)), parts.logarithm.shape)
    weighed = moved(Op.REDUCE_AXIS, repeated(weights, means) * means, (Op.ADD, (len(outer),)))
    return Seen(logarithm, weighed)


def same(x: UOp) -> UOp:
    """A value as it is."""
    return x


def cut(x: UOp, axis: int, some: slice) -> UOp:
    """Some rows or columns of matrices; all if there is one, which stands for each."""
    place = len(x.shape) + axis
    return narrow(x, place, some.start, some.stop)


def repeated(x: UOp, like: UOp) -> UOp:
    """A value for each row, in the shape of matrices."""
    return moved(Op.EXPAND, x, like.shape)


def number_like(x: UOp, value: Scalar, dtype: DType | None = None) -> UOp:
    """A number in the shape of a value."""
    return expanded_constant(x.shape, dtype or x.dtype, value, x.device)


def repetition_of(x: UOp) -> UOp:
    """The node that repeats matrices along the last axis before them, or another one."""
    return source_below(x, {Op.VALUE, Op.RESHAPE})


def times_repeated(x: UOp) -> int:
    """The number of times that each matrix of (.., heads, rows, columns) follows itself."""
    node = repetition_of(x)
    if node.op is not Op.EXPAND or len(node.shape) < 4:
        return 1
    *outer, groups, times, rows, columns = node.shape
    is_one = node.src[0].shape == (*outer, groups, 1, rows, columns)
    return times if is_one and x.shape == (*outer, groups * times, rows, columns) else 1


def once(x: UOp, times: int) -> UOp:
    """Matrices that are repeated, without repetitions."""
    *outer, heads, rows, columns = x.shape
    return moved(Op.RESHAPE, repetition_of(x).src[0], (*outer, heads // times, rows, columns))
