"""Memory that a process and emulated cards share: pages of one file, which both map.

A machine ends when the collector finds it, often with devices that nobody has closed. So its
backing knows what the process has mapped, and gives that back too: pages stay as long as a mapping
of them does, also when the file is closed.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import weakref
from typing import Any, ClassVar, Final

import numpy

from emulation.spans import Spans
from tiny_hcq import LinuxSystem

__all__ = ["LARGEST_FILLED", "Backing"]

Array = numpy.ndarray[Any, Any]

BACKING_BYTES: Final = 1 << 35
LARGEST_FILLED: Final = 32 << 20
"""Larger allocations are not filled with garbage, and their pages go back to the system."""
MOST_COMMITTED: Final = 1 << 27
"""Bytes that machines take before those that nobody has any more are looked for. Machines are
cycles, and have few objects, so that the collector comes late by itself."""
MOST_ALIVE: Final = 24
"""Machines made before the collector is called: each takes addresses of the process."""
GUARD_BYTES: Final = 4096
"""Behind the process's own memory, with nothing ever mapped there by the system."""
PUNCH_HOLE: Final = 3
"""FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Backing:
    """All memory there is, as one file that host and cards map. It ends with this object."""

    alive: ClassVar[weakref.WeakSet[Backing]] = weakref.WeakSet()
    wanted: ClassVar[tuple[int, int]] = (0, 0)
    """Machines, and bytes of theirs, that were in use after the last collection."""
    ended: ClassVar[list[Spans]] = []
    """Mappings of machines that are gone. They are unmapped when the next machine is made: what
    ends with a machine, in no order, may still look at its memory."""

    def __init__(self) -> None:
        self.make_room()
        self.file = os.memfd_create("cards")
        Backing.alive.add(self)
        os.ftruncate(self.file, BACKING_BYTES)
        flags = mmap.MAP_SHARED | 0x4000  # MAP_NORESERVE, which Python 3.11 does not name
        pages = mmap.mmap(self.file, BACKING_BYTES, flags=flags)
        self.data: Array = numpy.frombuffer(pages, numpy.uint8)
        self.host = LinuxSystem()
        self.free = Spans()
        self.free.add(0, BACKING_BYTES)
        self.mapped = Spans()
        """Addresses of the process that this machine has mapped."""
        self.own: dict[int, int] = {}
        """Bytes of the process's own memory, by address."""
        weakref.finalize(self, end, self.file, self.mapped).atexit = False

    @classmethod
    def make_room(cls) -> None:
        """Give back what machines hold that nobody has any more."""
        count, size = cls.in_use()
        if count > cls.wanted[0] + MOST_ALIVE or size > cls.wanted[1] + MOST_COMMITTED:
            gc.collect()
            cls.wanted = cls.in_use()
        host = LinuxSystem()
        while cls.ended:
            for begin, stop in cls.ended.pop():
                host.unmap(begin, stop - begin)

    @classmethod
    def in_use(cls) -> tuple[int, int]:
        """Machines that are alive, and the bytes that they hold."""
        alive = list(cls.alive)
        return len(alive), sum(backing.committed for backing in alive)

    @property
    def committed(self) -> int:
        """Bytes of pages that were touched, which the system holds."""
        return os.fstat(self.file).st_blocks * 512

    # --- pages

    def take(self, size: int) -> int:
        """Pages, by their offset."""
        offset = self.free.take(size)
        if offset is None:
            raise MemoryError("the file that stands for memory is used up")
        return offset

    def give_back(self, offset: int, size: int) -> None:
        """Pages that nobody maps any more; large ones are returned to the system."""
        self.free.add(offset, offset + size)
        if size > LARGEST_FILLED:
            punch(self.file, offset, size)

    # --- mappings of the process

    def map(self, address: int, size: int, protection: int, flags: int, offset: int) -> int:
        """Map pages into the process, and return where."""
        found = self.host.map(address, size, protection, flags, self.file, offset)
        self.mapped.add(found, found + size)
        return found

    def map_own(self, address: int, size: int, protection: int, flags: int) -> int:
        """Memory of the process itself, with a page behind it that nothing is ever mapped to."""
        found = self.host.map(address, size + GUARD_BYTES, protection, flags, -1, 0)
        self.own[found] = size
        self.mapped.add(found, found + size + GUARD_BYTES)
        return found

    def unmap(self, address: int, size: int) -> None:
        """Take `map` or `map_own` back."""
        if self.own.get(address) == size:
            del self.own[address]
            size += GUARD_BYTES
        self.host.unmap(address, size)
        self.mapped.remove(address, address + size)


def end(file: int, mapped: Spans) -> None:
    """Give all pages of a file back, though they may be mapped, and close it."""
    punch(file, 0, BACKING_BYTES)
    os.close(file)
    Backing.ended.append(mapped)


def punch(file: int, offset: int, size: int) -> None:
    """Return pages of a file to the system: they read as zeros."""
    place = (ctypes.c_int64(offset), ctypes.c_int64(size))
    if _libc.fallocate(file, PUNCH_HOLE, *place):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "fallocate")
