"""A softmax in a tensor graph, however it is written, and values that are proportional to one.

Floor 1. exp(scores - shift) / total along the last axis: the shift is the greatest score, and the
total the sum of powers. Rows of which all is hidden may have a shift of 0 and a divisor of 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinycore.uop.movement import is_everywhere, source_below
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.proportional import place_of_weight


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
