"""Operators that compute each element from the same element of their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import ml_dtypes
import numpy
from onnx import helper

from tiny_onnx.call import Call
from tiny_onnx.element_types import ELEMENTS, Element, named
from tiny_onnx.reference import evaluated
from tiny_onnx.registry import operator
from tiny_onnx.values import Data
from tinycore import Tensor, dtypes

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": Tensor.abs, "Acos": Tensor.acos, "Acosh": Tensor.acosh, "Asin": Tensor.asin,
    "Asinh": Tensor.asinh, "Atan": Tensor.atan, "Atanh": Tensor.atanh,
    "BitwiseNot": Tensor.bitwise_not, "Ceil": Tensor.ceil, "Cos": Tensor.cos,
    "Cosh": Tensor.cosh, "Erf": Tensor.erf, "Exp": Tensor.exp, "Floor": Tensor.floor,
    "IsNaN": Tensor.isnan, "Log": Tensor.log, "Mish": Tensor.mish, "Neg": Tensor.neg,
    "Not": Tensor.logical_not, "Reciprocal": Tensor.reciprocal, "Relu": Tensor.relu,
    "Round": Tensor.round, "Sigmoid": Tensor.sigmoid, "Sign": Tensor.sign, "Sin": Tensor.sin,
    "Sinh": Tensor.sinh, "Softplus": Tensor.softplus, "Softsign": Tensor.softsign,
    "Sqrt": Tensor.sqrt, "Tan": Tensor.tan, "Tanh": Tensor.tanh,
}  # fmt: skip
"""Functions of one tensor that mean the same in tinycore."""

BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": Tensor.add, "And": Tensor.bitwise_and, "BitwiseAnd": Tensor.bitwise_and,
    "BitwiseOr": Tensor.bitwise_or, "BitwiseXor": Tensor.bitwise_xor, "Equal": Tensor.eq,
    "Greater": Tensor.__gt__, "GreaterOrEqual": Tensor.__ge__, "Less": Tensor.__lt__,
    "LessOrEqual": Tensor.__le__, "Mul": Tensor.mul, "Or": Tensor.bitwise_or,
    "Sub": Tensor.sub, "Xor": Tensor.bitwise_xor,
}  # fmt: skip
"""Functions of two tensors that mean the same in tinycore."""


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[[Call], Data]:
    return lambda call: function(call.tensor(0))


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Call], Data]:
    return lambda call: function(*aligned(call))


def aligned(call: Call) -> tuple[Tensor, Tensor]:
    """Two operands; before version 7 the second could be laid along an axis of the first."""
    first, second = call.tensor(0), call.tensor(1)
    if call.version < 7 and call.get("broadcast", 0) and "axis" in call.attributes:
        behind = first.ndim - call.axis("axis", first.ndim, 0) - second.ndim
        second = second.reshape(*second.shape, *[1] * behind)
    return first, second


for _name, _one in UNARY.items():
    operator(_name)(_unary(_one))
for _name, _two in BINARY.items():
    operator(_name)(_binary(_two))


@operator("Div")
def divide(call: Call) -> Data:
    """Quotients; those of whole numbers are rounded toward zero."""
    first, second = aligned(call)
    return (
        first.div(second) if first.is_floating_point() else first.div(second, rounding_mode="trunc")
    )


@operator("Mod")
def modulo(call: Call) -> Data:
    """Remainders with the sign of the divisor, or by `fmod` with that of the dividend."""
    first, second = call.tensor(0), call.tensor(1)
    return first.fmod(second) if call.get("fmod", 0) else first.mod(second)


@operator("Pow")
def power(call: Call) -> Data:
    """Powers, of the dtype of the base."""
    base, exponent = aligned(call)
    held = call.data(1)
    if isinstance(held, numpy.ndarray) and held.shape in ((), (1,)) and base.is_floating_point():
        return base.pow(float(held.item())).reshape(base.shape or held.shape)  # a short product
    if base.dtype == exponent.dtype or base.is_floating_point():
        return base.pow(exponent.cast(base.dtype)).cast(base.dtype)
    if exponent.is_floating_point():
        return integer_power(base, exponent)
    return base.pow(exponent.cast(base.dtype))


def integer_power(base: Tensor, exponent: Tensor) -> Tensor:
    """Integers to powers of floats, without their fractions.

    A power of floats that is off by a bit would lose 1 with its fraction: whole exponents multiply
    integers, and others give the integer that is within the error of the power.
    """
    wide, error = (dtypes.float64, 1e-14) if base.dtype.itemsize > 2 else (dtypes.float32, 1e-6)
    exponent = exponent.cast(wide)
    power = base.cast(wide).pow(exponent)
    nearest = power.round()
    is_near = (power - nearest).abs() <= nearest.abs() * error
    is_whole = (exponent >= 0) & (exponent < 64) & (exponent == exponent.trunc())
    exact = base.pow(is_whole.where(exponent, 0).cast(base.dtype))
    return is_whole.where(exact, is_near.where(nearest, power).cast(base.dtype))


@operator("BitShift")
def shift(call: Call) -> Data:
    """Bits moved to the left or right."""
    first, second = call.tensor(0), call.tensor(1)
    bits = first.dtype.itemsize * 8
    is_left = call.get("direction") == "LEFT"
    moved = first << second if is_left else first >> second
    rest = moved.zeros_like()
    if not is_left and not dtypes.is_unsigned(first.dtype):
        rest = (first < 0).where(-1, rest).cast(first.dtype)
    return ((second < 0) | (second >= bits)).where(rest, moved)


def _pairwise(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Call], Data]:
    return lambda call: reduce(function, call.tensors())


for _name, _two in {"Max": Tensor.maximum, "Min": Tensor.minimum, "Sum": Tensor.add}.items():
    operator(_name)(_pairwise(_two))


@operator("Mean")
def mean(call: Call) -> Data:
    """The mean of all inputs, element by element."""
    total = reduce(Tensor.add, call.tensors())
    return total / len(call)


@operator("Where")
def where(call: Call) -> Data:
    """Elements of the second input where the first is true, else of the third."""
    return call.tensor(0).where(call.tensor(1), call.tensor(2))


@operator("IsInf")
def is_infinite(call: Call) -> Data:
    """True at infinities of the signs that the attributes ask for."""
    x = call.tensor(0)
    return x.isinf(bool(call.get("detect_positive", 1)), bool(call.get("detect_negative", 1)))


@operator("Clip")
def clip(call: Call) -> Data:
    """Elements between two bounds; NaN stays, and the upper bound wins over the lower."""
    x = call.tensor(0)
    if call.version < 11:
        low = call.get("min", None)
        high = call.get("max", None)
        x = x if low is None else x.maximum(low)
        return x if high is None else x.minimum(high)
    x = x.maximum(call.tensor(1)) if call.has(1) else x
    return x.minimum(call.tensor(2)) if call.has(2) else x


@operator("LeakyRelu")
def leaky_relu(call: Call) -> Data:
    """x where positive, else alpha * x."""
    return call.tensor(0).leaky_relu(call.real("alpha", 0.01))


@operator("PRelu")
def prelu(call: Call) -> Data:
    """x where positive, else slope * x. Before version 7 slopes lie along the channels."""
    x, slope = call.tensor(0), call.tensor(1)
    if call.version < 7 and slope.ndim == 1 and x.ndim > 1 and slope.shape[0] > 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return (x < 0).where(slope * x, x)


@operator("Elu")
def elu(call: Call) -> Data:
    """x where positive, else alpha * (exp(x) - 1)."""
    return call.tensor(0).elu(call.real("alpha", 1.0))


@operator("Celu")
def celu(call: Call) -> Data:
    """The continuously differentiable form of `Elu`."""
    return call.tensor(0).celu(call.real("alpha", 1.0))


@operator("Selu")
def selu(call: Call) -> Data:
    """`Elu` scaled so that deep networks keep their variance (Klambauer et al., 2017)."""
    x = call.tensor(0)
    alpha, gamma = call.real("alpha", 1.6732632423543772), call.real("gamma", 1.0507009873554805)
    return gamma * (x > 0).where(x, alpha * x.minimum(0).exp() - alpha)


@operator("ThresholdedRelu")
def thresholded_relu(call: Call) -> Data:
    """x where above alpha, else 0."""
    x = call.tensor(0)
    return (x > call.real("alpha", 1.0)).where(x, 0)


@operator("Shrink")
def shrink(call: Call) -> Data:
    """Elements beyond +-lambd moved by the bias toward zero, others zero."""
    x, bound, bias = call.tensor(0), call.real("lambd", 0.5), call.real("bias", 0.0)
    moved = (x < -bound).where(x + bias, (x > bound).where(x - bias, 0))
    return moved.cast(x.dtype)


@operator("HardSigmoid")
def hard_sigmoid(call: Call) -> Data:
    """alpha * x + beta between 0 and 1."""
    return (call.real("alpha", 0.2) * call.tensor(0) + call.real("beta", 0.5)).clip(0, 1)


@operator("HardSwish")
def hard_swish(call: Call) -> Data:
    """x * HardSigmoid(x) of slope 1/6 (Howard et al., 2019)."""
    x = call.tensor(0)
    return x * (x / 6 + 0.5).clip(0, 1)


@operator("Swish")
def swish(call: Call) -> Data:
    """x * sigmoid(alpha * x)."""
    x = call.tensor(0)
    return x * (x * call.real("alpha", 1.0)).sigmoid()


@operator("Gelu")
def gelu(call: Call) -> Data:
    """x times the normal distribution's cumulative probability, exact or by tanh."""
    return gelu_of(call.tensor(0), call.get("approximate", "none"))


def gelu_of(x: Tensor, approximate: str = "none") -> Tensor:
    """The same of a tensor."""
    if approximate == "tanh":
        return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh())
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


@operator("Cast")
def cast(call: Call) -> Data:
    """Elements as another type. Those without a dtype in tinycore go through the host."""
    return converted(call, int(call.get("to")))


@operator("CastLike")
def cast_like(call: Call) -> Data:
    """Elements of the type of the second input."""
    like = call.data(1)
    if isinstance(like, Tensor):
        number = next(n for n, each in ELEMENTS.items() if each.tensor == like.dtype)
    else:
        array = call.array(1)
        number = next(n for n, each in ELEMENTS.items() if each.array == array.dtype)
    return converted(call, number)


ON_DEVICE = frozenset(
    ("float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "bool", "float16", "float64",
     "uint32", "uint64", "bfloat16")
)  # fmt: skip
"""Types between which casts mean the same in tinycore."""


def converted(call: Call, number: int) -> Data:
    """The first input as an element type."""
    wanted = named(number, str(call.node))
    data = call.data(0)
    known = next(
        (each.name for each in ELEMENTS.values() if isinstance(data, Tensor)
         and each.tensor == data.dtype), ""
    )  # fmt: skip
    if isinstance(data, Tensor) and wanted.name in ON_DEVICE and known in ON_DEVICE:
        assert wanted.tensor is not None
        return data.cast(wanted.tensor)
    if isinstance(data, Tensor) and known in ON_DEVICE and wanted.name in SMALL_INTEGERS:
        return small_integer(data, wanted.name)
    if isinstance(data, Tensor) and wanted.tensor is not None and wanted.tensor in dtypes.fp8s:
        if call.get("saturate", 1) and data.is_floating_point():
            return saturated(data, largest(wanted)).cast(wanted.tensor)
        return data.cast(wanted.tensor)
    if isinstance(data, Tensor) and known.startswith("float8") and wanted.name in ON_DEVICE:
        assert wanted.tensor is not None
        return data.cast(wanted.tensor)
    return cast_on_host(call.array(0), number, call)


def cast_on_host(array: numpy.ndarray, number: int, call: Call) -> Data:
    """A cast to or from strings, or a type that only NumPy has."""
    proto = helper.make_node(
        "Cast",
        ["x"],
        ["y"],
        to=number,
        saturate=call.get("saturate", 1),
        **({"round_mode": call.get("round_mode")} if "round_mode" in call.attributes else {}),
    )
    outputs = evaluated(proto, [array], max(call.version, 25))
    if outputs is None:
        raise call.unsupported(f"casts from {array.dtype}.")
    return outputs[0]


SMALL_INTEGERS = {"int4": (4, True), "uint4": (4, False), "int2": (2, True), "uint2": (2, False)}
"""Bits of integers below a byte, and whether they have a sign."""


def small_integer(x: Tensor, name: str) -> Tensor:
    """Whole numbers reduced to their lowest bits, in a byte."""
    bits, is_signed = SMALL_INTEGERS[name]
    low: Tensor = x.cast(dtypes.int32) & (2**bits - 1)
    if is_signed:
        low = (low << (32 - bits)) >> (32 - bits)
    return low.cast(dtypes.int8 if is_signed else dtypes.uint8)


def largest(element: Element) -> float:
    """The greatest finite number of a float type."""
    return float(ml_dtypes.finfo(element.array).max)  # type: ignore[no-untyped-call]


def saturated(x: Tensor, bound: float) -> Tensor:
    """Floats between two bounds; NaN stays."""
    return x.maximum(-bound).minimum(bound)


@operator("BitCast")
def bit_cast(call: Call) -> Data:
    """The same bits as another type of the same size."""
    wanted = named(int(call.get("to")), str(call.node))
    if wanted.tensor is None:
        raise call.unsupported("bits of strings.")
    x = call.tensor(0)
    x = x.cast(dtypes.uint8) if x.dtype == dtypes.bool else x
    if wanted.tensor == dtypes.bool:
        return x.bitcast(dtypes.uint8) != 0
    return x.bitcast(wanted.tensor)


@operator("Identity")
def identity(call: Call) -> Data:
    """The input."""
    return call.data(0)
