"""Interval arithmetic: the least and the greatest value a node can take.

Floor 1. Bounds remove divisions, gates and loops of one step, so every node keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tinycore.dtype import dtypes
from tinycore.uop.op import COMPARISON, Op

if TYPE_CHECKING:
    from tinycore.uop.node import UOp

Interval: TypeAlias = tuple[Any, Any]


COUNTED_OPS: Final = frozenset({Op.RANGE, Op.SPECIAL})
CONST, DEFINE_VAR = Op.CONST, Op.DEFINE_VAR


def bounds_of(node: UOp) -> Interval:
    """Interval arithmetic over one node, given the bounds of its sources."""
    op = node.op
    if op is CONST:
        return node.arg, node.arg
    if op in COUNTED_OPS:
        return 0, max(0, node.src[0].vmax - 1)
    if op is DEFINE_VAR:
        return node.arg[1], node.arg[2]
    limits = dtypes.min(node.dtype), dtypes.max(node.dtype)
    rule = INTERVALS.get(op)
    if rule is None or node.dtype.kind not in ("int", "uint", "index", "bool"):
        return limits
    if op in COMPARISON and dtypes.is_float(node.src[0].dtype):
        return limits
    low, high = rule(node, *(s.bounds for s in node.src))
    # Arithmetic that may leave the type's limits wraps, so nothing is known of it.
    return (low, high) if limits[0] <= low and high <= limits[1] else limits


def corners(function: Callable[[int, int], int], a: Interval, b: Interval) -> Interval:
    """The extremes of a function that is monotonic in each argument."""
    values = [function(x, y) for x in a for y in b]
    return min(values), max(values)


def divided(function: Callable[[int, int], int], a: Interval, b: Interval) -> Interval:
    """The extremes of a division; unbounded if the divisor may be 0."""
    return corners(function, a, b) if b[0] > 0 or b[1] < 0 else (-math.inf, math.inf)


def truncated(a: int, b: int) -> int:
    """a / b rounded toward zero, exactly."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def remainder_interval(a: Interval, b: Interval) -> Interval:
    """Bounds of FLOORMOD: exact when `a` stays within one period of a constant."""
    if b[0] <= 0:
        return -math.inf, math.inf
    if b[0] == b[1] and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    return 0, b[1] - 1


def truncated_remainder_interval(a: Interval, b: Interval) -> Interval:
    """Bounds of MOD, which takes the sign of `a`."""
    if b[0] <= 0:
        return -math.inf, math.inf
    if a[0] >= 0:
        return remainder_interval(a, b)
    return max(a[0], 1 - b[1]), max(0, min(a[1], b[1] - 1))


def cast_interval(node: UOp, a: Interval) -> Interval:
    """Bounds of a CAST to an integer from an integer or bool."""
    if node.src[0].dtype.kind == "float":
        return -math.inf, math.inf
    if node.dtype.kind == "bool":
        return a[0] > 0 or a[1] < 0, not (a[0] == a[1] == 0)
    return int(a[0]), int(a[1])


def and_interval(node: UOp, a: Interval, b: Interval) -> Interval:
    """Bounds of AND: never above a nonnegative operand."""
    if node.dtype.kind == "bool":
        return a[0] and b[0], a[1] and b[1]
    highs = [high for low, high in (a, b) if low >= 0]
    return (0, min(highs)) if highs else (-math.inf, math.inf)


def xor_interval(node: UOp, a: Interval, b: Interval) -> Interval:
    """Bounds of XOR: as many bits as the longer of two nonnegative operands."""
    if node.dtype.kind == "bool":
        return False, True
    if min(a[0], b[0]) < 0 or math.inf in (a[1], b[1]):
        return -math.inf, math.inf
    return 0, (1 << max(int(a[1]), int(b[1])).bit_length()) - 1


def equal_interval(a: Interval, b: Interval) -> Interval:
    """Bounds of a == b."""
    if a[0] == a[1] == b[0] == b[1]:
        return True, True
    return False, not (a[1] < b[0] or b[1] < a[0])


def opposite(a: Interval) -> Interval:
    """Bounds of a negated bool."""
    return not a[1], not a[0]


def shift_interval(left: bool) -> Callable[[UOp, Interval, Interval], Interval]:
    """Bounds of a shift by a nonnegative amount below the width."""

    def rule(node: UOp, a: Interval, b: Interval) -> Interval:
        if b[0] < 0 or b[1] >= node.dtype.bits:
            return -math.inf, math.inf
        return corners((lambda x, y: x << y) if left else (lambda x, y: x >> y), a, b)

    return rule


INTERVALS: Final[dict[Op, Callable[..., Interval]]] = {
    Op.ADD: lambda n, a, b: (a[0] + b[0], a[1] + b[1]),
    Op.SUB: lambda n, a, b: (a[0] - b[1], a[1] - b[0]),
    Op.MUL: lambda n, a, b: corners(lambda x, y: x * y, a, b),
    Op.NEG: lambda n, a: (-a[1], -a[0]),
    Op.MAX: lambda n, a, b: (max(a[0], b[0]), max(a[1], b[1])),
    Op.MIN: lambda n, a, b: (min(a[0], b[0]), min(a[1], b[1])),
    Op.FLOORDIV: lambda n, a, b: divided(lambda x, y: x // y, a, b),
    Op.IDIV: lambda n, a, b: divided(truncated, a, b),
    Op.FLOORMOD: lambda n, a, b: remainder_interval(a, b),
    Op.MOD: lambda n, a, b: truncated_remainder_interval(a, b),
    Op.CMPLT: lambda n, a, b: (a[1] < b[0], a[0] < b[1]),
    Op.CMPEQ: lambda n, a, b: equal_interval(a, b),
    Op.CMPNE: lambda n, a, b: opposite(equal_interval(a, b)),
    Op.AND: and_interval,
    Op.XOR: xor_interval,
    Op.SHL: shift_interval(left=True),
    Op.SHR: shift_interval(left=False),
    Op.WHERE: lambda n, c, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    Op.CAST: cast_interval,
    Op.VECTORIZE: lambda n, *lanes: (min(low for low, _ in lanes), max(high for _, high in lanes)),
    Op.EXTRACT: lambda n, *parts: (min(low for low, _ in parts), max(high for _, high in parts)),
    Op.AFTER: lambda n, a, *_: a,
}
