"""Powers: by multiplication if exact or short, else by double-float logarithms.

Floor 5. The exponent of 2 in `a ** b` = 2 ** (b log2 a) can be as large as 128 (1024), and its
absolute error becomes the relative error of the power. So log2 is computed as a sum of two numbers
of the tensor's own dtype, as by T. J. Dekker, "A floating-point technique for extending the
available precision" (1971). Leading parts have half of the digits: their products are exact, and
fusing a product into a sum changes nothing. Errors, measured: below 2.5 units in the last place.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Self, TypeVar

from tinycore.dtype import Scalar, dtypes, float_layout
from tinycore.errors import ArgumentError
from tinycore.tensor import graph
from tinycore.tensor.methods.functions import Functions, in_wide_float, polynomial
from tinycore.tensor.methods.operands import operators
from tinycore.tensor.methods.remainder import leading, signed_bits
from tinycore.uop.movement import source_below
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

LONGEST_POWER_CHAIN: Final = 4
"""Floats to powers up to this are multiplied out; more products round more than a logarithm."""

LARGEST_EXPONENT: Final = 16384.0
"""Powers of 2 beyond this, either way, are infinite or 0 in every dtype."""

AnyTensor = TypeVar("AnyTensor", bound=Functions)


class Powers(Functions):
    """a ** b."""

    __slots__ = ()

    def pow(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a ** b; a negative base with a fractional exponent gives NaN.

        Integers stay integers and wrap. To the negative powers of a tensor they are truncated: 0,
        except for bases 1 and -1. Raises ArgumentError for an integer tensor to a negative Python
        integer.

        >>> (Tensor([1, 2, 3]) ** 2).tolist(), (2 ** Tensor([0, 1, 2])).tolist()
        ([1, 4, 9], [1, 2, 4])
        """
        if isinstance(x, (bool, int, float)) and not reverse:
            return self._power_of_number(x)
        left, right = self._broadcasted("pow", x)
        if reverse:
            left, right = right, left
        if dtypes.is_float(left.dtype):
            return left._float_power(right)
        return left | ~right if left.dtype is dtypes.bool else left._integer_power(right)

    def _power_of_number(self, exponent: Scalar) -> Self:
        """a ** number, by multiplication or a root where that is short."""
        if not dtypes.is_float(self.dtype) and not isinstance(exponent, float):
            if exponent < 0:
                raise ArgumentError(
                    f"pow: {self.dtype!r} to the power {exponent} is no integer; use a float tensor"
                )
            base = self.cast(self.ufix(exponent).dtype) if self.dtype is dtypes.bool else self
            return base._multiplied(int(exponent))
        if abs(exponent) != 0.5 and (abs(exponent) > LONGEST_POWER_CHAIN or exponent % 1):
            base = self._as_float()
            return base._float_power(base.const_like(exponent))
        return self._short_power(float(exponent))

    @in_wide_float
    def _short_power(self, exponent: float) -> Self:
        """a ** n of a small n, or a ** +-0.5: of -0.0 as of 0.0, and of -inf as of inf."""
        if abs(exponent) == 0.5:
            root = self.eq(-math.inf).where(math.inf, self.eq(0).where(0.0, self)).sqrt()
            value = root if exponent > 0 else root.reciprocal()
            return value._sloped(self, self.const_like(exponent))
        base = self if exponent >= 0 else self.reciprocal()
        return base._multiplied(int(abs(exponent)))

    def _multiplied(self, count: int) -> Self:
        """The product of `count` copies, in few multiplications."""
        result, square = None, self
        while count:
            if count & 1:
                result = square if result is None else result * square
            count >>= 1
            square = square * square if count else square
        return self.const_like(1) if result is None else self._from_node(graph.value(result.uop))

    def _float_power(self, exponent: Self) -> Self:
        """a ** b of floats: 2 ** (b log2 |a|) with the sign and the special cases of IEEE 754."""
        if self.dtype.itemsize < 4:
            wide = (self.cast(dtypes.float32), exponent.cast(dtypes.float32))
            return wide[0]._float_power(wide[1]).cast(self.dtype)
        size, zero = self.abs(), self.eq(0)
        main = zero.where(1.0, size)._positive_power(exponent)
        one = (exponent.eq(0) & ~(size < math.inf)) | (size.eq(1) & exponent.isinf())
        one = one | (self.eq(1) & exponent.isnan())
        whole = exponent.trunc().eq(exponent)
        odd = whole & (exponent * 0.5).trunc().ne(exponent * 0.5)
        result = zero.where(self._power_of_zero(exponent, odd), one.where(1.0, main))
        below = (self < 0) & ~self.eq(-math.inf)
        signed = (below & ~whole).where(math.nan, ((self < 0) & odd).where(-result, result))
        return signed._sloped(self, exponent)

    def _power_of_zero(self, exponent: Self, odd: Self) -> Self:
        """0.0 ** b and -0.0 ** b; `odd` says whether b is an odd integer."""
        zero = self.eq(0).where(self, 0.0)
        pole = odd.where(zero.reciprocal(), math.inf)
        return (exponent < 0).where(
            pole, (exponent > 0).where(odd.where(zero, 0.0), exponent.eq(0).where(1.0, exponent))
        )

    def _positive_power(self, exponent: Self) -> Self:
        """a ** b for a > 0. What one float cannot hold of b log2 a is put back as a factor."""
        product = self.log2() * exponent
        whole, rest = scaled_log2(self, exponent)
        near = (product < LARGEST_EXPONENT) & (product > -LARGEST_EXPONENT)
        nearest = (whole + rest).clamp(max_=PARTS[self.dtype].last_finite)
        missing = (whole - nearest) + rest
        return near.where(nearest, product).exp2() * near.where(missing * math.log(2) + 1, 1.0)

    def _sloped(self, base: Self, exponent: Self) -> Self:
        """This value of base ** exponent with the derivatives of a power."""
        return self._called(slopes_of_power, base, exponent)

    def _integer_power(self, exponent: Self) -> Self:
        """a ** b of integers by repeated squaring; 1 / a ** -b truncated where b is negative."""
        result, square = self.const_like(1), self
        bits = exponent.dtype.bits - (not dtypes.is_unsigned(exponent.dtype))
        for bit in range(bits):
            taken = (exponent & (1 << bit)).ne(0)
            result = taken.where(result * square, result)
            square = square * square
        if dtypes.is_unsigned(exponent.dtype):
            return result
        unit = self.eq(-1).where(
            (exponent & 1).eq(0).where(self * self, self), self.eq(1).cast(self.dtype)
        )
        return (exponent < 0).where(unit, result)

    __pow__, __rpow__ = operators(pow)


def slopes_of_power(g: UOp, call: UOp) -> list[Powers | None]:
    """d a**b = b a**(b-1) da + a**b ln(a) db: 0 for da where b is 0, and for db where a is 0 <= b.

    A constant gets none.
    """
    value, base, exponent, slope = [Powers._from_node(n) for n in (call, *call.src[1:], g)]
    of_base = of_exponent = None
    if not graph.is_constant(base.uop):
        number = uniform(exponent.uop)
        lower = base.pow(exponent - 1) if number is None else base.pow(number - 1)
        of_base = exponent.eq(0).where(0.0, slope * (exponent * lower))
    if not graph.is_constant(exponent.uop):
        flat = base.eq(0) & (exponent >= 0)
        of_exponent = flat.where(0.0, slope * (value * base.log()))
    return [of_base, of_exponent]


def uniform(node: UOp) -> float | None:
    """The value of a uniform constant; None for any other node."""
    node = source_below(node, (Op.EXPAND, Op.RESHAPE, Op.CAST))
    return float(node.arg) if node.op is Op.CONST else None


# --- numbers in two parts


class Parts(NamedTuple):
    """Constants split for a float type."""

    scale: tuple[float, float]
    """2 / ln 2, the first with half of the digits."""
    third: tuple[float, float]
    terms: int
    """Number of terms of the series, after the second, that the type needs."""
    last_finite: float
    """The greatest number whose power of 2 is finite."""


PARTS: Final = {
    dtypes.float32: Parts(
        scale=(2.884765625, 0.0006244567779268147),
        third=(0.333251953125, 8.138020833333333e-05),
        terms=5,
        last_finite=127.99999237060547,
    ),
    dtypes.float64: Parts(
        scale=(2.885390043258667, 3.851925982253235e-08),
        third=(0.3333333283662796, 4.967053731282552e-09),
        terms=12,
        last_finite=1023.9999999999999,
    ),
}


def scaled_log2(a: AnyTensor, b: AnyTensor) -> tuple[AnyTensor, AnyTensor]:
    """b log2 a in two parts, for a > 0."""
    high, low = log2_parts(a)
    first = leading(b)
    return first * high, first * low + (b - first) * (high + low)


def log2_parts(a: AnyTensor) -> tuple[AnyTensor, AnyTensor]:
    """log2 a in two parts: a == 2**e * (1 + f), and log2(1 + f) by the series in f / (2 + f)."""
    parts = PARTS[a.dtype]
    e, f = split_exponent(a)
    high, low = half_log(f, parts)
    first, second = parts.scale
    product = high * first
    rest = high * second + low * (first + second)
    total = leading(e + (product + rest))
    return total, ((e - total) + product) + rest


def half_log(f: AnyTensor, parts: Parts) -> tuple[AnyTensor, AnyTensor]:
    """log(1 + f) / 2 == s + s**3/3 + s**5/5 + ... in two parts, with s == f / (2 + f)."""
    below = f + 2
    below_high = leading(below)
    below_low = f - (below_high - 2)
    s = f / below
    high = leading(s)
    low = ((f - high * below_high) - high * below_low) / below
    cube_high, cube_low = third_of_square(s, high, low, parts)
    square = s * s
    tail = square * square * polynomial(square, [1 / (2 * n + 5) for n in range(parts.terms)])
    product = high * cube_high
    rest = low + (high * cube_low + low * (cube_high + cube_low) + s * tail)
    total = leading(high + (product + rest))
    return total, ((high - total) + product) + rest


def third_of_square(
    s: AnyTensor, high: AnyTensor, low: AnyTensor, parts: Parts
) -> tuple[AnyTensor, AnyTensor]:
    """s**2 / 3 in two parts, s == high + low."""
    exact = high * high
    first = leading(exact)
    second = (exact - first) + (high + s) * low
    third, rest = parts.third
    total = leading((first + second) * (third + rest))
    return total, (first * third - total) + (second * third + (first + second) * rest)


def split_exponent(a: AnyTensor) -> tuple[AnyTensor, AnyTensor]:
    """(e, f) with a == 2**e * (1 + f) and 1 + f between sqrt(1/2) and sqrt(2), both as floats."""
    layout = float_layout(a.dtype)
    lift = layout.mantissa_bits + 2
    tiny = a < 2.0**layout.least_exponent
    bits = signed_bits(tiny.where(a * 2.0**lift, a))
    e = (bits - signed_bits(a.const_like(math.sqrt(0.5)))) >> layout.mantissa_bits
    f = (bits - (e << layout.mantissa_bits)).bitcast(a.dtype) - 1
    return tiny.where(e - lift, e).cast(a.dtype), f
