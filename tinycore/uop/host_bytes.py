"""Host arrays in device formats, including floats that NumPy lacks.

Floor 1. bfloat16 and fp8 travel as the unsigned integers they are stored in; `decode` gives their
numbers as float32, `encode` rounds to nearest, ties to even.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeAlias

from tinycore._deferred import numpy
from tinycore.dtype import DType, dtypes, float_layout, to_numpy_dtype
from tinycore.uop.evaluate import from_bits

Array: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"

SMALL_FLOATS: Final = frozenset({dtypes.bfloat16, *dtypes.fp8s})
"""Dtypes that NumPy does not have."""


def encode(array: Array, dtype: DType) -> Array:
    """Numbers as the bytes of `dtype`: a C-contiguous array of `to_numpy_dtype(dtype)`."""
    if dtype not in SMALL_FLOATS:
        return numpy.asarray(converted(array, dtype), order="C")
    with numpy.errstate(all="ignore"):
        values = rounded(array.astype(numpy.float64), dtype)
    return numpy.asarray(to_storage(values, dtype), order="C")


def converted(array: Array, dtype: DType) -> Array:
    """`array` as a NumPy dtype, as `cast` does it: see docs/numerics.md."""
    target = to_numpy_dtype(dtype)
    with numpy.errstate(all="ignore"):
        if array.dtype.kind == "f" and dtypes.is_int(dtype):
            if dtype is dtypes.uint64 and (array >= 0).all():
                return array.astype(target, copy=False)
            whole = numpy.int64 if dtype.itemsize == 8 or dtype is dtypes.uint32 else numpy.int32
            return array.astype(whole).astype(target)
        return array.astype(target, copy=False)


def decode(array: Array, dtype: DType) -> Array:
    """The numbers stored in `array`; bfloat16 and fp8 become float32."""
    scalar = dtype.scalar()
    if scalar is dtypes.bfloat16:
        return (array.astype(numpy.uint32) << 16).view(numpy.float32)
    if scalar in SMALL_FLOATS:
        return numpy.asarray(fp8_values(scalar)[array])
    return array


def rounded(values: Array, dtype: DType) -> Array:
    """float32 or float64 values rounded to nearest even in a small float type, as float32."""
    if dtype is dtypes.bfloat16 and values.dtype == numpy.float32:
        bits = values.view(numpy.uint32)
        nearest = (bits + (0x7FFF + (bits >> 16 & 1))) & numpy.uint32(0xFFFF0000)
        return numpy.where(
            numpy.isnan(values), numpy.float32(numpy.nan), nearest.view(numpy.float32)
        )
    layout, wide = float_layout(dtype), values.astype(numpy.float64)
    exponent = numpy.maximum(numpy.frexp(wide)[1] - 1, layout.least_exponent)
    step = exponent - layout.mantissa_bits
    nearest = numpy.ldexp(numpy.rint(numpy.ldexp(wide, -step)), step)
    finite = numpy.abs(nearest) <= layout.greatest
    beyond = numpy.copysign(numpy.inf, wide) if layout.has_infinity else numpy.nan
    result = numpy.where(finite, nearest, numpy.where(numpy.isnan(wide), numpy.nan, beyond))
    signed = result if layout.has_negative_zero else result + 0.0  # -0 + 0 is 0
    return signed.astype(numpy.float32)


def to_storage(values: Array, dtype: DType) -> Array:
    """Numbers of a dtype as they are in memory: those of a small float type as their bits."""
    scalar = dtype.scalar()
    if scalar not in SMALL_FLOATS:
        return values
    layout, storage = float_layout(scalar), to_numpy_dtype(scalar)
    if scalar is dtypes.bfloat16:
        return (numpy.ascontiguousarray(values).view(numpy.uint32) >> 16).astype(storage)
    # Numbers of a type lie in the order of their bits.
    bits = numpy.searchsorted(fp8_values(scalar)[: layout.beyond], numpy.abs(values))
    negative = numpy.signbit(values) & ((bits != 0) | layout.has_negative_zero)
    bits = bits | negative.astype(numpy.int64) << (scalar.bits - 1)
    return numpy.where(numpy.isnan(values), layout.nan, bits).astype(storage)


@cache
def fp8_values(dtype: DType) -> Array:
    """Values of the 256 bit patterns of an fp8 type."""
    return numpy.array([from_bits(code, dtype) for code in range(256)], numpy.float32)
