"""Movement ops: the base below them, and maps between axes of sources and results.

Floor 1. Every walk over views that asks where an axis comes from or goes to asks here. The three
questions differ: `source_axis` wants the axis as it was, `axis_along` one that moves with it, and
`axis_after` the axis whose parts are the same parts.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any, Final

from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op
from tinycore.uop.shape import Shape

RESHAPE: Final = Op.RESHAPE
REORDERING: Final = frozenset({Op.PERMUTE, Op.FLIP, Op.SKEW, Op.UNSKEW})
"""Ops that may change a value without its shape."""


def moved(op: Op, x: UOp, argument: Any) -> UOp:
    """An op on axes; `x` itself where the shape says that nothing would change."""
    node = UOp(op, x.dtype, (x,), tuple(argument) if type(argument) is list else argument)
    return x if node.shape == x.shape and op not in REORDERING else node


def source_below(node: UOp, ops: Container[Op]) -> UOp:
    """The node below the ops of a set, along first sources."""
    while node.op in ops:
        node = node.src[0]
    return node


def base_of(node: UOp) -> UOp:
    """The node below reshapes."""
    while node.op is RESHAPE:
        node = node.src[0]
    return node


def below_movement(node: UOp) -> UOp:
    """The node below all movement ops."""
    return source_below(node, MOVEMENT)


def is_everywhere(node: UOp, number: float) -> bool:
    """True if a value is one number at all places."""
    found = below_movement(node)
    return found.op is Op.CONST and bool(found.arg == number)


def source_axis(node: UOp, axis: int) -> int | None:
    """The axis of its source that a movement op passes on unchanged as `axis`; None if none."""
    match node.op:
        case Op.RESHAPE:
            return axis_before_reshape(node, axis)
        case Op.PERMUTE:
            return int(node.arg[axis])
        case Op.EXPAND if node.src[0].shape[axis] == node.shape[axis]:
            return axis
        case Op.FLIP if not node.arg[axis]:
            return axis
        case Op.PAD if node.arg[axis] == (0, 0):
            return axis
        case Op.SKEW if axis not in (node.arg.axis, node.arg.window_axis):
            return axis
    return None


def axis_before_reshape(node: UOp, axis: int) -> int | None:
    """The source axis of a RESHAPE that is an axis of its result unchanged, or None."""
    before, after = node.src[0].shape, node.shape
    outer = math.prod(after[:axis])
    places = (i for i, n in enumerate(before) if n == after[axis])
    return next((i for i in places if math.prod(before[:i]) == outer), None)


def axis_along(node: UOp, axis: int, source: UOp) -> int | None:
    """The axis of a source that an axis of a node moves along; None if there is no single one."""
    shape = source.shape_or_none
    if not shape or node.op in (Op.SKEW, Op.UNSKEW, Op.REDUCE_AXIS, Op.GATHER):
        return None
    if node.op in (Op.PERMUTE, Op.RESHAPE):
        return source_axis(node, axis)
    return axis if len(shape) == len(node.shape) and shape[axis] > 1 else None


def axis_after(node: UOp, shape: Shape, axis: int, count: int) -> int | None:
    """The sharded axis after a movement; None where it mixes shards."""
    arg = node.arg
    match node.op:
        case Op.RESHAPE:
            return axis_reshaped(shape, arg, axis, count)
        case Op.PERMUTE:
            return list(arg).index(axis)
        case Op.EXPAND:
            return axis
        case Op.PAD:
            return axis if arg[axis] == (0, 0) else None
        case Op.SHRINK:
            return axis if arg[axis] == (0, shape[axis]) else None
        case Op.FLIP:
            return None if arg[axis] else axis
        case _:  # SKEW, UNSKEW
            return None if axis in (arg.axis, arg.window_axis) else axis


def axis_reshaped(old: Shape, new: Shape, axis: int, count: int) -> int | None:
    """The axis of the new shape that splits into the same shards as one of the old shape.

    As much lies outside of it, and it has a multiple of `count` elements.
    """
    outside = math.prod(old[:axis])
    for candidate in range(len(new)):
        if math.prod(new[:candidate]) == outside and is_divisible(new, candidate, count):
            return candidate
    return None


def is_divisible(shape: Shape, axis: int, count: int) -> bool:
    """True if an axis splits into `count` equal shards."""
    return shape[axis] > 0 and shape[axis] % count == 0
