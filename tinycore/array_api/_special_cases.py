"""Elementwise functions that `Tensor` has no method for, or whose zeros have no sign there.

Floor 6. What the standard says of signed zeros, infinities and NaN holds, which is what IEEE 754
and C say.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.dtype import dtypes
from tinycore.tensor import Tensor

BITS: Final = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}
"""The integer with the bits of a float, by size."""


def in_float32(*operands: Tensor) -> tuple[Tensor, ...]:
    """Broadcast operands in at least float32, for what takes several steps."""
    shaped = operands[0]._broadcasted("elementwise", *operands[1:])
    narrow = shaped[0].dtype.itemsize < 4
    return tuple([x.cast(dtypes.float32) for x in shaped]) if narrow else shaped


# --- signs


def has_sign(x: Tensor) -> Tensor:
    """True where the sign bit is set: also of -0.0 and of NaN."""
    return x.bitcast(BITS[x.dtype.itemsize]) < 0


def with_sign(size: Tensor, of: Tensor) -> Tensor:
    """The magnitudes of the first with the signs of the second."""
    return has_sign(of).where(-size.abs(), size.abs())


# --- the plane


def angle(y: Tensor, x: Tensor) -> Tensor:
    """The angle of the point (x, y), by the arc tangent of the lesser side over the greater."""
    dtype = x.dtype
    y, x = in_float32(y, x)
    across, up = x.abs(), y.abs()
    greater, lesser = across.maximum(up), across.minimum(up)
    even = lesser.eq(greater)  # also both 0 and both infinite
    ratio = even.where(greater.ne(0).cast(x.dtype), lesser / even.where(1.0, greater))
    first = ratio.atan()
    first = (up > across).where(math.pi / 2 - first, first)
    half = has_sign(x).where(math.pi - first, first)
    return (x.isnan() | y.isnan()).where(math.nan, with_sign(half, y)).cast(dtype)


def length(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x*x + y*y) without overflow; infinite when either is, even with NaN."""
    dtype = x.dtype
    x, y = in_float32(x, y)
    across, up = x.abs(), y.abs()
    greater, lesser = across.maximum(up), across.minimum(up)
    alone, infinite = greater.eq(0), x.isinf() | y.isinf()
    ratio = lesser / (alone | infinite).where(1.0, greater)
    return infinite.where(math.inf, greater * (ratio.square() + 1).sqrt()).cast(dtype)


# --- zeros


def log1p(x: Tensor) -> Tensor:
    """log(1 + x): a zero is passed through with its sign, and with the derivative 1."""
    return x.eq(0).where(x, x.log1p())


# --- neighbors and quotients


def neighbor(x: Tensor, toward: Tensor) -> Tensor:
    """The next float from one number in the direction of another, by counting in its bits."""
    x, toward = x._broadcasted("nextafter", toward)
    bits = x.bitcast(BITS[x.dtype.itemsize])
    away = (toward > x).eq(x > 0)
    stepped = away.where(bits + 1, bits - 1).bitcast(x.dtype)
    least = bits.const_like(1).bitcast(x.dtype)
    moved = x.eq(0).where(with_sign(least, toward), stepped)
    return (x.isnan() | toward.isnan()).where(math.nan, x.eq(toward).where(toward, moved))


def floor_quotient(x: Tensor, by: Tensor) -> Tensor:
    """floor(x / by); a zero has the sign of x / by."""
    x, by = x._broadcasted("floor_divide", by)
    found = x.idiv(by)
    if not dtypes.is_float(x.dtype):
        return found
    zero = has_sign(x).ne(has_sign(by)).where(-0.0, found.const_like(0.0))
    return found.eq(0).where(zero, found)


def rest(x: Tensor, by: Tensor) -> Tensor:
    """x - by * floor(x / by), with the sign of `by` also when it is 0."""
    x, by = x._broadcasted("remainder", by)
    found = x.mod(by)
    return found.eq(0).where(with_sign(found, by), found) if dtypes.is_float(x.dtype) else found
