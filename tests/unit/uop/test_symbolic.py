"""Constants, identities, booleans, choices, conversions and loops that run once."""

import math

import pytest

from tinycore.dtype import DType, dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.symbolic import simplified


def variable(dtype: DType, name: str = "x") -> UOp:
    return UOp(Op.DEFINE_VAR, dtype, (), (name, dtypes.min(dtype), dtypes.max(dtype)))


x = variable(dtypes.int32)
y = variable(dtypes.int32, "y")
f, g = variable(dtypes.float32, "f"), variable(dtypes.float32, "g")
p, q = variable(dtypes.bool, "p"), variable(dtypes.bool, "q")
i = UOp.range(8, 0)


# --- constants


def test_integers_wrap_when_folded() -> None:
    assert simplified(UOp.const(dtypes.uint8, 200) + 100) is UOp.const(dtypes.uint8, 44)
    assert simplified(UOp.const(dtypes.int8, -128) * -1) is UOp.const(dtypes.int8, -128)


def test_floats_round_to_their_dtype_when_folded() -> None:
    folded = simplified(UOp.const(dtypes.float32, 0.1) + UOp.const(dtypes.float32, 0.2))

    assert folded.arg == 0.30000001192092896


def test_half_overflows_to_infinity_when_folded() -> None:
    assert simplified(UOp.const(dtypes.float16, 60000) * 2.0).arg == math.inf


def test_index_divided_by_zero_is_not_folded() -> None:
    division = UOp.index(1) // 0

    assert simplified(division) is division


def test_integer_divided_by_zero_is_folded_to_zero() -> None:
    assert simplified(UOp.const(dtypes.int32, 1) // 0) is UOp.const(dtypes.int32, 0)


def test_counter_that_may_be_zero_divides_after_the_cast() -> None:
    quotient = UOp.range(8, 1).cast(dtypes.int64) // i.cast(dtypes.int64)

    assert simplified(quotient) is quotient


def test_float_out_of_range_is_not_folded_to_an_integer() -> None:
    conversion = UOp.const(dtypes.float32, 1e10).cast(dtypes.int32)

    assert simplified(conversion) is conversion


def test_folded_constant_of_a_tensor_graph_keeps_its_device() -> None:
    device = UOp(Op.DEVICE, dtypes.void, (), "CPU")
    two = UOp(Op.CONST, dtypes.int32, (device,), 2)

    assert simplified(two + two) is UOp(Op.CONST, dtypes.int32, (device,), 4)


# --- booleans beside constants


def test_comparison_of_a_bool_with_a_constant_is_the_bool_or_its_complement() -> None:
    assert simplified(p.eq(True)) is p
    assert simplified(p.ne(False)) is p
    assert simplified(p.eq(False)) is p.logical_not()
    assert simplified(p ^ True) is p.logical_not()


# --- integers


def test_additive_identities() -> None:
    assert simplified(x + 0) is x
    assert simplified(0 + x) is x
    assert simplified(x - x) is UOp.const(dtypes.int32, 0)


@pytest.mark.parametrize("dtype", [dtypes.index, dtypes.int32])
def test_what_is_less_than_any_divisor_is_its_own_remainder(dtype: DType) -> None:
    small = UOp(Op.DEFINE_VAR, dtype, (), ("small", 0, 7))
    divisor = UOp(Op.DEFINE_VAR, dtype, (), ("divisor", 8, 20))
    touching = UOp(Op.DEFINE_VAR, dtype, (), ("touching", 7, 20))

    for remainder, quotient in ((Op.FLOORMOD, Op.FLOORDIV), (Op.MOD, Op.IDIV)):
        assert simplified(small.alu(remainder, divisor)) is small
        assert simplified(small.alu(quotient, divisor)) is small.const_like(0)
        assert simplified(small.alu(remainder, touching)) is small.alu(remainder, touching)
        assert simplified(small.alu(quotient, touching)) is small.alu(quotient, touching)


def test_constants_of_nested_sums_join() -> None:
    assert simplified((x + 3) + 4) is x + 7
    assert simplified(3 + (4 + x)) is x + 7


def test_constants_of_nested_products_wrap() -> None:
    huge = 1 << 16

    assert simplified(x * huge * huge) is UOp.const(dtypes.int32, 0)


def test_products_of_one_factor_are_collected() -> None:
    assert simplified(x * 2 + x * 3) is x * 5


def test_wrapping_integers_are_not_divided_by_parts() -> None:
    assert simplified(x * 4 // 4) is x * 4 // 4


def test_wrapping_integers_do_not_move_constants_across_inequalities() -> None:
    assert simplified(x + 1 < 5) is (x + 1 < 5)


def test_masks_of_ones() -> None:
    u = variable(dtypes.uint8, "u")

    assert simplified(u & 255) is u
    assert simplified(x | -1) is UOp.const(dtypes.int32, -1)


# --- floats


def test_multiplication_by_one_is_exact() -> None:
    assert simplified(f * 1.0) is f


def test_adding_zero_would_lose_the_sign_of_zero() -> None:
    assert simplified(f + 0.0) is f + 0.0
    assert simplified(f + -0.0) is f


def test_multiplication_by_zero_would_lose_nan() -> None:
    assert simplified(f * 0.0) is f * 0.0


def test_difference_with_itself_would_lose_nan() -> None:
    assert simplified(f - f) is f - f


def test_floats_are_not_reassociated() -> None:
    assert simplified((f + 1.0) + 2.0) is (f + 1.0) + 2.0


def test_division_by_a_power_of_two_is_a_product() -> None:
    assert simplified(f / 4.0) is f * 0.25
    assert simplified(f / 3.0) is f / 3.0


def test_reciprocal_that_is_subnormal_stays_a_division() -> None:
    assert simplified(f / 2.0**127) is f / 2.0**127


def test_maximum_with_minus_infinity() -> None:
    assert simplified(f.maximum(-math.inf)) is f


# --- booleans and choices


def test_double_negation() -> None:
    assert simplified(p.logical_not().logical_not()) is p


def test_negated_equality() -> None:
    assert simplified(f.eq(1.0).logical_not()) is f.ne(1.0)


def test_contradiction_and_tautology() -> None:
    assert simplified(p & p.logical_not()) is UOp.const(dtypes.bool, False)
    assert simplified(p | p.logical_not()) is UOp.const(dtypes.bool, True)


def test_known_condition_chooses() -> None:
    assert simplified(UOp.const(dtypes.bool, True).where(x, y)) is x
    assert simplified((i < 8).where(x, y)) is x


def test_choice_of_booleans_is_the_condition() -> None:
    yes, no = UOp.const(dtypes.bool, True), UOp.const(dtypes.bool, False)

    assert simplified(p.where(yes, no)) is p
    assert simplified(p.where(no, yes)) is p.logical_not()


def test_nested_choices_join() -> None:
    assert simplified(p.where(q.where(x, y), y)) is (p & q).where(x, y)
    assert simplified(p.where(p.where(x, y), y)) is p.where(x, y)


# --- conversions


def test_widening_in_between_vanishes() -> None:
    small = variable(dtypes.int8, "s")

    assert simplified(small.cast(dtypes.int32).cast(dtypes.int64)) is small.cast(dtypes.int64)
    assert simplified(small.cast(dtypes.float32).cast(dtypes.int8)) is small


def test_narrowing_in_between_stays() -> None:
    conversion = x.cast(dtypes.int8).cast(dtypes.int32)

    assert simplified(conversion) is conversion


def test_float_in_between_that_rounds_stays() -> None:
    conversion = x.cast(dtypes.float32).cast(dtypes.int32)

    assert simplified(conversion) is conversion


def test_counter_keeps_its_value_in_a_type_that_holds_it() -> None:
    assert simplified(i.cast(dtypes.int32).cast(dtypes.index)) is i


def test_arithmetic_on_counters_precedes_the_cast() -> None:
    assert simplified(i.cast(dtypes.int32) * 2 + 3) is (i * 2 + 3).cast(dtypes.int32)


def test_arithmetic_that_could_wrap_follows_the_cast() -> None:
    wide = UOp.range(200, 1)
    product = wide.cast(dtypes.uint8) * 2

    assert simplified(product) is product


# --- loops


def test_loop_that_runs_once_is_zero() -> None:
    assert simplified(UOp.range(1, 0) * 5 + i) is i


def test_loop_of_unknown_length_stays() -> None:
    loop = UOp.range(UOp.variable("n", 0, 1), 3)

    assert simplified(loop) is loop


@pytest.mark.parametrize("op", [Op.ADD, Op.MAX])
def test_reduction_over_one_step_is_its_value(op: Op) -> None:
    once = UOp.range(1, 5, AxisKind.REDUCE)

    assert simplified(UOp(Op.REDUCE, dtypes.float32, (f, once), op)) is f


def test_one_of_two_loops_of_several_values_may_vanish() -> None:
    once, loop = UOp.range(1, 5, AxisKind.REDUCE), UOp.range(4, 6, AxisKind.REDUCE)
    values = f * loop.cast(dtypes.float32), g - loop.cast(dtypes.float32)

    assert simplified(UOp(Op.REDUCE, dtypes.float32, (*values, loop, once), Op.ADD)) is UOp(
        Op.REDUCE, dtypes.float32, (*values, loop), Op.ADD
    )
    assert simplified(UOp(Op.REDUCE, dtypes.float32, (f, g, once), Op.ADD)) is f + g


def test_end_drops_loops_that_run_once() -> None:
    group = UOp(Op.GROUP, dtypes.void, (f,))
    once = UOp.range(1, 5)

    assert simplified(UOp(Op.END, dtypes.void, (group, i, once))) is UOp(
        Op.END, dtypes.void, (group, i)
    )
    assert simplified(UOp(Op.END, dtypes.void, (group, once))) is group
