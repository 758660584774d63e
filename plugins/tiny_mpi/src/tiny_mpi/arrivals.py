"""Arrivals: bytes that other processes send, received while kernels run.

A copy from another process is expected where a schedule has it, and received before something
touches its memory. So a kernel that does not need it runs meanwhile, and the group may go on
receiving between kernels.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy

from tinycore import Device
from tinycore.engine.counters import Estimate, profilers
from tinycore.errors import GroupError
from tinycore.groups import Array, Group

__all__ = ["Arrivals", "Place", "SupportsBuckets", "SupportsPolling"]


@runtime_checkable
class SupportsPolling(Protocol):
    """A group that receives while a process computes."""

    def poll(self, source: int, count: int) -> None:
        """Go on with the next `count` arrays that a rank sends, as far as they have come."""


@runtime_checkable
class SupportsBuckets(Protocol):
    """A group that sends small arrays together."""

    def post(self, x: Array, to: int) -> None:
        """Send an array soon, in one message with others, without waiting for anybody to ask."""


@dataclass(eq=False, slots=True)
class Arrival:
    """Bytes on their way to memory, or to nothing where that was freed."""

    place: Place | None
    source: int
    size: int
    expected: float
    """Time since which they are awaited."""


@dataclass(eq=False, slots=True)
class Place:
    """Memory of RANK: a part of what was allocated at once, and all that is to arrive there."""

    handle: Any
    start: int
    size: int
    arriving: list[Arrival] = field(default_factory=list)

    def part(self, handle: Any, size: int, start: int) -> Place:
        """A part of it."""
        return Place(handle, self.start + start, size, self.arriving)

    def overlaps(self, other: Place) -> bool:
        """True if two parts of one allocation have bytes in common."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, eq=False)
class Receipt:
    """Record of an arrival in a profile, as of a copy."""

    name: str
    device: str
    estimate: Estimate
    written: frozenset[int] = frozenset()


class Arrivals:
    """Messages on their way to the device of this process."""

    def __init__(self, processes: Group, write: Any) -> None:
        self.processes, self.write = processes, write
        self.queues: dict[int, deque[Arrival]] = defaultdict(deque)
        """Arrivals by sender, in the order in which they are sent."""
        self.receipts: dict[tuple[int, int], Receipt] = {}
        self.polls = isinstance(processes, SupportsPolling)

    def expect(self, place: Place, source: int, size: int) -> None:
        """Bytes that a rank sends are to lie in memory before that is used."""
        arrival = Arrival(place, source, size, time.perf_counter())
        self.queues[source].append(arrival)
        place.arriving.append(arrival)
        self.poll()

    def poll(self) -> None:
        """Receive what has come."""
        if self.polls:
            for source, queue in self.queues.items():
                if queue:
                    self.processes.poll(source, len(queue))  # type: ignore[attr-defined]

    def settle(self, places: Iterable[Place]) -> None:
        """Wait for all that is to arrive in memory that is about to be used."""
        self.poll()
        for place in places:
            while awaited := [
                a for a in place.arriving if a.place is not None and place.overlaps(a.place)
            ]:
                self.receive(awaited[0].source)

    def receive(self, source: int) -> None:
        """Wait for the next bytes of a rank."""
        queue = self.queues[source]
        arrival = queue[0]
        content = received(self.processes, source, arrival.size)
        queue.popleft()
        if arrival.place is not None:
            arrival.place.arriving.remove(arrival)
            self.write(arrival.place.handle, content.data)
        if profilers:
            self.report(arrival)

    def report(self, arrival: Arrival) -> None:
        """Tell profilers how long bytes were awaited."""
        key = arrival.source, arrival.size
        if (receipt := self.receipts.get(key)) is None:
            name = f"receive from RANK:{arrival.source}"
            device = Device.canonicalize(f"RANK:{self.processes.rank}")
            receipt = self.receipts[key] = Receipt(name, device, Estimate(0, arrival.size))
        seconds = time.perf_counter() - arrival.expected
        for profiler in profilers:
            profiler.record(receipt, seconds)

    def forget(self, place: Place) -> None:
        """Memory is freed: what is to arrive there is received, and goes nowhere."""
        for arrival in place.arriving:
            arrival.place = None
        place.arriving.clear()


def received(processes: Group, source: int, size: int) -> Array:
    """Bytes from a rank. Raises GroupError where it sent another number of them."""
    content = processes.recv(source)
    if content.nbytes != size or content.dtype != numpy.uint8:
        raise GroupError(
            f"rank {processes.rank} expects {size} bytes from rank {source}, which sent "
            f"{content.dtype}{list(content.shape)}: they run different programs, or on different "
            "sizes"
        )
    return content
