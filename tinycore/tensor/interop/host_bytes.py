"""Host arrays in device formats, including floats that NumPy lacks.

Floor 5. bfloat16 and fp8 travel as the unsigned integers they are stored in; `decode` gives their
numbers as float32, `encode` rounds to nearest, ties to even.
"""

from __future__ import annotations

import math
from functools import cache

from tinycore._deferred import numpy
from tinycore.dtype import DType, dtypes, float_layout, to_numpy_dtype
from tinycore.tensor.runtime import HostArray
from tinycore.uop.evaluate import from_bits

FOREIGN = frozenset({dtypes.bfloat16, *dtypes.fp8s})
"""Dtypes that NumPy does not have."""


def encode(array: HostArray, dtype: DType) -> HostArray:
    """Numbers as the bytes of `dtype`: a C-contiguous array of `to_numpy_dtype(dtype)`."""
    target = to_numpy_dtype(dtype)
    if dtype not in FOREIGN:
        return numpy.asarray(converted(array, dtype, target), order="C")
    rounded = round_to_dtype(array.astype(numpy.float64), dtype)
    if dtype is dtypes.bfloat16:
        bits = rounded.astype(numpy.float32).view(numpy.uint32) >> 16
        return numpy.asarray(bits.astype(target), order="C")
    magnitudes, codes = code_table(dtype)
    place = numpy.searchsorted(magnitudes, numpy.abs(rounded))
    found = codes[numpy.minimum(place, len(codes) - 1)] | (numpy.signbit(rounded) * 0x80)
    found = numpy.where(numpy.isnan(rounded), float_layout(dtype).nan, found)
    return numpy.asarray(found.astype(target), order="C")


def converted(array: HostArray, dtype: DType, target: numpy.dtype[numpy.generic]) -> HostArray:
    """`array` as a NumPy dtype, as `cast` does it: see docs/numerics.md."""
    with numpy.errstate(all="ignore"):
        if array.dtype.kind == "f" and dtypes.is_int(dtype):
            if dtype is dtypes.uint64 and (array >= 0).all():
                return array.astype(target, copy=False)
            whole = numpy.int64 if dtype.itemsize == 8 or dtype is dtypes.uint32 else numpy.int32
            return array.astype(whole).astype(target)
        return array.astype(target, copy=False)


def decode(array: HostArray, dtype: DType) -> HostArray:
    """The numbers stored in `array`; bfloat16 and fp8 become float32."""
    if dtype is dtypes.bfloat16:
        return (array.astype(numpy.uint32) << 16).view(numpy.float32)
    if dtype in FOREIGN:
        table = numpy.array([from_bits(code, dtype) for code in range(256)], numpy.float32)
        return numpy.asarray(table[array])
    return array


def round_to_dtype(array: HostArray, dtype: DType) -> HostArray:
    """float64 numbers rounded to those of a float dtype that NumPy lacks; still float64."""
    layout = float_layout(dtype)
    with numpy.errstate(all="ignore"):
        exponent = numpy.maximum(numpy.frexp(array)[1] - 1, layout.least_exponent)
        step = exponent - layout.mantissa_bits
        rounded = numpy.ldexp(numpy.round(numpy.ldexp(array, -step)), step)
        over = math.inf if layout.has_infinity else math.nan
        big = numpy.where(numpy.isnan(array), array, numpy.copysign(over, array))
        result = numpy.where(numpy.abs(rounded) <= layout.greatest, rounded, big)
        return numpy.asarray(result if layout.has_negative_zero else result + 0.0)  # -0 + 0 is 0


@cache
def code_table(dtype: DType) -> tuple[HostArray, HostArray]:
    """Nonnegative values of an fp8 in ascending order, infinity included, and their codes."""
    values = numpy.array([from_bits(code, dtype) for code in range(128)], numpy.float64)
    codes = numpy.flatnonzero(~numpy.isnan(values))
    order = numpy.argsort(values[codes], kind="stable")
    return values[codes][order], codes[order]
