"""Exponentials and logarithms by polynomials and the bits of floats, for float32 and float64.

Floor 3'. Every step is one that vectorizes. Argument reduction after Cody & Waite, "Software Manual
for the Elementary Functions" (1980); coefficients and their errors come from
`benchmarks/fit_polynomials.py`. Measured on millions of samples of each type: below 1.1
units in the last place, denormal results and arguments, infinities and NaN included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from tinycore.dtype import DType, dtypes
from tinycore.uop.node import UOp


class Domain(NamedTuple):
    """Arguments beyond which an exponential does not change, which themselves are like those."""

    zero: float
    infinite: float


class Layout(NamedTuple):
    """A float type: its integers, its layout, and the polynomials that suit its precision."""

    signed: DType
    unsigned: DType
    mantissa: int
    bias: int
    ln2: tuple[float, float]
    """ln 2 as a number with few digits, whose product with any exponent is exact, and the rest."""
    log2_e: tuple[float, float]
    """1 / ln 2 as a number with half of the digits, and the rest."""
    exp_domain: Domain
    exp2_domain: Domain
    exp: Sequence[float]
    exp2: Sequence[float]
    log: Sequence[float]


SINGLE_LAYOUT: Final = Layout(
    signed=dtypes.int32,
    unsigned=dtypes.uint32,
    mantissa=23,
    bias=127,
    ln2=(float.fromhex("0x1.62e4p-1"), 1.4286068203094173e-06),
    log2_e=(1.4423828125, 0.00031222838896340733),
    exp_domain=Domain(-104.0, 89.0),
    exp2_domain=Domain(-150.0, 128.0),
    # (exp(x) - 1 - x) / x**2
    exp=(
        0.001392617611993558,
        0.008363173074513711,
        0.041666554662050534,
        0.1666657702559799,
        0.5,
    ),
    # (2**x - 1) / x
    exp2=(
        0.0001545316294512069,
        0.0013390863364671234,
        0.009618082557277852,
        0.05550357114219078,
        0.24022650760568126,
        0.6931471880262288,
    ),
    # (log(1 + x) - x + x**2/2) / x**3
    log=(
        0.06971611471451178,
        -0.11479733846637635,
        0.1168541992348674,
        -0.12425687331451106,
        0.1424905764569748,
        -0.16667802319501254,
        0.200007157488921,
        -0.24999996957950882,
        0.33333331180030046,
    ),
)

DOUBLE_LAYOUT: Final = Layout(
    signed=dtypes.int64,
    unsigned=dtypes.uint64,
    mantissa=52,
    bias=1023,
    ln2=(float.fromhex("0x1.62e42fefa2p-1"), 7.371002565167799e-13),
    log2_e=(1.4426950216293335, 1.9259629911266175e-08),
    exp_domain=Domain(-746.0, 710.0),
    exp2_domain=Domain(-1075.0, 1024.0),
    exp=(
        2.0914679376583935e-09,
        2.510520637395701e-08,
        2.7557273661348637e-07,
        2.7557255425746435e-06,
        2.4801587325533363e-05,
        0.00019841269874800493,
        0.0013888888888883752,
        0.008333333333326141,
        0.04166666666666667,
        0.1666666666666667,
        0.5,
    ),
    exp2=(
        2.5729324177362305e-11,
        4.4558179083360645e-10,
        7.0548973041554995e-09,
        1.0178057087733941e-07,
        1.3215486808705563e-06,
        1.5252733841556773e-05,
        0.00015403530393370734,
        0.001333355814640647,
        0.00961812910762848,
        0.055504108664821625,
        0.24022650695910072,
        0.6931471805599453,
    ),
    # (log((1+s)/(1-s))/s - 2) / s**2, in s**2
    log=(
        0.14616449685043406,
        0.15331721600556042,
        0.18182889125261723,
        0.2222221113479508,
        0.28571428625975487,
        0.39999999999899505,
        0.666666666666667,
    ),
)

LAYOUTS: Final = {dtypes.float32: SINGLE_LAYOUT, dtypes.float64: DOUBLE_LAYOUT}


def layout_of(x: UOp) -> Layout:
    """The layout of a float32 or float64 value."""
    return LAYOUTS[x.dtype.scalar()]


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """The polynomial with these coefficients, highest power first, by Horner's rule."""
    result = x.const_like(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def lanes(x: UOp, dtype: DType) -> DType:
    """The type with as many lanes as `x`."""
    return dtype.vec(x.dtype.count)


# --- exponentials


def exp(x: UOp) -> UOp:
    """e**x == 2**n * e**r, where n = round(x / ln 2) and r = x - n*ln 2."""
    layout = layout_of(x)
    high, low = layout.ln2
    x = clamped(x, layout.exp_domain)
    n, biased = nearest(x * (1 / math.log(2)), layout)
    r = (x - n * high) - n * low
    return scaled(polynomial(r, layout.exp) * (r * r) + r, biased, layout)


def exp2(x: UOp) -> UOp:
    """2**x == 2**n * 2**r, where n = round(x) and r = x - n, which is exact."""
    layout = layout_of(x)
    x = clamped(x, layout.exp2_domain)
    n, biased = nearest(x, layout)
    r = x - n
    return scaled(polynomial(r, layout.exp2) * r, biased, layout)


def clamped(x: UOp, domain: Domain) -> UOp:
    """The number, or the nearest of a domain: an instruction each, which NaN passes unchanged."""
    least, most = x.const_like(domain.zero), x.const_like(domain.infinite)
    x = (x < least).where(least, x)
    return (most < x).where(most, x)


def nearest(x: UOp, layout: Layout) -> tuple[UOp, UOp]:
    """x rounded to an integer n, as a float, and the bits of a float that end in n + 2*bias.

    Adding 1.5 * 2**mantissa leaves no room for digits after the point, and the integer stands in
    the low bits of the sum.
    """
    magic = x.const_like(1.5 * 2.0**layout.mantissa + 2 * layout.bias)
    total = x + magic
    return total - magic, total.bitcast(lanes(x, layout.unsigned))


def scaled(less_one: UOp, biased: UOp, layout: Layout) -> UOp:
    """(less_one + 1) * 2**n, rounded once if that is denormal, from bits that end in n + 2*bias.

    Neither half of n leaves the exponents of normal numbers, so the first factor is exact.
    """
    half = biased >> 1
    first, second = (
        (bits << layout.mantissa).bitcast(less_one.dtype) for bits in (half, biased - half)
    )
    return (less_one * first + first) * second


# --- logarithms


def log(x: UOp) -> UOp:
    """log(x) == e*ln 2 + log(1 + f), where x == 2**e * (1 + f) and 1 + f is near 1."""
    layout = layout_of(x)
    high, low = layout.ln2
    e, f = split_exponent(x, layout)
    half_square = f * f * 0.5
    result = e * high + (f - (half_square - (log_tail(f, half_square, layout) + e * low)))
    return with_limits(x, result)


def log2(x: UOp) -> UOp:
    """log2(x) == e + log(1 + f) / ln 2, with log(1 + f) in two parts, the first of few digits."""
    layout = layout_of(x)
    e, f = split_exponent(x, layout)
    half_square = f * f * 0.5
    high = few_digits(f - half_square, layout)
    low = (f - high) - half_square + log_tail(f, half_square, layout)
    scale_high, scale_low = layout.log2_e
    first = high * scale_high
    rest = (low + high) * scale_low + low * scale_high
    total = e + first
    return with_limits(x, rest + ((e - total) + first) + total)


def split_exponent(x: UOp, layout: Layout) -> tuple[UOp, UOp]:
    """(e, f) with x == 2**e * (1 + f) and 1 + f between sqrt(1/2) and sqrt(2), both as floats."""
    lift = layout.mantissa + 2
    denormal = x < 2.0 ** (1 - layout.bias)
    bits = denormal.where(x * 2.0**lift, x).bitcast(lanes(x, layout.signed))
    root_half = x.const_like(math.sqrt(0.5)).bitcast(bits.dtype)
    e = (bits - root_half) >> layout.mantissa
    f = (bits - (e << layout.mantissa)).bitcast(x.dtype) - 1.0
    return denormal.where(e - lift, e).cast(dtypes.int32).cast(x.dtype), f


def log_tail(f: UOp, half_square: UOp, layout: Layout) -> UOp:
    """log(1 + f) - f + f*f/2."""
    if layout is SINGLE_LAYOUT:
        return polynomial(f, layout.log) * (f * f * f)
    s = f / (f + 2.0)
    square = s * s
    return s * (polynomial(square, layout.log) * square + half_square)


def few_digits(x: UOp, layout: Layout) -> UOp:
    """The number without the lower half of its digits, so that its products are exact."""
    bits = x.bitcast(lanes(x, layout.unsigned))
    width = layout.mantissa + 1 >> 1
    return (bits >> width << width).bitcast(x.dtype)


def with_limits(x: UOp, result: UOp) -> UOp:
    """A logarithm at its limits: infinite for infinity and 0, NaN below 0 and for NaN."""
    inf, nan = x.const_like(math.inf), x.const_like(math.nan)
    positive = (x < math.inf).where(result, inf)
    return (x > 0.0).where(positive, x.eq(0.0).where(x.const_like(-math.inf), nan))
