"""Elementary functions built from series, accurate near 0 and far from it.

Floor 5. Near the point where the obvious formula cancels, a Taylor series takes over, as long as
the dtype needs on its small interval. Both sides of every `where` stay finite, so that gradients do
too, and where a formula has a fold at 0 one side's derivative is taken throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Self, TypeVar

from tinycore.dtype import dtypes
from tinycore.tensor.functions import Functions, in_wide_float

SERIES_BELOW: Final = 0.5
"""Magnitude below which exp(x) - 1 is summed as a series."""
LOG_SERIES_BELOW: Final = 0.25
"""Magnitude below which log(1 + x) is summed as a series."""
HUGE: Final = 1e8
"""Magnitude from which x*x + 1 is x*x in every dtype."""

# exp(x*x) * erfc(x) as a polynomial of s, where s runs from -1 to 1 as 1/(1 + x/2) does on [1,
# last]. Chebyshev interpolation, computed with 60 digits: relative error 9e-10 and 7e-16.
ERFC_SINGLE: Final = (4.0, (
    0.25539567625190335, 0.14239528253811434, 0.02685091234341383, 0.0029251304915753145,
    4.607581915188901e-05, -2.8785413224691183e-05, -1.147585697734713e-06, 4.3171451032797147e-07,
))  # fmt: skip
ERFC_DOUBLE: Final = (6.5, (
    0.21576343811980278, 0.16481105434206514, 0.040697878889634394, 0.0061697117615758685,
    0.00024269729805567427, -9.418227787549461e-05, -9.633643215105887e-06, 2.4607195723215683e-06,
    2.4509158943983597e-07, -9.518746519681823e-08, -2.3134071817920794e-09, 4.000011328530811e-09,
    -3.408488792061838e-10, -1.3435465414299626e-10, 2.8739722910221433e-11, 1.7268825593682113e-12,
))  # fmt: skip

AnyTensor = TypeVar("AnyTensor", bound=Functions)


class Special(Functions):
    """Hyperbolic, inverse and error functions."""

    __slots__ = ()

    @in_wide_float
    def expm1(self) -> Self:
        """exp(a) - 1, accurate near 0."""
        small = (self < SERIES_BELOW) & (self > -SERIES_BELOW)
        inner = small.where(self, 0.0)
        terms = terms_for(self, 9, 15)
        series = inner * polynomial(inner, [1 / math.factorial(n + 1) for n in range(terms)])
        return small.where(series, self.exp() - 1)

    @in_wide_float
    def log1p(self) -> Self:
        """log(1 + a), accurate near 0."""
        small = (self < LOG_SERIES_BELOW) & (self > -LOG_SERIES_BELOW)
        inner = small.where(self, 0.0)
        ratio = inner / (inner + 2)
        terms = terms_for(self, 5, 10)
        series = ratio * polynomial(ratio.square(), [2 / (2 * n + 1) for n in range(terms)])
        return small.where(series, small.where(1.0, self + 1).log())

    @in_wide_float
    def sinh(self) -> Self:
        """(exp(a) - exp(-a)) / 2."""
        return (self.expm1() - (-self).expm1()) * 0.5

    @in_wide_float
    def cosh(self) -> Self:
        """(exp(a) + exp(-a)) / 2."""
        return (self.exp() + (-self).exp()) * 0.5

    @in_wide_float
    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        down, negative = self.folded()
        decay = (down * 2).expm1()  # from -1 far away to 0 at 0
        size = -decay / (decay + 2)
        return negative.where(-size, size)

    @in_wide_float
    def sigmoid(self) -> Self:
        """1 / (1 + exp(-a))."""
        down, negative = self.folded()
        decay = down.exp()
        return negative.where(decay, 1.0) / (decay + 1)

    def folded(self) -> tuple[Self, Self]:
        """-|a| and where a is negative; the derivative at 0 is that of the other side."""
        negative = self < 0
        return negative.where(self, -self), negative

    @in_wide_float
    def asinh(self) -> Self:
        """The inverse of sinh."""
        negative = self < 0
        size = negative.where(-self, self)
        large = size > HUGE
        inner = large.where(1.0, size)
        near = (inner + inner.square() / ((inner.square() + 1).sqrt() + 1)).log1p()
        far = large.where(size, 1.0).log() + math.log(2)
        result = large.where(far, near)
        return negative.where(-result, result)

    @in_wide_float
    def acosh(self) -> Self:
        """The inverse of cosh for a >= 1; NaN below."""
        large = self > HUGE
        above = large.where(1.0, self) - 1
        near = (above + (above * (above + 2)).sqrt()).log1p()
        return large.where(large.where(self, 1.0).log() + math.log(2), near)

    @in_wide_float
    def atanh(self) -> Self:
        """The inverse of tanh inside [-1, 1]; NaN outside."""
        return (self * 2 / (1 - self)).log1p() * 0.5

    @in_wide_float
    def atan(self) -> Self:
        """The angle in (-pi/2, pi/2) whose tangent is a."""
        steep = (self > 1) | (self < -1)
        inner = steep.where(steep.where(self, 1.0).reciprocal(), self)
        for _ in range(2):  # halve the angle twice: |inner| < 0.2
            inner = inner / ((inner.square() + 1).sqrt() + 1)
        terms = terms_for(self, 6, 12)
        angle = inner * polynomial(
            inner.square(), [4 * (-1) ** n / (2 * n + 1) for n in range(terms)]
        )
        right = (self < 0).where(self.const_like(-math.pi / 2), math.pi / 2)
        return steep.where(right - angle, angle)

    @in_wide_float
    def asin(self) -> Self:
        """The angle in [-pi/2, pi/2] whose sine is a; NaN outside [-1, 1]."""
        return (self / ((1 - self) * (1 + self)).sqrt()).atan()

    @in_wide_float
    def acos(self) -> Self:
        """The angle in [0, pi] whose cosine is a; NaN outside [-1, 1]."""
        return ((1 - self) / (1 + self)).sqrt().atan() * 2

    @in_wide_float
    def erf(self) -> Self:
        """The error function."""
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

    @in_wide_float
    def logaddexp(self, other: Self) -> Self:
        """log(exp(a) + exp(b)) without overflow."""
        left, right = self.broadcasted("logaddexp", other)
        greater = (left < right).where(right, left)
        lesser = (left < right).where(left, right)
        apart = (greater.eq(lesser) & greater.isinf()).where(0.0, lesser - greater)
        return greater + apart.exp().log1p()


def terms_for(x: Functions, single: int, double: int) -> int:
    """How many terms of a series the dtype needs."""
    return double if x.dtype is dtypes.float64 else single


def polynomial(x: AnyTensor, coefficients: Sequence[float]) -> AnyTensor:
    """The polynomial with these coefficients, the constant first, by Horner's rule."""
    result = x.const_like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result
