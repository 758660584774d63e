"""Signs, limits, and the elementary functions.

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
from tinycore.tensor.elementwise import Elementwise
from tinycore.tensor.remainder import negative
from tinycore.uop.op import Op

AnyTensor = TypeVar("AnyTensor", bound=Elementwise)
Rest = ParamSpec("Rest")


def in_wide_float(
    function: Callable[Concatenate[AnyTensor, Rest], AnyTensor],
) -> Callable[Concatenate[AnyTensor, Rest], AnyTensor]:
    """Run a method on at least float32; the result has the tensor's own float dtype."""

    @wraps(function)
    def widened(x: AnyTensor, /, *rest: Rest.args, **named: Rest.kwargs) -> AnyTensor:
        x = x.as_float()
        if x.dtype.itemsize >= 4:
            return function(x, *rest, **named)
        return function(x.cast(dtypes.float32), *rest, **named).cast(x.dtype)

    return widened


class Functions(Elementwise):
    """Elementary functions, limits and questions about one element."""

    __slots__ = ()

    # --- exponentials, roots and waves

    def exp(self) -> Self:
        """e ** a."""
        return self.as_float().alu(Op.EXP)

    def exp2(self) -> Self:
        """2 ** a."""
        return self.as_float().alu(Op.EXP2)

    def log(self) -> Self:
        """The natural logarithm: -inf at 0, NaN below."""
        return self.as_float().alu(Op.LOG)

    def log2(self) -> Self:
        """The logarithm to base 2."""
        return self.as_float().alu(Op.LOG2)

    @in_wide_float
    def log10(self) -> Self:
        """The logarithm to base 10."""
        return self.log2() * math.log10(2)

    def sqrt(self) -> Self:
        """The square root: NaN below 0."""
        return self.as_float().alu(Op.SQRT)

    def rsqrt(self) -> Self:
        """1 / sqrt(a)."""
        return self.sqrt().reciprocal()

    def square(self) -> Self:
        """a * a."""
        return self * self

    def sin(self) -> Self:
        """The sine of an angle in radians."""
        return self.as_float().alu(Op.SIN)

    # --- signs and limits

    def sign(self) -> Self:
        """-1, 0 or 1; NaN stays NaN."""
        if self.dtype is dtypes.bool:
            return self
        one, zero = self.const_like(1), self.const_like(0)
        if dtypes.is_unsigned(self.dtype):
            return self.ne(0).where(one, zero)
        result = (self < 0).where(-one, (self > 0).where(one, zero))
        return self.isnan().where(self.detach(), result) if dtypes.is_float(self.dtype) else result

    def copysign(self, other: Self | Scalar) -> Self:
        """The magnitude of a with the sign of b; the sign of -0.0 counts."""
        left, right = self.as_float().broadcasted("copysign", other)
        return negative(right).where(-left.abs(), left.abs())

    def clamp(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """Not below `min_` and not above `max_`. Raises ArgumentError when neither is given."""
        if min_ is None and max_ is None:
            raise ArgumentError("clamp: give min_, max_ or both")
        result = self if min_ is None else (self < min_).where(min_, self)
        return result if max_ is None else (result > max_).where(max_, result)

    def clip(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """`clamp` by the name NumPy gives it."""
        return self.clamp(min_, max_)

    def lerp(self, end: Self, weight: Self | Scalar) -> Self:
        """a + (end - a) * weight."""
        return self + (end - self) * weight

    # --- questions

    def isnan(self) -> Self:
        """Whether an element is not a number."""
        return self.alu(Op.CMPNE, self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Whether an element is infinite, of the signs asked for."""
        found = self.const_like(False, dtypes.bool)
        if not dtypes.is_float(self.dtype):
            return found
        if detect_positive:
            found = self.eq(math.inf)
        return found | self.eq(-math.inf) if detect_negative else found

    def isfinite(self) -> Self:
        """Whether an element is neither infinite nor NaN."""
        return ~(self.isinf() | self.isnan())

    def isclose(
        self,
        other: Self | Scalar,
        rtol: float = 1e-05,
        atol: float = 1e-08,
        equal_nan: bool = False,
    ) -> Self:
        """Whether |a - b| <= atol + rtol * |b|; equal infinities are close."""
        left, right = self.broadcasted("isclose", other)
        left, right = left.as_float(), right.as_float()
        near = (left - right).abs() <= right.abs() * rtol + atol
        found = left.eq(right) | (left.isfinite() & right.isfinite() & near)
        return found | (left.isnan() & right.isnan()) if equal_nan else found


def polynomial(x: AnyTensor, coefficients: Sequence[float]) -> AnyTensor:
    """The polynomial with these coefficients, the constant first, by Horner's rule."""
    result = x.const_like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result
