"""Contents of the grids of dtypes, shapes and special values.

Expected values come from NumPy's long double or torch's float64; distances are measured in units in
the last place of the result's dtype, as the table of an operation states them.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from tinycore.dtype import DType, dtypes, float_layout
from tinycore.tensor import Tensor

Array = numpy.ndarray[Any, Any]

FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
FULL = "CPU:LLVM"
"""The target that runs whole grids; the others show that they compute the same graphs alike."""
SHAPES = [(), (0,), (1,), (3, 0, 2), (7,), (3, 5)]

torch_name = {
    dtypes.fp8e4m3: torch.float8_e4m3fn,
    dtypes.fp8e5m2: torch.float8_e5m2,
    dtypes.fp8e4m3fnuz: torch.float8_e4m3fnuz,
    dtypes.fp8e5m2fnuz: torch.float8_e5m2fnuz,
}


def torch_dtype(dtype: DType) -> torch.dtype:
    """torch's dtype of the same layout."""
    found = torch_name.get(dtype) or getattr(torch, dtype.name)
    assert isinstance(found, torch.dtype)
    return found


def core_dtype(dtype: torch.dtype) -> DType:
    """Our dtype of the same layout."""
    return next(ours for ours in dtypes.all if torch_dtype(ours) is dtype)


def limits(dtype: DType) -> tuple[float, float, float]:
    """The least subnormal, the least normal and the greatest finite number of a float dtype."""
    layout = float_layout(dtype)
    return layout.magnitude(1), 2.0**layout.least_exponent, layout.greatest


def special(dtype: DType) -> list[float]:
    """Zeros, ones, subnormals, the greatest finite numbers, infinities and NaN of a float dtype."""
    subnormal, normal, greatest = limits(dtype)
    positive = [0.0, subnormal, normal, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, greatest, numpy.inf]
    return [*positive, *[-x for x in positive], numpy.nan]


def extremes(dtype: DType) -> list[int]:
    """The ends of an integer dtype and what lies about 0."""
    low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
    return [
        x for x in (low, low + 1, -7, -2, -1, 0, 1, 2, 3, 7, high - 1, high) if low <= x <= high
    ]


def magnitudes(count: int, low: float, high: float, seed: int = 0) -> Array:
    """Numbers of both signs, their logarithms spread evenly."""
    drawn = numpy.random.default_rng(seed).uniform(numpy.log(low), numpy.log(high), count)
    return numpy.concatenate([numpy.exp(drawn), -numpy.exp(drawn)])


def rounded(values: Array, dtype: DType) -> Array:
    """float64 values rounded to a dtype, as long double."""
    source = torch.tensor(numpy.asarray(values, numpy.float64)).to(torch_dtype(dtype))
    return source.double().numpy().astype(numpy.longdouble)


def tensor_of(values: Array, dtype: DType) -> Tensor:
    """A tensor of values that the dtype holds exactly."""
    return Tensor(numpy.asarray(values, numpy.float64), dtype=dtype)


def unit(expected: Array, dtype: DType) -> Array:
    """The unit in the last place of a dtype at each number."""
    _, normal, _ = limits(dtype)
    _, mantissa = dtypes.finfo(dtype)
    size = numpy.maximum(numpy.abs(expected), numpy.longdouble(normal))
    return numpy.asarray(numpy.ldexp(numpy.longdouble(1), numpy.frexp(size)[1] - 1 - mantissa))


def assert_ulps(
    result: Tensor, expected: Array, dtype: DType, ulps: float, arguments: Any, floor: float = 0.0
) -> None:
    """Finite results within so many units of the last place, or `floor`; others are the same."""
    assert result.dtype is dtype
    got = result.numpy().astype(numpy.longdouble)
    greatest = numpy.longdouble(limits(dtype)[2])
    assert got.shape == expected.shape
    inside = numpy.isfinite(expected) & (numpy.abs(expected) <= greatest)
    with numpy.errstate(invalid="ignore"):
        distance = numpy.abs(got - expected)
    near = distance <= numpy.maximum(ulps * unit(numpy.where(inside, expected, 1), dtype), floor)
    overflow = numpy.isinf(got) & (numpy.sign(got) == numpy.sign(expected))
    wrong = ~numpy.where(inside, near, overflow | (numpy.isnan(got) & numpy.isnan(expected)))
    if wrong.any():
        place = numpy.unravel_index(
            numpy.argmax(numpy.where(wrong, numpy.nan_to_num(distance, nan=numpy.inf), -1)),
            wrong.shape,
        )
        at = [numpy.asarray(x)[place] for x in arguments]
        off = distance[place] / unit(numpy.where(inside, expected, 1), dtype)[place]
        raise AssertionError(
            f"{wrong.sum()} wrong in {dtype!r}; f{tuple(map(float, at))} is {got[place]!r} instead "
            f"of {expected[place]!r}, {float(off):.2f} units off where {ulps} are allowed"
        )


def differences(
    result: Tensor,
    expected: torch.Tensor,
    relative: float = 0.0,
    signed_zeros: bool = True,
    absolute: float = 0.0,
) -> list[int]:
    """Flat places at which a result differs from torch's: NaN is NaN, and 0.0 is not -0.0.

    One unit of the last place is allowed among subnormals.
    """
    least = max(absolute, limits(result.dtype)[0] if relative else 0.0)
    got = result.numpy().astype(numpy.float64).reshape(-1)
    right = expected.detach().double().numpy(force=True).reshape(-1)
    both_nan = numpy.isnan(got) & numpy.isnan(right)
    with numpy.errstate(invalid="ignore"):
        near = (got == right) | (numpy.abs(got - right) <= relative * numpy.abs(right) + least)
    sign = (got != 0) | (right != 0) | (numpy.signbit(got) == numpy.signbit(right))
    return [int(i) for i in numpy.flatnonzero(~(both_nan | (near & (sign | (not signed_zeros)))))]
