"""Facts of nodes by which renderers omit guards.

Floor 2.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import DType, PointerDType, Scalar, dtypes
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

WRAPPING: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.SHL, Op.MULACC})
"""Ops whose signed overflow is undefined in C, so signed integers are computed as unsigned ones."""

RANGE_LETTERS: Final = {
    AxisKind.LOOP: "i",
    AxisKind.REDUCE: "r",
    AxisKind.ORDERED: "o",
    AxisKind.PARALLEL: "p",
}
"""Prefix of a loop counter's name, by the kind of the loop."""


def is_parallel(u: UOp) -> bool:
    """True if a node is the loop that threads share."""
    return u.op is Op.RANGE and u.arg.kind is AxisKind.PARALLEL


def is_safe_division(u: UOp) -> bool:
    """True if a division is in index math, or its divisor is known to be neither 0 nor -1."""
    low, high = u.src[1].bounds
    return u.dtype.kind == "index" or low > 0 or high < -1


def is_safe_shift(u: UOp) -> bool:
    """True if the amount of a shift is known to be below the width."""
    low, high = u.src[1].bounds
    return bool(low >= 0 and high < u.dtype.bits)


def is_constant(u: UOp, value: Scalar) -> bool:
    """True if a node is a literal of this very value and type."""
    return u.op is Op.CONST and type(u.arg) is type(value) and bool(u.arg == value)


def is_negative_index(u: UOp) -> bool:
    """True if a node is a negative literal of index math, which reads better subtracted."""
    return u.op is Op.CONST and u.dtype is dtypes.index and bool(u.arg < 0)


def is_register(pointer: UOp) -> bool:
    """True if a DEFINE is one named variable."""
    kind = pointer.dtype
    return pointer.op is Op.DEFINE_REG and isinstance(kind, PointerDType) and kind.size == 1


def is_vector_access(index: UOp, dtype: DType) -> bool:
    """True if a LOAD or STORE of `dtype` moves several elements of memory."""
    return dtype.count > 1 and not is_register(pointer_of(index))


def wraps_as(u: UOp) -> DType | None:
    """The unsigned type to compute a node in so that it wraps, None if it needs none.

    Types below 32 bits are promoted to int by C, so they too must be cut to size afterwards.
    """
    if u.op not in WRAPPING or u.dtype.kind not in ("int", "uint"):
        return None
    if u.dtype.itemsize >= 4 or u.dtype.count > 1:
        if u.dtype.kind == "uint":
            return None
        return dtypes.by_name[f"u{u.dtype.name}"].vec(u.dtype.count)
    return dtypes.uint32
