"""Shared memory that is filled while other parts of it are read: what a card would get wrong.

Private to the interpreter, whose threads run in lockstep and so would never notice that one did not
wait for another. Of programs that fill ahead it notes for each element of shared memory which
thread has read and written it since the last barrier, and whether it is being copied.
"""

from __future__ import annotations

from typing import Final, NoReturn

import numpy

from tinycore.builtin.arithmetic import Array
from tinycore.builtin.frame import Frame, Memory
from tinycore.errors import DeviceError

__all__ = ["Accesses", "threads_of"]

NO_THREAD: Final = -1
SEVERAL: Final = -2


class Accesses:
    """Accesses to the elements of one array of shared memory since the last barrier."""

    def __init__(self, memory: Memory) -> None:
        size = len(memory.array)
        self.label = memory.label
        self.reader = numpy.full(size, NO_THREAD, numpy.int32)
        self.writer = numpy.full(size, NO_THREAD, numpy.int32)
        self.is_copied = numpy.zeros(size, numpy.bool_)
        self.is_operand = numpy.zeros(size, numpy.bool_)
        """Elements that products read which were begun since the last barrier."""
        self.is_busy = numpy.zeros(size, numpy.bool_)
        """Elements that products may read which were begun before it."""

    def barrier(self, behind: bool) -> None:
        """Make the writes of each thread visible to all; with `behind`, products may go on."""
        self.reader.fill(NO_THREAD)
        self.writer.fill(NO_THREAD)
        self.is_busy[:] = self.is_operand if behind else False
        self.is_operand.fill(False)

    def read(self, frame: Frame, where: Array, gate: Array | None) -> None:
        """Note that threads read elements. Raises DeviceError where they must not yet."""
        places, threads = taking_part(frame, where, gate)
        self.check_copied(frame, places, "reads")
        self.check_other(frame, self.writer, places, threads, "reads", "has written")
        note(self.reader, places, threads)

    def write(self, frame: Frame, where: Array, gate: Array | None) -> tuple[Array, Array]:
        """Note that threads write elements. Raises DeviceError where they must not yet.

        The elements, and the threads that take part.
        """
        places, threads = taking_part(frame, where, gate)
        self.check_copied(frame, places, "writes")
        if (busy := self.is_busy[places]).any():
            self.refuse(frame, "writes", places[busy], "that a product under way may read")
        self.check_other(frame, self.reader, places, threads, "writes", "reads")
        note(self.writer, places, threads)
        return places, threads

    def arrived(self, places: Array, threads: Array | None = None) -> None:
        """Note that elements were copied, and that all who wait for them see that, or `threads`."""
        self.is_copied[places] = False
        if threads is None:
            self.writer[places] = NO_THREAD
        else:
            note(self.writer, places, threads)

    def check_copied(self, frame: Frame, places: Array, verb: str) -> None:
        """Raise DeviceError for elements whose copy has not been waited for."""
        copied = self.is_copied[places]
        if copied.any():
            self.refuse(frame, verb, places[copied], "before the copy to it was waited for")

    def check_other(
        self, frame: Frame, noted: Array, places: Array, threads: Array, verb: str, other: str
    ) -> None:
        """Raise DeviceError for elements that another thread is noted for."""
        found = noted[places]
        wrong = (found != NO_THREAD) & (found != threads)
        if wrong.any():
            self.refuse(frame, verb, places[wrong], f"that another thread {other}: no barrier")

    def refuse(self, frame: Frame, verb: str, places: Array, why: str) -> NoReturn:
        """Raise DeviceError for the first of some elements."""
        element = int(places.flat[0])
        raise DeviceError(f"kernel {frame.kernel} {verb} {self.label} at {element}, {why}")


def threads_of(frame: Frame) -> Array:
    """The number of each thread in its group, or cluster."""
    axes = frame.axes
    total, pitch = axes.single(0, numpy.int32), 1
    for name in ("block0", "block1", "block2"):
        if name in axes.of:
            total = total + axes.count((0, axes.launch[name]), axes.of[name], numpy.int32) * pitch
            pitch *= axes.launch[name]
    if frame.cluster > 1:
        group = axes.count(frame.piece["grid0"], axes.of["grid0"], numpy.int32) % frame.cluster
        total = total + group * pitch
    return total


def taking_part(frame: Frame, where: Array, gate: Array | None) -> tuple[Array, Array]:
    """The elements that threads access, and the threads, side by side."""
    active = frame.active(gate)
    arrays = [where, threads_of(frame), *([] if active is None else [active])]
    places, threads, *wanted = numpy.broadcast_arrays(*arrays)
    if wanted:
        return places[wanted[0]], threads[wanted[0]]
    return places.ravel(), threads.ravel()


def note(noted: Array, places: Array, threads: Array) -> None:
    """Note a thread for each element, or that it is several."""
    before = noted[places]
    noted[places] = threads
    again = (noted[places] != threads) | ((before != NO_THREAD) & (before != threads))
    noted[places[again]] = SEVERAL
