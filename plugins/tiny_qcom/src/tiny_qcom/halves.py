"""Halves to floats and back by operations on words, exact for all of them.

The conversions of an Adreno make zeros of halves below 2**-14, so they are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tiny_qcom.listing import Listing

__all__ = ["decoded", "encoded"]

REBIASED: Final = 112 << 23
"""The difference between the exponents of a float and of a half, 127 - 15."""
INFINITE: Final = 0x7F80_0000
LEAST_NORMAL: Final = 113 << 23
"""2**-14, the bits of a float."""
OVERFLOW: Final = 143 << 23
"""2**16: what is rounded to no half."""


def decoded(value: str, out: Listing) -> str:
    """The float of a half, whose bits are the low ones of a word."""

    def constant(number: int) -> str:
        return out.constant(32, number)

    size = out.new("iand", value, constant(0x7FFF))
    sign = out.new("ishl", out.new("iand", value, constant(0x8000)), constant(16))
    normal = out.new("iadd", out.new("ishl", size, constant(13)), constant(REBIASED))
    # Below the least normal half the digits stand behind a leading 1 that was never there.
    ahead = out.new("iadd", normal, constant(1 << 23))
    small = out.new("fsub", ahead, constant(LEAST_NORMAL))
    found = out.new("bcsel", out.new("ult", size, constant(0x400)), small, normal)
    special = out.new("ior", normal, constant(INFINITE))
    found = out.new("bcsel", out.new("ult", size, constant(0x7C00)), found, special)
    return out.new("ior", found, sign)


def encoded(value: str, out: Listing) -> str:
    """The bits of the half nearest to a float, ties to even."""

    def constant(number: int) -> str:
        return out.constant(32, number)

    size = out.new("fmin", out.new("fabs", value), constant(OVERFLOW))
    exponent = out.new("umax", out.new("iand", size, constant(INFINITE)), constant(LEAST_NORMAL))
    # Beside 2**13 times the power of two below it, a float has the digits of a half.
    large = out.new("iadd", exponent, constant(13 << 23))
    digits = out.new("isub", out.new("fadd", size, large), large)
    # Digits of a normal half begin with a 1, which makes its exponent one more.
    less = out.new("iadd", out.new("ushr", exponent, constant(13)), digits)
    found = out.new("iadd", less, constant(-(113 << 10) & 0xFFFF_FFFF))
    is_nan = out.new("fneu", value, value)
    found = out.new("bcsel", is_nan, constant(0x7E00), found)
    sign = out.new("iand", out.new("ushr", value, constant(16)), constant(0x8000))
    return out.new("ior", found, sign)
