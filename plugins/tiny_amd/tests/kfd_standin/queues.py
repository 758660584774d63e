"""Rings that cards read: doorbells, pointers, and packets one at a time."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy

from kfd_standin.gpu import Array, Gpu, Mistake

if TYPE_CHECKING:
    from kfd_standin.machine import Machine

__all__ = ["Ring", "RingPlace"]

BETWEEN_STORES: Final = 1.0
"""Seconds that a write pointer may be ahead of its doorbell."""


@dataclass(frozen=True)
class RingPlace:
    """Place of a queue, as CREATE_QUEUE was told."""

    number: int
    ring: int
    bytes: int
    write_pointer: int
    read_pointer: int
    slot: int
    """Its doorbell, among those of the card."""


class Ring(ABC):
    """A queue of one card."""

    UNIT = 4
    """Bytes that pointers count."""

    def __init__(self, machine: Machine, gpu: Gpu, place: RingPlace) -> None:
        self.machine, self.gpu, self.place = machine, gpu, place
        self.ring: Array = gpu.words(place.ring, place.bytes // 4)
        self.size = place.bytes // self.UNIT
        self.read = 0
        self.is_stopped = False
        self.report()

    @property
    def written(self) -> int:
        """End of the written packets, by the doorbell."""
        written, pointer = self.rung, self.write_pointer
        end = time.monotonic() + BETWEEN_STORES
        while pointer > written and time.monotonic() < end:
            time.sleep(1e-4)  # another thread may stand between the pointer and the doorbell
            written, pointer = self.rung, self.write_pointer
        if written < self.read or written - self.read > self.size:
            raise Mistake(f"the doorbell says {written} where {self.read} of {self.size} are read")
        if pointer != written:
            raise Mistake(f"the doorbell says {written}, the write pointer in memory {pointer}")
        return written

    @property
    def rung(self) -> int:
        """End of the written packets, by the doorbell alone."""
        assert self.gpu.doorbells is not None
        return self.doorbell(int(self.gpu.doorbells[self.place.slot]))

    @property
    def write_pointer(self) -> int:
        """End of the written packets, by the pointer in memory, which is stored first."""
        return int(self.gpu.span(self.place.write_pointer, 8, "read").view(numpy.uint64)[0])

    def doorbell(self, value: int) -> int:
        """End of the written packets, for a value of the doorbell."""
        return value

    def report(self) -> None:
        """Tell how far has been read."""
        reported = self.read % self.size if self.machine.reports_places else self.read
        self.gpu.store(self.place.read_pointer, reported, 8)

    def take(self, count: int) -> Array:
        """The next words, around the end."""
        begin = self.read * self.UNIT // 4
        places = (begin + numpy.arange(count)) % len(self.ring)
        found: Array = self.ring[places]
        return found

    def advance(self, words: int) -> None:
        """These words have been executed."""
        self.read += words * 4 // self.UNIT
        self.report()

    @abstractmethod
    def step(self) -> bool:
        """Execute one packet; False when there is none, or it has to wait."""
