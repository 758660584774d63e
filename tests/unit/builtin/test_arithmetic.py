"""Arithmetic on arrays agrees with `uop.evaluate`, which computes one exact number at a time."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy
import pytest

from tinycore.builtin.arithmetic import OPERATIONS, computed_as, operation
from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.uop.evaluate import Undefined, compute, from_bits, round_to, to_bits
from tinycore.uop.host_bytes import decode, to_storage
from tinycore.uop.op import ALU, COMPARISON, TRANSCENDENTAL, Op

FLOAT_ONLY = TRANSCENDENTAL | {Op.RECIPROCAL, Op.SQRT, Op.TRUNC, Op.FDIV}
INTEGER_ONLY = frozenset(
    {Op.IDIV, Op.MOD, Op.FLOORDIV, Op.FLOORMOD, Op.SHL, Op.SHR, Op.AND, Op.OR, Op.XOR}
)
ON_BOOL = frozenset({Op.AND, Op.OR, Op.XOR, Op.WHERE, *COMPARISON})
PER_TYPE = [
    (op, dtype)
    for op in OPERATIONS
    for dtype in dtypes.all
    if op is not Op.THREEFRY
    and (
        (dtype.kind == "bool" and op in ON_BOOL)
        or (dtype.kind == "float" and op not in INTEGER_ONLY)
        or (dtype.kind in ("int", "uint") and op not in FLOAT_ONLY)
    )
]


def samples(dtype: DType, count: int, seed: int) -> list[Any]:
    """Values of a dtype: any bit pattern, small numbers, and the extremes."""
    rng = random.Random(seed)
    if dtype.kind == "bool":
        return [rng.random() < 0.5 for _ in range(count)]
    found = [from_bits(rng.getrandbits(dtype.bits), dtype) for _ in range(count // 2)]
    if dtype.kind == "float":
        special = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan]
        found += [round_to(dtype, rng.uniform(-4, 4)) for _ in range(count // 2 - len(special))]
        return found + [round_to(dtype, x) for x in special]
    extremes = [dtypes.min(dtype), dtypes.max(dtype), 0, 1]
    low = 0 if dtype.kind == "uint" else -9
    found += [rng.randint(low, 9) for _ in range(count // 2 - len(extremes))]
    return found + extremes


def as_array(values: list[Any], dtype: DType) -> Any:
    return numpy.array(values, computed_as(dtype))


def same(a: Any, b: Any, ulps: int = 0) -> bool:
    if a != a or b != b:
        return bool(a != a and b != b)
    if a == b:
        return True
    return bool(ulps) and math.isclose(a, b, rel_tol=ulps * 2e-16, abs_tol=5e-324 * ulps)


@pytest.mark.parametrize(("op", "dtype"), PER_TYPE, ids=lambda x: getattr(x, "name", str(x)))
def test_an_op_means_what_the_table_says(op: Op, dtype: DType) -> None:
    kinds = [dtypes.bool, dtype, dtype] if op is Op.WHERE else [dtype] * op.arity
    columns = [samples(kind, 60, 7 * i) for i, kind in enumerate(kinds)]
    for column in columns[1:]:
        random.Random(1).shuffle(column)
    result = dtypes.bool if op in COMPARISON else dtype
    with numpy.errstate(all="ignore"):
        function = operation(op, result, kinds[0])
        found = function(*[as_array(c, k) for c, k in zip(columns, kinds, strict=True)])
    assert found.dtype == computed_as(result)
    for row, value in zip(zip(*columns, strict=True), found.tolist(), strict=True):
        try:
            expected = compute(op, result, row, kinds[0])
        except Undefined:
            continue
        if op is Op.MULACC and dtype.kind == "float":  # rounded once there, twice here
            continue
        ulps = 4 if op in TRANSCENDENTAL and dtype is dtypes.float64 else 0
        assert same(value, expected, ulps), (op, dtype, row, value, expected)


@pytest.mark.parametrize("target", dtypes.all, ids=lambda d: d.name)
@pytest.mark.parametrize("source", dtypes.all, ids=lambda d: d.name)
def test_a_cast_rounds_once(source: DType, target: DType) -> None:
    values = samples(source, 200, 3)
    with numpy.errstate(all="ignore"):
        found = operation(Op.CAST, target, source)(as_array(values, source)).tolist()
    for value, result in zip(values, found, strict=True):
        try:
            expected = compute(Op.CAST, target, [value], source)
        except Undefined:
            continue
        assert same(result, expected), (value, result, expected)


@pytest.mark.parametrize("source", dtypes.all, ids=lambda d: d.name)
def test_a_bitcast_keeps_the_bits(source: DType) -> None:
    values = [x for x in samples(source, 100, 5) if x == x]
    for target in dtypes.all:
        if target.bits == source.bits and dtypes.bool not in (source, target):
            found = operation(Op.BITCAST, target, source)(as_array(values, source)).tolist()
            expected = [compute(Op.BITCAST, target, [x], source) for x in values]
            assert all(map(same, found, expected)), target


@pytest.mark.parametrize("dtype", [*dtypes.fp8s, dtypes.bfloat16])
def test_every_bit_pattern_of_a_small_float_comes_back(dtype: DType) -> None:
    bits = numpy.arange(1 << dtype.bits, dtype=to_numpy_dtype(dtype))
    values = decode(bits, dtype)
    back = to_storage(values, dtype)
    number = ~numpy.isnan(values)

    assert (back[number] == bits[number]).all()
    assert numpy.isnan(decode(back[~number], dtype)).all()
    sample = range(0, 1 << dtype.bits, 97)
    assert all(same(float(values[i]), from_bits(i, dtype)) for i in sample)
    assert all(int(back[i]) == to_bits(float(values[i]), dtype) for i in sample if number[i])


def test_rounding_to_bfloat16_is_to_nearest_even_and_once() -> None:
    halfway = numpy.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-40])
    cast = operation(Op.CAST, dtypes.bfloat16, dtypes.float64)

    assert cast(halfway).tolist() == [1.0, 1 + 2.0**-6, 1 + 2.0**-7]


@pytest.mark.parametrize("op", [Op.NEG, Op.TRUNC])
@pytest.mark.parametrize("dtype", dtypes.fp8s, ids=lambda d: d.name)
def test_a_zero_has_a_sign_only_where_the_type_has_one(op: Op, dtype: DType) -> None:
    zero = 0.0 if op is Op.NEG else -0.5
    (found,) = operation(op, dtype, dtype)(numpy.array([zero], numpy.float32)).tolist()

    assert same(found, compute(op, dtype, [zero], dtype))
    assert (math.copysign(1, found) < 0) == (dtype not in dtypes.fp8_fnuz)


def test_threefry_agrees_with_the_plain_one() -> None:
    rng = random.Random(0)
    counters = [rng.getrandbits(64) for _ in range(50)]
    keys = [rng.getrandbits(64) for _ in range(50)]
    found = OPERATIONS[Op.THREEFRY](
        numpy.array(counters, numpy.uint64), numpy.array(keys, numpy.uint64)
    )

    assert found.tolist() == [
        compute(Op.THREEFRY, dtypes.uint64, pair, dtypes.uint64)
        for pair in zip(counters, keys, strict=True)
    ]


def test_the_table_has_every_op() -> None:
    assert OPERATIONS.keys() | {Op.CAST, Op.BITCAST} == ALU


def test_what_is_undefined_does_not_raise() -> None:
    with numpy.errstate(all="ignore"):
        for op in (Op.IDIV, Op.MOD, Op.FLOORDIV, Op.FLOORMOD):
            for dtype in (dtypes.int32, dtypes.uint8, dtypes.int64):
                least = as_array([dtypes.min(dtype), 5], dtype)
                for divisor in (0, 1) if dtype.kind == "uint" else (0, -1):
                    operation(op, dtype, dtype)(least, as_array([divisor] * 2, dtype))
        found = operation(Op.IDIV, dtypes.int32, dtypes.int32)(
            as_array([7, -7], dtypes.int32), as_array([0, 0], dtypes.int32)
        )
    assert found.tolist() == [0, 0]
