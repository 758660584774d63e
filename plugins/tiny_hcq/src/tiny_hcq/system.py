"""System calls for drivers in Python: device files, ioctl requests, mapped memory.

A driver that talks to a kernel driver by itself asks `system()` for all of this, so that a stand-in
of the kernel driver takes its place by `use_system`, in tests and in simulations. See
`tiny_testing.standin`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from tinycore.plugin import lock

MAP_FIXED: Final = 0x10
"""Flag of `System.map`: at this very address, in place of what is mapped there."""
MAP_RESERVED: Final = 0x4022
"""Flags of `System.map`: addresses without memory (MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE)."""
_FAILED: Final = (1 << 64) - 1
_INTERRUPTED: Final = (errno.EINTR, errno.EAGAIN)


@cache
def interface() -> Any:
    """cffi, which is imported when the first driver needs it."""
    from tiny_hcq._native import ffi  # noqa: PLC0415  so not by those that look for cards

    return ffi


def is_library(path: str) -> bool:
    """True if a library is there to be opened, which then stays open."""
    import ctypes  # noqa: PLC0415  as with cffi, not by those that look for cards

    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


class System(Protocol):
    """System calls of a driver. Paths are absolute."""

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder; [] if it is missing or unreadable."""
        ...

    def read_text(self, path: str) -> str:
        """The content of a file; "" if it is missing or unreadable."""
        ...

    def exists(self, path: str) -> bool:
        """True if a file exists."""
        ...

    def is_usable(self, path: str) -> bool:
        """True if this process has read and write permission for a file. Opens nothing."""
        ...

    def open(self, path: str) -> int:
        """Open a file to read and write. Raises OSError."""
        ...

    def close(self, file: int) -> None:
        """Close a file. Its mappings remain."""
        ...

    def ioctl(self, file: int, request: int, argument: int) -> int:
        """Make a request whose structure lies at an address: 0, or an errno."""
        ...

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        """Map memory as mmap does, and return where. `file` is -1 with MAP_RESERVED. Raises
        OSError.
        """
        ...

    def unmap(self, address: int, size: int) -> None:
        """Take `map` back."""
        ...


@runtime_checkable
class SupportsWriteText(Protocol):
    """A stand-in of a machine whose files can be written by `write_text`."""

    def write_text(self, path: str, text: str) -> None:
        """Write a file of sysfs. Raises OSError."""
        ...


class LinuxSystem:
    """The machine that this process runs on."""

    def __init__(self) -> None:
        self._libc: Any = None

    @property
    def libc(self) -> Any:
        """The C library of this process."""
        if self._libc is None:
            self._libc = interface().dlopen(None)
        return self._libc

    def names(self, folder: str) -> list[str]:
        """Names in a folder."""
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    def read_text(self, path: str) -> str:
        """The content of a file."""
        try:
            return Path(path).read_text("utf-8", "replace")
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        """True if a file exists."""
        return os.path.exists(path)

    def is_usable(self, path: str) -> bool:
        """True if this process has read and write permission for a file."""
        return os.access(path, os.R_OK | os.W_OK)

    def open(self, path: str) -> int:
        """Open a file to read and write."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, file: int) -> None:
        """Close a file."""
        os.close(file)

    def ioctl(self, file: int, request: int, argument: int) -> int:
        """Make a request, again when a signal interrupts it."""
        pointer = interface().cast("void *", argument)
        while self.libc.ioctl(file, request, pointer):
            if interface().errno not in _INTERRUPTED:
                return int(interface().errno)
        return 0

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        """Map memory and return where."""
        # Some drivers put a kind of memory into bit 63 of the offset, a sign for the C library.
        signed = offset - (1 << 64) if offset >> 63 else offset
        place = interface().cast("void *", address)
        place = self.libc.mmap(place, size, protection, flags, file, signed)
        found = int(interface().cast("uintptr_t", place))
        if found == _FAILED:
            status = interface().errno
            raise OSError(status, f"mmap of {size} bytes: {os.strerror(status)}")
        return found

    def unmap(self, address: int, size: int) -> None:
        """Take `map` back."""
        self.libc.munmap(interface().cast("void *", address), size)


_systems: Final[list[System]] = [LinuxSystem()]


def system() -> System:
    """The machine, or a stand-in for it."""
    return _systems[-1]


@contextmanager
def use_system(other: System) -> Iterator[None]:
    """Use a stand-in in place of the machine, for a `with` block in any thread."""
    _systems.append(other)
    try:
        yield
    finally:
        _systems.remove(other)


def write_text(machine: System, path: str, text: str) -> None:
    """Write a file of sysfs, which cannot be read, in one call. Raises OSError."""
    if isinstance(machine, SupportsWriteText):
        machine.write_text(path, text)
        return
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode("ascii"))
    finally:
        os.close(file)


def address_of(memory: Any) -> int:
    """Address of a writable buffer, or of what a cffi pointer points to. It must be kept while the
    address is used.
    """
    ffi = interface()
    pointer = memory if isinstance(memory, ffi.CData) else ffi.from_buffer(memory)
    return int(ffi.cast("uintptr_t", pointer))


def bytes_at(address: int, size: int) -> memoryview:
    """Mapped memory as bytes, writable."""
    return memoryview(interface().buffer(interface().cast("char *", address), size))


_fences: Final = (lock(), lock())


def fence() -> None:
    """Let everything written before be seen by a device before anything written after.

    For the store to a doorbell, after words in memory that may be write-combined. Python has no
    fence; to take and to leave a lock are atomic operations, before which processors write what
    they have combined. A store may still move into the span of one lock, from both sides, and not
    past the second lock.
    """
    for one in _fences:
        with one:
            pass


def errno_text(status: int) -> str:
    """An errno as people look it up: "EINVAL: Invalid argument"."""
    return f"{errno.errorcode.get(status, status)}: {os.strerror(status)}"
