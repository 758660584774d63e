"""The ops on NumPy arrays: the reference meaning of arithmetic.

Imports `dtype` and `uop`. Values of bfloat16 and fp8 are float32 arrays that hold only numbers of
their type, rounded to nearest even after every op; all other types are computed as themselves.
Transcendental functions are computed in float64, so they are correctly rounded but for rare ties.
What the op table leaves undefined gets some value, never an exception: x / 0 is 0 for integers, and
shifts take their amount modulo the width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from tinycore.dtype import DType, dtypes, float_layout, to_numpy_dtype
from tinycore.uop.host_bytes import SMALL_FLOATS, decode, rounded, to_storage
from tinycore.uop.instruction import Instruction
from tinycore.uop.op import ALU, COMPARISON, Op
from tinycore.uop.threefry import Words, threefry_words

__all__ = [
    "OPERATIONS",
    "Array",
    "computed_as",
    "fold_values",
    "operation",
]

Array = NDArray[Any]
Function = Callable[..., Any]


@cache
def computed_as(dtype: DType) -> numpy.dtype[Any]:
    """The NumPy type in which values of a dtype are held."""
    return numpy.dtype(numpy.float32) if dtype.scalar() in SMALL_FLOATS else to_numpy_dtype(dtype)


# --- the ops


def truncated_quotient(a: Array, b: Array) -> Array:
    """a / b of integers rounded toward zero; 0 where b is 0."""
    if a.dtype.kind == "u":
        whole: Array = numpy.floor_divide(a, b)
        return whole
    quotient: Array = numpy.floor_divide(a, b)
    inexact = (quotient * b != a) & ((a < 0) != (b < 0))
    result: Array = numpy.where(b == 0, a.dtype.type(0), quotient + inexact.astype(a.dtype))
    return result


def truncated_remainder(a: Array, b: Array) -> Array:
    """Remainder of the truncated quotient; 0 where b is 0."""
    result: Array = numpy.where(b == 0, a.dtype.type(0), a - truncated_quotient(a, b) * b)
    return result


def in_double(function: Function) -> Function:
    """A function of floats, computed in float64 and rounded once to the type of its argument."""

    def wide(a: Array) -> Array:
        result: Array = function(a.astype(numpy.float64))
        return result.astype(a.dtype)

    return wide


def modulo_width(shift: Function) -> Function:
    """A shift whose amount is taken modulo the width of what is shifted."""

    def by(a: Array, b: Array) -> Any:
        return shift(a, (b & (8 * a.dtype.itemsize - 1)).astype(a.dtype))

    return by


def reciprocal(a: Array) -> Array:
    """1 / a."""
    result: Array = numpy.divide(a.dtype.type(1), a)
    return result


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, each rounded."""
    return a * b + c


LOW_WORD: Final = numpy.uint64(0xFFFFFFFF)
HALF: Final = numpy.uint64(32)


def words_of(number: Array) -> Words:
    """The low and the high 32 bits of each uint64."""
    return number & LOW_WORD, number >> HALF


def threefry(counter: Array, key: Array) -> Array:
    """Threefry-2x32 on the halves of 64-bit words, the low one first."""
    low, high = threefry_words(words_of(counter), words_of(key), lambda word: word & LOW_WORD)
    result: Array = high << HALF | low
    return result


OPERATIONS: Final[dict[Op, Function]] = {
    Op.NEG: numpy.negative,
    Op.RECIPROCAL: reciprocal,
    Op.SQRT: numpy.sqrt,
    Op.EXP2: in_double(numpy.exp2),
    Op.LOG2: in_double(numpy.log2),
    Op.EXP: in_double(numpy.exp),
    Op.LOG: in_double(numpy.log),
    Op.SIN: in_double(numpy.sin),
    Op.TRUNC: numpy.trunc,
    Op.ADD: numpy.add,
    Op.SUB: numpy.subtract,
    Op.MUL: numpy.multiply,
    Op.FDIV: numpy.divide,
    Op.IDIV: truncated_quotient,
    Op.MOD: truncated_remainder,
    Op.FLOORDIV: numpy.floor_divide,
    Op.FLOORMOD: numpy.remainder,
    Op.MAX: numpy.maximum,
    Op.MIN: numpy.minimum,
    Op.CMPLT: numpy.less,
    Op.CMPNE: numpy.not_equal,
    Op.CMPEQ: numpy.equal,
    Op.AND: numpy.bitwise_and,
    Op.OR: numpy.bitwise_or,
    Op.XOR: numpy.bitwise_xor,
    Op.SHL: modulo_width(numpy.left_shift),
    Op.SHR: modulo_width(numpy.right_shift),
    Op.THREEFRY: threefry,
    Op.WHERE: numpy.where,
    Op.MULACC: multiply_add,
}
"""Each op on arrays of one type, before rounding to a small float type. CAST and BITCAST depend on
two types: see `converter` and `reinterpreter`.
"""

SELECTIONS: Final = frozenset({Op.MAX, Op.MIN, Op.WHERE}) | COMPARISON
"""Ops on floats whose result is an operand, or none of their type."""
EXACT: Final = SELECTIONS | {Op.NEG, Op.TRUNC}
"""Ops whose result needs no rounding, where it may be -0."""


@cache
def operation(op: Op, dtype: DType, source: DType) -> Function:
    """The function for a node of `dtype` whose first source is of `source`."""
    scalar = dtype.scalar()
    if op is Op.CAST:
        return converter(source.scalar(), scalar)
    if op is Op.BITCAST:
        return reinterpreter(source.scalar(), scalar)
    assert op in ALU, op
    function = OPERATIONS[op]
    if scalar not in SMALL_FLOATS or op in SELECTIONS:
        return function
    if op in EXACT and float_layout(scalar).has_negative_zero:
        return function

    def then_round(*operands: Array) -> Array:
        return rounded(function(*operands), scalar)

    return then_round


def meaning_of(instruction: Instruction) -> Function:
    """Function of an instruction of a plugin, in the type of its result."""
    kind = computed_as(instruction.result)

    def compute(*operands: Array) -> Array:
        return numpy.asarray(instruction.function(*operands)).astype(kind)

    return compute


def fold_values(
    function: Function,
    before: Array,
    values: Array,
    steps: int,
) -> Array:
    """`before` combined with each value along the first axis, one after the other.

    That has the size `steps`, or 1 where all values are the same; it is of size 1 in the result.
    """
    thin = numpy.broadcast_shapes(values.shape[1:], before.shape[1:])
    wide = numpy.broadcast_to(values, (steps, *thin))
    rows = numpy.array(wide, order="C").reshape(steps, -1)
    total: Array = numpy.broadcast_to(before, (1, *thin)).reshape(-1)
    if not isinstance(function, numpy.ufunc):
        for row in rows:
            total = function(total, row)
        return total.reshape(1, *thin)
    rows[0] = function(total, rows[0])
    if rows.shape[1] == 1:  # NumPy would reduce these pairwise
        total = function.accumulate(rows, axis=0, dtype=rows.dtype)[-1]
    else:
        total = function.reduce(rows, axis=0, dtype=rows.dtype)
    return total.reshape(1, *thin)


def converter(source: DType, target: DType) -> Function:
    """CAST from one scalar type to another."""
    kind = computed_as(target)
    if target.kind == "bool":
        return lambda a: a != 0
    if target in SMALL_FLOATS:
        return lambda a: rounded(as_float(a), target)
    if target is dtypes.float16 and source.kind in ("int", "uint", "index"):
        return lambda a: as_float(a).astype(kind)
    if target is dtypes.uint32 and source.kind == "float":  # NumPy's own answer varies with the CPU
        return lambda a: a.astype(numpy.int64).astype(kind)
    if target is dtypes.uint64 and source.kind == "float":
        return float_to_uint64
    return lambda a: a.astype(kind)


def float_to_uint64(values: Array) -> Array:
    """Floats as uint64: directly where they fit, else by way of int64."""
    fits = (values >= 0) & (values < 2.0**64)
    whole = numpy.where(fits, values, 0).astype(numpy.uint64)
    return numpy.where(fits, whole, values.astype(numpy.int64).astype(numpy.uint64))


def as_float(values: Array) -> Array:
    """Numbers as float32 or float64 such that rounding them to a shorter type is rounding once."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        wide = numpy.float32 if values.dtype in (numpy.float32, numpy.float16) else numpy.float64
        return values.astype(wide)
    # Of 64 bits, the last 11 do not fit float64: they only tell whether there was more.
    fits = numpy.abs(values.astype(numpy.float64)) < 2.0**53
    sticky = (values >> 11 | (values & 0x7FF != 0).astype(values.dtype)) << 11
    return numpy.where(fits, values, sticky).astype(numpy.float64)


def reinterpreter(source: DType, target: DType) -> Function:
    """BITCAST from one scalar type to another of the same width."""
    storage = to_numpy_dtype(target)

    def same_bits(a: Array) -> Array:
        return decode(numpy.ascontiguousarray(to_storage(a, source)).view(storage), target)

    return same_bits
