"""Address translation of a card: page tables, walked as the hubs walk them, and their caches.

Linux, drivers/gpu/drm/amd/amdgpu/amdgpu_vm.h. A walk turns tables into spans of memory, which the
card keeps until its hub is told to forget them; a span that is used and has changed meanwhile is a
Mistake, as a card would use what was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy
from emulation.memory import GlobalMemory, Region
from kfd_standin.gpu import Mistake

if TYPE_CHECKING:
    from pci_standin.card import PciGpu

__all__ = ["SYSTEM_BASE", "WalkedMemory", "bus_address"]

Array = numpy.ndarray[Any, Any]
PAGE: Final = 4096
SYSTEM_BASE: Final = 1 << 36
"""Bus address of the first page of the system's memory."""
VALID, SYSTEM, SNOOPED, EXECUTED, READ, WRITTEN, IS_PAGE = 1, 2, 4, 0x10, 0x20, 0x40, 1 << 54
ALLOWED: Final = VALID | EXECUTED | READ | WRITTEN
PLACE: Final = (1 << 48) - PAGE
UNCACHED: Final = 3


def bus_address(offset: int) -> int:
    """Bus address of a page of the system's memory: neighbors are exchanged, so that pages that
    follow each other for the host do not for the card.
    """
    return SYSTEM_BASE + (offset ^ PAGE)


class WalkedMemory(GlobalMemory):
    """Memory as a card sees it."""

    def __init__(self, card: PciGpu) -> None:
        super().__init__()
        self.card = card
        self.tables: set[int] = set()
        """Places of the tables that the last walk has read."""
        self.has_changed = False
        """True if a table was written to after the last walk."""

    def forget(self) -> None:
        """The hub is told to: walk anew."""
        self.table = self.walk()
        self.has_changed = False

    def note_write(self, place: int, size: int) -> None:
        """Memory of the card was written, which may be a table."""
        pages = range(place & -PAGE, place + size, PAGE)
        if any(page in self.tables for page in pages):
            self.has_changed = True

    def region_at(self, address: int) -> Region | None:
        """The span that an address lies in."""
        found = super().region_at(address)
        if self.has_changed and not self.is_same(found, address):
            raise Mistake(f"{address:#x} has been mapped anew, and no hub was told to forget it")
        return found

    def is_same(self, found: Region | None, address: int) -> bool:
        """True if the tables of now say the same of an address."""
        kept, self.table = self.table, self.walk()
        now = super().region_at(address)
        self.table = kept
        if found is None or now is None:
            return found is now
        return place_of(found, address) == place_of(now, address)

    # --- walking

    def walk(self) -> tuple[list[int], list[Region]]:
        """All spans that tables describe."""
        card = self.card
        self.tables = set()
        spans: list[tuple[int, int, int]] = []
        """Address, place in the backing, bytes."""
        begin, end, root = card.context()
        if root is None:
            return [], []
        for address, place, size in self.leaves(root, 3, 0):
            if not begin <= address <= end:
                raise Mistake(f"{address:#x} is mapped, and context 0 ends at {end:#x}")
            if spans and spans[-1][0] + spans[-1][2] == address:
                last = spans[-1]
                if last[1] + last[2] == place:
                    spans[-1] = (last[0], last[1], last[2] + size)
                    continue
            spans.append((address, place, size))
        data = card.backing.data
        spans.append((card.first, card.vram_offset, card.vram_bytes))
        spans.sort()
        regions = [Region(at, data[place : place + size]) for at, place, size in spans]
        return [region.address for region in regions], regions

    def leaves(self, table: int, level: int, base: int) -> list[tuple[int, int, int]]:
        """Address, place in the backing and bytes of what a table maps, in order."""
        if table % PAGE or table + PAGE > self.card.vram_bytes:
            raise Mistake(f"a table at {table:#x} of the card's memory")
        self.tables.add(table)
        entries = self.card.vram[table : table + PAGE].view(numpy.uint64)
        found: list[tuple[int, int, int]] = []
        shift = 12 + 9 * level
        for number in numpy.flatnonzero(entries):
            entry, at = int(entries[number]), base + (int(number) << shift)
            if not entry & VALID:
                raise Mistake(f"entry {entry:#x} of a table is neither empty nor valid")
            if level and not entry & IS_PAGE:
                if entry & ~PLACE & ~VALID:
                    raise Mistake(f"entry {entry:#x} of a directory has flags of a page")
                found += self.leaves(entry & PLACE, level - 1, at)
            elif entry & ALLOWED == ALLOWED:
                found.append((at, self.place(entry, 1 << shift), 1 << shift))
        return found

    def place(self, entry: int, size: int) -> int:
        """Place in the backing of a page."""
        at = entry & PLACE
        if at % size:
            raise Mistake(f"entry {entry:#x} is no place of a page of {size} bytes")
        if not entry & SYSTEM:
            if at + size > self.card.vram_bytes - self.card.RESERVED:
                raise Mistake(f"entry {entry:#x} maps memory that the card's firmware keeps")
            return self.card.vram_offset + at
        if not entry & SNOOPED or entry >> 48 & 7 != UNCACHED:
            raise Mistake(f"entry {entry:#x} lets the card keep memory of the system in a cache")
        if not self.card.is_bus_master:
            raise Mistake("memory of the system is mapped to a card that is no bus master")
        window = self.card.windows.get(at)
        if window is not None:
            return window
        offset = (at - SYSTEM_BASE) ^ PAGE
        if at < SYSTEM_BASE or not self.card.owns_page(offset):
            raise Mistake(f"entry {entry:#x} maps memory of the system that nobody has given")
        return offset


def place_of(region: Region, address: int) -> int:
    """Address of the host that an address of the card lies at."""
    return int(region.data.__array_interface__["data"][0]) + address - region.address
