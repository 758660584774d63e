"""The LLVM family: constants that are exact, and names of types and intrinsics."""

from __future__ import annotations

import math

import pytest

from tinycore.dtype import DType, dtypes
from tinycore.render.llvm_types import constant, storage_name, suffix, type_name, zero


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (dtypes.index, "i64"),
        (dtypes.bool, "i1"),
        (dtypes.uint16, "i16"),
        (dtypes.float16, "half"),
        (dtypes.float32.vec(8), "<8 x float>"),
        (dtypes.bool.vec(4), "<4 x i1>"),
    ],
)
def test_type_of_a_value(dtype: DType, name: str) -> None:
    assert type_name(dtype) == name


def test_bool_is_a_byte_in_memory() -> None:
    assert storage_name(dtypes.bool.vec(4)) == "<4 x i8>"


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (dtypes.float32, 1.0, "1.0"),
        (dtypes.float32, -0.0, "-0.0"),
        (dtypes.float32, 0.1, "0x3FB99999A0000000"),
        (dtypes.float64, 0.1, "0x3FB999999999999A"),
        (dtypes.float32, math.inf, "0x7FF0000000000000"),
        (dtypes.float32, 1e39, "0x7FF0000000000000"),
        (dtypes.float16, 0.1, "0xH2E66"),
        (dtypes.bool, True, "true"),
        (dtypes.int8, -128, "-128"),
    ],
)
def test_literal_stands_for_its_value(dtype: DType, value: float, text: str) -> None:
    assert constant(dtype, value) == text


def test_zero_of_a_vector() -> None:
    assert zero(dtypes.float32.vec(4)) == "zeroinitializer"


def test_name_of_an_intrinsic_ends_in_its_type() -> None:
    assert suffix(dtypes.float64.vec(4)) == "v4f64"
