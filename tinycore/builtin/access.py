"""Accesses of a program to memory: positions, all of them checked.

Private to the interpreter. A position that is a sum of multiples of indices is a window on the
memory: its ends say whether all of it lies inside, and no positions are computed one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

import numpy

from tinycore.builtin.arithmetic import Array
from tinycore.builtin.frame import Frame, Memory
from tinycore.errors import DeviceError
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.sums import terms_of

__all__ = ["Access", "is_window"]

COUNTERS: Final = frozenset({Op.SPECIAL, Op.RANGE, Op.DEFINE_VAR})
"""Indices whose numbers are consecutive."""


def is_window(index: UOp) -> bool:
    """True if an INDEX has no gate, and a position that is a sum of multiples of indices."""
    return len(index.src) == 2 and all(base.op in COUNTERS for base in terms_of(index.src[1])[0])


class Access:
    """The positions of one LOAD or STORE in its memory."""

    def __init__(
        self,
        index: UOp,
        lanes: int,
        axis_of: Callable[[UOp], int | None],
        verb: str,
    ) -> None:
        """`verb` describes the access in errors: a kernel reads, or writes."""
        self.lanes = lanes
        self.verb = verb
        self.position = index.src[1]
        self.gate = index.src[2] if len(index.src) > 2 else None
        self.terms: list[tuple[UOp, int | None, int]] | None = None
        """(index, its axis, factor) of each term, where it is a window."""
        self.constant = 0
        if is_window(index):
            terms, self.constant = terms_of(index.src[1])
            self.terms = [(base, axis_of(base), factor) for base, factor in terms.items()]

    def window(self, frame: Frame, memory: Memory) -> Array | None:
        """The elements themselves, where they form a window that lies inside the memory."""
        if self.terms is None or memory.base is not None:
            return None
        shape, strides = [1] * frame.axes.rank, [0] * frame.axes.rank
        itemsize = memory.array.itemsize
        start = low = high = self.constant
        for base, axis, factor in self.terms:
            first, length = frame.spans[base]
            move, reach = first * factor, (length - 1) * factor
            start += move
            low += move + min(reach, 0)
            high += move + max(reach, 0)
            if axis is not None:
                shape[axis], strides[axis] = length, factor * itemsize
        if low < 0 or high > memory.size - self.lanes:
            return None
        shape[-1], strides[-1] = self.lanes, itemsize
        array = memory.array
        return numpy.ndarray(shape, array.dtype, array, start * itemsize, strides)

    def places(self, frame: Frame, memory: Memory, gate: Array | None) -> Array:
        """Positions in the memory's array, checked where threads take part; elsewhere 0."""
        index = self.index(frame)
        # As unsigned numbers, negative ones are large: one comparison checks both bounds.
        if int(index.view(numpy.uint64).max()) > memory.size - self.lanes:
            active = frame.active(gate)
            if active is not None:
                index = numpy.where(active, index, 0)
            wrong = (index < 0) | (index > memory.size - self.lanes)
            if active is not None:
                wrong = wrong & active
            if wrong.any():
                self.out_of_bounds(frame, memory, index, wrong)
        if memory.base is not None:
            index = index + memory.base
        return index if self.lanes == 1 else index + numpy.arange(self.lanes)

    def index(self, frame: Frame) -> Array:
        """Positions as the program has them."""
        if self.terms is None:
            index: Array = frame.values[self.position]
            return index
        total = frame.axes.single(self.constant, numpy.int64)
        for base, _, factor in self.terms:
            total = total + frame.values[base] * factor
        return total

    def wanted(self, frame: Frame) -> Array | None:
        """Mask of the gate; None means everywhere."""
        return None if self.gate is None else frame.values[self.gate]

    def out_of_bounds(self, frame: Frame, memory: Memory, index: Array, wrong: Array) -> NoReturn:
        """Raise DeviceError for the first of the wrong positions."""
        what = f"index {int(index.flat[int(wrong.argmax())])}"
        what += f" ({self.lanes} lanes)" if self.lanes > 1 else ""
        raise DeviceError(
            f"kernel {frame.kernel} {self.verb} {memory.label} at {what}, outside its "
            f"{memory.size} elements{frame.thread(wrong)}"
        )
