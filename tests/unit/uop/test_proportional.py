"""Factors of values that a condition hides, and of sums."""

from __future__ import annotations

import math

import pytest

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.proportional import with_common_factors, with_divisors_last

GATE = UOp.range(4, 0).eq(0)
VALUE = UOp(Op.DEFINE_VAR, dtypes.float32, (), ("x", -1.0, 1.0))


def hidden(value: UOp, infinity: float) -> UOp:
    """A number where the gate holds, else a value."""
    return GATE.where(UOp.const(dtypes.float32, infinity), value)


@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
@pytest.mark.parametrize("factor", [0.125, -0.125])
def test_a_factor_goes_behind_an_infinite_choice(factor: float, infinity: float) -> None:
    constant = UOp.const(dtypes.float32, factor)
    found = with_common_factors(hidden(VALUE * constant, infinity))

    assert found is hidden(VALUE, math.copysign(infinity, infinity * factor)) * constant


@pytest.mark.parametrize(
    "value",
    [
        hidden(VALUE * UOp.const(dtypes.float32, 0.125), 1.0),
        hidden(VALUE * UOp.const(dtypes.float32, 0.0), math.inf),
        hidden(VALUE * UOp.const(dtypes.float32, math.inf), math.inf),
        hidden(VALUE * VALUE, math.inf),
    ],
)
def test_other_choices_stay_as_they_are(value: UOp) -> None:
    assert with_common_factors(value) is value


LOOP = UOp.range(4, 1)
OTHER = UOp.range(3, 2)
SCORE = LOOP.cast(dtypes.float32) * VALUE
FACTOR = OTHER.cast(dtypes.float32)


def fold(value: UOp, op: Op = Op.ADD) -> UOp:
    """A reduction over the loop."""
    return UOp(Op.REDUCE, value.dtype, (value, LOOP), op)


def power(shift: UOp) -> UOp:
    """exp of a score less a number."""
    return UOp(Op.EXP, dtypes.float32, (SCORE - shift,))


WEIGHT = power(fold(SCORE, Op.MAX))
TOTAL = fold(WEIGHT)


def test_a_sum_of_weights_is_divided_by_their_total_last() -> None:
    found = with_divisors_last(fold(WEIGHT.alu(Op.FDIV, TOTAL) * FACTOR))

    assert found is fold(WEIGHT * FACTOR) * TOTAL.alu(Op.RECIPROCAL)


def test_rounding_and_gates_stay_with_the_weights() -> None:
    zero = UOp.const(dtypes.float16, 0.0)
    found = with_divisors_last(
        fold(
            FACTOR
            * GATE.where(WEIGHT.alu(Op.FDIV, TOTAL).cast(dtypes.float16), zero).cast(dtypes.float32)
        )
    )

    narrow = GATE.where(WEIGHT.cast(dtypes.float16), zero).cast(dtypes.float32)
    assert found is fold(FACTOR * narrow) * TOTAL.alu(Op.RECIPROCAL)


@pytest.mark.parametrize(
    "weight",
    [
        power(fold(SCORE * FACTOR, Op.MAX)).alu(Op.FDIV, TOTAL),  # the maximum of other scores
        power(UOp.const(dtypes.float32, 0.0)).alu(Op.FDIV, TOTAL),
        SCORE.alu(Op.FDIV, fold(SCORE)),
        WEIGHT.alu(Op.FDIV, WEIGHT + TOTAL),  # varies with the loop
        GATE.where(WEIGHT.alu(Op.FDIV, TOTAL), FACTOR),
        WEIGHT.alu(Op.FDIV, FACTOR),
    ],
)
def test_other_weights_are_divided_first(weight: UOp) -> None:
    assert with_divisors_last(fold(weight * FACTOR)) is fold(weight * FACTOR)
