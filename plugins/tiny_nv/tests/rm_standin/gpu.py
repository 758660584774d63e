"""One card: its memory, its clock, and the pages that anything may be made of."""

from __future__ import annotations

import ctypes
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy
from emulation.backing import LARGEST_FILLED, Backing
from emulation.memory import GARBAGE

if TYPE_CHECKING:
    from rm_standin.cards import CardFacts

__all__ = ["Array", "Gpu", "Pages"]

Array = numpy.ndarray[Any, Any]


@dataclass(eq=False)
class Pages:
    """Pages that are there as long as somebody holds them."""

    size: int
    data: Array
    """Bytes that may be touched: `size` or a few less."""
    backing: Backing | None = None
    offset: int = 0
    gpu: Gpu | None = None
    """The card whose memory it is; None for pages of the system."""
    host_address: int = 0
    """Address of pages that were the process's own before."""
    is_cached: bool = False
    holders: int = 1

    def hold(self) -> None:
        """One more user."""
        self.holders += 1

    def release(self) -> None:
        """One user less; without any, the pages are free."""
        self.holders -= 1
        if self.holders or self.backing is None:
            return
        self.backing.give_back(self.offset, self.size)
        if self.gpu is not None:
            self.gpu.used_bytes -= self.size


def pages_of(backing: Backing, size: int, usable: int, gpu: Gpu | None) -> Pages:
    """Fresh pages, with garbage in them."""
    offset = backing.take(size)
    data = backing.data[offset : offset + usable]
    data[: min(usable, LARGEST_FILLED)] = GARBAGE
    if gpu is not None:
        gpu.used_bytes += size
    return Pages(size, data, backing, offset, gpu)


def pages_at(address: int, size: int) -> Pages:
    """The process's own pages."""
    raw = (ctypes.c_uint8 * size).from_address(address)
    return Pages(size, numpy.ctypeslib.as_array(raw), host_address=address, is_cached=True)


@dataclass(eq=False)
class Gpu:
    """A card."""

    facts: CardFacts
    index: int
    used_bytes: int = 0
    bar1_used: int = 0
    is_lost: bool = False
    launched: int = 0
    """Kernels that have run."""
    _ticks: int = 0
    identity: bytes = field(init=False)
    """Its UUID."""

    def __post_init__(self) -> None:
        self.identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.facts.name} {self.index}").bytes

    @property
    def gpu_id(self) -> int:
        """Number by which the resource manager calls it."""
        return 0x100 * (self.index + 1)

    @property
    def minor(self) -> int:
        """Minor number of its file: not the order in which cards are listed."""
        return self.index

    def clock(self) -> int:
        """Nanoseconds in steps of 32, never the same twice."""
        self._ticks = max(self._ticks + 32, time.perf_counter_ns() & -32)
        return self._ticks
