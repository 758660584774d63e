"""Arithmetic of the tensor graph in operators of ONNX, one row or function per op.

Each function gets the writer, the node, and the names of its operands; what it returns means what
`tinycore.uop.evaluate` says: integers wrap, and a division by 0 gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tiny_onnx.export.writer import Writer, number_of
from tinycore.dtype import DType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.uop.movement import below_movement
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, registers

__all__ = ["ARITHMETIC", "cast_of"]

Function = Callable[..., str]
ARITHMETIC: Final[dict[Op, Function]] = {}
rule = registers(ARITHMETIC)

PLAIN: Final = {
    Op.ADD: "Add", Op.SUB: "Sub", Op.MUL: "Mul", Op.FDIV: "Div", Op.MAX: "Max", Op.MIN: "Min",
    Op.RECIPROCAL: "Reciprocal", Op.SQRT: "Sqrt", Op.EXP: "Exp", Op.LOG: "Log", Op.SIN: "Sin",
}  # fmt: skip
"""Ops that are one operator, on numbers."""
LOGICAL: Final = {
    Op.ADD: "Or", Op.MAX: "Or", Op.OR: "Or", Op.MUL: "And", Op.MIN: "And", Op.AND: "And",
    Op.XOR: "Xor", Op.SUB: "Xor",
}  # fmt: skip
BITWISE: Final = {Op.AND: "BitwiseAnd", Op.OR: "BitwiseOr", Op.XOR: "BitwiseXor"}
UNSIGNED_OF: Final = {
    dtypes.int8: dtypes.uint8, dtypes.int16: dtypes.uint16,
    dtypes.int32: dtypes.uint32, dtypes.int64: dtypes.uint64,
}  # fmt: skip


@rule(*PLAIN, *BITWISE)
def plain(w: Writer, node: UOp, *operands: str) -> str:
    """One operator on numbers, or on bits."""
    if node.dtype is dtypes.bool:
        return w.add(LOGICAL[node.op], *operands)
    return w.computed((PLAIN | BITWISE)[node.op], node.dtype, *operands)


@rule(Op.NEG)
def negated(w: Writer, node: UOp, a: str) -> str:
    """-a."""
    if dtypes.is_unsigned(node.dtype):
        return w.computed("Sub", node.dtype, w.number(0, node.dtype), a)
    return a if node.dtype is dtypes.bool else w.computed("Neg", node.dtype, a)


@rule(Op.CAST)
def cast(w: Writer, node: UOp, a: str) -> str:
    """A conversion."""
    return cast_of(w, a, node.src[0].dtype, node.dtype)


def cast_of(w: Writer, a: str, before: DType, after: DType) -> str:
    """A conversion, through float32 where one side is a float of 8 bits."""
    if after is dtypes.bool and before in (dtypes.bfloat16, *dtypes.fp8s):
        a, before = w.cast(a, before, dtypes.float32), dtypes.float32
    return w.cast(a, before, after)


@rule(Op.BITCAST)
def bitcast(w: Writer, node: UOp, a: str) -> str:
    """The same bits in another type."""
    if node.dtype is dtypes.bool or node.src[0].dtype is dtypes.bool:
        raise UnsupportedError("BITCAST of bool is not exported; cast it")
    return w.add("BitCast", a, to=number_of(node.dtype))


@rule(Op.EXP2)
def power_of_two(w: Writer, node: UOp, a: str) -> str:
    """2 ** a."""
    return w.computed("Pow", node.dtype, w.number(2, node.dtype), a)


@rule(Op.LOG2)
def logarithm_to_two(w: Writer, node: UOp, a: str) -> str:
    """log2(a) by the natural logarithm."""
    natural = w.computed("Log", node.dtype, a)
    return w.computed("Div", node.dtype, natural, w.number(math.log(2), node.dtype))


@rule(Op.TRUNC)
def truncated(w: Writer, node: UOp, a: str) -> str:
    """A float rounded toward zero."""
    is_less = w.compared("Less", node.dtype, a, w.number(0, node.dtype))
    up, down = (w.computed(op, node.dtype, a) for op in ("Ceil", "Floor"))
    return w.where(is_less, node.dtype, up, down)


@rule(Op.IDIV, Op.MOD, Op.FLOORDIV, Op.FLOORMOD)
def divided(w: Writer, node: UOp, a: str, b: str) -> str:
    """A quotient or remainder of integers, 0 where the divisor is 0."""
    dtype, divisor = node.dtype, below_movement(node.src[1])
    if divisor.op is Op.CONST and divisor.arg not in (0, -1):
        return quotient(w, node.op, dtype, a, b)
    zero, one = w.number(0, dtype), w.number(1, dtype)
    is_zero = w.compared("Equal", dtype, b, zero)
    unsafe, by_minus_one = is_zero, None
    if not dtypes.is_unsigned(dtype):  # the least number has no quotient by -1, but wraps
        is_minus = w.compared("Equal", dtype, b, w.number(-1, dtype))
        unsafe = w.add("Or", is_zero, is_minus)
        is_quotient = node.op in (Op.IDIV, Op.FLOORDIV)
        by_minus_one = w.computed("Neg", dtype, a) if is_quotient else zero
    found = quotient(w, node.op, dtype, a, w.where(unsafe, dtype, one, b))
    if by_minus_one is not None:
        found = w.where(is_minus, dtype, by_minus_one, found)
    return w.where(is_zero, dtype, zero, found)


def quotient(w: Writer, op: Op, dtype: DType, a: str, b: str) -> str:
    """A quotient or remainder by numbers that are neither 0 nor -1."""
    if op is Op.IDIV:
        return w.computed("Div", dtype, a, b)
    if op is Op.MOD:
        return w.computed("Mod", dtype, a, b, fmod=1)
    rest = w.computed("Mod", dtype, a, b, fmod=0)
    if op is Op.FLOORMOD:
        return rest
    return w.computed("Div", dtype, w.computed("Sub", dtype, a, rest), b)


@rule(Op.CMPLT)
def less(w: Writer, node: UOp, a: str, b: str) -> str:
    """a < b."""
    dtype = node.src[0].dtype
    if dtype is dtypes.bool:
        return w.add("And", w.add("Not", a), b)
    return w.compared("Less", dtype, a, b)


@rule(Op.CMPEQ)
def equal(w: Writer, node: UOp, a: str, b: str) -> str:
    """a == b."""
    return w.compared("Equal", node.src[0].dtype, a, b)


@rule(Op.CMPNE)
def unequal(w: Writer, node: UOp, a: str, b: str) -> str:
    """a != b."""
    return w.add("Not", equal(w, node, a, b))


@rule(Op.SHL, Op.SHR)
def shifted(w: Writer, node: UOp, a: str, b: str) -> str:
    """A shift by bits modulo the width; the sign is shifted in from above."""
    dtype = node.dtype
    amount = w.computed("BitwiseAnd", dtype, b, w.number(8 * dtype.itemsize - 1, dtype))
    plain = UNSIGNED_OF.get(dtype, dtype)
    sign = None
    if node.op is Op.SHR and plain is not dtype:  # of a negative number shift the complement
        is_less = w.compared("Less", dtype, a, w.number(0, dtype))
        sign = w.where(is_less, dtype, w.number(-1, dtype), w.number(0, dtype))
        a = w.computed("BitwiseXor", dtype, a, sign)
    direction = "LEFT" if node.op is Op.SHL else "RIGHT"
    bits = [w.cast(each, dtype, plain) for each in (a, amount)]
    found = w.cast(w.add("BitShift", *bits, direction=direction), plain, dtype)
    return found if sign is None else w.computed("BitwiseXor", dtype, found, sign)


@rule(Op.WHERE)
def chosen(w: Writer, node: UOp, mask: str, a: str, b: str) -> str:
    """a where the mask holds, else b."""
    return w.where(mask, node.dtype, a, b)


@rule(Op.MULACC)
def multiplied_and_added(w: Writer, node: UOp, a: str, b: str, c: str) -> str:
    """a * b + c."""
    return w.computed("Add", node.dtype, w.computed("Mul", node.dtype, a, b), c)
