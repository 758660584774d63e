"""A softmax in a tensor graph, however it is written, and values that are proportional to one.

Floor 1. exp(scores - shift) / total along the last axis: the shift is the greatest score, and the
total the sum of powers. Rows of which all is hidden may have a shift of 0 and a divisor of 1.

A product that reads weights is R = A @ V, where A is made of W = softmax(S) by elementwise steps,
and S of P = Q @ K.T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tinycore.dtype import DType
from tinycore.uop.movement import is_everywhere, source_below
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, APPROXIMATE, Op
from tinycore.uop.product import (
    Product,
    elementwise_below,
    ends_of,
    is_turned,
    matrix,
    product_at,
    turned,
)
from tinycore.uop.proportional import place_of_weight

SCALED: Final = frozenset({Op.MUL, Op.FDIV, Op.NEG, Op.CAST})
"""Steps between products and scores that hide none."""


@dataclass(frozen=True)
class Softmax:
    """exp(scores - shift) / divisor along the last axis."""

    node: UOp
    scores: UOp
    power: UOp
    top: UOp
    """The greatest score of each row."""
    shift: UOp
    """The number taken off the scores of each row: the greatest one, or 0 in place of -inf."""
    total: UOp
    divisor: UOp
    """The total of each row, or 1 in place of 0."""

    @property
    def has_empty_rows(self) -> bool:
        """True if there may be rows of which all is hidden."""
        return self.divisor is not self.total

    @property
    def folds(self) -> tuple[UOp, ...]:
        """The values of each row, repeated for each score and not, and what they are made of."""
        repeated = self.node.src[1], self.power.src[0].src[1]
        return (*repeated, self.shift, self.divisor, self.top, self.total)


def softmax_at(node: UOp) -> Softmax | None:
    """The softmax that a node is; None for others."""
    if node.op is not Op.FDIV or node.src[0].op is not Op.EXP or node.dtype.itemsize < 4:
        return None
    power, divisor = node.src
    if power.src[0].op is not Op.SUB:
        return None
    scores, shift = power.src[0].src
    if divisor.op is not Op.EXPAND or shift.op is not Op.EXPAND:
        return None
    shift, divisor = shift.src[0], divisor.src[0]
    top = shift.src[2] if is_chosen_unless(shift, -math.inf, 0) else shift
    total = divisor.src[2] if is_chosen_unless(divisor, 0, 1) else divisor
    axes = (len(node.shape) - 1,)
    for fold, folded, op in (
        (total, power, Op.ADD),
        (source_below(top, {Op.DETACH}), scores, Op.MAX),
    ):
        if fold.op is not Op.REDUCE_AXIS or fold.arg != (op, axes) or fold.src[0] is not folded:
            return None
    return Softmax(node, scores, power, top, shift, total, divisor)


def is_chosen_unless(node: UOp, number: float, other: float) -> bool:
    """True if a value stands for itself unless it is a number, for which another stands."""
    if node.op is not Op.WHERE or node.src[0].op is not Op.CMPEQ:
        return False
    compared, known = node.src[0].src
    return (
        node.src[2] is compared
        and is_everywhere(known, number)
        and is_everywhere(node.src[1], other)
    )


def softmax_below(node: UOp) -> Softmax | None:
    """The softmax that a value is proportional to, element by element; None for others."""
    while (found := softmax_at(node)) is None:
        # The other factor must not depend on weights: one that is no elementwise step does not.
        place = place_of_weight(node, lambda source: source.op in ALU)
        if place is None:
            return None
        node = node.src[place]
    return found


@dataclass(frozen=True)
class Weighing:
    """A product that reads the weights of a softmax of products."""

    softmax: Softmax
    first: Product
    """P."""
    made: UOp
    """A (.., rows, seen), in the type in which it is multiplied."""
    last: Product
    is_turned: bool
    """True if the product sums over rows."""

    @property
    def is_mean(self) -> bool:
        """True if values are weighed in proportion to weights; else it is a gradient."""
        return not self.is_turned and softmax_below(self.made) is not None

    @property
    def is_thinned(self) -> bool:
        """True if weights are more than a softmax in another type, as after dropout."""
        return source_below(self.made, {Op.CAST}) is not self.softmax.node

    @property
    def dtype(self) -> DType | None:
        """The type of all operands; None for several."""
        found = {p.dtype for p in (*self.products, self.last)}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def may_hide(self) -> bool:
        """True if all scores of a row may be -inf in a region, as by a mask."""
        steps = elementwise_below(self.softmax.scores)
        return self.softmax.has_empty_rows or any(n.op not in SCALED for n in steps)

    @cached_property
    def products(self) -> list[Product]:
        """The products that A is made of, P first."""
        steps = elementwise_below(self.made)
        found = [product_at(n) for n in ends_of(steps) if n is not self.first.node]
        return [self.first, *(p for p in found if p is not None and p.batch == self.first.batch)]

    @cached_property
    def query(self) -> UOp:
        """Q (.., rows, features)."""
        return matrix(self.first.rows, -2)

    @cached_property
    def key(self) -> UOp:
        """K (.., seen, features)."""
        return matrix(self.first.columns, -3)

    @cached_property
    def value(self) -> UOp:
        """V, in whose rows the product sums."""
        return turned(matrix(self.last.columns, -3))

    def turn(self, x: UOp) -> UOp:
        """A matrix (.., rows, seen) as the product takes it."""
        return turned(x) if self.is_turned else x

    def power(self, difference: UOp, is_rounded: bool) -> UOp:
        """exp of scores less their shift; as a device approximates it where nothing is rounded."""
        exact = self.softmax.power.arg
        return UOp(Op.EXP, difference.dtype, (difference,), exact if is_rounded else APPROXIMATE)


def weighing_at(node: UOp) -> Weighing | None:
    """The product that a node is, if it reads weights of a softmax of products; None for others."""
    if (last := product_at(node)) is None or last.rows.op is not Op.RESHAPE:
        return None
    made = last.rows.src[0]
    sizes = last.sizes[::2]
    if made.shape != (*last.batch, *sizes):
        return None
    transposed = is_turned(made)
    made = made.src[0] if transposed else made
    found = {n for n in elementwise_below(made) if n.op is Op.FDIV and softmax_at(n) is not None}
    softmax = softmax_at(found.pop()) if len(found) == 1 else None
    if softmax is None:
        return None
    ends = ends_of(elementwise_below(softmax.scores)) or [softmax.scores]
    first = next((p for n in ends if (p := product_at(n)) is not None), None)
    if first is None or first.node.shape != made.shape:
        return None
    return Weighing(softmax, first, made, last, transposed)
