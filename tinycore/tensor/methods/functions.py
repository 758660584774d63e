"""Elementwise functions: signs, rounding, limits, exponentials, trigonometry.

Floor 5. Integers become the default float first. A function composed of several steps is computed
in at least float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

from tinycore.dtype import Scalar, dtypes
from tinycore.errors import ArgumentError
from tinycore.tensor.methods.elementwise import Elementwise
from tinycore.tensor.methods.remainder import negative
from tinycore.tensor.signatures import renamed
from tinycore.uop.op import Op

AnyTensor = TypeVar("AnyTensor", bound=Elementwise)
Rest = ParamSpec("Rest")


def in_wide_float(
    function: Callable[Concatenate[AnyTensor, Rest], AnyTensor],
) -> Callable[Concatenate[AnyTensor, Rest], AnyTensor]:
    """Run a method on at least float32; the result has the tensor's own float dtype."""

    @wraps(function)
    def widened(x: AnyTensor, /, *rest: Rest.args, **named: Rest.kwargs) -> AnyTensor:
        x = x._as_float()
        if x.dtype.itemsize >= 4:
            return function(x, *rest, **named)
        return function(x.cast(dtypes.float32), *rest, **named).cast(x.dtype)

    return widened


class Functions(Elementwise):
    """Elementary functions, limits and questions about one element."""

    __slots__ = ()

    # --- exponentials, roots and waves

    def exp(self) -> Self:
        """e ** a.

        >>> Tensor([0.0, 1.0]).exp().numpy().round(4)
        array([1.    , 2.7183], dtype=float32)
        """
        return self._as_float().alu(Op.EXP)

    def exp2(self) -> Self:
        """2 ** a.

        >>> Tensor([0.0, 1.0, 2.5]).exp2().numpy().round(4)
        array([1.    , 2.    , 5.6569], dtype=float32)
        """
        return self._as_float().alu(Op.EXP2)

    def log(self) -> Self:
        """The natural logarithm: -inf at 0, NaN below.

        >>> Tensor([1.0, 2.0, 0.0]).log().numpy().round(4)
        array([0.    , 0.6931,   -inf], dtype=float32)
        """
        return self._as_float().alu(Op.LOG)

    def log2(self) -> Self:
        """The logarithm to base 2.

        >>> Tensor([1.0, 8.0]).log2().numpy().round(4)
        array([0., 3.], dtype=float32)
        """
        return self._as_float().alu(Op.LOG2)

    @in_wide_float
    def log10(self) -> Self:
        """The logarithm to base 10.

        >>> Tensor([1.0, 1000.0]).log10().numpy().round(4)
        array([0., 3.], dtype=float32)
        """
        return self.log2() * math.log10(2)

    def sqrt(self) -> Self:
        """The square root: NaN below 0.

        >>> Tensor([4, 9]).sqrt().tolist()
        [2.0, 3.0]
        """
        return self._as_float().alu(Op.SQRT)

    def rsqrt(self) -> Self:
        """1 / sqrt(a).

        >>> Tensor([4.0, 16.0]).rsqrt().tolist()
        [0.5, 0.25]
        """
        return self.sqrt().reciprocal()

    def square(self) -> Self:
        """a * a.

        >>> Tensor([-3, 4]).square().tolist()
        [9, 16]
        """
        return self * self

    def sin(self) -> Self:
        """The sine of an angle in radians.

        >>> Tensor([0.0, 1.0]).sin().numpy().round(4)
        array([0.    , 0.8415], dtype=float32)
        """
        return self._as_float().alu(Op.SIN)

    # --- signs and limits

    def sign(self) -> Self:
        """-1, 0 or 1; NaN stays NaN.

        >>> Tensor([-2.5, 0.0, 3.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        if self.dtype is dtypes.bool:
            return self
        one, zero = self.const_like(1), self.const_like(0)
        if dtypes.is_unsigned(self.dtype):
            return self.ne(0).where(one, zero)
        result = (self < 0).where(-one, (self > 0).where(one, zero))
        return self.isnan().where(self.detach(), result) if dtypes.is_float(self.dtype) else result

    def copysign(self, other: Self | Scalar) -> Self:
        """The magnitude of a with the sign of b; the sign of -0.0 counts.

        >>> Tensor([1.0, -2.0]).copysign(Tensor([-1.0, 1.0])).tolist()
        [-1.0, 2.0]
        """
        left, right = self._as_float()._broadcasted("copysign", other)
        return negative(right).where(-left.abs(), left.abs())

    def clamp(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """Elements clamped to [`min_`, `max_`]; NaN where a limit is. Raises ArgumentError without
        limits.

        >>> Tensor([-3, 1, 9]).clamp(0, 5).tolist(), Tensor([-3, 1, 9]).clamp(max_=5).tolist()
        ([0, 1, 5], [-3, 1, 5])
        """
        if min_ is None and max_ is None:
            raise ArgumentError("clamp: give min_, max_ or both")
        result = self if min_ is None else (self < min_)._limiting(Op.MAX, min_, self)
        return result if max_ is None else (result > max_)._limiting(Op.MIN, max_, result)

    def _limiting(self, op: Op, limit: Self | Scalar, x: Self) -> Self:
        """The limit where this condition holds or the limit is NaN, else `x`."""
        if isinstance(limit, float) and math.isnan(limit):
            return (self | True).where(limit, x)
        if isinstance(limit, Functions) and dtypes.is_float(limit.dtype):
            return (self | limit.isnan()).where(limit, x)
        return self.where(x._limit(op, limit), x)

    clip = renamed(clamp)

    def lerp(self, end: Self, weight: Self | Scalar) -> Self:
        """a + (end - a) * weight, as floats; from the end for weights of 1/2 and more.

        >>> Tensor([0.0, 10.0]).lerp(Tensor([4.0, 20.0]), 0.25).tolist()
        [1.0, 12.5]
        """
        x = self._as_float()
        way = end - x
        if isinstance(weight, (int, float)):
            return x + way * weight if abs(weight) < 0.5 else end - way * (1 - weight)
        return (weight.abs() < 0.5).where(x + way * weight, end - way * (1 - weight))

    # --- questions

    def isnan(self) -> Self:
        """True where an element is not a number.

        >>> x = Tensor([1.0, float("inf"), float("nan")])
        >>> x.isnan().tolist(), x.isinf().tolist(), x.isfinite().tolist()
        ([False, False, True], [False, True, False], [True, False, False])
        """
        return self.alu(Op.CMPNE, self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """True where an element is infinite, of the chosen signs."""
        found = self.const_like(False, dtypes.bool)
        if not dtypes.is_float(self.dtype):
            return found
        if detect_positive:
            found = self.eq(math.inf)
        return found | self.eq(-math.inf) if detect_negative else found

    def isfinite(self) -> Self:
        """True where an element is neither infinite nor NaN."""
        return ~(self.isinf() | self.isnan())

    def isclose(
        self,
        other: Self | Scalar,
        rtol: float = 1e-05,
        atol: float = 1e-08,
        equal_nan: bool = False,
    ) -> Self:
        """True where |a - b| <= atol + rtol * |b|; equal infinities are close. Integers are exact.

        >>> Tensor([1.0, 2.0]).isclose(Tensor([1.0 + 1e-6, 2.1])).tolist()
        [True, False]
        """
        left, right = self._broadcasted("isclose", self._comparable(other))
        equal, apart = left.eq(right), left._distance(right)
        left, right = left._as_float(), right._as_float()
        near = apart <= right.abs() * rtol + atol
        found = equal | (left.isfinite() & right.isfinite() & near)
        return found | (left.isnan() & right.isnan()) if equal_nan else found

    def _distance(self, other: Self) -> Self:
        """|a - b| as a float: that of wide integers, which may not be floats, is subtracted first.

        Infinite where it overflows.
        """
        if dtypes.is_float(self.dtype) or self.dtype.itemsize < 4:
            return (self._as_float() - other._as_float()).abs()
        apart = (self < other).where(other - self, self - other)
        return (apart < 0).where(math.inf, apart)


def polynomial(x: AnyTensor, coefficients: Sequence[float]) -> AnyTensor:
    """The polynomial with these coefficients, the constant first, by Horner's rule."""
    result = x.const_like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result
