"""Strided layouts: which tensors are views of a buffer by strides, for NumPy and DLPack.

Floor 5. Movement that only renumbers elements (reshape, permute, slices with a step) is a NumPy
view of the flat buffer; what repeats, pads or reverses elements is not shared, since no other
library could write to it, or take it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from tinycore._deferred import numpy
from tinycore.tensor.graph import MEMORY
from tinycore.tensor.runtime import HostArray
from tinycore.uop.movement import source_below
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, SAME_VALUE, Op

Step: TypeAlias = "Callable[[UOp, HostArray], HostArray | None]"

SAME_ELEMENTS: Final = MOVEMENT | SAME_VALUE
"""Ops that compute nothing."""


def memory_below(node: UOp) -> UOp | None:
    """The memory that a node shows, moved or not; None for a computed node."""
    base = moved_from(node)
    return base if base.op in MEMORY else None


def moved_from(node: UOp) -> UOp:
    """The node that has the elements of a node, before any movement."""
    return source_below(node, SAME_ELEMENTS)


def show_memory(node: UOp, flat: HostArray, how: dict[Op, Step]) -> HostArray | None:
    """The flat content of the memory below a node, as that node shows it.

    `how` is VIEWS or COPIES. None where it has no way: for VIEWS where NumPy would have to copy, or
    elements appear more than once.
    """
    steps = []
    while node.op in SAME_ELEMENTS:
        steps.append(node)
        node = node.src[0]
    view: HostArray | None = flat
    for step in reversed(steps):
        if step.op in SAME_VALUE or view is None:
            continue
        view = how[step.op](step, view) if step.op in how else None
    return view


def reshaped(node: UOp, x: HostArray) -> HostArray | None:
    """RESHAPE, where the strides allow it."""
    result = x.reshape(node.arg)
    return result if numpy.may_share_memory(result, x) else None


def expanded(node: UOp, x: HostArray) -> HostArray | None:
    """EXPAND that repeats nothing."""
    return x if x.shape == node.arg else None


def skewed(node: UOp, x: HostArray) -> HostArray | None:
    """SKEW that takes every nth element of an axis."""
    how = node.arg
    if x.shape[how.window_axis] != 1:
        return None
    every = slice(0, how.size * how.stride, how.stride)
    return numpy.asarray(x[(slice(None),) * how.axis + (every,)])


VIEWS: Final[dict[Op, Step]] = {
    Op.RESHAPE: reshaped,
    Op.EXPAND: expanded,
    Op.PERMUTE: lambda n, x: x.transpose(n.arg),
    Op.SHRINK: lambda n, x: x[tuple([slice(start, stop) for start, stop in n.arg])],
    Op.SKEW: skewed,
}
"""Movement ops that can be a view."""

COPIES: Final[dict[Op, Step]] = VIEWS | {
    Op.RESHAPE: lambda n, x: x.reshape(n.arg),
    Op.EXPAND: lambda n, x: numpy.broadcast_to(x, n.arg),
    Op.FLIP: lambda n, x: numpy.flip(x, tuple([a for a, reverse in enumerate(n.arg) if reverse])),
    Op.PAD: lambda n, x: numpy.pad(x, n.arg),
}
"""Movement ops that NumPy does as well, copying where it must."""
