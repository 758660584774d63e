"""Special functions by series and rational approximations.

Floor 5. Near the point where the obvious formula cancels, a Taylor series takes over, as long as
the dtype needs on its small interval. Both sides of every `where` stay finite, so that gradients do
too, and where a formula has a fold at 0 one side's derivative is taken throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple, Self, TypeVar

from tinycore.dtype import dtypes, float_layout
from tinycore.tensor.methods.functions import in_wide_float, polynomial
from tinycore.tensor.methods.powers import Powers
from tinycore.tensor.methods.remainder import signed_bits
from tinycore.tensor.methods.templates import templated
from tinycore.uop.node import UOp

Numbers = tuple[float, ...]

EXP_ALONE: Final = 20.0
"""Magnitude from which exp(-x) is negligible next to exp(x) in every dtype."""
FLAT: Final = math.tan(math.pi / 8)
"""Tangent below which an angle is summed as a series."""
HUGE: Final = 1e8
"""Magnitude from which x*x + 1 is x*x in every dtype."""


class Series(NamedTuple):
    """Polynomials of a float type, the constant first (`benchmarks/fit_polynomials.py`)."""

    ln2: tuple[float, float]
    """ln 2 as a number with few digits, whose product with any exponent is exact, and the rest."""
    least: float
    """From here down 2 to the power round(x / ln 2) has the bits of 0."""
    greatest: float
    """From here up exp(x) is infinite."""
    exp: Numbers
    """(exp(x) - 1 - x) / x**2 between -ln 2 / 2 and ln 2 / 2."""
    erf: Numbers
    """erf(x) / x, in x**2, below 1."""
    log_erfc: Numbers
    """log(1 - erf(x)) between 1 and `erf_is_one`."""
    erf_is_one: float
    asin: Numbers
    """(asin(x)/x - 1) / x**2, in x**2, up to 1/2."""
    atan: Numbers
    """(atan(x)/x - 1) / x**2, in x**2, up to tan(pi/8)."""


SINGLE: Final = Series(
    ln2=(float.fromhex("0x1.62e4p-1"), 1.4286068203094173e-06),
    least=-88.0,
    greatest=89.0,
    exp=(0.5, 0.1666657702559799, 0.041666554662050534, 0.008363173074513711, 0.001392617611993558),
    erf=(
        1.1283791658483509, -0.37612626666720334, 0.11283594715160218, -0.026854212010626412,
        0.005189087423433974, -0.000801686428716587, 7.875875062685488e-05,
    ),
    log_erfc=(
        -0.0003417665929835738, -1.1270882173876489, -0.6381464382919954, -0.10310535188214232,
        0.021837380430339916, -0.002947482669564699, 0.00018636069134535452,
    ),
    erf_is_one=4.0,
    asin=(
        0.16666672414795305, 0.07498855072600821, 0.04500138006991017, 0.026554542206161328,
        0.038085023561092654,
    ),
    atan=(
        -0.3333333176116852, 0.19999540483648964, -0.1426395559798464, 0.10743731490791084,
        -0.06451928208121749,
    ),
)  # fmt: skip

DOUBLE: Final = Series(
    ln2=(float.fromhex("0x1.62e42fefa2p-1"), 7.371002565167799e-13),
    least=-709.0,
    greatest=710.0,
    exp=(
        0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326141, 0.0013888888888883752,
        0.00019841269874800493, 2.4801587325533363e-05, 2.7557255425746435e-06,
        2.7557273661348637e-07, 2.510520637395701e-08, 2.0914679376583935e-09,
    ),
    erf=(
        1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
        0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271,
        -1.4925595266831182e-05, 1.6461000484121368e-06, -1.6350312701054695e-07,
        1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
    ),
    log_erfc=(
        -1.0688320348262393e-06, -1.1283686639047101, -0.6366677847423864, -0.10263711038668052,
        0.018864413383887876, 0.0005853380769534163, -0.002100036215172699, 0.000920903942802815,
        -0.00023121678063899815, 2.8260387454876838e-05, 3.517254996819211e-06,
        -2.6473663768754215e-06, 6.824905810002522e-07, -1.0743570739810805e-07,
        1.0823004525079476e-08, -6.467793208498362e-10, 1.7558579255139675e-11,
    ),
    erf_is_one=6.0,
    asin=(
        0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247,
        0.02237217294214989, 0.017352392720869973, 0.013971212973552933, 0.011479177415184906,
        0.01032281435018578, 0.005457506718640358, 0.01740087944269402, -0.014851887071247204,
        0.028757851367421566,
    ),
    atan=(
        -0.3333333333333333, 0.1999999999999552, -0.14285714284666542, 0.11111111015256361,
        -0.09090904578123903, 0.07692183190826087, -0.06664511447381948, 0.0585814891280221,
        -0.0508544973794026, 0.03923165829558719, -0.01917688711906226,
    ),
)  # fmt: skip

# pi/2 as a sum; the first parts are so short that their products with odd numbers of quarter turns
# are exact, up to the angle beside them. W. J. Cody & W. Waite, "Software Manual for the Elementary
# Functions" (1980).
QUARTER: Final = {
    dtypes.float32: (
        (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.563344151594519e-12),
        6000.0,
    ),
    dtypes.float64: ((1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21), 1e6),
}


class Special(Powers):
    """Special functions: hyperbolic ones, inverses, and the error function."""

    __slots__ = ()

    @in_wide_float
    def expm1(self) -> Self:
        """exp(a) - 1, accurate near 0.

        >>> Tensor([1e-6]).expm1().numpy().round(8)
        array([1.e-06], dtype=float32)
        """
        rest, power = exp_parts(self, lowered=1)
        wide = (rest * power + (power - 0.5)) * 2  # halved: 2**128 alone would be infinite
        value = (self.square() < 2.0 ** float_layout(self.dtype).least_exponent).where(self, wide)
        return value._called(slope_of_expm1, self)

    @in_wide_float
    def log1p(self) -> Self:
        """log1p: log(1 + a), accurate near 0: the rounding error of 1 + a is compensated.

        >>> Tensor([1e-6]).log1p().numpy().round(8)
        array([1.e-06], dtype=float32)
        """
        total = self + 1
        plain = (total > 0) & (self < HUGE)
        lost = plain.where(self, 0.0) - (plain.where(total, 1.0) - 1)
        return total.log() + lost / plain.where(total, 1.0)

    @in_wide_float
    def cos(self) -> Self:
        """The cosine of an angle in radians, relative to the nearest root of the cosine.

        Near its extremes, and for large angles, computed as 1 - 2 sin(a/2)**2, which keeps
        derivatives accurate; the error for large angles is relative to 1.

        >>> Tensor([0.0, 1.0]).cos().numpy().round(4)
        array([1.    , 0.5403], dtype=float32)
        """
        parts, last = QUARTER[self.dtype]
        down, _ = self._folded()
        size = (-down < last).where(-down, 0.0)
        turns = (size * (1 / math.pi)).trunc()
        odd, rest = turns * 2 + 1, size
        for part in parts:
            rest = rest - odd * part
        steep = (rest < 1) & (rest > -1)
        sine = steep.where(rest, self * 0.5).sin()
        even = (turns * 0.5).trunc().eq(turns * 0.5)
        return steep.where(even.where(-sine, sine), 1 - sine.square() * 2)

    @in_wide_float
    def tan(self) -> Self:
        """sin(a) / cos(a).

        >>> Tensor([0.0, 1.0]).tan().numpy().round(4)
        array([0.    , 1.5574], dtype=float32)
        """
        return self.sin() / self.cos()

    @in_wide_float
    def sinh(self) -> Self:
        """(exp(a) - exp(-a)) / 2.

        >>> Tensor([0.0, 1.0]).sinh().numpy().round(4)
        array([0.    , 1.1752], dtype=float32)
        """
        down, negative = self._folded()
        far = down < -EXP_ALONE
        rise = far.where(0.0, -down).expm1()
        root = (down * -0.5).exp()
        size = far.where(root * 0.5 * root, (rise + rise / (rise + 1)) * 0.5)
        value = negative.where(-size, size)
        return value._called(slope_of_sinh, self)

    @in_wide_float
    def cosh(self) -> Self:
        """(exp(a) + exp(-a)) / 2.

        >>> Tensor([0.0, 1.0]).cosh().numpy().round(4)
        array([1.    , 1.5431], dtype=float32)
        """
        down, _ = self._folded()
        root = (down * -0.5).exp()
        value = root * 0.5 * root + 0.5 / root / root
        return value._called(slope_of_cosh, self)

    @templated
    @in_wide_float
    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> Tensor([0.0, 1.0]).tanh().numpy().round(4)
        array([0.    , 0.7616], dtype=float32)
        """
        down, _ = self._folded()
        rest, power = exp_parts(down * 2)
        decay = rest * power + (power - 1)  # from -1 far away to 0 at 0
        value = with_sign(decay / (decay + 2), self)
        return value._called(slope_of_tanh, self)

    @templated
    @in_wide_float
    def sigmoid(self) -> Self:
        """1 / (1 + exp(-a)).

        >>> Tensor([-1.0, 0.0, 1.0]).sigmoid().numpy().round(4)
        array([0.2689, 0.5   , 0.7311], dtype=float32)
        """
        down, negative = self._folded()
        decay = down.exp()
        return negative.where(decay, 1.0) / (decay + 1)

    def _folded(self) -> tuple[Self, Self]:
        """-|a| and where a is negative; the derivative at 0 is that of the other side."""
        negative = self < 0
        return negative.where(self, -self), negative

    @in_wide_float
    def asinh(self) -> Self:
        """The inverse of sinh.

        >>> Tensor([0.0, 1.0]).asinh().numpy().round(4)
        array([0.    , 0.8814], dtype=float32)
        """
        negative = self < 0
        size = negative.where(-self, self)
        large = size > HUGE
        inner = large.where(1.0, size)
        near = (inner + inner.square() / ((inner.square() + 1).sqrt() + 1)).log1p()
        far = large.where(size, 1.0).log() + math.log(2)
        result = large.where(far, near)
        return self.eq(0).where(self, negative.where(-result, result))

    @in_wide_float
    def acosh(self) -> Self:
        """The inverse of cosh for a >= 1; NaN below.

        >>> Tensor([1.0, 2.0, 0.0]).acosh().numpy().round(4)
        array([0.   , 1.317,   nan], dtype=float32)
        """
        large = self > HUGE
        above = large.where(1.0, self) - 1
        near = (above + (above.sqrt() * (above + 2).sqrt())).log1p()
        value = large.where(large.where(self, 1.0).log() + math.log(2), near)
        return value._called(slope_of_acosh, self)

    @in_wide_float
    def atanh(self) -> Self:
        """The inverse of tanh inside [-1, 1]; NaN outside.

        >>> Tensor([0.0, 0.5, 2.0]).atanh().numpy().round(4)
        array([0.    , 0.5493,    nan], dtype=float32)
        """
        negative = self < 0
        size = negative.where(-self, self)
        edge = size.eq(1)
        inner = edge.where(0.0, size)
        main = (inner * 2 / (1 - inner)).log1p() * 0.5
        result = edge.where(-edge.where(1 - size, 1.0).log(), main)
        value = self.eq(0).where(self, negative.where(-result, result))
        return value._called(slope_of_atanh, self)

    @in_wide_float
    def atan(self) -> Self:
        """The angle in (-pi/2, pi/2) whose tangent is a.

        >>> Tensor([0.0, 1.0]).atan().numpy().round(4)
        array([0.    , 0.7854], dtype=float32)
        """
        negative = self < 0
        size = negative.where(-self, self)
        steep, flat = size > 1 / FLAT, size < FLAT
        middle = (steep | flat).where(1.0, size)  # here the angle is pi/4 and that of the rest
        inner = steep.where(
            -steep.where(size, 1.0).reciprocal(), flat.where(size, (middle - 1) / (middle + 1))
        )
        square = inner.square()
        terms = series_of(self).atan
        base = steep.where(
            self.const_like(math.pi / 2), flat.where(0.0, self.const_like(math.pi / 4))
        )
        angle = base + (inner + inner * (square * polynomial(square, terms)))
        return self.eq(0).where(self, negative.where(-angle, angle))

    @in_wide_float
    def asin(self) -> Self:
        """The angle in [-pi/2, pi/2] whose sine is a; NaN outside [-1, 1].

        >>> Tensor([0.0, 1.0, 2.0]).asin().numpy().round(4)
        array([0.    , 1.5708,    nan], dtype=float32)
        """
        down, _ = self._folded()
        near, angle = angle_of_sine(down)
        size = near.where(angle, self.const_like(math.pi / 2) - angle * 2)
        value = with_sign(size, self)
        return value._called(slope_of_asin, self)

    @in_wide_float
    def acos(self) -> Self:
        """The angle in [0, pi] whose cosine is a; NaN outside [-1, 1].

        >>> Tensor([0.0, 1.0, 2.0]).acos().numpy().round(4)
        array([1.5708, 0.    ,    nan], dtype=float32)
        """
        down, negative = self._folded()
        near, angle = angle_of_sine(down)
        right, flat = self.const_like(math.pi / 2), self.const_like(math.pi)
        far = negative.where(flat - angle * 2, angle * 2)
        value = near.where(negative.where(right + angle, right - angle), far)
        return value._called(slope_of_acos, self)

    @templated
    @in_wide_float
    def erf(self) -> Self:
        """The error function.

        >>> Tensor([0.0, 1.0]).erf().numpy().round(4)
        array([0.    , 0.8427], dtype=float32)
        """
        series = series_of(self)
        down, _ = self._folded()
        near = self * polynomial(self.square(), series.erf)
        size, last = -down, self.const_like(series.erf_is_one)
        rest, power = exp_parts(polynomial((last < size).where(last, size), series.log_erfc))
        tail = (1 - power) - rest * power
        value = (size < 1).where(near, with_sign(tail, self))
        return value._called(slope_of_erf, self)

    def logaddexp(self, other: Self) -> Self:
        """log(exp(a) + exp(b)) without overflow.

        >>> Tensor([1000.0]).logaddexp(Tensor([1000.0])).numpy().round(2)
        array([1000.69], dtype=float32)
        """
        left, right = self._in_floats("logaddexp", other)
        return left._log_of_sum(right)

    @in_wide_float
    def _log_of_sum(self, other: Self) -> Self:
        """`logaddexp` of two tensors of one shape and dtype."""
        left, right = self._broadcasted("logaddexp", other)
        greater = (left < right).where(right, left)
        lesser = (left < right).where(left, right)
        apart = (greater.eq(lesser) & greater.isinf()).where(0.0, lesser - greater)
        return greater + apart.exp().log1p()


def by_slope(slope: Callable[[Special], Special]) -> Callable[[UOp, UOp], list[Special]]:
    """The gradient of a CALL of one tensor, by the derivative. It is a function without a closure,
    as templates ask for (`is_refused`).
    """

    def gradient(g: UOp, call: UOp, slope: Callable[[Special], Special] = slope) -> list[Special]:
        return [Special._from_node(g) * slope(Special._from_node(call.src[1]))]

    return gradient


def slope_of_acosh(g: UOp, call: UOp) -> list[Special]:
    """d acosh(a) = da / sqrt(a**2 - 1): also below -1, where there is no value."""
    a = Special._from_node(call.src[1])
    size = (a <= -1).where(-a, a)  # not abs(): its derivative is 0 at 0, where all are NaN
    # inside of (-1, 1) the root is NaN; two roots, as their product does not overflow
    root = (size - 1).sqrt() * (size + 1).sqrt()
    return [Special._from_node(g) / root]


slope_of_sinh = by_slope(lambda a: a.cosh())
"""d sinh(a) = cosh(a) da."""


slope_of_cosh = by_slope(lambda a: a.sinh())
"""d cosh(a) = sinh(a) da."""


def slope_of_atanh(g: UOp, call: UOp) -> list[Special]:
    """d atanh(a) = da / (1 - a**2): also outside [-1, 1], where there is no value."""
    a = Special._from_node(call.src[1])
    return [Special._from_node(g) / (1 - a * a)]


slope_of_expm1 = by_slope(lambda a: a.exp())
"""d expm1(a) = exp(a) da."""


@by_slope
def slope_of_tanh(a: Special) -> Special:
    """d tanh(a) = 4 exp(-2|a|) / (1 + exp(-2|a|))**2 da: it has all digits where tanh is near 1."""
    down, _ = a._folded()
    decay = (down * 2).exp()
    return decay * 4 / (decay + 1).square()


slope_of_asin = by_slope(lambda a: (1 - a.square()).rsqrt())
"""d asin(a) = da / sqrt(1 - a**2)."""


slope_of_acos = by_slope(lambda a: -(1 - a.square()).rsqrt())
"""d acos(a) = -da / sqrt(1 - a**2)."""


slope_of_erf = by_slope(lambda a: (-a.square()).exp() * (2 / math.sqrt(math.pi)))
"""d erf(a) = 2 exp(-a**2) / sqrt(pi) da."""


# --- pieces

AnyTensor = TypeVar("AnyTensor", bound=Powers)


def series_of(x: Powers) -> Series:
    """The polynomials that a dtype needs."""
    return DOUBLE if x.dtype is dtypes.float64 else SINGLE


def exp_parts(x: AnyTensor, lowered: int = 0) -> tuple[AnyTensor, AnyTensor]:
    """exp(r) - 1 and 2**(n - lowered), where x == n*ln 2 + r; of which exp(x) is made, and less 1.

    Adding 1.5 * 2**mantissa rounds the fraction away, and leaves the integer n in the low bits of
    the sum. Gradients do not pass.
    """
    series, layout = series_of(x), float_layout(x.dtype)
    least, greatest = x.const_like(series.least / (1 + lowered)), x.const_like(series.greatest)
    x = (x < least).where(least, x)
    x = (greatest < x).where(greatest, x)
    magic = 1.5 * 2.0**layout.mantissa_bits + layout.bias - lowered
    total = x * (1 / math.log(2)) + magic
    n = total - magic
    high, low = series.ln2
    r = (x - n * high) - n * low
    power = (signed_bits(total) << layout.mantissa_bits).bitcast(x.dtype)
    return polynomial(r, series.exp) * r.square() + r, power


def angle_of_sine(down: AnyTensor) -> tuple[AnyTensor, AnyTensor]:
    """True where |a| <= 1/2, and asin |a| there; asin(sqrt((1 - |a|) / 2)) elsewhere, for -|a|."""
    near = down >= -0.5
    square = near.where(down.square(), (down + 1) * 0.5)
    size = near.where(-down, square.sqrt())
    return near, size + size * (square * polynomial(square, series_of(down).asin))


def with_sign(size: AnyTensor, x: AnyTensor) -> AnyTensor:
    """The magnitude of a number with the sign of another, of a zero too. Gradients do not pass."""
    sign, bits = -(1 << x.dtype.bits - 1), signed_bits(size)
    return ((bits ^ signed_bits(x)) & sign ^ bits).bitcast(x.dtype)
