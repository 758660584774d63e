"""The loops of a kernel: finding them, their closers, and numbers for new ones.

Floor 3'. A loop is named by its number, a path that grows whenever a loop is made out of it.
"""

from __future__ import annotations

from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import CLOSERS, Op

Number = tuple[int, ...]


def counters(kernel: UOp) -> list[UOp]:
    """Every RANGE of a kernel, by number."""
    return sorted((n for n in kernel.toposort() if n.op is Op.RANGE), key=lambda n: n.arg.number)


def counter_of(kernel: UOp, axis: Number) -> UOp:
    """The RANGE with an axis number."""
    return next(n for n in kernel.toposort() if n.op is Op.RANGE and n.arg.number == axis)


def closer_of(kernel: UOp, counter: UOp) -> list[UOp]:
    """The END or the REDUCEs that close a RANGE."""
    return [n for n in kernel.toposort() if n.op in CLOSERS and counter in n.src[1:]]


def numbered(counter: UOp, *marks: int) -> UOp:
    """A RANGE like this one under a longer number, for a part or a copy of its loop."""
    number, kind = counter.arg
    return counter.replace(arg=Axis((*number, *marks), kind))
