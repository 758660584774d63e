"""Elementwise functions over dtypes, special values, shapes and Python numbers."""

from __future__ import annotations

import math
import warnings
from typing import Any

import array_api_strict as strict
import numpy
import pytest

import tinycore.array_api as xp
from tests.unit.array_api.comparing import assert_close, make, run_both, to_numpy
from tests.unit.array_api.conftest import FULL
from tests.unit.array_api.standard import BINARY, ELEMENTWISE, UNARY
from tinycore.errors import ArgumentError, DTypeError

pytestmark = pytest.mark.sample(8)

FLOATS = ("float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = (*SIGNED, *UNSIGNED)

ACCEPTS = {
    **dict.fromkeys(ELEMENTWISE, FLOATS),
    **dict.fromkeys(
        "abs add ceil conj floor floor_divide greater greater_equal isfinite isinf isnan less "
        "less_equal maximum minimum multiply negative positive pow real remainder round sign "
        "square subtract trunc".split(),
        (*INTS, *FLOATS),
    ),
    **dict.fromkeys(["equal", "not_equal"], ("bool", *INTS, *FLOATS)),
    **dict.fromkeys(["bitwise_left_shift", "bitwise_right_shift"], INTS),
    **dict.fromkeys("bitwise_and bitwise_invert bitwise_or bitwise_xor".split(), ("bool", *INTS)),
    **dict.fromkeys("logical_and logical_not logical_or logical_xor".split(), ("bool",)),
}
"""The dtypes that the standard says a function takes."""

UNARIES = [name for name, how in ELEMENTWISE.items() if how == UNARY and name != "imag"]
BINARIES = [name for name, how in ELEMENTWISE.items() if how == BINARY]

SPECIAL = [
    *[-math.inf, -100.5, -3.5, -2.5, -1.0, -0.75, -0.25, -0.0],
    *[0.0, 0.125, 0.5, 1.0, 1.5, 2.5, 20.25, math.inf, math.nan],
]
PAIRED = [-math.inf, -3.0, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.5, 3.0, math.inf, math.nan]

UNSIGNED_ZERO = {"maximum", "minimum", "sign"}
"""Functions for which the standard does not say which zero they give."""

SLACK: dict[str, float] = {}
"""Results that are further off than a few roundings, and why."""


def integers_for(name: str, dtype: str) -> tuple[list[int], list[int]]:
    """Operands for which the standard says what integers give."""
    bits = int(dtype.lstrip("uint"))
    left = [0, 1, 2, 3, 5, 100, 2 ** (bits - 1) - 1]
    if not dtype.startswith("u"):
        left += [-1, -2, -7, -(2 ** (bits - 1)) + 1]
    right = left[1:]  # no division by 0
    if name == "pow":
        right = [0, 1, 2, 3, 5]
    if "shift" in name:
        right = [0, 1, 2, bits - 1]
    return left, right


def data_for(name: str, dtype: str) -> tuple[list[Any], list[Any]]:
    if dtype == "bool":
        return [False, True], [False, True]
    if dtype in FLOATS:
        return (SPECIAL, PAIRED) if name in UNARIES else (PAIRED, PAIRED)
    return integers_for(name, dtype)


def check(name: str, dtype: str, *data: Any) -> None:
    """Both namespaces on the same data; the reference of floats is computed in float64."""
    ours = getattr(xp, name)(*[make(xp, x, dtype) for x in data])
    wide = "float64" if dtype in FLOATS else dtype
    with warnings.catch_warnings(), numpy.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs = to_numpy(getattr(strict, name)(*[make(strict, x, wide) for x in data]))
        expected = theirs.astype(dtype) if theirs.dtype.kind == "f" else theirs
    if name == "nextafter" and dtype != wide:
        expected = numpy.nextafter(
            *numpy.broadcast_arrays(*[numpy.asarray(x, dtype) for x in data])
        )
    found = to_numpy(ours)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if name == "floor_divide":  # inf // x may be inf or NaN
        free = numpy.broadcast_to(numpy.isinf(numpy.asarray(data[0])), expected.shape)
        expected = numpy.where(free & ~numpy.isnan(found), found, expected)
    what, sign = f"{name} of {dtype}", name not in UNSIGNED_ZERO
    assert_close(found, expected, what, SLACK.get(name, 1.0), sign)


@pytest.mark.parametrize("target", [FULL, "PYTHON"])
@pytest.mark.parametrize("name", UNARIES)
def test_unary(name: str, target: str) -> None:
    for dtype in ACCEPTS[name][0 if target == FULL else -1 :]:
        check(name, dtype, data_for(name, dtype)[0])


@pytest.mark.parametrize("target", [FULL, "PYTHON"])
@pytest.mark.parametrize("name", BINARIES)
def test_binary(name: str, target: str) -> None:
    for dtype in ACCEPTS[name][0 if target == FULL else -1 :]:
        left, right = data_for(name, dtype)
        check(name, dtype, [[x] for x in left], right)


@pytest.mark.parametrize("name", [*UNARIES, *BINARIES])
def test_shapes_with_no_axes_and_with_no_elements(name: str) -> None:
    dtype = ACCEPTS[name][-1]
    count = 1 if name in UNARIES else 2

    run_both(lambda xp: getattr(xp, name)(*[make(xp, 1, dtype)] * count), name)
    empty = getattr(xp, name)(*[xp.zeros((0, 3), dtype=getattr(xp, dtype))] * count)
    assert empty.shape == (0, 3)
    assert empty.numpy().size == 0


@pytest.mark.parametrize("name", BINARIES)
def test_one_operand_may_be_a_number(name: str) -> None:
    dtype = ACCEPTS[name][0]
    number: Any = True if dtype == "bool" else 3 if "int" in dtype else 2.5
    data = [True, False] if dtype == "bool" else [1, 2, 5]
    function, sign = f"{name} of a number", name not in UNSIGNED_ZERO

    run_both(lambda xp: getattr(xp, name)(make(xp, data, dtype), number), function, 4, sign)
    run_both(lambda xp: getattr(xp, name)(number, make(xp, data, dtype)), function, 4, sign)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, -1, -2, 0.5, 1.5, -0.5])
def test_power_of_a_number_is_that_of_an_array(exponent: float) -> None:
    ours = xp.pow(make(xp, PAIRED, "float64"), exponent).numpy()
    with numpy.errstate(all="ignore"):
        theirs = to_numpy(
            strict.pow(
                make(strict, PAIRED, "float64"), make(strict, [exponent] * len(PAIRED), "float64")
            )
        )

    assert_close(ours, theirs, f"pow {exponent}")


@pytest.mark.parametrize(
    ("left", "right"),
    [("int8", "int32"), ("uint8", "int8"), ("uint32", "int32"), ("float32", "float64")],
)
def test_operands_are_promoted(left: str, right: str) -> None:
    run_both(lambda xp: xp.add(make(xp, [1, 100], left), make(xp, [[2], [3]], right)), "add")


@pytest.mark.parametrize("name", ["clip"])
def test_clip_limits_by_numbers_arrays_or_one_side(name: str) -> None:
    values = [-3.0, -0.5, 0.25, 7.0, math.nan]

    run_both(lambda xp: xp.clip(make(xp, values, "float32"), -1, 2.5), name)
    run_both(
        lambda xp: xp.clip(make(xp, values, "float64"), max=make(xp, [[1], [2]], "float64")), name
    )
    run_both(lambda xp: xp.clip(make(xp, [1, 2, 3], "int8"), 2), name)
    run_both(lambda xp: xp.clip(make(xp, [1, 2, 3], "uint64"), min=None, max=None), name)


@pytest.mark.parametrize("name", [*UNARIES, *BINARIES])
def test_dtypes_of_other_kinds_are_refused(name: str) -> None:
    count = 1 if name in UNARIES else 2
    for dtype in {"bool", "int32", "float32"} - set(ACCEPTS[name]):
        with pytest.raises(DTypeError, match=f"^{name}: needs .* got dtypes.{dtype}; convert"):
            getattr(xp, name)(*[xp.ones(2, dtype=getattr(xp, dtype))] * count)


@pytest.mark.parametrize("name", BINARIES)
def test_kinds_are_not_mixed(name: str) -> None:
    whole, fractional = xp.ones(2, dtype=xp.int32), xp.ones(2, dtype=xp.float32)

    with pytest.raises(DTypeError, match=f"^{name}: .*no common dtype"):
        getattr(xp, name)(whole, fractional)
    with pytest.raises(DTypeError, match=f"^{name}: 2.5 .*beside arrays of dtypes.int32"):
        getattr(xp, name)(whole, 2.5)
    with pytest.raises(DTypeError, match=f"^{name}: 1j "):
        getattr(xp, name)(fractional, 1j)


def test_a_number_must_fit_the_array() -> None:
    with pytest.raises(ArgumentError, match=r"add: 300 is outside the range of dtypes.int8"):
        xp.add(xp.ones(2, dtype=xp.int8), 300)
    with pytest.raises(ArgumentError, match="needs an array or a dtype"):
        xp.add(1, 2)


def test_a_list_is_no_array() -> None:
    with pytest.raises(TypeError, match=r"sin: needs an array, got list .*asarray"):
        xp.sin([1.0])  # type: ignore[arg-type]
