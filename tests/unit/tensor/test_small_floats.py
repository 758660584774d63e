"""8-bit floats, all codes of them, against torch: read, rounded to, computed with, sorted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tinycore.dtype import DType, dtypes, float_layout
from tinycore.tensor import Tensor
from tinycore.uop.evaluate import from_bits, to_bits

from .grid import torch_dtype

EACH = pytest.mark.parametrize("dtype", dtypes.fp8s, ids=lambda dtype: dtype.name)
CODES = numpy.arange(256, dtype=numpy.uint8)


@pytest.fixture(autouse=True)
def on_every_target(target: str) -> None:
    assert target


def values(codes: numpy.ndarray[Any, Any], dtype: DType) -> torch.Tensor:
    """The codes as torch reads them, in float32."""
    return torch.tensor(codes).view(torch_dtype(dtype)).float()


def codes_of(numbers: torch.Tensor, dtype: DType) -> list[int]:
    """The codes that torch rounds float32 numbers to, -1 for any NaN but the one of fnuz.

    torch lets an fp8e4m3 overflow to 448, here it does to NaN, as in the conversions of the OCP
    specification that do not saturate: 464 is the tie of 448 and what would come next.
    """
    if dtype is dtypes.fp8e4m3:
        numbers = numbers.where(numbers.abs() <= 464, math.nan)
    return known(numbers.to(torch_dtype(dtype)).view(torch.uint8).numpy(), dtype)


def known(codes: numpy.ndarray[Any, Any], dtype: DType) -> list[int]:
    """Codes of which those of NaN, where there are several, are -1."""
    several = float_layout(dtype).has_negative_zero
    nan = numpy.isnan(values(codes, dtype).numpy()) & several
    return [-1 if is_nan else int(code) for code, is_nan in zip(codes, nan, strict=True)]


def found(x: Tensor, dtype: DType) -> list[int]:
    assert x.dtype is dtype
    return known(x.bitcast(dtypes.uint8).numpy(), dtype)


@EACH
def test_every_code_is_read_as_in_torch(dtype: DType) -> None:
    expected = values(CODES, dtype).numpy()
    x = Tensor(CODES).bitcast(dtype)

    for numbers in (x.numpy(), x.float().numpy()):
        numpy.testing.assert_array_equal(numbers, expected)
        number = ~numpy.isnan(expected)
        numpy.testing.assert_array_equal(
            numpy.signbit(numbers)[number], numpy.signbit(expected)[number]
        )


def decisive(dtype: DType) -> numpy.ndarray[Any, Any]:
    """float32 numbers about which rounding decides: all of the type, and between any two."""
    read = values(CODES, dtype).numpy()
    finite = numpy.unique(read[numpy.isfinite(read)])
    beyond = 2 * finite[-1] - finite[-2]  # the least number that is too great
    wide = numpy.concatenate([[-beyond], finite, [beyond]]).astype(numpy.float32)
    middle = (wide[1:] + wide[:-1]) / 2
    far = numpy.float32(3e38)
    special = [math.nan, math.inf, -math.inf, far, -far, 0.0, -0.0, 1e-45, -1e-45, 1e-6, -1e-6]
    return numpy.concatenate(
        [wide, middle, numpy.nextafter(middle, far), numpy.nextafter(middle, -far), special]
    ).astype(numpy.float32)


@EACH
def test_rounding_is_to_nearest_even_as_in_torch(dtype: DType) -> None:
    numbers = decisive(dtype)
    expected = codes_of(torch.tensor(numbers), dtype)

    assert found(Tensor(numbers).cast(dtype), dtype) == expected  # by the device
    assert found(Tensor(numbers, dtype=dtype), dtype) == expected  # by the host


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negate": lambda a, b: -a,
    "truncate": lambda a, b: a.trunc(),
    "root": lambda a, b: a.sqrt(),
    "choose": lambda a, b: (
        (a < b).where(a, b) if isinstance(a, Tensor) else torch.where(a < b, a, b)
    ),
    "twice": lambda a, b: a * 2.0,
    "without number": lambda a, b: a + 0.1 * 0,
}


@EACH
def test_arithmetic_is_rounded_once(dtype: DType) -> None:
    other = numpy.random.default_rng(3).permutation(CODES)
    theirs = values(CODES, dtype), values(other, dtype)
    ours = Tensor(CODES).bitcast(dtype), Tensor(other).bitcast(dtype)

    for name, operation in OPERATIONS.items():
        expected = codes_of(operation(*theirs), dtype)
        assert found(operation(*ours), dtype) == expected, name


@EACH
def test_a_number_beside_it_is_rounded_to_its_type_first(dtype: DType) -> None:
    tenth = torch.tensor(0.1).to(torch_dtype(dtype)).float()
    expected = codes_of(values(CODES, dtype) * tenth, dtype)

    assert found(Tensor(CODES).bitcast(dtype) * 0.1, dtype) == expected


@EACH
def test_extremes_and_order(dtype: DType) -> None:
    read = values(CODES, dtype)
    numbers = read[read == read]
    x = Tensor(numbers.numpy(), dtype=dtype)

    assert (x.max().item(), x.min().item()) == (numbers.max().item(), numbers.min().item())
    assert x.sort()[0].tolist() == numbers.sort()[0].tolist()
    assert x.isinf().tolist() == numbers.isinf().tolist()
    assert math.isnan(Tensor(CODES).bitcast(dtype).max().item())


@EACH
def test_there_is_no_second_zero_where_zero_has_no_sign(dtype: DType) -> None:
    signs = [numpy.signbit(x.numpy()).item() for x in (
        Tensor([-0.0], dtype=dtype), -Tensor([0.0]).cast(dtype), Tensor([-1e-9]).cast(dtype),
        Tensor([-0.0]).cast(dtype),
    )]  # fmt: skip

    assert signs == [float_layout(dtype).has_negative_zero] * 4


@pytest.mark.parametrize("source", dtypes.fp8s, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("middle", dtypes.fp8s, ids=lambda dtype: dtype.name)
def test_a_detour_by_another_type_is_taken(source: DType, middle: DType) -> None:
    """A cast there and back is left out only where it changes nothing."""
    there = [from_bits(c, middle) for c in codes_or_nan(values(CODES, source), middle)]
    expected = codes_of(torch.tensor(there), source)

    assert found(Tensor(CODES).bitcast(source).cast(middle).cast(source), source) == expected


def codes_or_nan(numbers: torch.Tensor, dtype: DType) -> list[int]:
    """`codes_of` with a code in the place of -1."""
    nan = to_bits(math.nan, dtype)
    return [nan if code < 0 else code for code in codes_of(numbers, dtype)]
