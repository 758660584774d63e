"""Physical memory as a card addresses it: pages of the system that are pinned, and its own.

Page tables are walked as the unit does: open-gpu-kernel-modules, dev_mmu.h of tu102 (version 2) and
of gh100 (version 3).
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy
from emulation.memory import Region
from rm_standin import Mistake

from tiny_hcq import LinuxSystem

__all__ = ["Entries2", "Entries3", "Memory", "Run"]

Array = numpy.ndarray[Any, Any]
PAGE, HUGE = 4096, 2 << 20
FIXED: Final = 0x10
VALID, VIDEO, SYSTEM = 1, 0, 2
TABLE_VIDEO, TABLE_SYSTEM = 1, 2
GENERIC: Final = 6


class Entries2:
    """Entries of version 2."""

    SHIFTS: Final = (47, 38, 29, 21, 12)
    ROOT: Final = 4
    """Entries of the root."""
    STEP: Final = 1 << 8
    """Difference of the entries of pages that follow each other."""

    @staticmethod
    def address(entry: int) -> int:
        """The address in an entry: bits 53 to 8."""
        return (entry >> 8 & (1 << 46) - 1) << 12

    @staticmethod
    def is_cached_table(entry: int) -> bool:
        """True if the card caches a table."""
        return not entry >> 3 & 1

    @staticmethod
    def is_cached_page(entry: int) -> bool:
        """True if the card caches a page."""
        return not entry >> 3 & 1

    @staticmethod
    def is_plain(entry: int) -> bool:
        """True if a page is of the usual kind, read, written and for everyone."""
        return entry >> 56 == GENERIC and not entry >> 5 & 7


class Entries3:
    """Entries of version 3."""

    SHIFTS: Final = (56, 47, 38, 29, 21, 12)
    ROOT: Final = 2
    STEP: Final = 1 << 12

    @staticmethod
    def address(entry: int) -> int:
        """The address in an entry: bits 51 to 12."""
        return entry & ((1 << 52) - 1) & -PAGE

    @staticmethod
    def is_cached_table(entry: int) -> bool:
        """True if the card caches a table: PCF is VALID_CACHED."""
        return entry >> 3 & 7 not in (1, 3)

    @staticmethod
    def is_cached_page(entry: int) -> bool:
        """True if the card caches a page: PCF is even."""
        return not entry >> 3 & 1

    @staticmethod
    def is_plain(entry: int) -> bool:
        """True if a page is of the usual kind, PCF REGULAR_RW_ATOMIC with access counters."""
        return entry >> 8 & 15 == GENERIC and entry >> 3 & 31 in (0, 1) and not entry >> 52


Entries = type[Entries2] | type[Entries3]


@dataclass(frozen=True)
class Run:
    """Addresses that follow each other, of memory that does too."""

    address: int
    size: int
    host: int
    aperture: int


class Memory:
    """Memory of the system by bus addresses, of the card by its own."""

    def __init__(self, size: int, entries: Entries = Entries2) -> None:
        self.size, self.entries = size, entries
        self.host = LinuxSystem()
        self.file = os.memfd_create("video memory")
        os.ftruncate(self.file, size)
        flags = mmap.MAP_SHARED | 0x4000  # MAP_NORESERVE
        self.video_at = self.host.map(0, size, 3, flags, self.file, 0)
        weakref.finalize(self, end, self.host, self.video_at, size, self.file).atexit = False
        self.pinned: dict[int, int] = {}
        """Host address of each chunk of 2 MiB, by its bus address."""
        self.frames: dict[int, int] = {}
        """The same turned around."""
        self.is_master = False
        """True if the function may address memory of the system."""
        self._next = 0
        self.bar1_at = self.bar1_bytes = 0
        self._windows: dict[int, Run] = {}

    # --- pages of the system

    def fresh_frame(self) -> int:
        """A physical address of a huge page, none beside the one before."""
        self._next += 1
        return (0x140_0000_0000 - self._next * 3 * HUGE) & -HUGE

    def pin(self, host: int, size: int, bus: int) -> None:
        """Let bus addresses mean pages of the process."""
        for offset in range(0, size, HUGE):
            if bus + offset in self.pinned:
                raise Mistake(f"bus address {bus + offset:#x} is mapped twice")
            self.pinned[bus + offset] = host + offset
            self.frames[host + offset] = bus + offset

    def unpin(self, host: int, size: int) -> None:
        """Take `pin` back."""
        for offset in range(0, size, HUGE):
            if (bus := self.frames.pop(host + offset, None)) is not None:
                del self.pinned[bus]

    def host_of(self, bus: int, size: int) -> int:
        """Host address of memory of the system. Raises Mistake for what nobody has pinned."""
        if not self.is_master:
            raise Mistake(f"the card reads {bus:#x} of the system, and is no bus master")
        found = self.pinned.get(bus & -HUGE)
        if found is None or bus % HUGE + size > HUGE:
            raise Mistake(f"the card addresses {size} bytes at {bus:#x}, which are not pinned")
        return found + bus % HUGE

    def read(self, bus: int, size: int) -> bytes:
        """Bytes of the system's memory."""
        found = b""
        while size:
            part = min(size, HUGE - bus % HUGE)
            found += ctypes.string_at(self.host_of(bus, part), part)
            bus, size = bus + part, size - part
        return found

    def write(self, bus: int, content: bytes) -> None:
        """Write bytes of the system's memory, within a huge page."""
        ctypes.memmove(self.host_of(bus, len(content)), content, len(content))

    def video(self, address: int, size: int) -> int:
        """Host address of the card's memory."""
        if address + size > self.size:
            raise Mistake(f"memory at {address:#x} is beyond the card's {self.size:#x}")
        return self.video_at + address

    # --- page tables

    def table(self, address: int, aperture: int) -> Array:
        """A table of 4 KiB."""
        if address % PAGE:
            raise Mistake(f"a page table at {address:#x}")
        is_system = aperture == TABLE_SYSTEM
        at = self.host_of(address, PAGE) if is_system else self.video(address, PAGE)
        return numpy.ctypeslib.as_array((ctypes.c_uint64 * 512).from_address(at))

    def walk(self, root: int, first: int = 0, aperture: int = TABLE_SYSTEM) -> list[Run]:
        """Runs that page tables map, neighbors joined."""
        found: list[Run] = []
        for run in self._walk(self.table(root, aperture), first, 0):
            last = found[-1] if found else None
            if (
                last is not None
                and last.address + last.size == run.address
                and last.host + last.size == run.host
                and last.aperture == run.aperture
            ):
                found[-1] = Run(last.address, last.size + run.size, last.host, run.aperture)
            else:
                found.append(run)
        return found

    def _walk(self, table: Array, level: int, base: int) -> Iterator[Run]:
        shift = self.entries.SHIFTS[level]
        if level == len(self.entries.SHIFTS) - 1:
            yield from self._pages(table, base)
            return
        is_dual = level == len(self.entries.SHIFTS) - 2
        for place in numpy.flatnonzero(table).tolist():
            entry = int(table[place])
            index = place // 2 if is_dual else place
            at = base | index << shift
            if is_dual and place % 2 == 0:
                yield self._page(entry, at, HUGE)
                continue
            if entry & VALID:
                raise Mistake(f"an entry {entry:#x} of level {level} is a page")
            aperture = entry >> 1 & 3
            if aperture not in (TABLE_VIDEO, TABLE_SYSTEM):
                raise Mistake(f"an entry {entry:#x} names a table in aperture {aperture}")
            if aperture == TABLE_SYSTEM and self.entries.is_cached_table(entry):
                raise Mistake(f"a table of the system's memory is cached by the card: {entry:#x}")
            below = self.table(self.entries.address(entry), aperture)
            yield from self._walk(below, level + 1, at)

    def _pages(self, table: Array, base: int) -> Iterator[Run]:
        """Pages of 4 KiB, those that follow each other together."""
        used = numpy.flatnonzero(table)
        if not used.size:
            return
        entries = table[used]
        step = self.entries.STEP
        steps = (numpy.diff(used) != 1) | (numpy.diff(entries) != step)
        steps |= (entries[1:] // step & 0x1FF) == 0  # a huge page of the system ends here
        cuts = [0, *(numpy.flatnonzero(steps) + 1).tolist(), used.size]
        for begin, end in itertools.pairwise(cuts):
            place, count = int(used[begin]), end - begin
            yield self._page(int(entries[begin]), base | place << 12, PAGE, count)

    def _page(self, entry: int, at: int, page: int, count: int = 1) -> Run:
        """Pages of the same kind from an entry on, within 2 MiB."""
        size = page * count
        aperture, address = entry >> 1 & 3, self.entries.address(entry)
        if not entry & VALID or address % page or not self.entries.is_plain(entry):
            raise Mistake(f"the entry of {at:#x} is {entry:#x}")
        if aperture == SYSTEM:
            if self.entries.is_cached_page(entry):
                raise Mistake(f"the card caches the system's memory at {at:#x}")
            return Run(at, size, self.host_of(address, size), aperture)
        if aperture != VIDEO:
            raise Mistake(f"the entry of {at:#x} has aperture {aperture}")
        return Run(at, size, self.video(address, size), aperture)

    def regions(self, root: int) -> list[Region]:
        """An address space for the executor."""
        return [
            Region(
                run.address,
                numpy.ctypeslib.as_array((ctypes.c_uint8 * run.size).from_address(run.host)),
                f"mapping {run.address:#x}",
            )
            for run in self.walk(root)
        ]

    # --- the host's window

    def map_bar1(self, size: int) -> int:
        """Addresses of the process for BAR1, behind which nothing is yet."""
        self.bar1_at = self.host.map(0, size, 3, 0x4022, -1, 0)
        self.bar1_bytes = size
        return self.bar1_at

    def show(self, entry: int) -> None:
        """Put the card's memory behind BAR1, as the table below an entry of its root says."""
        if entry & VALID or entry >> 1 & 3 != TABLE_SYSTEM:
            raise Mistake(f"the root of BAR1 gets {entry:#x}")
        runs = {run.address: run for run in self.walk(self.entries.address(entry), 1)}
        if not self.bar1_at:
            return
        for place, run in self._windows.items():
            if runs.get(place) != run:
                self.host.map(self.bar1_at + place, run.size, 3, 0x4022 | FIXED, -1, 0)
        for place, run in runs.items():
            if place + run.size > self.bar1_bytes:
                raise Mistake(f"a window at {place:#x}, beyond BAR1")
            if self._windows.get(place) != run:
                if run.aperture != VIDEO:
                    raise Mistake("BAR1 shows the system's memory")
                offset = run.host - self.video_at
                at = self.bar1_at + place
                self.host.map(at, run.size, 3, mmap.MAP_SHARED | FIXED, self.file, offset)
        self._windows = runs


def end(host: LinuxSystem, address: int, size: int, file: int) -> None:
    """Give memory of a card back."""
    host.unmap(address, size)
    os.close(file)
