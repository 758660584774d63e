"""Arithmetic, comparisons and conversions in PTX: the register of what a node computes.

What PTX leaves undefined is defined as docs/numerics.md says.
"""

from __future__ import annotations

from typing import Final

from tiny_nv.ptx_text import (
    BFLOAT,
    DOUBLE,
    FLOAT,
    HALF,
    INT,
    LONG,
    PREDICATE,
    UINT,
    ULONG,
    WORD_BYTES,
    Kind,
    Text,
)
from tinycore.dtype import DType, dtypes
from tinycore.render.facts import is_safe_division, is_safe_shift
from tinycore.uop.node import UOp
from tinycore.uop.op import BOOL_ARITHMETIC, COMPARISON, SHIFTS, Op

__all__ = ["APPROXIMATE_OPS", "NATIVE_OPS", "NATIVE_TYPES", "chosen", "computed"]

INT_MIN: Final = -(1 << 31)
LONG_MIN: Final = -(1 << 63)
SIGN: Final = str(1 << 63)

FLOAT_OPERATIONS: Final = {
    Op.ADD: "add",
    Op.SUB: "sub",
    Op.MUL: "mul",
    Op.FDIV: "div.rn",
    Op.RECIPROCAL: "rcp.rn",
    Op.SQRT: "sqrt.rn",
    Op.NEG: "neg",
    Op.MULACC: "fma.rn",
    Op.EXP2: "ex2.approx.ftz",
    Op.MAX: "max.NaN",
    Op.MIN: "min.NaN",
}
"""Sums and products without a rounding mode, which may be fused."""
INTEGER_OPERATIONS: Final = {
    Op.ADD: "add",
    Op.SUB: "sub",
    Op.MUL: "mul.lo",
    Op.NEG: "neg",
    Op.MULACC: "mad.lo",
    Op.MAX: "max",
    Op.MIN: "min",
    Op.IDIV: "div",
    Op.MOD: "rem",
    Op.SHR: "shr",
}
BIT_OPERATIONS: Final = {Op.AND: "and", Op.OR: "or", Op.XOR: "xor", Op.SHL: "shl"}
COMPARISONS: Final = {Op.CMPLT: "lt", Op.CMPEQ: "eq", Op.CMPNE: "ne"}
WRAPPING: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.MULACC, Op.SHL, Op.IDIV, Op.MOD})
"""Ops whose result may leave the range of a narrow integer."""
APPROXIMATE_OPS: Final = frozenset({Op.EXP2})
"""Ops of float32 whose instruction is wrong in its last two bits."""
NATIVE_OPS: Final = (
    frozenset({*FLOAT_OPERATIONS, *INTEGER_OPERATIONS, *BIT_OPERATIONS, *COMPARISONS})
    | {Op.TRUNC, Op.WHERE, Op.CAST, Op.BITCAST}
) - APPROXIMATE_OPS
"""Ops that `computed` has instructions for."""
SINGLE_AND_DOUBLE: Final = frozenset({dtypes.float32, dtypes.float64})
NATIVE_TYPES: Final = {
    **dict.fromkeys((Op.FDIV, Op.RECIPROCAL, Op.SQRT, Op.TRUNC), SINGLE_AND_DOUBLE),
    **dict.fromkeys((Op.MAX, Op.MIN), frozenset(dtypes.all) - {dtypes.float64} | {dtypes.index}),
}
"""Types that these have instructions for, where it is not all."""


def computed(u: UOp, text: Text) -> str:
    """The register of what a node computes."""
    operands = [text.values[s][0] for s in u.src]
    if u.op is Op.CAST:
        return cast(u.dtype, u.src[0].dtype, operands[0], text)
    if u.op is Op.BITCAST:
        return bitcast(u.dtype, u.src[0].dtype, operands[0], text)
    if u.op is Op.WHERE:
        kind = text.kind(u.dtype)
        gate, yes, no = operands
        return chosen(kind, gate, yes, no, text)
    if u.op in COMPARISON:
        return compared(u, operands, text)
    if u.dtype is dtypes.bool:
        return logic(BOOL_ARITHMETIC.get(u.op, u.op), operands, text)
    if u.dtype.kind == "float":
        return float_value(u.op, text.kind(u.dtype), operands, text)
    return integer_value(u, operands, text)


def chosen(kind: Kind, gate: str, a: str, b: str, text: Text) -> str:
    """a where a predicate holds, else b."""
    if kind is not PREDICATE:
        return text.new(kind, f"selp.{kind.bits}", a, b, gate)
    yes = text.new(PREDICATE, "and.pred", gate, a)
    no = text.new(PREDICATE, "and.pred", text.new(PREDICATE, "not.pred", gate), b)
    return text.new(PREDICATE, "or.pred", yes, no)


def logic(op: Op, operands: list[str], text: Text) -> str:
    """AND, OR and XOR of predicates."""
    return text.new(PREDICATE, f"{BIT_OPERATIONS[op]}.pred", *operands)


def compared(u: UOp, operands: list[str], text: Text) -> str:
    """A comparison, as a predicate; NaN differs from all."""
    kind = text.kind(u.src[0].dtype)
    if kind is PREDICATE:
        return compared_predicates(u.op, operands, text)
    word = COMPARISONS[u.op]
    if u.op is Op.CMPNE and u.src[0].dtype.kind == "float":
        word = "neu"
    return text.new(PREDICATE, f"setp.{word}.{kind.arithmetic}", *operands)


def compared_predicates(op: Op, operands: list[str], text: Text) -> str:
    """A comparison of predicates, of which false is the lesser."""
    a, b = operands
    if op is Op.CMPLT:
        return text.new(PREDICATE, "and.pred", text.new(PREDICATE, "not.pred", a), b)
    differ = text.new(PREDICATE, "xor.pred", a, b)
    return differ if op is Op.CMPNE else text.new(PREDICATE, "not.pred", differ)


def float_value(op: Op, kind: Kind, operands: list[str], text: Text) -> str:
    """Arithmetic of floats."""
    if op is Op.TRUNC:
        return text.new(kind, f"cvt.rzi.{kind.arithmetic}.{kind.arithmetic}", *operands)
    return text.new(kind, f"{FLOAT_OPERATIONS[op]}.{kind.arithmetic}", *operands)


def integer_value(u: UOp, operands: list[str], text: Text) -> str:
    """Arithmetic of integers, which wraps; what narrow ones become is cut to their width."""
    kind = text.kind(u.dtype)
    if u.op in SHIFTS:
        operands[1] = shift(u, operands[1], text)
    if u.op in (Op.IDIV, Op.MOD) and is_split_of_bits(u):
        by = int(u.src[1].arg)
        if u.op is Op.MOD:
            return text.new(kind, f"and.{kind.bits}", operands[0], str(by - 1))
        return text.new(kind, f"shr.u{kind.bits[1:]}", operands[0], str(by.bit_length() - 1))
    if u.op in (Op.IDIV, Op.MOD) and not is_safe_division(u):
        found = quotient(u, kind, operands, text)
    elif u.op in BIT_OPERATIONS:
        found = text.new(kind, f"{BIT_OPERATIONS[u.op]}.{kind.bits}", *operands)
    else:
        word = "s64" if kind.bits == "b64" else "s32"
        name = word if u.op is Op.NEG else kind.arithmetic
        found = text.new(kind, f"{INTEGER_OPERATIONS[u.op]}.{name}", *operands)
    return cut(u.dtype, found, text) if u.op in WRAPPING else found


def shift(u: UOp, amount: str, text: Text) -> str:
    """The amount of a shift, as the 32 bits that PTX wants, modulo the width."""
    if text.kind(u.src[1].dtype).bits == "b64" and amount.startswith("%"):
        amount = text.new(UINT, "cvt.u32.u64", amount)
    if is_safe_shift(u):
        return amount
    return text.new(UINT, "and.b32", amount, str(u.dtype.bits - 1))


def quotient(u: UOp, kind: Kind, operands: list[str], text: Text) -> str:
    """a / b or a % b where b may be 0, which gives 0, or -1, whose quotient wraps."""
    a, b = operands
    none = text.new(PREDICATE, f"setp.eq.{kind.arithmetic}", b, "0")
    safe = text.new(kind, f"selp.{kind.bits}", "1", b, none)
    word = INTEGER_OPERATIONS[u.op]
    if kind.arithmetic[0] == "u":
        found = text.new(kind, f"{word}.{kind.arithmetic}", a, safe)
        return text.new(kind, f"selp.{kind.bits}", "0", found, none)
    minus = text.new(PREDICATE, f"setp.eq.{kind.arithmetic}", b, "-1")
    safe = text.new(kind, f"selp.{kind.bits}", "1", safe, minus)
    found = text.new(kind, f"{word}.{kind.arithmetic}", a, safe)
    other = "0"
    if u.op is Op.IDIV:
        other = text.new(kind, f"neg.{kind.arithmetic}", a)
    found = text.new(kind, f"selp.{kind.bits}", other, found, minus)
    return text.new(kind, f"selp.{kind.bits}", "0", found, none)


def cut(dtype: DType, value: str, text: Text) -> str:
    """The low bits of a register, extended again, for types narrower than it."""
    if dtype.kind not in ("int", "uint") or dtype.itemsize >= WORD_BYTES:
        return value
    if dtype.kind == "uint":
        return text.new(UINT, "and.b32", value, str((1 << dtype.bits) - 1))
    return text.new(INT, "bfe.s32", value, "0", str(dtype.bits))


# --- conversions


def cast(target: DType, source: DType, value: str, text: Text) -> str:
    """A value of another type."""
    to, of = text.kind(target), text.kind(source)
    if target is source:
        return value
    if of is BFLOAT:
        single = text.new(FLOAT, "mov.b32", text.new(UINT, "shl.b32", value, "16"))
        return cast(target, dtypes.float32, single, text)
    if to is BFLOAT:
        single = cast(dtypes.float32, source, value, text)
        return text.new(UINT, "cvt.u32.u16", text.new(HALF, "cvt.rn.bf16.f32", single))
    if to is PREDICATE:
        return is_not_zero(of, source, value, text)
    if of is PREDICATE:
        number = text.new(UINT, "selp.u32", "1", "0", value)
        return cast(target, dtypes.uint32, number, text)
    if source.kind == "float":
        if target.kind == "float":
            return float_to_float(to, of, value, text)
        return truncated(target, of, value, text)
    if target.kind == "float":
        through = FLOAT if to is HALF else to
        found = text.new(through, f"cvt.rn.{through.arithmetic}.{of.arithmetic}", value)
        return text.new(HALF, "cvt.rn.f16.f32", found) if to is HALF else found
    return resized(target, to, of, value, text)


def is_not_zero(of: Kind, source: DType, value: str, text: Text) -> str:
    """A number as a predicate; NaN is true."""
    word = "neu" if source.kind == "float" else "ne"
    zero = text.constant(source.scalar(), 0)
    return text.new(PREDICATE, f"setp.{word}.{of.arithmetic}", value, zero)


def float_to_float(to: Kind, of: Kind, value: str, text: Text) -> str:
    """A float of another width; from double to half by way of float."""
    if of is DOUBLE and to is HALF:
        value, of = text.new(FLOAT, "cvt.rn.f32.f64", value), FLOAT
    if of is HALF and to is DOUBLE:
        value, of = text.new(FLOAT, "cvt.f32.f16", value), FLOAT
    narrower = int(to.bits[1:]) < int(of.bits[1:])
    rounding = ".rn" if narrower else ""
    return text.new(to, f"cvt{rounding}.{to.arithmetic}.{of.arithmetic}", value)


def resized(target: DType, to: Kind, of: Kind, value: str, text: Text) -> str:
    """An integer of another width."""
    if to.bits == "b64":
        if of.bits == "b64":
            return value
        return text.new(
            to, f"cvt.{'s64' if of.arithmetic == 's32' else 'u64'}.{of.arithmetic}", value
        )
    if of.bits == "b64":
        value = text.new(to, "cvt.u32.u64", value)
    return cut(target, value, text)


def truncated(target: DType, of: Kind, value: str, text: Text) -> str:
    """A float as an integer: what does not fit, and NaN, is the least int32, or for wide types
    the least int64, cut to the width.
    """
    if of is HALF:
        value, of = text.new(FLOAT, "cvt.f32.f16", value), FLOAT
    to = text.kind(target)
    if target is dtypes.uint64:
        return truncated_unsigned(of, value, text)
    if target.itemsize == 8 or target in (dtypes.uint32, dtypes.index):
        found = in_range(of, value, LONG, text)
        return found if to.bits == "b64" else text.new(to, "cvt.u32.u64", found)
    return cut(target, in_range(of, value, INT, text), text)


def in_range(of: Kind, value: str, to: Kind, text: Text) -> str:
    """A float as a signed integer, the least one where it does not fit."""
    bits = int(to.bits[1:])
    is_exact = of is DOUBLE and bits == 32
    low = -(2.0 ** (bits - 1)) - (1 if is_exact else 0)
    above = "gt" if is_exact else "ge"
    fits = text.new(PREDICATE, f"setp.{above}.{of.arithmetic}", value, real(of, low, text))
    below = real(of, 2.0 ** (bits - 1), text)
    fits = text.new(
        PREDICATE,
        "and.pred",
        fits,
        text.new(PREDICATE, f"setp.lt.{of.arithmetic}", value, below),
    )
    found = text.new(to, f"cvt.rzi.{to.arithmetic}.{of.arithmetic}", value)
    least = str(INT_MIN if bits == 32 else LONG_MIN)
    return text.new(to, f"selp.{to.bits}", found, least, fits)


def truncated_unsigned(of: Kind, value: str, text: Text) -> str:
    """A float as uint64: as int64 below 2**63, above it less 2**63 with the highest bit set."""
    half_way, end = (real(of, 2.0**power, text) for power in (63, 64))
    small = in_range(of, value, LONG, text)
    less = text.new(of, f"sub.{of.arithmetic}", value, half_way)
    large = text.new(LONG, "xor.b64", in_range(of, less, LONG, text), SIGN)
    fits = text.new(PREDICATE, f"setp.lt.{of.arithmetic}", value, end)
    large = text.new(LONG, "selp.b64", large, SIGN, fits)
    is_small = text.new(PREDICATE, f"setp.lt.{of.arithmetic}", value, half_way)
    return text.new(ULONG, "selp.b64", small, large, is_small)


def real(kind: Kind, value: float, text: Text) -> str:
    """A float as an immediate."""
    return text.constant(dtypes.float64 if kind is DOUBLE else dtypes.float32, value)


def bitcast(target: DType, source: DType, value: str, text: Text) -> str:
    """The same bits as another type of the same width."""
    to, of = text.kind(target), text.kind(source)
    if to is PREDICATE or of is PREDICATE:
        return cast(target, source, value, text)
    if to is HALF:
        return text.new(HALF, "cvt.u16.u32", value) if of is not HALF else value
    if of is HALF:
        kinds = "s32.s16" if to.arithmetic == "s32" else "u32.u16"
        return text.new(to, f"cvt.{kinds}", value)
    if to.register == of.register:
        return cut(target, value, text)
    return text.new(to, f"mov.{to.bits}", value)


def is_split_of_bits(u: UOp) -> bool:
    """True for a quotient or remainder by a power of two of what is never negative.

    ptxas does not know the signs, and makes several instructions of rem.s32.
    """
    value, by = u.src
    known = by.op is Op.CONST and by.arg > 0 and not by.arg & (by.arg - 1)
    return known and value.bounds[0] >= 0
