"""The meaning of arithmetic: wrapping, rounding, bits, and what is undefined."""

import math

import numpy
import pytest

from tinycore.dtype import DType, dtypes
from tinycore.uop.evaluate import (
    ALU_PYTHON,
    Undefined,
    compute,
    evaluate,
    from_bits,
    round_to,
    to_bits,
)
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op


def integer(op: Op, a: int, b: int, dtype: DType = dtypes.int32) -> object:
    return compute(op, dtype, (a, b), dtype)


def test_every_op_has_its_meaning_on_python_numbers() -> None:
    assert ALU - ALU_PYTHON.keys() == {Op.CAST, Op.BITCAST}


def test_integers_wrap() -> None:
    assert integer(Op.ADD, 2**31 - 1, 1) == -(2**31)
    assert integer(Op.SUB, 0, 1, dtypes.uint16) == 65535


def test_divisions_differ_in_rounding() -> None:
    assert integer(Op.IDIV, -7, 2) == -3
    assert integer(Op.FLOORDIV, -7, 2) == -4
    assert integer(Op.MOD, -7, 2) == -1
    assert integer(Op.FLOORMOD, -7, 2) == 1


@pytest.mark.parametrize("op", [Op.IDIV, Op.MOD, Op.FLOORDIV, Op.FLOORMOD])
def test_integer_divided_by_zero_is_zero(op: Op) -> None:
    assert integer(op, 7, 0) == 0


def test_index_divided_by_zero_is_undefined() -> None:
    with pytest.raises(Undefined):
        integer(Op.FLOORDIV, 7, 0, dtypes.index)


def test_least_integer_over_minus_one_wraps() -> None:
    assert integer(Op.IDIV, -(2**31), -1) == -(2**31)


def test_shift_takes_its_amount_modulo_the_width() -> None:
    assert integer(Op.SHL, 1, 33) == 2
    assert integer(Op.SHR, -8, -31) == -4


def test_shift_right_of_signed_is_arithmetic() -> None:
    assert integer(Op.SHR, -8, 1) == -4


def test_float_division_by_zero_is_infinite() -> None:
    assert compute(Op.FDIV, dtypes.float32, (1.0, -0.0), dtypes.float32) == -math.inf
    assert math.isnan(compute(Op.FDIV, dtypes.float32, (0.0, 0.0), dtypes.float32))


def test_maximum_passes_nan_on() -> None:
    assert math.isnan(compute(Op.MAX, dtypes.float32, (math.nan, 1.0), dtypes.float32))
    assert math.isnan(compute(Op.MAX, dtypes.float32, (1.0, math.nan), dtypes.float32))


def test_functions_are_quiet_at_their_edges() -> None:
    assert math.isnan(compute(Op.SQRT, dtypes.float32, (-1.0,), dtypes.float32))
    assert compute(Op.LOG2, dtypes.float32, (0.0,), dtypes.float32) == -math.inf
    assert compute(Op.EXP, dtypes.float64, (1e4,), dtypes.float64) == math.inf
    assert math.isnan(compute(Op.SIN, dtypes.float32, (math.inf,), dtypes.float32))


def test_conversion_to_integer_truncates() -> None:
    assert compute(Op.CAST, dtypes.int32, (-2.9,), dtypes.float32) == -2


def test_conversion_out_of_range_is_undefined() -> None:
    with pytest.raises(Undefined):
        compute(Op.CAST, dtypes.int8, (200.0,), dtypes.float32)
    with pytest.raises(Undefined):
        compute(Op.CAST, dtypes.int32, (math.nan,), dtypes.float32)


def test_big_integer_is_rounded_once() -> None:
    value = (1 << 60) + (1 << 36) + 1  # through float64 it would be rounded down, to even

    expected = float(numpy.float32(numpy.int64(value)))
    assert compute(Op.CAST, dtypes.float32, (value,), dtypes.int64) == expected


def test_rounding_to_float32_overflows_to_infinity() -> None:
    assert round_to(dtypes.float32, 1e39) == math.inf
    assert round_to(dtypes.float32, 3.4028235e38) == float(numpy.finfo("float32").max)


def test_bfloat16_rounds_ties_to_even() -> None:
    assert round_to(dtypes.bfloat16, 1 + 2**-8) == 1.0
    assert round_to(dtypes.bfloat16, 1 + 3 * 2**-8) == 1 + 2**-6


def test_fp8e4m3_has_no_infinity() -> None:
    assert round_to(dtypes.fp8e4m3, 448.0) == 448.0
    assert math.isnan(round_to(dtypes.fp8e4m3, 500.0))
    assert math.isnan(round_to(dtypes.fp8e4m3, math.inf))


@pytest.mark.parametrize(
    ("dtype", "greatest", "tie"),
    [(dtypes.fp8e4m3fnuz, 240.0, 248.0), (dtypes.fp8e5m2fnuz, 57344.0, 61440.0)],
    ids=lambda x: getattr(x, "name", None),
)
def test_fnuz_has_neither_infinity_nor_negative_zero(
    dtype: DType, greatest: float, tie: float
) -> None:
    assert round_to(dtype, math.nextafter(tie, 0)) == greatest
    assert math.isnan(round_to(dtype, tie))
    assert math.isnan(round_to(dtype, -math.inf))
    assert math.copysign(1, round_to(dtype, -0.0)) == 1
    assert math.copysign(1, round_to(dtype, -1e-9)) == 1
    assert to_bits(-0.0, dtype) == 0
    assert to_bits(math.nan, dtype) == to_bits(math.inf, dtype) == 0x80
    assert math.isnan(float(from_bits(0x80, dtype)))


@pytest.mark.parametrize("dtype", dtypes.floats, ids=lambda d: d.name)
def test_bits_of_floats_come_back(dtype: DType) -> None:
    for bits in range(0, 1 << dtype.bits, max(1, (1 << dtype.bits) // 997)):
        value = from_bits(bits, dtype)
        if value == value:
            assert to_bits(value, dtype) == bits


def test_bits_of_known_floats() -> None:
    assert to_bits(1.0, dtypes.float32) == 0x3F800000
    assert to_bits(1.0, dtypes.bfloat16) == 0x3F80
    assert to_bits(-2.0, dtypes.fp8e5m2) == 0xC0
    assert to_bits(448.0, dtypes.fp8e4m3) == 0x7E
    assert to_bits(-1.0, dtypes.fp8e4m3fnuz) == 0xC0
    assert to_bits(2.0**-17, dtypes.fp8e5m2fnuz) == 0x01


def test_threefry_of_the_published_vectors() -> None:
    # Random123, kat_vectors: threefry2x32 with 20 rounds.
    ones = (1 << 64) - 1
    pi_counter, pi_key = 0x85A308D3_243F6A88, 0x03707344_13198A2E

    def threefry(counter: int, key: int) -> object:
        return compute(Op.THREEFRY, dtypes.uint64, (counter, key), dtypes.uint64)

    assert threefry(0, 0) == 0x99BA4EFE_6B200159
    assert threefry(ones, ones) == 0xBB002BE7_1CB996FC
    assert threefry(pi_counter, pi_key) == 0x483DF7A0_C4923A9C


def test_expression_is_evaluated() -> None:
    i = UOp.range(10, 0)

    assert evaluate((i * 3 + 1) // 2, {i: 5}) == 8


def test_missing_value_is_named() -> None:
    with pytest.raises(KeyError, match="no value was given for"):
        evaluate(UOp.range(10, 0) + 1)


def test_vectors_are_evaluated_lane_by_lane() -> None:
    i = UOp.range(10, 0)
    lanes = UOp(Op.VECTORIZE, dtypes.index.vec(2), (i, i + 1))
    last = UOp(Op.EXTRACT, dtypes.index, (lanes * lanes,), (1,))

    assert evaluate(last, {i: 3}) == 16
