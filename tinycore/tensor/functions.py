"""Signs, limits, rounding, powers, and the elementary functions.

Floor 5. Integers become the default float first. A function composed of several steps is computed
in at least float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

from tinycore.dtype import Scalar, dtypes
from tinycore.errors import ArgumentError
from tinycore.tensor.elementwise import Elementwise
from tinycore.uop.op import Op

LONGEST_POWER_CHAIN = 64
"""Integer exponents up to this are multiplied out."""

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
    """Elementary functions, powers, limits and questions about one element."""

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

    @in_wide_float
    def cos(self) -> Self:
        """The cosine of an angle in radians, as 1 - 2 sin(a/2)**2: no angle is rounded."""
        return 1 - (self * 0.5).sin().square() * 2

    @in_wide_float
    def tan(self) -> Self:
        """sin(a) / cos(a)."""
        return self.sin() / self.cos()

    # --- powers

    def pow(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a ** b; a negative base with a broken exponent gives NaN.

        Integers stay integers and wrap. Raises ArgumentError for an integer tensor to a negative
        integer number.
        """
        if isinstance(x, (bool, int, float)) and not reverse:
            return self.power_of_number(x)
        left, right = self.broadcasted("pow", x)
        if reverse:
            left, right = right, left
        if dtypes.is_float(left.dtype):
            return left.float_power(right)
        return left | ~right if left.dtype is dtypes.bool else left.integer_power(right)

    def power_of_number(self, exponent: Scalar) -> Self:
        """a ** number, by multiplication (and a root) where the exponent is a small n or n/2."""
        if not dtypes.is_float(self.dtype) and not isinstance(exponent, float):
            if exponent < 0:
                raise ArgumentError(
                    f"pow: {self.dtype!r} to the power {exponent} is no integer; use a float tensor"
                )
            base = self.cast(self.ufix(exponent).dtype) if self.dtype is dtypes.bool else self
            return base.multiplied(int(exponent))
        base, size = self.as_float(), abs(exponent)
        if size > LONGEST_POWER_CHAIN or (2 * size) % 1:
            return base.float_power(base.const_like(exponent))
        power = base.multiplied(int(size))
        if size % 1:
            power = base.sqrt() if size < 1 else power * base.sqrt()
        return power.reciprocal() if exponent < 0 else power

    def multiplied(self, count: int) -> Self:
        """The product of `count` copies, in few multiplications."""
        result, square = None, self
        while count:
            if count & 1:
                result = square if result is None else result * square
            count >>= 1
            square = square * square if count else square
        return self.const_like(1) if result is None else result

    def float_power(self, exponent: Self) -> Self:
        """a ** b of floats: exp2(b * log2(|a|)) with the sign and the special cases of IEEE 754."""
        if self.dtype.itemsize < 4:
            return (
                self.cast(dtypes.float32)
                .float_power(exponent.cast(dtypes.float32))
                .cast(self.dtype)
            )
        size, zero = self.abs(), self.eq(0)
        main = (zero.where(1.0, size).log2() * exponent).exp2()
        one = (exponent.eq(0) & ~(size < math.inf)) | (size.eq(1) & exponent.isinf())
        whole = exponent.trunc().eq(exponent)
        odd = whole & (exponent * 0.5).trunc().ne(exponent * 0.5)
        at_zero = exponent.eq(0).where(
            1.0, (exponent < 0).where(math.inf, exponent.const_like(0.0))
        )
        result = zero.where(at_zero, one.where(1.0, main))
        negative = (self < 0) & ~self.eq(-math.inf)
        return (negative & ~whole).where(math.nan, ((self < 0) & odd).where(-result, result))

    def integer_power(self, exponent: Self) -> Self:
        """a ** b of integers by repeated squaring; meaningful for b >= 0."""
        result, square = self.const_like(1), self
        bits = exponent.dtype.bits - (not dtypes.is_unsigned(exponent.dtype))
        for bit in range(bits):
            taken = (exponent & (1 << bit)).ne(0)
            result = taken.where(result * square, result)
            square = square * square
        return result

    def __pow__(self, x: Self | Scalar) -> Self:
        return self.pow(x)

    def __rpow__(self, x: Scalar) -> Self:
        return self.pow(x, reverse=True)

    # --- signs and limits

    def abs(self) -> Self:
        """The magnitude."""
        if dtypes.is_unsigned(self.dtype) or self.dtype is dtypes.bool:
            return self
        return self.alu(Op.MAX, self.neg())

    def __abs__(self) -> Self:
        return self.abs()

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
        zero = right.eq(0)
        negative = (right < 0) | (zero & (zero.where(right, 1.0).reciprocal() < 0))
        return negative.where(-left.abs(), left.abs())

    def clamp(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """Not below `min_` and not above `max_`. Raises ArgumentError when neither is given."""
        if min_ is None and max_ is None:
            raise ArgumentError("clamp: give min_, max_ or both")
        result = self if min_ is None else (self < min_).where(min_, self)
        return result if max_ is None else (result > max_).where(max_, result)

    def clip(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """`clamp` by the name NumPy gives it."""
        return self.clamp(min_, max_)

    def round(self) -> Self:
        """Rounded to the nearest integer, halves to the even one."""
        if not dtypes.is_float(self.dtype):
            return self
        below = self.floor()
        rest, half = self - below, below * 0.5
        up = (rest > 0.5) | (rest.eq(0.5) & half.ne(half.trunc()))
        return up.where(below + 1, below)

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
