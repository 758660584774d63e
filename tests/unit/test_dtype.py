"""Dtypes: which there are, their properties, and their promotion."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from tinycore import Context, Tensor
from tinycore.dtype import (
    DType,
    dtypes,
    float_layout,
    from_numpy_dtype,
    least_upper_dtype,
    least_upper_float,
    sum_acc_dtype,
    to_dtype,
    to_numpy_dtype,
)
from tinycore.errors import DTypeError

SCALARS = (dtypes.void, dtypes.index, *dtypes.weaks, *dtypes.all)
TORCH = {
    dtypes.fp8e4m3: torch.float8_e4m3fn,
    dtypes.fp8e5m2: torch.float8_e5m2,
    dtypes.fp8e4m3fnuz: torch.float8_e4m3fnuz,
    dtypes.fp8e5m2fnuz: torch.float8_e5m2fnuz,
} | {dtype: getattr(torch, dtype.name) for dtype in dtypes.floats if dtype.itemsize > 1}
EACH = pytest.mark.parametrize("dtype", dtypes.floats, ids=lambda dtype: dtype.name)


# Questions about one type


@pytest.mark.parametrize("dtype", SCALARS, ids=lambda dtype: dtype.name)
def test_a_type_is_one_object(dtype: DType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert pickle.loads(pickle.dumps(dtype.vec(4))) is dtype.vec(4)
    assert dtype.vec(4).scalar() is dtype
    assert repr(dtype) == f"dtypes.{dtype.name}"


def test_the_kinds_of_types() -> None:
    everything = set(SCALARS)

    assert {d for d in everything if dtypes.is_float(d)} == {*dtypes.floats, dtypes.weakfloat}
    assert {d for d in everything if dtypes.is_int(d)} == {
        *dtypes.ints,
        dtypes.weakint,
        dtypes.index,
    }
    assert {d for d in everything if dtypes.is_unsigned(d)} == set(dtypes.uints)
    assert {d for d in everything if dtypes.is_bool(d)} == {dtypes.bool}


def test_the_families_of_types() -> None:
    assert dtypes.fp8s == (*dtypes.fp8_ocp, *dtypes.fp8_fnuz)
    assert dtypes.all == (dtypes.bool, *dtypes.ints, *dtypes.floats)
    assert len(set(dtypes.all)) == 17
    widths = (dtypes.int8s, dtypes.int16s, dtypes.int32s, dtypes.int64s)
    assert [[d.bits for d in pair] for pair in widths] == [[8, 8], [16, 16], [32, 32], [64, 64]]


def test_void_and_the_weak_types_take_no_bytes() -> None:
    assert {d.name for d in SCALARS if d.itemsize == 0} == {"void", "weakint", "weakfloat"}


@EACH
def test_the_limits_of_floats_are_those_of_torch(dtype: DType) -> None:
    layout, info = float_layout(dtype), torch.finfo(TORCH[dtype])

    assert layout.greatest == info.max
    assert 2.0**layout.least_exponent == info.smallest_normal
    assert 1 + sum(dtypes.finfo(dtype)) == info.bits
    assert -dtypes.min(dtype) == dtypes.max(dtype) == dtype.max
    assert dtype.max == (math.inf if layout.has_infinity else info.max)


@pytest.mark.parametrize("dtype", [d for d in TORCH if d.itemsize < 4], ids=lambda d: d.name)
def test_every_code_is_the_number_that_torch_reads(dtype: DType) -> None:
    codes = torch.arange(1 << (dtype.bits - 1)).to(torch.uint8 if dtype.bits == 8 else torch.int16)
    values = codes.view(TORCH[dtype]).double()
    layout = float_layout(dtype)

    assert values[: layout.beyond].tolist() == [layout.magnitude(c) for c in range(layout.beyond)]
    assert not values[layout.beyond :].isfinite().any()
    assert layout.has_infinity == values.isinf().any()


@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda dtype: dtype.name)
def test_the_limits_of_integers_are_those_of_numpy(dtype: DType) -> None:
    info = numpy.iinfo(dtype.name)

    assert (dtype.min, dtype.max) == (info.min, info.max)


def test_the_limits_of_what_is_no_number_of_a_width() -> None:
    assert (dtypes.bool.min, dtypes.bool.max) == (False, True)
    assert dtypes.void.min > dtypes.void.max
    assert (dtypes.weakint.min, dtypes.weakint.max) == (-math.inf, math.inf)
    assert (dtypes.weakfloat.min, dtypes.weakfloat.max) == (-math.inf, math.inf)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.void, dtypes.weakfloat], ids=str)
def test_only_floats_have_a_layout(dtype: DType) -> None:
    with pytest.raises(DTypeError, match=f"dtypes.{dtype.name} is no floating-point dtype"):
        dtypes.finfo(dtype)


@pytest.mark.parametrize(
    ("wide", "narrow", "holds"),
    [
        ("float16", "fp8e4m3", True),
        ("float16", "fp8e5m2fnuz", True),
        ("bfloat16", "fp8e5m2", True),
        ("fp8e4m3fnuz", "fp8e4m3", False),  # 448
        ("fp8e4m3", "fp8e4m3fnuz", False),  # 2**-10
        ("fp8e5m2fnuz", "fp8e5m2", False),  # infinity, -0
        ("fp8e5m2", "fp8e5m2fnuz", False),  # 2**-17
        ("bfloat16", "float16", False),
        ("float16", "bfloat16", False),
    ],
)
def test_which_layout_holds_which(wide: str, narrow: str, holds: bool) -> None:
    assert float_layout(to_dtype(wide)).holds(float_layout(to_dtype(narrow))) == holds


@pytest.mark.parametrize(("wide", "narrow"), [*itertools.permutations(dtypes.fp8s, 2)], ids=str)
def test_a_layout_holds_another_when_torch_brings_every_value_back(
    wide: DType, narrow: DType
) -> None:
    values = torch.arange(256).to(torch.uint8).view(TORCH[narrow]).float()
    back = values.to(TORCH[wide]).float()
    same = torch.equal(back.nan_to_num(1e9), values.nan_to_num(1e9))

    assert float_layout(wide).holds(float_layout(narrow)) == same


# Python numbers


@pytest.fixture
def other_defaults() -> Iterator[None]:
    with Context(DEFAULT_FLOAT="half", DEFAULT_INT="long"):
        yield


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "bool"),
        (1, "int32"),
        (1.0, "float32"),
        ([1, 2], "int32"),
        ([True, 1], "int32"),
        ([1, 2.0], "float32"),
        ([[1], [2.5]], "float32"),
        ([], "float32"),
    ],
    ids=str,
)
def test_the_dtype_of_python_values(value: object, expected: str) -> None:
    assert dtypes.from_py(value).name == expected


@pytest.mark.usefixtures("other_defaults")
def test_the_defaults_decide_what_python_numbers_are() -> None:
    assert (dtypes.default_float, dtypes.default_int) == (dtypes.float16, dtypes.int64)
    assert dtypes.from_py([1, 2]) is to_dtype("weakint") is dtypes.int64
    assert dtypes.from_py(1.0) is to_dtype(dtypes.weakfloat) is dtypes.float16


def test_no_tensor_is_of_a_weak_type() -> None:
    whole, real = (Tensor.zeros(2, dtype=weak) for weak in dtypes.weaks)

    assert (whole.dtype, real.dtype) == (dtypes.int32, dtypes.float32)
    assert (real.cast("weakint").dtype, whole.cast("weakfloat").dtype) == (whole.dtype, real.dtype)


@pytest.mark.parametrize("value", [1j, "1", None, [None], {1: 2}], ids=repr)
def test_other_python_values_have_no_dtype(value: object) -> None:
    with pytest.raises(DTypeError, match="no dtype for a Python value of type"):
        dtypes.from_py(value)


# Names


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("half", dtypes.float16),
        ("float", dtypes.float32),
        ("double", dtypes.float64),
        ("char", dtypes.int8),
        ("short", dtypes.int16),
        ("int", dtypes.int32),
        ("long", dtypes.int64),
        ("uchar", dtypes.uint8),
        ("ushort", dtypes.uint16),
        ("uint", dtypes.uint32),
        ("ulong", dtypes.uint64),
        ("fp8e5m2fnuz", dtypes.fp8e5m2fnuz),
    ],
)
def test_a_name_or_alias_is_a_dtype(name: str, dtype: DType) -> None:
    assert to_dtype(name) is dtype


@pytest.mark.parametrize("name", ["float8", "all", "min", "floats", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(DTypeError, match=f"unknown dtype '{name}'. Known: bool, uint8"):
        to_dtype(name)


@pytest.mark.parametrize(
    "dtype", [dtypes.void, dtypes.float32.vec(4), dtypes.int8.ptr(3), "void"], ids=str
)
def test_what_elements_cannot_be_is_refused(dtype: str | DType) -> None:
    with pytest.raises(DTypeError, match="is no dtype of elements"):
        to_dtype(dtype)


# Promotion

BESIDE = {
    "weakint": {"bool": "weakint", "weakfloat": "weakfloat"},
    "weakfloat": dict.fromkeys(
        ["bool", "weakint", *[dtype.name for dtype in dtypes.ints]], "weakfloat"
    ),
    "bool": {"weakint": "weakint", "weakfloat": "weakfloat"},
}
"""Promotion of a Python number with a tensor's dtype, where it is not the tensor's dtype."""


@pytest.mark.parametrize("weak", BESIDE)
def test_a_weak_type_gives_way_to_any_of_its_kind_or_above(weak: str) -> None:
    for dtype in (*dtypes.all, *dtypes.weaks):
        expected = BESIDE[weak].get(dtype.name, dtype.name)
        number = dtypes.by_name[weak]
        assert least_upper_dtype(number, dtype).name == expected, dtype
        assert least_upper_dtype(dtype, number).name == expected, dtype


def test_types_of_tensors_never_promote_to_a_weak_one() -> None:
    for pair in itertools.product(dtypes.all, dtypes.all):
        assert least_upper_dtype(*pair) in dtypes.all, pair


def test_two_8_bit_floats_promote_to_float16() -> None:
    for pair in itertools.combinations(dtypes.fp8s, 2):
        assert least_upper_dtype(*pair) is dtypes.float16


@pytest.mark.parametrize("dtype", [dtypes.void, dtypes.index, dtypes.int8.vec(2)], ids=str)
def test_what_takes_no_part_in_promotion(dtype: DType) -> None:
    with pytest.raises(DTypeError, match="cannot promote"):
        least_upper_dtype(dtypes.float32, dtype)


@pytest.mark.parametrize(
    ("dtype", "as_float", "summed"),
    [
        ("bool", "float32", "int32"),
        ("uint8", "float32", "uint32"),
        ("uint64", "float32", "uint64"),
        ("int16", "float32", "int32"),
        ("int64", "float32", "int64"),
        ("fp8e4m3fnuz", "fp8e4m3fnuz", "float32"),
        ("float16", "float16", "float32"),
        ("float64", "float64", "float64"),
        ("weakint", "weakfloat", "int32"),
        ("weakfloat", "weakfloat", "float32"),
    ],
)
def test_what_results_are_of(dtype: str, as_float: str, summed: str) -> None:
    assert least_upper_float(dtypes.by_name[dtype]).name == as_float
    assert sum_acc_dtype(dtypes.by_name[dtype]).name == summed


# Storage on the host


@pytest.mark.parametrize("dtype", [*dtypes.all, dtypes.index], ids=lambda dtype: dtype.name)
def test_an_array_has_as_many_bytes(dtype: DType) -> None:
    assert to_numpy_dtype(dtype).itemsize == dtype.itemsize


@pytest.mark.parametrize("dtype", [dtypes.void, *dtypes.weaks], ids=str)
def test_no_array_holds_what_has_no_bytes(dtype: DType) -> None:
    with pytest.raises(DTypeError, match=f"dtypes.{dtype.name} has no bytes"):
        to_numpy_dtype(dtype)


@pytest.mark.parametrize("name", ["complex64", "V", "V4", "U3", "O", "M8[s]"])
def test_arrays_of_what_is_no_number_have_no_counterpart(name: str) -> None:
    with pytest.raises(DTypeError, match="has no counterpart"):
        from_numpy_dtype(numpy.dtype(name))


@pytest.mark.parametrize("size", [(4.5, 4), (True, 4), ("4", 4), 4, (4,), (0, 4), (2, 3, 5)])
def test_the_size_of_an_image_is_two_positive_ints(size: Any) -> None:
    with pytest.raises(DTypeError, match="two positive ints"):
        dtypes.imagef(size)


def test_the_size_of_an_image_may_be_ints_of_numpy() -> None:
    size: Any = (numpy.int64(2), numpy.int32(3))

    assert dtypes.imagef(size) is dtypes.imagef((2, 3))
