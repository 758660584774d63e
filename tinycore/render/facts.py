"""Questions that renderers ask about a node before they guard it.

Floor 2.
"""

from __future__ import annotations

from typing import Final

from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

RANGE_LETTERS: Final = {
    AxisKind.LOOP: "i",
    AxisKind.REDUCE: "r",
    AxisKind.ORDERED: "o",
    AxisKind.PARALLEL: "p",
}
"""What the counter of a loop is called, by the kind of the loop."""


def is_parallel(u: UOp) -> bool:
    """Whether a node is the loop that is shared among threads."""
    return u.op is Op.RANGE and u.arg.kind is AxisKind.PARALLEL


def is_safe_division(u: UOp) -> bool:
    """Whether an IDIV or MOD divides index math, or by what is known to be neither 0 nor -1."""
    low, high = u.src[1].bounds
    return u.dtype.kind == "index" or low > 0 or high < -1


def is_safe_shift(u: UOp) -> bool:
    """Whether the amount of a shift is known to be below the width."""
    low, high = u.src[1].bounds
    return bool(low >= 0 and high < u.dtype.bits)
