"""Elementwise functions: a row each.

Floor 6. Operands are broadcast; special cases follow IEEE 754 as the standard lists them.
"""

from __future__ import annotations

from tinycore.array_api import _special_cases
from tinycore.array_api._promotion import Operand, array, promote_operands
from tinycore.array_api._special_cases import (
    angle,
    floor_quotient,
    has_sign,
    length,
    neighbor,
    rest,
    with_sign,
)
from tinycore.array_api._wrapping import binary, unary
from tinycore.tensor import Tensor

__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1", "floor",
    "floor_divide", "greater", "greater_equal", "hypot", "isfinite", "isinf", "isnan", "less",
    "less_equal", "log", "log1p", "log2", "log10", "logaddexp", "logical_and", "logical_not",
    "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative", "nextafter",
    "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round", "sign", "signbit",
    "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip

abs = unary("abs", "numeric", Tensor.abs, "Magnitude of each element.")  # noqa: A001
acos = unary("acos", "floating-point", Tensor.acos, "Arc cosine, in [0, pi].")
acosh = unary("acosh", "floating-point", Tensor.acosh, "Inverse of the hyperbolic cosine.")
asin = unary("asin", "floating-point", Tensor.asin, "Arc sine, in [-pi/2, pi/2].")
asinh = unary("asinh", "floating-point", Tensor.asinh, "Inverse of the hyperbolic sine.")
atan = unary("atan", "floating-point", Tensor.atan, "Arc tangent, in [-pi/2, pi/2].")
atanh = unary("atanh", "floating-point", Tensor.atanh, "Inverse of the hyperbolic tangent.")
bitwise_invert = unary("bitwise_invert", "integer or bool", Tensor.bitwise_not, "~x.")
ceil = unary("ceil", "numeric", Tensor.ceil, "Rounded up.")
conj = unary("conj", "numeric", lambda x: x, "The array itself: real numbers have no other part.")
cos = unary("cos", "floating-point", Tensor.cos, "Cosine of an angle in radians.")
cosh = unary("cosh", "floating-point", Tensor.cosh, "Hyperbolic cosine.")
exp = unary("exp", "floating-point", Tensor.exp, "e to the power of each element.")
expm1 = unary("expm1", "floating-point", Tensor.expm1, "exp(x) - 1, accurate near 0.")
floor = unary("floor", "numeric", Tensor.floor, "Rounded down.")
isfinite = unary("isfinite", "numeric", Tensor.isfinite, "Whether neither infinite nor NaN.")
isinf = unary("isinf", "numeric", Tensor.isinf, "Whether infinite.")
isnan = unary("isnan", "numeric", Tensor.isnan, "Whether not a number.")
log = unary("log", "floating-point", Tensor.log, "Natural logarithm.")
log10 = unary("log10", "floating-point", Tensor.log10, "Logarithm to base 10.")
log1p = unary("log1p", "floating-point", _special_cases.log1p, "log(1 + x), accurate near 0.")
log2 = unary("log2", "floating-point", Tensor.log2, "Logarithm to base 2.")
logical_not = unary("logical_not", "bool", Tensor.logical_not, "The opposite of each bool.")
negative = unary("negative", "numeric", Tensor.neg, "-x.")
positive = unary("positive", "numeric", lambda x: x, "+x, which is the array itself.")
real = unary("real", "numeric", lambda x: x, "The array itself: real numbers have no other part.")
reciprocal = unary("reciprocal", "floating-point", Tensor.reciprocal, "1 / x.")
round = unary("round", "numeric", Tensor.round, "Nearest integer, halves to even.")  # noqa: A001
sign = unary("sign", "numeric", Tensor.sign, "-1, 0 or 1; NaN stays NaN.")
signbit = unary("signbit", "floating-point", has_sign, "Whether the sign bit is set, as in -0.0.")
sin = unary("sin", "floating-point", Tensor.sin, "Sine of an angle in radians.")
sinh = unary("sinh", "floating-point", Tensor.sinh, "Hyperbolic sine.")
sqrt = unary("sqrt", "floating-point", Tensor.sqrt, "Square root; NaN below 0.")
square = unary("square", "numeric", Tensor.square, "x * x.")
tan = unary("tan", "floating-point", Tensor.tan, "Tangent of an angle in radians.")
tanh = unary("tanh", "floating-point", Tensor.tanh, "Hyperbolic tangent.")
trunc = unary("trunc", "numeric", Tensor.trunc, "Rounded toward zero.")

add = binary("add", "numeric", Tensor.add, "x1 + x2.")
atan2 = binary("atan2", "floating-point", angle, "Angle of the point (x2, x1), in [-pi, pi].")
bitwise_and = binary("bitwise_and", "integer or bool", Tensor.bitwise_and, "x1 & x2.")
bitwise_left_shift = binary("bitwise_left_shift", "integer", Tensor.lshift, "x1 << x2.")
bitwise_or = binary("bitwise_or", "integer or bool", Tensor.bitwise_or, "x1 | x2.")
bitwise_right_shift = binary("bitwise_right_shift", "integer", Tensor.rshift, "x1 >> x2.")
bitwise_xor = binary("bitwise_xor", "integer or bool", Tensor.bitwise_xor, "x1 ^ x2.")
copysign = binary("copysign", "floating-point", with_sign, "Magnitude of x1, sign of x2.")
divide = binary("divide", "floating-point", Tensor.div, "x1 / x2.")
equal = binary("equal", "any", Tensor.eq, "x1 == x2.")
floor_divide = binary("floor_divide", "numeric", floor_quotient, "floor(x1 / x2).")
greater = binary("greater", "numeric", lambda a, b: a > b, "x1 > x2.")
greater_equal = binary("greater_equal", "numeric", lambda a, b: a >= b, "x1 >= x2.")
hypot = binary("hypot", "floating-point", length, "sqrt(x1**2 + x2**2) without overflow.")
less = binary("less", "numeric", lambda a, b: a < b, "x1 < x2.")
less_equal = binary("less_equal", "numeric", lambda a, b: a <= b, "x1 <= x2.")
logaddexp = binary("logaddexp", "floating-point", Tensor.logaddexp, "log(exp(x1) + exp(x2)).")
logical_and = binary("logical_and", "bool", Tensor.bitwise_and, "Whether both hold.")
logical_or = binary("logical_or", "bool", Tensor.bitwise_or, "Whether either holds.")
logical_xor = binary("logical_xor", "bool", Tensor.bitwise_xor, "Whether exactly one holds.")
maximum = binary("maximum", "numeric", Tensor.maximum, "The greater; NaN if either is NaN.")
minimum = binary("minimum", "numeric", Tensor.minimum, "The lesser; NaN if either is NaN.")
multiply = binary("multiply", "numeric", Tensor.mul, "x1 * x2.")
nextafter = binary("nextafter", "floating-point", neighbor, "The next float from x1 toward x2.")
not_equal = binary("not_equal", "any", Tensor.ne, "x1 != x2.")
remainder = binary("remainder", "numeric", rest, "Rest of x1 / x2, with the sign of x2.")
subtract = binary("subtract", "numeric", Tensor.sub, "x1 - x2.")


def clip(
    x: Tensor,
    /,
    min: Operand | None = None,  # noqa: A002  the standard's name
    max: Operand | None = None,  # noqa: A002
) -> Tensor:
    """Not below `min` and not above `max`, in the dtype of `x`; NaN stays NaN.

    Raises DTypeError when a limit is of another kind than `x`.
    """
    result = array("clip", x, "numeric")
    for limit, apply in ((min, Tensor.maximum), (max, Tensor.minimum)):
        if limit is not None:
            left, right = promote_operands("clip", "numeric", result, limit)
            result = apply(left, right)
    return result.cast(x.dtype)


def pow(x1: Operand, x2: Operand, /) -> Tensor:  # noqa: A001
    """x1 to the power of x2; small whole numbers are multiplied out.

    Raises ArgumentError for an integer array to a negative integer number.
    """
    left, right = promote_operands("pow", "numeric", x1, x2)
    return left.pow(right if isinstance(x2, Tensor) else x2)
