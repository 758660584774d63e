"""Page tables of the card's memory management unit, written by this process.

Version 2 (Ampere, Ada) has five levels over 49 bits, version 3 (Hopper, Blackwell) six over 57.
Tables lie in pinned memory of the system, where the host writes them without a window; entries
name physical addresses of the card's memory, or bus addresses. NVIDIA/open-gpu-kernel-modules:
published/turing/tu102/dev_mmu.h and published/hopper/gh100/dev_mmu.h; dev_vm.h (MMU_INVALIDATE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tiny_nv.pci.machine import PAGE
from tiny_nv.pci.pages import PinnedMemory, SystemMemory
from tinycore.plugin import lock

__all__ = ["VERSION_2", "VERSION_3", "Aperture", "Format", "PageTables"]

HUGE_PAGE: Final = 2 << 20
_GENERIC: Final = 6
"""Kind GENERIC_MEMORY."""


class Aperture:
    """Field APERTURE of an entry that maps memory."""

    VIDEO: Final = 0
    SYSTEM: Final = 2
    """Coherent with the host's caches."""


_UNCACHED_WITHOUT_ATS: Final = 3
"""Field PCF of a version 3 table: VALID_UNCACHED_ATS_NOT_ALLOWED."""
_TABLE_IN_SYSTEM: Final = 2
"""APERTURE of a table that lies in coherent memory of the system: other numbers than a page's."""


@dataclass(frozen=True)
class Format:
    """Entries of one version."""

    version: int
    shifts: tuple[int, ...]
    """First bit of an address that each level resolves, from the root on."""
    bits: int
    """Bits of an address."""

    @property
    def root_entries(self) -> int:
        """Entries of the root."""
        return 1 << self.bits - self.shifts[0]

    def table(self, address: int) -> int:
        """Entry of a table in the system's memory, below a level of 8-byte entries."""
        if self.version == 2:
            return _TABLE_IN_SYSTEM << 1 | 1 << 3 | address >> 12 << 8
        return _TABLE_IN_SYSTEM << 1 | _UNCACHED_WITHOUT_ATS << 3 | address

    def page(self, address: int, aperture: int) -> int:
        """Entry of a page that is read, written and changed by atomic operations."""
        volatile = aperture != Aperture.VIDEO
        if self.version == 2:
            found = 1 | aperture << 1 | volatile << 3 | address >> 12 << 8 | _GENERIC << 56
        else:
            found = 1 | aperture << 1 | volatile << 3 | _GENERIC << 8 | address
        return found


VERSION_2: Final = Format(2, (47, 38, 29, 21, 12), 49)
VERSION_3: Final = Format(3, (56, 47, 38, 29, 21, 12), 57)


@dataclass(eq=False)
class _Table:
    """One table: its memory, and the tables below it by index."""

    memory: PinnedMemory
    words: memoryview
    below: dict[int, _Table] = field(default_factory=dict)
    used: int = 0
    """Entries that are set."""


class PageTables:
    """An address space. The level above the last has entries of 16 bytes: a table of pages of 4 KiB
    in the high word, or a page of 2 MiB in the low one.
    """

    def __init__(
        self, system: SystemMemory, entries: Format, invalidate: Callable[[], None], first: int = 0
    ) -> None:
        """`first`: level of the root; 1 for a table that another's root names."""
        self.system, self.format, self.invalidate = system, entries, invalidate
        self.first = first
        self._lock = lock()
        self._unused: list[_Table] = []
        """Tables that no entry names any more, and the card may still have cached."""
        self.root = self._new_table()
        self._levels = len(entries.shifts)

    def _new_table(self) -> _Table:
        memory = self.system.allocate(PAGE)
        return _Table(memory, memory.view.cast("Q"))

    def map(self, address: int, pages: list[tuple[int, int]], aperture: int) -> None:
        """Map runs of memory, each a physical address and a size, from an address on.

        Raises OutOfMemory, with nothing mapped.
        """
        at = address
        try:
            with self._lock:
                for begin, size in pages:
                    for offset, bytes_ in _split(at, begin, size):
                        self._set(at + offset, begin + offset, bytes_, aperture)
                    at += size
        except BaseException:
            self.unmap(address, sum(size for _, size in pages))
            raise
        self.invalidate()

    def unmap(self, address: int, size: int) -> None:
        """Take `map` back."""
        with self._lock:
            at = address
            while at < address + size:
                at += self._clear(self.root, self.first, at)
            self.invalidate()
            while self._unused:
                self._free(self._unused.pop())

    def _index(self, level: int, address: int) -> int:
        shifts = self.format.shifts
        bits = (self.format.bits if level == 0 else shifts[level - 1]) - shifts[level]
        return address >> shifts[level] & (1 << bits) - 1

    def _set(self, address: int, physical: int, size: int, aperture: int) -> None:
        """Write the entry of one page, with the tables above it."""
        last = self._levels - (2 if size == HUGE_PAGE else 1)
        table = self.root
        for level in range(self.first, last):
            table = self._below(table, level, self._index(level, address))
        index = self._index(last, address)
        place = 2 * index if size == HUGE_PAGE else index
        assert not table.words[place], f"{address:#x} is mapped twice"
        table.words[place] = self.format.page(physical, aperture)
        table.used += 1

    def _below(self, table: _Table, level: int, index: int) -> _Table:
        """The table that an entry names; a new one if it names none."""
        if index not in table.below:
            made = self._new_table()
            is_dual = level == self._levels - 2
            place = 2 * index + 1 if is_dual else index
            assert not table.words[place], "an entry that is in use names no table"
            table.words[place] = self.format.table(made.memory.bus())
            table.below[index] = made
            table.used += 1
        return table.below[index]

    def _clear(self, table: _Table, level: int, address: int) -> int:
        """Clear the entry of an address below a table; how many bytes it was about."""
        index, shift = self._index(level, address), self.format.shifts[level]
        rest = (1 << shift) - address % (1 << shift)
        below = table.below.get(index)
        is_dual = level == self._levels - 2
        if below is not None:
            cleared = self._clear(below, level + 1, address)
            if not below.used:
                table.words[2 * index + 1 if is_dual else index] = 0
                table.used -= 1
                del table.below[index]
                self._unused.append(below)
            return cleared
        place = 2 * index if is_dual else index
        if table.words[place]:
            table.words[place] = 0
            table.used -= 1
        return rest

    def _free(self, table: _Table) -> None:
        table.words.release()
        self.system.free(table.memory)

    def close(self) -> None:
        """Free all tables. The card uses them no more."""
        waiting = [self.root]
        while waiting:
            table = waiting.pop()
            waiting += table.below.values()
            self._free(table)


def _split(address: int, physical: int, size: int) -> Iterator[tuple[int, int]]:
    """Offsets and sizes of pages that cover a run: of 2 MiB where both addresses allow it."""
    offset = 0
    while offset < size:
        both = (address + offset) | (physical + offset)
        huge = both % HUGE_PAGE == 0 and size - offset >= HUGE_PAGE
        page = HUGE_PAGE if huge else PAGE
        yield offset, page
        offset += page
