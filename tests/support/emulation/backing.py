"""Memory that a process and emulated cards share: pages of one file, which both map."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import weakref
from typing import Any, ClassVar, Final

import numpy

__all__ = ["LARGEST_FILLED", "Backing"]

Array = numpy.ndarray[Any, Any]

BACKING_BYTES: Final = 1 << 35
LARGEST_FILLED: Final = 32 << 20
"""Larger allocations are not filled with garbage, and their pages go back to the system."""
MOST_COMMITTED: Final = 1 << 29
"""Bytes that files may hold before those of machines that nobody has any more are looked for:
machines are cycles, and have few objects, so that the collector comes late by itself."""


class Backing:
    """All memory there is, as one file that host and cards map. It ends with this object."""

    alive: ClassVar[weakref.WeakSet[Backing]] = weakref.WeakSet()

    def __init__(self) -> None:
        if sum(backing.committed for backing in Backing.alive) > MOST_COMMITTED:
            gc.collect()
        self.file = os.memfd_create("cards")
        weakref.finalize(self, os.close, self.file).atexit = False
        Backing.alive.add(self)
        os.ftruncate(self.file, BACKING_BYTES)
        flags = mmap.MAP_SHARED | 0x4000  # MAP_NORESERVE, which Python 3.11 does not name
        pages = mmap.mmap(self.file, BACKING_BYTES, flags=flags)
        self.data: Array = numpy.frombuffer(pages, numpy.uint8)
        self.free: dict[int, list[int]] = {}
        self.next = 0
        self.libc = ctypes.CDLL(None, use_errno=True)

    @property
    def committed(self) -> int:
        """Bytes of pages that were touched, which the system holds."""
        return os.fstat(self.file).st_blocks * 512

    def take(self, size: int) -> int:
        """Pages, by their offset."""
        if same := self.free.get(size):
            return same.pop()
        if self.next + size > BACKING_BYTES:
            raise MemoryError("the file that stands for memory is used up")
        self.next += size
        return self.next - size

    def give_back(self, offset: int, size: int) -> None:
        """Pages that nobody maps any more; large ones are returned to the system."""
        self.free.setdefault(size, []).append(offset)
        if size > LARGEST_FILLED:
            place = (ctypes.c_int64(offset), ctypes.c_int64(size))
            self.libc.fallocate(self.file, 3, *place)  # PUNCH_HOLE | KEEP_SIZE
