"""Floating point that NumPy lacks: fused multiply-add, directed rounding, small formats.

Formats: PTX ISA 9.0, section 5.2.3 (bf16, e4m3, e5m2, tf32); IEEE 754-2019 for the others. The
fused multiply-add rounds once by the round-to-odd method (Boldo and Melquiond, "Emulation of a FMA
and Correctly Rounded Sums", 2008).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy

Array = numpy.ndarray[Any, Any]


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as a rounded sum and its exact error (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def to_odd(total: Array, error: Array) -> Array:
    """A double that stands for total + error when it is rounded to a narrower format."""
    total = numpy.atleast_1d(total)
    error = numpy.broadcast_to(error, total.shape)
    even = (total.view(numpy.uint64) & 1) == 0
    change = even & (error != 0) & numpy.isfinite(total) & numpy.isfinite(error)
    if not change.any():
        return total
    toward = numpy.where(error > 0, numpy.inf, -numpy.inf)
    return numpy.where(change, numpy.nextafter(total, toward), total)


def fma_narrow(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of floats of 32 bits or fewer, as a double that rounds to them correctly."""
    product = numpy.asarray(a, numpy.float64) * numpy.asarray(b, numpy.float64)
    total, error = two_sum(product, numpy.asarray(c, numpy.float64))
    return to_odd(total, error)


def fma_double(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of doubles by double-double arithmetic (Dekker)."""
    splitter = 134217729.0
    product = a * b
    a_high = a * splitter
    a_high = a_high - (a_high - a)
    b_high = b * splitter
    b_high = b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total, rest = two_sum(product, numpy.asarray(c))
    exact = total + (error + rest)
    plain = product + c
    return numpy.where(numpy.isfinite(exact), exact, plain)


def flush(values: Array) -> Array:
    """Subnormal float32 numbers become zeros of their sign (.ftz)."""
    small = numpy.abs(values) < numpy.float32(1.1754944e-38)
    return numpy.where(small, numpy.copysign(numpy.float32(0), values), values)


# --- bfloat16


def bfloat_to_float(bits: Array) -> Array:
    """uint16 patterns of bfloat16 as float32."""
    return (numpy.asarray(bits).astype(numpy.uint32) << numpy.uint32(16)).view(numpy.float32)


def float_to_bfloat(values: Array, mode: str = "rn") -> Array:
    """Doubles or floats as uint16 patterns of bfloat16; rounds once."""
    return round_to(values, 8, 8, mode).astype(numpy.uint16)


def round_to(values: Array, exponent_bits: int, precision: int, mode: str) -> Array:
    """Doubles as bits of a format with infinities; `precision` counts the hidden bit."""
    values = numpy.atleast_1d(numpy.asarray(values, numpy.float64))
    bias = (1 << (exponent_bits - 1)) - 1
    mantissa_bits = precision - 1
    _, exponent = numpy.frexp(values)
    # exponent of the unit in front; subnormals and zero have the least
    exponent = numpy.where(values == 0, 1 - bias, numpy.maximum(exponent - 1, 1 - bias))
    scaled = numpy.ldexp(values, mantissa_bits - exponent)
    whole = ROUNDINGS[mode](numpy.abs(scaled), numpy.signbit(values))
    # `whole` holds the hidden bit of normal numbers; a carry moves on into the exponent by itself
    pattern = (exponent + bias - 1).astype(numpy.int64) * (1 << mantissa_bits)
    magnitude = pattern + numpy.where(numpy.isfinite(whole), whole, 0).astype(numpy.int64)
    infinite = ((1 << exponent_bits) - 1) << mantissa_bits
    down = {"rz": True, "rm": ~numpy.signbit(values), "rp": numpy.signbit(values)}.get(mode, False)
    largest = numpy.where(down, infinite - 1, infinite)
    magnitude = numpy.where(magnitude >= infinite, largest, magnitude)
    magnitude = numpy.where(numpy.isinf(values), infinite, magnitude)
    nan = (1 << (exponent_bits + mantissa_bits)) - 1
    magnitude = numpy.where(numpy.isnan(values), nan, magnitude)
    sign = numpy.signbit(values) & ~numpy.isnan(values)
    signed: Array = magnitude | (sign.astype(numpy.int64) << (exponent_bits + mantissa_bits))
    return signed


ROUNDINGS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "rn": lambda magnitude, negative: numpy.rint(magnitude),
    "rna": lambda magnitude, negative: numpy.floor(magnitude + 0.5),
    "rz": lambda magnitude, negative: numpy.floor(magnitude),
    "rm": lambda magnitude, negative: numpy.where(
        negative, numpy.ceil(magnitude), numpy.floor(magnitude)
    ),
    "rp": lambda magnitude, negative: numpy.where(
        negative, numpy.floor(magnitude), numpy.ceil(magnitude)
    ),
}
"""Magnitudes to integers; the second argument says which numbers are negative."""


def float_to_tf32(values: Array, mode: str = "rna") -> Array:
    """float32 with ten bits of mantissa, as uint32 patterns."""
    bits = round_to(values, 8, 11, mode)
    return (bits << 13).astype(numpy.uint32)


# --- formats of eight bits


def eight_bits_to_float(bits: Array, kind: str) -> Array:
    """uint8 patterns of e4m3 or e5m2 as float32."""
    bits = numpy.asarray(bits).astype(numpy.int64)
    mantissa_bits, bias = (3, 7) if kind == "e4m3" else (2, 15)
    exponent = (bits & 0x7F) >> mantissa_bits
    mantissa = bits & ((1 << mantissa_bits) - 1)
    normal = numpy.ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)
    value = numpy.where(
        exponent == 0, numpy.ldexp(mantissa * 1.0, 1 - bias - mantissa_bits), normal
    )
    if kind == "e4m3":
        value = numpy.where((bits & 0x7F) == 0x7F, numpy.nan, value)
    else:
        value = numpy.where(exponent == 31, numpy.where(mantissa == 0, numpy.inf, numpy.nan), value)
    return numpy.where(bits & 0x80, -value, value).astype(numpy.float32)


def float_to_eight_bits(values: Array, kind: str) -> Array:
    """Round to e4m3 or e5m2, to nearest even, beyond the largest to the largest (.satfinite)."""
    values = numpy.atleast_1d(numpy.asarray(values, numpy.float64))
    exponent_bits, precision, largest = (4, 4, 0x7E) if kind == "e4m3" else (5, 3, 0x7B)
    mantissa_bits, bias = precision - 1, (1 << (exponent_bits - 1)) - 1
    _, exponent = numpy.frexp(values)
    exponent = numpy.where(values == 0, 1 - bias, numpy.maximum(exponent - 1, 1 - bias))
    whole = numpy.rint(numpy.abs(numpy.ldexp(values, mantissa_bits - exponent)))
    whole = numpy.where(numpy.isfinite(whole), whole, 0).astype(numpy.int64)
    magnitude = (exponent + bias - 1).astype(numpy.int64) * (1 << mantissa_bits) + whole
    magnitude = numpy.minimum(magnitude, largest)
    magnitude = numpy.where(numpy.isinf(values), largest, magnitude)
    magnitude = numpy.where(numpy.isnan(values), 0x7F, magnitude)
    sign = numpy.signbit(values) & ~numpy.isnan(values)
    bits: Array = (magnitude | sign.astype(numpy.int64) << 7).astype(numpy.uint8)
    return bits
