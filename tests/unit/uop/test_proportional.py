"""Factors of values that a condition hides, and of sums."""

from __future__ import annotations

import math
from random import Random

import pytest

from tinycore.dtype import dtypes
from tinycore.uop.evaluate import evaluate
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.proportional import (
    are_one_pass,
    finite,
    is_proportional,
    with_common_factors,
    with_divisors_last,
)

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


GREATEST = UOp(Op.DEFINE_VAR, dtypes.float32, (), ("m", -1.0, 1.0))
"""A number in place of a maximum."""


def drawn(random: Random, depth: int) -> UOp:
    """An expression in a maximum and a value: of products, choices, powers and sums."""
    if depth == 0:
        shift = random.choice((GREATEST, finite(GREATEST), GREATEST, VALUE))
        power = UOp(Op.EXP, dtypes.float32, (random.choice((VALUE, VALUE, GREATEST)) - shift,))
        return random.choice((power, power, power, VALUE, GREATEST))
    one, other = (drawn(random, random.randrange(depth)) for _ in range(2))
    zero = UOp.const(dtypes.float32, 0.0)
    gate = random.choice((zero > VALUE, zero < VALUE, GREATEST < VALUE))
    match random.randrange(5):
        case 0 | 1:
            return one * random.choice((VALUE, other))
        case 2:
            return one.cast(dtypes.float64).cast(dtypes.float32)
        case 3:
            return gate.where(one, random.choice((zero, other)))
    return one + other


@pytest.mark.parametrize("seed", range(8))
def test_what_is_proportional_scales_by_exp_of_the_difference_of_maxima(seed: int) -> None:
    random, found = Random(seed), 0
    for _ in range(400):
        value = drawn(random, random.randrange(4))
        if not is_proportional(value, GREATEST):
            continue
        found += 1
        x, before, after = (random.uniform(-1, 1) for _ in range(3))
        one, other = (evaluate(value, {VALUE: x, GREATEST: m}) for m in (before, after))
        assert one * math.exp(before - after) == pytest.approx(other, rel=1e-5, abs=1e-7)

    assert found > 40


def test_one_pass_has_one_maximum_and_sums_in_proportion_to_it() -> None:
    top = fold(SCORE, Op.MAX)

    assert are_one_pass([top, TOTAL, fold(WEIGHT * FACTOR)])
    assert not are_one_pass([TOTAL])
    assert not are_one_pass([top, fold(SCORE)])
    assert not are_one_pass([top, fold(SCORE * FACTOR, Op.MAX), TOTAL])
    assert not are_one_pass([top, fold(WEIGHT, Op.MUL)])
