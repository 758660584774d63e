"""Boxes of tensors in the interpreter: one thread has them copied, others wait for a phase.

What the effects of `phases.py` do there. A box arrives when its phase is waited for, and not
before: what reads it too soon, writes it meanwhile, or waits for a phase that nothing ends, raises
DeviceError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy

from tiny_nv.tensor_map import TensorMap
from tinycore.errors import DeviceError
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp

Array = numpy.ndarray[Any, Any]
Frame = Any
Memory = Any
"""The interpreter's: see `Effect.step`."""
Step = Callable[[Frame], None]
MakeAccess = Callable[[UOp, int, str], Any]


class Box(NamedTuple):
    """A box that is on its way."""

    memory: Memory
    places: Array
    data: Array


@dataclass
class Phase:
    """A barrier: how many boxes end each of its phases, and those that were begun, in order."""

    copies: int
    expected: int = 0
    """Count of boxes that the group of the barrier has asked for, or expects from another."""
    begun: int = 0
    under_way: list[tuple[int, Box]] = field(default_factory=list)
    """Boxes with their numbers."""

    @property
    def ended(self) -> int:
        """Number of phases whose boxes are all expected and begun: they end some time."""
        return min(self.begun, self.expected) // self.copies

    def begin(self, box: Box) -> None:
        """One more box."""
        self.under_way.append((self.begun, box))
        self.begun += 1

    def arrive(self) -> None:
        """Complete the boxes of all phases that end."""
        last = self.ended * self.copies
        for memory, places, data in [box for number, box in self.under_way if number < last]:
            memory.array[places] = data
            memory.accesses.arrived(places)
        self.under_way = [(number, box) for number, box in self.under_way if number >= last]


class Barriers:
    """The barriers of one array of shared memory, by their place in it."""

    def __init__(self) -> None:
        self.of: dict[int, Phase] = {}

    def at(self, frame: Frame, place: int) -> Phase:
        """The barrier at a place. Raises DeviceError where there is none."""
        found = self.of.get(place)
        if found is None:
            raise DeviceError(f"kernel {frame.kernel}: a barrier is used before it has phases")
        return found


def begin_step(u: UOp, access: MakeAccess) -> Step:
    """The step of Phases."""
    at, pointer = access(u.src[0], 1, "writes"), pointer_of(u.src[0])

    def begin(frame: Frame) -> None:
        memory, gate = frame.values[pointer], at.wanted(frame)
        places, _ = memory.accesses.write(frame, at.places(frame, memory, gate), gate)
        memory.kept = memory.kept or Barriers()
        memory.kept.of.update((int(place), Phase(u.arg.copies)) for place in places.ravel())

    return begin


def copy_step(u: UOp, access: MakeAccess) -> Step:
    """The step of a TensorCopy, to the group that begins it or to all groups of its cluster."""
    to, signal, origin, *corner = u.src
    found: TensorMap = u.arg.map
    is_shared = u.arg.cluster > 1
    size = math.prod(found.box)
    target, told = access(to, size, "writes"), access(signal, 1, "reads")
    memories = [pointer_of(node) for node in (to, signal, origin)]
    layout = box_layout(found)

    def copy(frame: Frame) -> None:
        memory, barrier, source = (frame.values[node] for node in memories)
        gate = target.wanted(frame)
        expects = told.wanted(frame) if is_shared else gate
        where = target.places(frame, memory, gate)
        signals = told.places(frame, barrier, expects)
        barrier.accesses.read(frame, signals, expects)
        phases = barriers_in(frame, barrier)
        for (place,) in participants(frame, [signals], expects):
            phases.at(frame, place).expected += 1
        check_start(frame, found, memory, where[..., :1], gate)
        corners = [frame.values[node] for node in corner]
        members = [in_all(frame, memory, where), in_all(frame, barrier, signals)]
        for to, tells in zip(*members, strict=True) if is_shared else [(where, signals)]:
            barrier.accesses.read(frame, tells, gate)
            places, _ = memory.accesses.write(frame, to, gate)
            memory.accesses.is_copied[places] = True
            for start, place, *at in participants(frame, [to[..., :1], tells, *corners], gate):
                box = Box(memory, start + layout, box_content(frame, found, source, at))
                phases.at(frame, place).begin(box)

    return copy


def in_all(frame: Frame, memory: Memory, places: Array) -> list[Array]:
    """Places in shared memory of a group as those of each group of its cluster."""
    if frame.cluster == 1 or memory.base is None:
        return [places]
    return [places - memory.base + base for base in frame.in_cluster(memory.base)]


def wait_step(u: UOp, access: MakeAccess) -> Step:
    """The step of a WaitPhase."""
    at, pointer, parity = access(u.src[0], 1, "reads"), pointer_of(u.src[0]), u.src[1]

    def wait(frame: Frame) -> None:
        barrier = frame.values[pointer]
        places = at.places(frame, barrier, None)
        barrier.accesses.read(frame, places, None)
        for place, number in set(participants(frame, [places, frame.values[parity]], None)):
            phase = barriers_in(frame, barrier).at(frame, place)
            if phase.ended % 2 == number:
                raise DeviceError(
                    f"kernel {frame.kernel} waits for ever for a phase that no copies end"
                )
            phase.arrive()

    return wait


def barriers_in(frame: Frame, memory: Memory) -> Barriers:
    """The barriers of an array. Raises DeviceError where it has none."""
    if memory.kept is None:
        raise DeviceError(f"kernel {frame.kernel}: {memory.label} has no barriers of phases")
    found: Barriers = memory.kept
    return found


def participants(frame: Frame, numbers: list[Array], gate: Array | None) -> list[tuple[int, ...]]:
    """Some numbers of each thread that takes part."""
    active = frame.active(gate)
    arrays = numpy.broadcast_arrays(*numbers, True if active is None else active)
    return list(zip(*(array[arrays[-1]].tolist() for array in arrays[:-1]), strict=True))


def check_start(
    frame: Frame, found: TensorMap, memory: Memory, start: Array, gate: Array | None
) -> None:
    """Raise DeviceError for a box that begins at no multiple of what its swizzle repeats after."""
    within = start if memory.base is None else start - memory.base
    wrong = within * found.dtype.itemsize % found.alignment != 0
    active = frame.active(gate)
    if (wrong if active is None else wrong & active).any():
        raise DeviceError(
            f"kernel {frame.kernel} has a box copied to {memory.label} at no multiple of "
            f"{found.alignment} bytes"
        )


def positions_of(found: TensorMap) -> Array:
    """Positions within a box, dimension 0 counting first."""
    numbers = numpy.indices(found.box[::-1]).reshape(len(found.box), -1)
    return numbers[::-1].T


def box_layout(found: TensorMap) -> Array:
    """Elements of a box by their distance from its start in shared memory."""
    places = [found.place([int(n) for n in position]) for position in positions_of(found)]
    return numpy.array(places) // found.dtype.itemsize


def box_content(frame: Frame, found: TensorMap, source: Memory, corner: list[int]) -> Array:
    """The elements of a box, 0 outside of the tensor. Raises DeviceError beyond the buffer."""
    sizes = numpy.array(found.sizes)
    strides = numpy.array([1, *(stride // found.dtype.itemsize for stride in found.strides)])
    if int(((sizes - 1) * strides).sum()) >= source.size:
        raise DeviceError(f"kernel {frame.kernel}: {source.label} is smaller than its tensor")
    at = positions_of(found) + numpy.array(corner)
    inside = ((at >= 0) & (at < sizes)).all(axis=1)
    taken: Array = source.array.take(numpy.where(inside, at @ strides, 0))
    return numpy.where(inside, taken, taken.dtype.type(0))
