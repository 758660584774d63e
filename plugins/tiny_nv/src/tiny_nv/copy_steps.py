"""Asynchronous copies in the interpreter: what the effects of `async_copies.py` do there.

A copy arrives when its group is waited for, and not before: what reads or writes its elements
meanwhile raises DeviceError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy

from tiny_nv.box_steps import MakeAccess, Step
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp

Array = numpy.ndarray[Any, Any]
Frame = Any
Memory = Any
"""The interpreter's: see `Effect.step`."""


@dataclass(frozen=True)
class Copy:
    """Elements that an AsyncCopy of all threads moves."""

    group: int
    memory: Memory
    places: Array
    threads: Array
    data: Array


@dataclass
class Pending:
    """The copies that threads have begun and not waited for."""

    copies: list[Copy] = field(default_factory=list)
    groups: int = 0
    """Count of committed groups."""

    def wait(self, left: int) -> None:
        """Complete the copies of all groups but the latest `left`; the waiting threads see them."""
        ended = [copy for copy in self.copies if copy.group < self.groups - left]
        self.copies = [copy for copy in self.copies if copy.group >= self.groups - left]
        for copy in ended:
            copy.memory.array[copy.places] = copy.data
            copy.memory.accesses.arrived(copy.places, copy.threads)


def pending_in(frame: Frame) -> Pending:
    """The copies under way in the present piece of a launch."""
    found: Pending = frame.kept.setdefault(Pending, Pending())
    return found


def copy_step(u: UOp, access: MakeAccess) -> Step:
    """The step of an AsyncCopy."""
    to, origin = (access(u.src[n], u.arg.elements, v) for n, v in enumerate(("writes", "reads")))
    target, source = (pointer_of(index) for index in u.src)

    def copy(frame: Frame) -> None:
        memory, read = frame.values[target], frame.values[source]
        gate, wanted = to.wanted(frame), origin.wanted(frame)
        both = wanted if gate is None else gate if wanted is None else gate & wanted
        data = read.array.take(origin.places(frame, read, both))
        if wanted is not None:
            data = numpy.where(wanted, data, data.dtype.type(0))
        active = frame.active(gate)
        where, data, active = numpy.broadcast_arrays(
            to.places(frame, memory, gate), data, True if active is None else active
        )
        places, threads = memory.accesses.write(frame, where, gate)
        memory.accesses.is_copied[places] = True
        pending = pending_in(frame)
        pending.copies.append(Copy(pending.groups, memory, places, threads, data[active]))

    return copy


def commit_step() -> Step:
    """The step of a CommitGroup."""

    def commit(frame: Frame) -> None:
        pending_in(frame).groups += 1

    return commit


def wait_step(left: int) -> Step:
    """The step of a WaitGroup."""

    def wait(frame: Frame) -> None:
        pending_in(frame).wait(left)

    return wait
