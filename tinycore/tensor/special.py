"""Special functions by series and rational approximations.

Floor 5. Near the point where the obvious formula cancels, a Taylor series takes over, as long as
the dtype needs on its small interval. Both sides of every `where` stay finite, so that gradients do
too, and where a formula has a fold at 0 one side's derivative is taken throughout.
"""

from __future__ import annotations

import math
from typing import Final, Self

from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.tensor.functions import in_wide_float, polynomial
from tinycore.tensor.powers import Powers
from tinycore.tensor.templates import templated
from tinycore.uop.node import UOp

SERIES_BELOW: Final = 0.5
"""Magnitude below which exp(x) - 1 is summed as a series."""
EXP_ALONE: Final = 20.0
"""Magnitude from which exp(-x) is negligible next to exp(x) in every dtype."""
FLAT: Final = math.tan(math.pi / 8)
"""Tangent below which an angle is summed as a series."""
HUGE: Final = 1e8
"""Magnitude from which x*x + 1 is x*x in every dtype."""

# exp(x*x) * erfc(x) as a polynomial of s, where s runs from -1 to 1 as 1/(1 + x/2) does on [1,
# last]. Chebyshev interpolation, computed with 60 digits: relative error 9e-10 and 8e-17.
ERFC_SINGLE: Final = (4.0, (
    0.25539567625190335, 0.14239528253811434, 0.02685091234341383, 0.0029251304915753145,
    4.607581915188901e-05, -2.8785413224691183e-05, -1.147585697734713e-06, 4.3171451032797147e-07,
))  # fmt: skip
ERFC_DOUBLE: Final = (6.0, (
    0.2214295402299318, 0.16189356804102495, 0.038560570425182426, 0.005588816281841403,
    0.00019713917772795885, -8.07922042879663e-05, -7.340517938287998e-06, 1.9795619759276e-06,
    1.6349937383405805e-07, -7.005371793736792e-08, -5.886053299221601e-10, 2.625007492297143e-09,
    -2.68698518348558e-10, -7.468711818050684e-11, 2.2135736614933752e-11, 4.775776110782188e-13,
    -9.369456032869593e-13,
))  # fmt: skip

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
    """Hyperbolic, inverse and error functions."""

    __slots__ = ()

    @in_wide_float
    def expm1(self) -> Self:
        """exp(a) - 1, accurate near 0.

        >>> Tensor([1e-6]).expm1().numpy().round(8)
        array([1.e-06], dtype=float32)
        """
        small = (self < SERIES_BELOW) & (self > -SERIES_BELOW)
        inner = small.where(self, 0.0)
        terms = terms_for(self, 9, 15)
        series = inner * polynomial(inner, [1 / math.factorial(n + 1) for n in range(terms)])
        return small.where(series, self.exp() - 1)

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
        return negative.where(-size, size)

    @in_wide_float
    def cosh(self) -> Self:
        """(exp(a) + exp(-a)) / 2.

        >>> Tensor([0.0, 1.0]).cosh().numpy().round(4)
        array([1.    , 1.5431], dtype=float32)
        """
        down, _ = self._folded()
        root = (down * -0.5).exp()
        return root * 0.5 * root + 0.5 / root / root

    @templated
    @in_wide_float
    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> Tensor([0.0, 1.0]).tanh().numpy().round(4)
        array([0.    , 0.7616], dtype=float32)
        """
        down, negative = self._folded()
        decay = (down * 2).expm1()  # from -1 far away to 0 at 0
        size = -decay / (decay + 2)
        return negative.where(-size, size)

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
        return self._from_node(graph.called(value.uop, [self.uop], slope_of_acosh))

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
        return self._from_node(graph.called(value.uop, [self.uop], slope_of_atanh))

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
        terms = terms_for(self, 10, 21)
        series = polynomial(inner.square(), [(-1) ** n / (2 * n + 1) for n in range(terms)])
        base = steep.where(
            self.const_like(math.pi / 2), flat.where(0.0, self.const_like(math.pi / 4))
        )
        angle = base + inner * series
        return self.eq(0).where(self, negative.where(-angle, angle))

    @in_wide_float
    def asin(self) -> Self:
        """The angle in [-pi/2, pi/2] whose sine is a; NaN outside [-1, 1].

        >>> Tensor([0.0, 1.0, 2.0]).asin().numpy().round(4)
        array([0.    , 1.5708,    nan], dtype=float32)
        """
        edge, root = self._at_the_edge()
        inner = edge.where(0.0, self)
        main = (inner / ((1 - inner) * (1 + inner)).sqrt()).atan()
        right = self.const_like(math.pi / 2) - root
        return edge.where((self < 0).where(-right, right), main)

    @in_wide_float
    def acos(self) -> Self:
        """The angle in [0, pi] whose cosine is a; NaN outside [-1, 1].

        >>> Tensor([0.0, 1.0, 2.0]).acos().numpy().round(4)
        array([1.5708, 0.    ,    nan], dtype=float32)
        """
        edge, root = self._at_the_edge()
        inner = edge.where(0.0, self)
        main = ((1 - inner) / (1 + inner)).sqrt().atan() * 2
        return edge.where((self < 0).where(math.pi - root, root), main)

    def _at_the_edge(self) -> tuple[Self, Self]:
        """Mask of |a| = 1, and a zero there whose derivative is infinite."""
        down, _ = self._folded()
        edge = down.eq(-1)
        return edge, edge.where(down + 1, 1.0).sqrt()

    @templated
    @in_wide_float
    def erf(self) -> Self:
        """The error function.

        >>> Tensor([0.0, 1.0]).erf().numpy().round(4)
        array([0.    , 0.8427], dtype=float32)
        """
        last, coefficients = ERFC_DOUBLE if self.dtype is dtypes.float64 else ERFC_SINGLE
        near = (self < 1) & (self > -1)
        inner = near.where(self, 0.0)
        taylor = [
            2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1))
            for n in range(terms_for(self, 11, 18))
        ]
        series = inner * polynomial(inner.square(), taylor)
        size = near.where(1.0, (self < 0).where(-self, self)).clamp(max_=last)
        least = 1 / (1 + last / 2)
        position = ((size * 0.5 + 1).reciprocal() * 2 - (2 / 3 + least)) * (1 / (2 / 3 - least))
        tail = 1 - (-size.square()).exp() * polynomial(position, coefficients)
        return near.where(series, (self < 0).where(-tail, tail))

    def logaddexp(self, other: Self) -> Self:
        """log(exp(a) + exp(b)) without overflow.

        >>> Tensor([1000.0]).logaddexp(Tensor([1000.0])).numpy().round(2)
        array([1000.69], dtype=float32)
        """
        left, right = self._broadcasted("logaddexp", other)
        return left._log_of_sum(right)

    @in_wide_float
    def _log_of_sum(self, other: Self) -> Self:
        """`logaddexp` of two tensors of one shape and dtype."""
        left, right = self._broadcasted("logaddexp", other)
        greater = (left < right).where(right, left)
        lesser = (left < right).where(left, right)
        apart = (greater.eq(lesser) & greater.isinf()).where(0.0, lesser - greater)
        return greater + apart.exp().log1p()


def slope_of_acosh(g: UOp, call: UOp) -> list[Special]:
    """d acosh(a) = da / sqrt(a**2 - 1): also below -1, where there is no value."""
    a = Special._from_node(call.src[1])
    square = (a - 1) * (a + 1)
    # below 0 the root is NaN, and so are its own derivatives; abs() makes -0 at a == -1 a 0
    root = (a.abs() >= 1).where(square.abs(), square).sqrt()
    return [Special._from_node(g) / root]


def slope_of_atanh(g: UOp, call: UOp) -> list[Special]:
    """d atanh(a) = da / (1 - a**2): also outside [-1, 1], where there is no value."""
    a = Special._from_node(call.src[1])
    return [Special._from_node(g) / (1 - a * a)]


def terms_for(x: Powers, single: int, double: int) -> int:
    """Number of terms of a series that the dtype needs."""
    return double if x.dtype is dtypes.float64 else single
