"""Exponentials, logarithms and the sine by polynomials and the bits of float32 and float64.

Floor 3'. Every step is one that vectorizes. Argument reduction after Cody & Waite, "Software Manual
for the Elementary Functions" (1980); coefficients and their errors come from
`benchmarks/fit_polynomials.py`. Measured on millions of samples of each type: below 1.1
units in the last place, denormal results and arguments, infinities and NaN included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tinycore.dtype import DType, dtypes, float_layout
from tinycore.uop.node import UOp


class Domain(NamedTuple):
    """Bounds of the arguments of an exponential; beyond, its result is that at the bound."""

    zero: float
    """Here both halves of the exponent are those of 0: the result is 0 without an underflow, which
    takes some processors a hundred cycles. Scores under a mask are -inf."""
    infinite: float


class Series(NamedTuple):
    """Constants and polynomials of exponentials and logarithms that suit a float type."""

    ln2: tuple[float, float]
    """ln 2 as a number with few digits, whose product with any exponent is exact, and the rest."""
    log2_e: tuple[float, float]
    """1 / ln 2 as a number with half of the digits, and the rest."""
    exp_domain: Domain
    exp2_domain: Domain
    exp: Sequence[float]
    exp2: Sequence[float]
    log: Sequence[float]


SINGLE_SERIES: Final = Series(
    ln2=(float.fromhex("0x1.62e4p-1"), 1.4286068203094173e-06),
    log2_e=(1.4423828125, 0.00031222838896340733),
    exp_domain=Domain(-176.0, 89.0),
    exp2_domain=Domain(-254.0, 128.0),
    exp=(  # (exp(x) - 1 - x) / x**2
        0.001392617611993558, 0.008363173074513711, 0.041666554662050534, 0.1666657702559799, 0.5,
    ),
    exp2=(  # (2**x - 1) / x
        0.0001545316294512069, 0.0013390863364671234, 0.009618082557277852, 0.05550357114219078,
        0.24022650760568126, 0.6931471880262288,
    ),
    log=(  # (log(1 + x) - x + x**2/2) / x**3
        0.06971611471451178, -0.11479733846637635, 0.1168541992348674, -0.12425687331451106,
        0.1424905764569748, -0.16667802319501254, 0.200007157488921, -0.24999996957950882,
        0.33333331180030046,
    ),
)  # fmt: skip

DOUBLE_SERIES: Final = Series(
    ln2=(float.fromhex("0x1.62e42fefa2p-1"), 7.371002565167799e-13),
    log2_e=(1.4426950216293335, 1.9259629911266175e-08),
    exp_domain=Domain(-1418.0, 710.0),
    exp2_domain=Domain(-2046.0, 1024.0),
    exp=(
        2.0914679376583935e-09, 2.510520637395701e-08, 2.7557273661348637e-07,
        2.7557255425746435e-06, 2.4801587325533363e-05, 0.00019841269874800493,
        0.0013888888888883752, 0.008333333333326141, 0.04166666666666667, 0.1666666666666667, 0.5,
    ),
    exp2=(
        2.5729324177362305e-11, 4.4558179083360645e-10, 7.0548973041554995e-09,
        1.0178057087733941e-07, 1.3215486808705563e-06, 1.5252733841556773e-05,
        0.00015403530393370734, 0.001333355814640647, 0.00961812910762848, 0.055504108664821625,
        0.24022650695910072, 0.6931471805599453,
    ),
    log=(  # (log((1+s)/(1-s))/s - 2) / s**2, in s**2
        0.14616449685043406, 0.15331721600556042, 0.18182889125261723, 0.2222221113479508,
        0.28571428625975487, 0.39999999999899505, 0.666666666666667,
    ),
)  # fmt: skip

SERIES: Final = {dtypes.float32: SINGLE_SERIES, dtypes.float64: DOUBLE_SERIES}


def series_of(x: UOp) -> Series:
    """The constants and polynomials for a float32 or float64 value."""
    return SERIES[x.dtype.scalar()]


def float_bits(x: UOp, kind: str = "uint") -> UOp:
    """The bits of a float32 or float64 as an integer."""
    return x.bitcast(lanes(x, dtypes.by_name[f"{kind}{x.dtype.bits}"]))


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
    series = series_of(x)
    high, low = series.ln2
    x = clamped(x, series.exp_domain)
    n, biased = nearest(x * (1 / math.log(2)))
    r = (x - n * high) - n * low
    return scaled(polynomial(r, series.exp) * (r * r) + r, biased)


def exp2(x: UOp) -> UOp:
    """2**x == 2**n * 2**r, where n = round(x) and r = x - n, which is exact."""
    series = series_of(x)
    x = clamped(x, series.exp2_domain)
    n, biased = nearest(x)
    r = x - n
    return scaled(polynomial(r, series.exp2) * r, biased)


def clamped(x: UOp, domain: Domain) -> UOp:
    """The number, or the nearest of a domain: an instruction each, which NaN passes unchanged."""
    least, most = x.const_like(domain.zero), x.const_like(domain.infinite)
    x = (x < least).where(least, x)
    return (most < x).where(most, x)


def nearest(x: UOp) -> tuple[UOp, UOp]:
    """x rounded to an integer n, as a float, and the bits of a float that end in n + 2*bias.

    Adding 1.5 * 2**mantissa rounds the fraction away, and leaves the integer in the low bits of the
    sum.
    """
    layout = float_layout(x.dtype)
    magic = x.const_like(1.5 * 2.0**layout.mantissa_bits + 2 * layout.bias)
    total = x + magic
    return total - magic, float_bits(total)


def scaled(less_one: UOp, biased: UOp) -> UOp:
    """(less_one + 1) * 2**n, rounded once if that is denormal, from bits that end in n + 2*bias.

    Neither half of n leaves the exponents of normal numbers, so the first factor is exact.
    """
    half, mantissa = biased >> 1, float_layout(less_one.dtype).mantissa_bits
    first, second = ((bits << mantissa).bitcast(less_one.dtype) for bits in (half, biased - half))
    return (less_one * first + first) * second


# --- logarithms


def log(x: UOp) -> UOp:
    """log(x) == e*ln 2 + log(1 + f), where x == 2**e * (1 + f) and 1 + f is near 1."""
    high, low = series_of(x).ln2
    e, f = split_exponent(x)
    half_square = f * f * 0.5
    result = e * high + (f - (half_square - (log_tail(f, half_square) + e * low)))
    return with_limits(x, result)


def log2(x: UOp) -> UOp:
    """log2(x) == e + log(1 + f) / ln 2, with log(1 + f) in two parts, the first of few digits."""
    e, f = split_exponent(x)
    half_square = f * f * 0.5
    high = few_digits(f - half_square)
    low = (f - high) - half_square + log_tail(f, half_square)
    scale_high, scale_low = series_of(x).log2_e
    first = high * scale_high
    rest = (low + high) * scale_low + low * scale_high
    total = e + first
    return with_limits(x, rest + ((e - total) + first) + total)


def split_exponent(x: UOp) -> tuple[UOp, UOp]:
    """(e, f) with x == 2**e * (1 + f) and 1 + f between sqrt(1/2) and sqrt(2), both as floats."""
    layout = float_layout(x.dtype)
    lift = layout.mantissa_bits + 2
    denormal = x < 2.0**layout.least_exponent
    bits = float_bits(denormal.where(x * 2.0**lift, x), "int")
    e = (bits - float_bits(x.const_like(math.sqrt(0.5)), "int")) >> layout.mantissa_bits
    f = (bits - (e << layout.mantissa_bits)).bitcast(x.dtype) - 1.0
    return denormal.where(e - lift, e).cast(dtypes.int32).cast(x.dtype), f


def log_tail(f: UOp, half_square: UOp) -> UOp:
    """log(1 + f) - f + f*f/2."""
    series = series_of(f)
    if series is SINGLE_SERIES:
        return polynomial(f, series.log) * (f * f * f)
    s = f / (f + 2.0)
    square = s * s
    return s * (polynomial(square, series.log) * square + half_square)


def few_digits(x: UOp) -> UOp:
    """The number without the lower half of its digits, so that its products are exact."""
    width = float_layout(x.dtype).mantissa_bits + 1 >> 1
    return (float_bits(x) >> width << width).bitcast(x.dtype)


def with_limits(x: UOp, result: UOp) -> UOp:
    """A logarithm at its limits: infinite for infinity and 0, NaN below 0 and for NaN."""
    inf, nan = x.const_like(math.inf), x.const_like(math.nan)
    positive = (x < math.inf).where(result, inf)
    return (x > 0.0).where(positive, x.eq(0.0).where(x.const_like(-math.inf), nan))


# --- the sine, by integer argument reduction and two polynomials

# The reduction is exact for every finite argument: a float is an integer times a power of 2, so x *
# 2/pi modulo 4 is the product of that integer with a window of the digits of 2/pi (Payne & Hanek,
# "Radian reduction for trigonometric functions", 1983). One path serves all magnitudes, since
# vector code would compute both of two paths. It needs 64-bit integers, and float64 where there is
# one. Measured: below 1.7 units in the last place.

ToRadians = Callable[[UOp, Sequence[UOp]], UOp]
"""From the remainder of a quarter turn, and the words that follow it, to radians."""

TWO_OVER_PI: Final = (
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921c"
    "fe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980f"
    "ef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08"
    "56033046"
)
"""The digits of 2/pi after the point, in hexadecimal (`benchmarks/fit_polynomials.py`)."""

PI_2: Final = (1.570796012878418, 3.139164786504813e-07)
"""pi/2 as a number of 22 digits, and the rest."""

WORD_BITS: Final = 32
"""Bits of the words of 2 / pi."""
MASK: Final = 0xFFFFFFFF
"""The bits of a word."""


def parts(value: float, digits: int, count: int) -> tuple[float, ...]:
    """A number as a sum of numbers with few binary digits, the greatest first."""
    found = []
    for _ in range(count):
        unit = 2.0 ** (math.frexp(value)[1] - digits)
        found.append(math.trunc(value / unit) * unit)
        value -= found[-1]
    return tuple(found)


HALF_DIGITS: Final = 12
"""Products of two float32 with this number of digits are exact."""
PI_2_PARTS: Final = parts(math.pi / 2, HALF_DIGITS, 3)


class Reduction(NamedTuple):
    """Range reduction of the arguments of one float type, and the polynomials for the remainder."""

    zeros: int
    """Words of zeros in front of the digits of 2/pi, for arguments near 1."""
    words: int
    """Words of the whole table."""
    window: int
    """Words of the digits that matter: argument, cancellation and precision together."""
    sin: Sequence[float]
    cos: Sequence[float]


SINGLE_REDUCTION: Final = Reduction(
    zeros=1,
    words=8,
    window=3,
    # (sin(r)/r - 1) / r**2, in r**2
    sin=(-0.00019587890880412386, 0.008332748270629749, -0.1666666466231438),
    # (cos(r) - 1 + r**2/2) / r**4, in r**2
    cos=(2.4547942085071572e-05, -0.0013888303035894866, 0.04166666465950221),
)

DOUBLE_REDUCTION: Final = Reduction(
    zeros=2,
    words=39,
    window=6,
    sin=(
        1.5918129294866608e-10, -2.5051131845003624e-08, 2.755731610255244e-06,
        -0.00019841269836758574, 0.008333333333330948, -0.16666666666666666,
    ),
    cos=(
        -1.1382632425521717e-11, 2.08761462684032e-09, -2.7557317271729793e-07,
        2.480158729876569e-05, -0.0013888888888887398, 0.041666666666666664,
    ),
)  # fmt: skip

ARGUMENT_REDUCTIONS: Final = {dtypes.float32: SINGLE_REDUCTION, dtypes.float64: DOUBLE_REDUCTION}


def sin_without_double(x: UOp) -> UOp:
    """sin(x) of float32 on a target without float64."""
    return sin(x, in_radians_by_parts)


def sin(x: UOp, to_radians: ToRadians | None = None) -> UOp:
    """sin(x) == +-sin(r) or +-cos(r), where |x| == q * pi/2 + r and |r| <= pi/4."""
    reduction = ARGUMENT_REDUCTIONS[x.dtype.scalar()]
    bits = float_bits(x)
    top = x.dtype.bits - 1
    magnitude = bits & ((1 << top) - 1)
    quadrant, r = reduce_argument(magnitude, x.dtype, reduction, to_radians or in_radians)
    square = r * r
    sine = polynomial(square, reduction.sin) * (square * r) + r
    cosine = polynomial(square, reduction.cos) * (square * square) + (1.0 - square * 0.5)
    value = (quadrant & 1).ne(0).where(cosine, sine).bitcast(bits.dtype)
    sign = (bits >> top) ^ ((quadrant >> 1) & 1).cast(bits.dtype)
    result = (value ^ (sign << top)).bitcast(x.dtype)
    finite = magnitude < float_layout(x.dtype).beyond
    return finite.where(result, x.const_like(math.nan))


def reduce_argument(
    magnitude: UOp, dtype: DType, reduction: Reduction, to_radians: ToRadians
) -> tuple[UOp, UOp]:
    """(q, r) with |x| == q * pi/2 + r modulo 2 pi; q is a uint32, of which two bits count."""
    mantissa, bias = float_layout(dtype).mantissa_bits, float_layout(dtype).bias
    exponent = (magnitude >> mantissa).cast(dtypes.uint32)
    # The first digit of the window weighs 2: what is above adds multiples of 2 pi.
    start = exponent + (WORD_BITS * reduction.zeros - bias - mantissa - 2)
    window = digits(start, reduction)
    fraction = (1 << mantissa) - 1
    integer = (magnitude & fraction) | (fraction + 1)
    product = multiplied(window, limbs(integer))
    high = product[-1].cast(dtypes.uint64) << WORD_BITS | product[-2].cast(dtypes.uint64)
    quadrant = (high + (1 << 61)) >> 62
    remainder = (high - (quadrant << 62)).bitcast(lanes(high, dtypes.int64))
    r = to_radians(remainder, product[-3:-5:-1]).cast(dtype.scalar())
    small = exponent < bias - 1  # below 1/2 it is its own remainder
    zero = exponent.const_like(0)
    return small.where(zero, quadrant.cast(dtypes.uint32)), small.where(magnitude.bitcast(dtype), r)


def in_radians(remainder: UOp, below: Sequence[UOp]) -> UOp:
    """remainder / 2**62 quarter turns in radians, as float64; `below` are the words that follow.

    The upper half times the first part of pi/2 is exact, so one rounding counts; it is rounded to
    nearest, so that it is 0 when the remainder is small.
    """
    real = dtypes.float64
    half = (remainder + (1 << WORD_BITS - 1)) >> WORD_BITS
    upper = half.cast(dtypes.int32).cast(real)
    lower = (remainder - (half << WORD_BITS)).cast(dtypes.int32).cast(real)
    for place, word in enumerate(below, 1):
        lower += word.cast(real) * 2.0 ** (-WORD_BITS * place)
    upper, lower = upper * 2.0 ** (WORD_BITS - 62), lower * 2.0**-62
    first, second = PI_2
    return upper * first + (upper * second + lower * (first + second))


def in_radians_by_parts(remainder: UOp, below: Sequence[UOp]) -> UOp:
    """remainder / 2**62 quarter turns in radians, as float32.

    Of no float32 is the remainder so small that the words below it would count. The product of the
    upper digits of both factors is exact, so one rounding counts.
    """
    real = dtypes.float32
    value = remainder.cast(real)
    rest = (remainder - value.cast(dtypes.int64)).cast(real)
    mask = (1 << 32) - (1 << 24 - HALF_DIGITS)
    upper = (value.bitcast(lanes(value, dtypes.uint32)) & mask).bitcast(value.dtype)
    lower = value - upper
    first, second, third = (part * 2.0**-62 for part in PI_2_PARTS)
    small = upper * third + (lower * second + rest * first)
    return upper * first + (upper * second + lower * first + small)


def digits(start: UOp, reduction: Reduction) -> list[UOp]:
    """The words of the window that begins at digit `start` of the table, the last words first."""
    text = "0" * (8 * reduction.zeros) + TWO_OVER_PI
    words = [start.const_like(int(text[8 * i : 8 * i + 8], 16)) for i in range(reduction.words)]
    step = 1 << (reduction.words - reduction.window - 1).bit_length() - 1
    while step:  # move the table up by as many words as each bit of the start says
        moved = (start & (WORD_BITS * step)).ne(0)
        kept = reduction.window + step
        words = [
            moved.where(words[i + step], words[i]) if i + step < len(words) else words[i]
            for i in range(min(kept, len(words)))
        ]
        step >>= 1
    shift = start & (WORD_BITS - 1)
    back = WORD_BITS - 1 - shift.cast(dtypes.uint32)
    window = [(words[i] << shift) | ((words[i + 1] >> 1) >> back) for i in range(reduction.window)]
    return window[::-1]


def limbs(integer: UOp) -> list[UOp]:
    """An integer as 32-bit words, the last first."""
    low = integer.cast(dtypes.uint32)
    if integer.dtype.itemsize == 4:
        return [low]
    return [low, (integer >> WORD_BITS).cast(dtypes.uint32)]


def multiplied(a: Sequence[UOp], b: Sequence[UOp]) -> list[UOp]:
    """The product of two numbers of 32-bit words, cut to the length of the first."""
    wide = dtypes.uint64
    columns: list[list[UOp]] = [[] for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            if i + j == len(a) - 1:  # the upper half would be cut off
                columns[i + j].append((x * y).cast(wide))
            elif i + j < len(a):
                partial = x.cast(wide) * y.cast(wide)
                columns[i + j].append(partial & MASK)
                columns[i + j + 1].append(partial >> WORD_BITS)
    words = []
    carry: list[UOp] = []
    for column in columns[: len(a)]:
        total = sum_of(column + carry)
        words.append(total.cast(dtypes.uint32))
        carry = [total >> WORD_BITS]
    return words


def sum_of(terms: Sequence[UOp]) -> UOp:
    """The sum of one or more values."""
    total = terms[0]
    for term in terms[1:]:
        total += term
    return total
