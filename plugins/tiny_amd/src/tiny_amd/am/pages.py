"""Tables of pages: what a card finds at the addresses of its commands and kernels.

Four levels of 512 entries (PDB2, PDB1, PDB0, PTB) cover 48 bits; an entry of PDB0 may itself be a
page of 2 MiB. Linux, drivers/gpu/drm/amd/amdgpu/amdgpu_vm.h; MTYPE of gfx10 and gfx11.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from tiny_amd.am.bus import PAGE
from tiny_amd.am.vram import Vram

__all__ = ["HUGE_PAGE", "PageTables"]

HUGE_PAGE: Final = 2 << 20
ENTRIES: Final = 512
_TABLE_BYTES: Final = ENTRIES * 8
_LEAF_SHIFT: Final = 12
_BITS: Final = 9
ROOT_LEVEL: Final = 3
"""Levels count from the leaves: 0 is PTB, 1 PDB0, 2 PDB1, 3 PDB2."""
_VALID: Final = 1 << 0
_OF_SYSTEM: Final = 1 << 1
_SNOOPED: Final = 1 << 2
_ALLOWED: Final = 1 << 4 | 1 << 5 | 1 << 6
"""EXEC, READ and WRITE."""
_FRAGMENT_SHIFT: Final = 7
_HUGE_FRAGMENT: Final = 9
"""log2 of the pages of 4 KiB in a page of 2 MiB."""
_UNCACHED: Final = 3 << 48
_IS_PAGE: Final = 1 << 54
"""PDE_PTE: the entry of a directory is a page."""


class Table:
    """One table, in the card's memory and as the host knows it."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.entries = array("Q", bytes(_TABLE_BYTES))
        self.below: dict[int, Table] = {}


class PageTables:
    """All addresses of one context."""

    def __init__(self, vram: Vram) -> None:
        self.vram = vram
        self.root = Table(vram.take_own(_TABLE_BYTES))

    def map_vram(self, address: int, place: int, size: int, *, is_uncached: bool = False) -> None:
        """Map memory of the card; pages of 2 MiB where both sides are aligned to that. What the
        host writes as well `is_uncached`.
        """
        flags = _VALID | _ALLOWED | (_UNCACHED if is_uncached else 0)
        end = address + size
        while address < end:
            is_huge = not address % HUGE_PAGE and not place % HUGE_PAGE
            if is_huge and end - address >= HUGE_PAGE:
                entry = place | flags | _IS_PAGE | _HUGE_FRAGMENT << _FRAGMENT_SHIFT
                self._set(1, address, [entry])
                step = HUGE_PAGE
            else:
                step = min(end, (address // HUGE_PAGE + 1) * HUGE_PAGE) - address
                self._set(0, address, [place + at | flags for at in range(0, step, PAGE)])
            address, place = address + step, place + step

    def map_system(self, address: int, pages: Sequence[int]) -> None:
        """Map memory of the system, page by page, as processors see it too."""
        flags = _VALID | _ALLOWED | _OF_SYSTEM | _SNOOPED | _UNCACHED
        self._set(0, address, [page | flags for page in pages])

    def unmap(self, address: int, size: int) -> None:
        """Map nothing: what touches it from now on is a fault, once the hubs have been flushed."""
        end = address + size
        while address < end:
            table = self._table(1, address)
            number = self._number(1, address)
            step = min(end, (address // HUGE_PAGE + 1) * HUGE_PAGE) - address
            if table.entries[number] & _IS_PAGE:
                self._set(1, address, [0])
            else:
                self._set(0, address, [0] * (step // PAGE))
            address += step

    @staticmethod
    def _number(level: int, address: int) -> int:
        return address >> (_LEAF_SHIFT + _BITS * level) & (ENTRIES - 1)

    def _table(self, level: int, address: int) -> Table:
        """The table of a level that an address is found in, made where there is none."""
        table = self.root
        for above in range(ROOT_LEVEL, level, -1):
            number = self._number(above, address)
            found = table.below.get(number)
            if found is None:
                found = table.below[number] = Table(self.vram.take_own(_TABLE_BYTES))
            if not table.entries[number] & _VALID or table.entries[number] & _IS_PAGE:
                self._write(table, number, [found.address | _VALID])
            table = found
        return table

    def _set(self, level: int, address: int, entries: Sequence[int]) -> None:
        """Set entries from an address on, through as many tables as it takes."""
        done = 0
        while done < len(entries):
            at = address + (done << (_LEAF_SHIFT + _BITS * level))
            number = self._number(level, at)
            count = min(ENTRIES - number, len(entries) - done)
            self._write(self._table(level, at), number, entries[done : done + count])
            done += count

    def _write(self, table: Table, number: int, entries: Sequence[int]) -> None:
        words = array("Q", entries)
        table.entries[number : number + len(words)] = words
        self.vram.write(table.address + number * 8, words.tobytes())
