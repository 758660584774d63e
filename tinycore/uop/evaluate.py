"""Reference semantics of each arithmetic op, on Python scalars.

Floor 1. `compute` is the meaning of the ALU rows of the op table: constant folding uses it, and so
does `evaluate`, the plain interpreter of scalar expressions that rules are tested against.
Integers wrap to their dtype; floats are rounded to theirs after every op. What is not the same on
every device raises `Undefined`.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tinycore.dtype import DType, FloatLayout, Scalar, float_layout
from tinycore.uop.bounds import truncated
from tinycore.uop.node import UOp, as_scalar
from tinycore.uop.op import ALU, DIVISIONS, SHIFTS, Op
from tinycore.uop.threefry import threefry_words


class Undefined(ArithmeticError):
    """The result for these operands is not fixed."""


# --- floats: rounding to a dtype, and their bits

NATIVE: Final = {"float64": "<d", "float32": "<f", "float16": "<e"}
"""Formats of `struct`, by the names of types."""


def round_to(dtype: DType, value: float) -> float:
    """The float of `dtype` nearest to `value`, ties to even, infinite where it overflows.

    NaN where a type has no infinity; -0 is 0 where zero has no sign.
    """
    if dtype.name == "float64" or value != value:
        return value
    if (form := NATIVE.get(dtype.name)) is None:
        return round_generic(float_layout(dtype), value)
    try:
        rounded: float = struct.unpack(form, struct.pack(form, value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def round_generic(layout: FloatLayout, value: float) -> float:
    """`round_to` for any layout of bits."""
    rounded = value
    if math.isfinite(value):
        exponent = max(math.frexp(value)[1] - 1, layout.least_exponent) - layout.mantissa_bits
        rounded = math.ldexp(round(math.ldexp(value, -exponent)), exponent)
    if abs(rounded) > layout.greatest:
        return math.copysign(math.inf, value) if layout.has_infinity else math.nan
    return math.copysign(rounded, value) if rounded or layout.has_negative_zero else 0.0


def round_integer(dtype: DType, value: int) -> float:
    """The float of `dtype` nearest to an integer, rounded once."""
    bits = float_layout(dtype).mantissa_bits + 1
    excess = max(0, abs(value).bit_length() - bits)
    if excess:  # keep the bits that decide: the significant ones, one more, and whether more follow
        kept = max(0, excess - 2)
        low = abs(value) & ((1 << kept) - 1)
        value = math.copysign(1, value) * (((abs(value) >> kept) | (low != 0)) << kept)  # type: ignore[assignment]
    return round_to(dtype, float(value))


def to_bits(value: Scalar, dtype: DType) -> int:
    """The bits of a scalar of `dtype` as a nonnegative integer; there is one NaN only."""
    if dtype.kind != "float":
        return int(value) & ((1 << dtype.bits) - 1)
    number = float(value) if value == value else math.nan
    if dtype.name in NATIVE:
        return int.from_bytes(struct.pack(NATIVE[dtype.name], number), "little")
    layout = float_layout(dtype)
    if number != number or (math.isinf(number) and not layout.has_infinity):
        return layout.nan
    if number == 0 and not layout.has_negative_zero:
        return 0
    sign = int(math.copysign(1, number) < 0) << (dtype.bits - 1)
    if math.isinf(number):
        return sign | layout.beyond
    least, digits = layout.least_exponent, layout.mantissa_bits
    exponent = max(math.frexp(number)[1] - 1, least) if number else least
    mantissa = int(math.ldexp(abs(number), digits - exponent))
    # A subnormal has no implicit bit, which makes its exponent field 0.
    return sign | (((exponent - least) << digits) + mantissa)


def from_bits(bits: int, dtype: DType) -> Scalar:
    """The scalar of `dtype` that has these bits."""
    if dtype.kind != "float":
        return as_scalar(bits, dtype)
    if dtype.name in NATIVE:
        packed = bits.to_bytes(dtype.itemsize, "little")
        number: float = struct.unpack(NATIVE[dtype.name], packed)[0]
        return number
    layout, sign_bit = float_layout(dtype), 1 << (dtype.bits - 1)
    magnitude, sign = bits & ~sign_bit, -1.0 if bits & sign_bit else 1.0
    if bits == layout.nan or magnitude > layout.beyond:
        return math.nan
    if magnitude < layout.beyond:
        return sign * layout.magnitude(magnitude)
    return sign * math.inf if layout.has_infinity else math.nan


FloatFunction = Callable[[float], float]


# --- the ops, on Python numbers, before the result is fitted to the dtype


def float_quotient(a: float, b: float) -> float:
    """a / b of floats, with IEEE infinities and NaN instead of exceptions."""
    if b != 0:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def quiet(function: FloatFunction, edge: FloatFunction) -> FloatFunction:
    """A function of `math`, with `edge` deciding where that raises."""

    def total(a: float) -> float:
        try:
            return function(a)
        except (ValueError, OverflowError):
            return edge(a)

    return total


def logarithm(function: FloatFunction) -> FloatFunction:
    """A logarithm with log(0) = -inf and NaN below."""
    return quiet(function, lambda a: -math.inf if a == 0 else math.nan)


def greater(a: Any, b: Any) -> Any:
    """The greater, NaN if either is. Of two zeros the positive; devices may return either."""
    if a == b == 0.0 and isinstance(a, float):
        return a if math.copysign(1, a) > 0 else b
    return a if a != a or a > b else b


def lesser(a: Any, b: Any) -> Any:
    """The lesser, NaN if either is. Of two zeros the negative; devices may return either."""
    if a == b == 0.0 and isinstance(a, float):
        return a if math.copysign(1, a) < 0 else b
    return a if a != a or a < b else b


def multiply(a: Any, b: Any) -> Any:
    """a * b."""
    return a * b


def exact_trunc(a: float) -> float:
    """a rounded toward zero, keeping the sign of zero."""
    return a if math.isinf(a) or a != a else math.copysign(float(math.trunc(a)), a)


MASK32: Final = 0xFFFFFFFF


def threefry(counter: int, key: int) -> int:
    """Threefry-2x32; the low half of each 64-bit word comes first."""
    counters, keys = ((number & MASK32, number >> 32) for number in (counter, key))
    low, high = threefry_words(counters, keys, lambda word: word & MASK32)
    result: int = high << 32 | low
    return result


ALU_PYTHON: Final[dict[Op, Callable[..., Any]]] = {
    Op.NEG: operator.neg,
    Op.RECIPROCAL: lambda a: float_quotient(1.0, a),
    Op.SQRT: quiet(math.sqrt, lambda a: math.nan),
    Op.EXP2: quiet(lambda a: 2.0**a, lambda a: math.inf),
    Op.LOG2: logarithm(math.log2),
    Op.EXP: quiet(math.exp, lambda a: math.inf),
    Op.LOG: logarithm(math.log),
    Op.SIN: quiet(math.sin, lambda a: math.nan),
    Op.TRUNC: exact_trunc,
    Op.ADD: operator.add,
    Op.SUB: operator.sub,
    Op.MUL: multiply,
    Op.FDIV: float_quotient,
    Op.IDIV: truncated,
    Op.MOD: lambda a, b: a - b * truncated(a, b),
    Op.FLOORDIV: operator.floordiv,
    Op.FLOORMOD: operator.mod,
    Op.MAX: greater,
    Op.MIN: lesser,
    Op.CMPLT: operator.lt,
    Op.CMPNE: operator.ne,
    Op.CMPEQ: operator.eq,
    Op.AND: operator.and_,
    Op.OR: operator.or_,
    Op.XOR: operator.xor,
    Op.SHL: operator.lshift,
    Op.SHR: operator.rshift,
    Op.THREEFRY: threefry,
    Op.WHERE: lambda condition, a, b: a if condition else b,
    Op.MULACC: lambda a, b, c: a * b + c,
}
"""Each ALU op on Python numbers, as if these were exact; `compute` fits the result to a dtype.
Divisors are not 0 and shifts are below the width, which `compute` sees to.
CAST and BITCAST depend on dtypes and are in `compute`."""


def compute(op: Op, dtype: DType, operands: Sequence[Any], operand_dtype: DType) -> Scalar:
    """The value of a scalar ALU node of `dtype`, its first operand being of `operand_dtype`.

    Integers of tensors divided by 0 give 0, and shifts take their amount modulo the width
    (docs/numerics.md). Raises Undefined for an index divided by 0 and for
    a float that does not fit the integer it is cast to, which is left to the device.
    """
    if op is Op.CAST:
        return converted(operands[0], operand_dtype, dtype)
    if op is Op.BITCAST:
        return from_bits(to_bits(operands[0], operand_dtype), dtype)
    if op in SHIFTS:
        operands = (operands[0], operands[1] & (dtype.bits - 1))
    elif op in DIVISIONS and operands[1] == 0:
        if dtype.kind == "index":
            raise Undefined(f"{operands[0]} divided by 0")
        return 0
    value = ALU_PYTHON[op](*operands)
    return round_to(dtype, value) if dtype.kind == "float" else as_scalar(value, dtype)


def converted(value: Any, source: DType, target: DType) -> Scalar:
    """CAST of a scalar. A float that is no integer of the target, once truncated, is undefined."""
    if target.kind == "float":
        return round_to(target, value) if source.kind == "float" else round_integer(target, value)
    if target.kind == "bool":
        return bool(value != 0)
    if source.kind != "float":
        return as_scalar(value, target)
    if not math.isfinite(value) or as_scalar(math.trunc(value), target) != math.trunc(value):
        raise Undefined(f"{value} converted to {target!r}")
    return int(value)


def evaluate(node: UOp, values: Mapping[UOp, Scalar] | None = None) -> Any:
    """The value of a scalar expression, given those of its leaves; a tuple for a vector.

    `values` may hold any node and wins over computing it. Raises Undefined like `compute`.
    """
    known: dict[UOp, Any] = dict(values or {})
    for u in node.toposort(lambda n: n not in known):
        if u not in known:
            known[u] = value_of(u, [known[s] for s in u.src if s in known])
    return known[node]


def value_of(node: UOp, operands: list[Any]) -> Any:
    """The value of one node, given those of its sources."""
    if node.op is Op.CONST:
        return round_to(node.dtype, node.arg) if node.dtype.kind == "float" else node.arg
    if node.op is Op.VECTORIZE:
        return tuple(operands)
    if node.op is Op.EXTRACT:
        beside = [value for vector in operands for value in vector]
        lanes = [beside[lane] for lane in node.arg]
        return lanes[0] if len(lanes) == 1 else tuple(lanes)
    if node.op not in ALU:
        raise KeyError(f"no value was given for {node!r}")
    scalar, source = node.dtype.scalar(), node.src[0].dtype.scalar()
    if node.dtype.count == 1:
        return compute(node.op, scalar, operands, source)
    return tuple(compute(node.op, scalar, lane, source) for lane in zip(*operands, strict=True))
