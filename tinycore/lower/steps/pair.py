"""Pair: fold two neighboring products of narrow integers at once (dot-product instructions).

Floor 3'. Processors multiply vectors of int16 and add neighboring products in one instruction,
which gives twice as many products as sums. The factors of the two steps must be adjacent in memory;
stages arrange that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.loops import Number, closer_of, counter_of, text_of
from tinycore.lower.steps.split import INNER, Split
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import AxisKind, Op

NARROW_DTYPE: Final = dtypes.int16
SUM_DTYPES: Final = (dtypes.int32, dtypes.uint32)
"""Types of sums; a pair of products is added modulo their size, as the sum is."""


@dataclass(frozen=True)
class Pair:
    """Fold the steps of a reduced loop by twos: (axis, 0) counts pairs, (axis, 1) is inside of one.

    An odd last step stays single. The sums must be of products of integers that fit int16, whatever
    their type.
    """

    axis: Number

    def __str__(self) -> str:
        return f"pair({text_of(self.axis)})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done: the inner part of the loop is PAIR, its products DOT.

        Raises ArgumentError where something else than a sum of narrow products is folded.
        """
        kernel = Split(self.axis, 2).apply(kernel)
        counter = counter_of(kernel, number := (*self.axis, INNER))
        twin = counter.replace(arg=Axis(number, AxisKind.PAIR))
        done = {}
        for closer in closer_of(kernel, counter):
            if not is_paired(closer):
                raise ArgumentError(f"loop {number} folds something else than narrow products")
            value = closer.src[0]
            product = UOp(Op.DOT, dtypes.int32, tuple(map(narrowed, value.src)))
            body = product if value.dtype is product.dtype else product.bitcast(value.dtype)
            done[closer] = closer.with_src((body, *closer.src[1:])).substitute({counter: twin})
        return kernel.substitute(done)


def is_paired(closer: UOp) -> bool:
    """True if a REDUCE is a sum of products of two numbers that fit int16."""
    value = closer.src[0]
    return (
        closer.op is Op.REDUCE
        and closer.arg is Op.ADD
        and value.op is Op.MUL
        and value.dtype in SUM_DTYPES
        and all(map(fits_int16, value.src))
    )


def fits_int16(value: UOp) -> bool:
    """True if an integer fits int16."""
    return bool(dtypes.min(NARROW_DTYPE) <= value.vmin and value.vmax <= dtypes.max(NARROW_DTYPE))


def narrowed(value: UOp) -> UOp:
    """A value that fits int16, as int16: the source of its widening cast, if it has one."""
    inner = value.src[0] if value.op is Op.CAST else value
    same = inner.dtype.kind in ("int", "uint") and inner.bounds == value.bounds
    source = inner if same else value
    return source if source.dtype is NARROW_DTYPE else source.cast(NARROW_DTYPE)
