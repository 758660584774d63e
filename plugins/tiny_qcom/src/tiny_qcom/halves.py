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
HALF: Final = 126 << 23
"""0.5, whose last digit stands for the least half, 2**-24."""


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

    size = out.new("iand", value, constant(0x7FFF_FFFF))
    odd = out.new("iand", out.new("ushr", size, constant(13)), constant(1))
    moved = out.new("iadd", out.new("iadd", size, odd), constant(0xFFF - REBIASED))
    normal = out.new("ushr", moved, constant(13))
    small = out.new("isub", out.new("fadd", size, constant(HALF)), constant(HALF))
    found = out.new("bcsel", out.new("ult", size, constant(LEAST_NORMAL)), small, normal)
    found = out.new("bcsel", out.new("ult", size, constant(OVERFLOW)), found, constant(0x7C00))
    is_nan = out.new("ult", constant(INFINITE), size)
    found = out.new("bcsel", is_nan, constant(0x7E00), found)
    sign = out.new("ishl", out.new("ushr", value, constant(31)), constant(15))
    return out.new("ior", found, sign)
