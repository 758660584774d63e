"""Exact remainders of floats.

Floor 5. A quotient is taken a few bits at a time; the divisor is split into two numbers of half the
digits, so that fusing a product into a sum changes nothing either.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tinycore.dtype import dtypes

if TYPE_CHECKING:
    from tinycore.tensor.methods.elementwise import Elementwise

AnyTensor = TypeVar("AnyTensor", bound="Elementwise")


class Halving(NamedTuple):
    """Split of the digits of a float type into halves, and the bits of a quotient per step."""

    dropped: int
    """Bits of a number that are not in its leading half."""
    digits: int
    """Bits of the quotient that are computed at a time."""
    steps: int


HALVING: Final = {
    dtypes.float32: Halving(dropped=12, digits=10, steps=4),
    dtypes.float64: Halving(dropped=27, digits=24, steps=3),
}


def signed_bits(x: AnyTensor) -> AnyTensor:
    """The bits of floats as signed integers."""
    return x.bitcast(dtypes.by_name[f"int{x.dtype.bits}"])


def leading(x: AnyTensor) -> AnyTensor:
    """A number without the lower half of its digits. No gradient passes."""
    dropped = HALVING[x.dtype].dropped
    return (signed_bits(x) >> dropped << dropped).bitcast(x.dtype)


def remainder(a: AnyTensor, b: AnyTensor) -> AnyTensor:
    """a - b * trunc(a / b) with the sign of a; NaN for b == 0 and for an infinite a."""
    if a.dtype.itemsize < 4:
        return remainder(a.cast(dtypes.float32), b.cast(dtypes.float32)).cast(a.dtype)
    how = HALVING[a.dtype]
    below = negative(a)
    size, divisor = below.where(-a, a), b.abs()
    rest = (size * 2.0 ** (-how.steps * how.digits) < divisor).where(size, 0.0)
    for step in reversed(range(how.steps)):
        rest = reduce_remainder(rest, divisor * 2.0 ** (step * how.digits))
    undefined = divisor.eq(0) | size.eq(math.inf) | a.ne(a) | b.ne(b)
    rest = undefined.where(math.nan, rest)
    return below.where(-rest, rest)


def reduce_remainder(rest: AnyTensor, divisor: AnyTensor) -> AnyTensor:
    """The rest of a nonnegative number that is less than 2**digits divisors."""
    times = (rest / divisor).trunc()
    high = leading(divisor)
    less = rest - times * high - times * (divisor - high)
    less = (less < 0).where(less + divisor, less)  # the quotient was rounded up
    return (rest < divisor).where(rest, less)


def negative(x: AnyTensor) -> AnyTensor:
    """True where the sign is minus; those of -0.0 and of NaN count."""
    wide = x.cast(dtypes.float32) if x.dtype.itemsize < 4 else x
    return signed_bits(wide) < 0


def floor_quotient(a: AnyTensor, b: AnyTensor) -> AnyTensor:
    """floor(a / b) of the exact quotient, as Python has it; a / b where b == 0."""
    rest = remainder(a, b)
    below = rest.ne(0) & ((rest < 0).ne(b < 0))
    whole = (a - rest) / b - below.where(1.0, a.const_like(0.0))
    return b.eq(0).where(a / b, whole.round())
