"""Rules of casts: redundant ones are removed, successive ones merged.

Floor 1. A counter cast to a narrower integer that holds all its values is the same number, so
arithmetic on it is done before the cast, where the algebra of `index` applies.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import DType, dtypes, float_layout
from tinycore.uop.node import UOp
from tinycore.uop.op import COMPARISON, Op
from tinycore.uop.pattern import INTEGER, Pattern, RuleSet, node, var

casts: Final = RuleSet("casts")

x, y = var("x"), var("y")
NARROW_KINDS: Final = ("int", "uint")
RING: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.MAX, Op.MIN, Op.FLOORDIV, Op.FLOORMOD})


@casts.rule(x.cast("root"))
@casts.rule(node(Op.BITCAST, x, name="root"))
def convert_to_itself(root: UOp, x: UOp) -> UOp | None:
    """x converted to its own dtype is x."""
    return x if x.dtype is root.dtype else None


@casts.rule(node(Op.BITCAST, node(Op.BITCAST, x, name="inner"), name="root"))
def bitcast_twice(root: UOp, inner: UOp, x: UOp) -> UOp | None:
    """Bits read as one type and then another are read as the last; bool keeps one bit only."""
    return x.bitcast(root.dtype) if inner.dtype.kind != "bool" else None


@casts.rule(x.cast("inner").cast("root"))
def convert_twice(root: UOp, inner: UOp, x: UOp) -> UOp | None:
    """(x as t) as u == x as u, when t holds every value of x, or both only drop high bits."""
    source, middle, target = x.dtype.scalar(), inner.dtype.scalar(), root.dtype.scalar()
    are_integers = all(d.kind in INTEGER for d in (source, middle, target))
    if holds(middle, source) or (are_integers and target.bits <= middle.bits):
        return x.cast(root.dtype)
    # To a float, the cast from the narrower integer is the cheaper one.
    return x.cast(root.dtype) if target.kind != "float" and fits(x, middle) else None


def holds(wide: DType, narrow: DType) -> bool:
    """True if `wide` represents every value of `narrow` exactly."""
    if wide is narrow or narrow.kind == "bool":
        return wide.kind != "bool" or wide is narrow
    if wide.kind == "bool":
        return False
    if wide.kind == "float":
        layout = float_layout(wide)
        if narrow.kind == "float":
            return layout.holds(float_layout(narrow))
        return narrow.bits <= layout.mantissa_bits and layout.exponent_bits > 4
    return narrow.kind != "float" and (
        dtypes.min(wide) <= dtypes.min(narrow) and dtypes.max(narrow) <= dtypes.max(wide)
    )


def fits(x: UOp, wide: DType) -> bool:
    """True if an integer `wide` holds every value that the integer x can take."""
    if x.dtype.kind not in INTEGER or wide.kind not in INTEGER:
        return False
    low, high = x.bounds
    return bool(dtypes.min(wide) <= low and high <= dtypes.max(wide))


# --- counters


def is_counter(u: UOp) -> bool:
    """True for a cast of an index, and for a constant beside one."""
    return u.op is Op.CONST or u.src[0].dtype is dtypes.index


def counter(name: str) -> Pattern:
    """A number that is an index or a constant as an integer of another type."""
    return node({Op.CAST, Op.CONST}, name=name, kind=NARROW_KINDS, when=is_counter)


def as_index(u: UOp) -> UOp:
    """The index of a counter."""
    return UOp.index(u.arg) if u.op is Op.CONST else u.src[0]


@casts.rule(node(COMPARISON, counter("x"), counter("y"), ordered=True))
def compare_counters(root: UOp, x: UOp, y: UOp) -> UOp | None:
    """(i as t) < (j as t) == i < j, when t holds every value of the indices i and j."""
    left, right = as_index(x), as_index(y)
    return left.alu(root.op, right) if fits(left, x.dtype) and fits(right, x.dtype) else None


@casts.rule(node(RING, counter("x"), counter("y"), ordered=True))
def combine_counters(root: UOp, x: UOp, y: UOp) -> UOp | None:
    """(i as t) + (j as t) == (i + j) as t, when t holds i, j and the result."""
    return combined(root, as_index(x), as_index(y))


def combined(root: UOp, left: UOp, right: UOp) -> UOp | None:
    """The cast of an index operation, None where the narrow one could differ."""
    if root.op in (Op.FLOORDIV, Op.FLOORMOD) and right.vmin <= 0 <= right.vmax:
        return None  # defined for integers of tensors, not for an index
    result = left.alu(root.op, right)
    if fits(left, root.dtype) and fits(right, root.dtype) and fits(result, root.dtype):
        return result.cast(root.dtype)
    return None
