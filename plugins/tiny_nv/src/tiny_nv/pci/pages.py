"""Memory that a card addresses by physical addresses: the system's, pinned, and its own."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tiny_hcq import bytes_at
from tiny_nv.nvk.addresses import Addresses
from tiny_nv.pci.access import Access
from tiny_nv.pci.machine import CHUNK_BYTES, PAGE
from tinycore.errors import OutOfMemory
from tinycore.plugin import lock

__all__ = ["PinnedMemory", "SystemMemory"]


@dataclass(frozen=True)
class PinnedMemory:
    """Bytes of the system's memory, and where a card finds them."""

    host: int
    size: int
    chunk: _Chunk

    @property
    def view(self) -> memoryview:
        """The bytes."""
        return bytes_at(self.host, self.size)

    def bus(self, offset: int = 0) -> int:
        """Bus address of a byte."""
        place = self.host + offset - self.chunk.host
        return self.chunk.bus[place // CHUNK_BYTES] + place % CHUNK_BYTES

    def pages(self) -> list[int]:
        """Bus address of each page."""
        return [self.bus(offset) for offset in range(0, self.size, PAGE)]

    @property
    def is_contiguous(self) -> bool:
        """True if its bus addresses follow each other."""
        return self.bus(self.size - 1) - self.bus() == self.size - 1


@dataclass(eq=False)
class _Chunk:
    """Memory that was pinned at once, in parts."""

    host: int
    size: int
    bus: list[int]
    free: Addresses = field(init=False)
    parts: int = 0

    def __post_init__(self) -> None:
        self.free = Addresses((self.host, self.host + self.size))


class SystemMemory:
    """Pinned memory of one card, in pages; a small part is within one chunk, so contiguous."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._lock: Final = lock()
        self._shared: list[_Chunk] = []
        """Chunks that small parts are taken from."""
        self._own: list[_Chunk] = []

    def allocate(self, size: int) -> PinnedMemory:
        """Whole pages, zeroed; contiguous if they are not larger than a chunk.

        Raises OutOfMemory.
        """
        size = -(-size // PAGE) * PAGE
        with self._lock:
            made = self._part(size) if size <= CHUNK_BYTES else self._large(size)
        made.view[:] = bytes(size)
        return made

    def _large(self, size: int) -> PinnedMemory:
        whole = -(-size // CHUNK_BYTES) * CHUNK_BYTES
        chunk = _Chunk(*self._pinned(whole))
        self._own.append(chunk)
        return PinnedMemory(chunk.host, size, chunk)

    def _pinned(self, size: int) -> tuple[int, int, list[int]]:
        host, bus = self.access.allocate(size)
        return host, size, bus

    def _part(self, size: int) -> PinnedMemory:
        for chunk in self._shared:
            with suppress(OutOfMemory):
                return self._part_of(chunk, size)
        chunk = _Chunk(*self._pinned(CHUNK_BYTES))
        self._shared.append(chunk)
        return self._part_of(chunk, size)

    def _part_of(self, chunk: _Chunk, size: int) -> PinnedMemory:
        at = chunk.free.take(size, PAGE)
        chunk.parts += 1
        return PinnedMemory(at, size, chunk)

    def free(self, memory: PinnedMemory) -> None:
        """Take `allocate` back; a chunk without parts is unpinned."""
        chunk = memory.chunk
        with self._lock:
            if chunk in self._own:
                self._own.remove(chunk)
            else:
                chunk.free.give_back(memory.host, memory.size)
                chunk.parts -= 1
                if chunk.parts:
                    return
                self._shared.remove(chunk)
            self.access.release(chunk.host, chunk.size, chunk.bus)

    def close(self) -> None:
        """Unpin all pages. The card addresses none of it any more."""
        with self._lock:
            for chunk in (*self._shared, *self._own):
                self.access.release(chunk.host, chunk.size, chunk.bus)
            self._shared, self._own = [], []
