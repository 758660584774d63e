"""The system calls that the device NV makes, and nothing else: `system()` is all that it knows of
the machine.

`use` puts another object with the same methods in its place: a stand-in, in tests.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from tiny_nv._native import ffi

__all__ = [
    "FIXED",
    "NO_ACCESS",
    "NO_RESERVE_FLAGS",
    "READ_WRITE",
    "SHARED",
    "WRITE",
    "System",
    "address_of",
    "bytes_at",
    "ffi",
    "system",
    "use",
]

NO_ACCESS: Final = 0
WRITE: Final = 2
READ_WRITE: Final = 3
SHARED: Final = 0x01
FIXED: Final = 0x10
NO_RESERVE_FLAGS: Final = 0x4022
"""MAP_PRIVATE, MAP_ANONYMOUS and MAP_NORESERVE: addresses reserved without memory."""
_FAILED: Final = (1 << 64) - 1
_INTERRUPTED: Final = (errno.EINTR, errno.EAGAIN)


class System(Protocol):
    """System calls that the driver makes. Paths are absolute."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder; [] where there is none, or none that may be read."""
        ...

    def read_text(self, path: str) -> str:
        """The content of a file; "" where there is none, or none that may be read."""
        ...

    def is_usable(self, path: str) -> bool:
        """Whether there is a file that this process may read and write. Opens nothing."""
        ...

    def open(self, path: str) -> int:
        """Open a file to read and write. Raises OSError."""
        ...

    def close(self, file: int) -> None:
        """Close a file. What is mapped from it stays mapped."""
        ...

    def ioctl(self, file: int, request: int, argument: int) -> int:
        """Make a request whose structure lies at an address: 0, or an errno."""
        ...

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        """Map memory and return where. `file` is -1 with NO_RESERVE_FLAGS. Raises OSError."""
        ...

    def unmap(self, address: int, size: int) -> None:
        """Take `map` back."""
        ...


class Linux:
    """The machine this process runs on."""

    def __init__(self) -> None:
        self._libc: Any = None

    @property
    def libc(self) -> Any:
        """The C library of this process."""
        if self._libc is None:
            self._libc = ffi.dlopen(None)
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

    def is_usable(self, path: str) -> bool:
        """Whether there is a file that this process may read and write."""
        return os.access(path, os.R_OK | os.W_OK)

    def open(self, path: str) -> int:
        """Open a file to read and write."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, file: int) -> None:
        """Close a file."""
        os.close(file)

    def ioctl(self, file: int, request: int, argument: int) -> int:
        """Make a request, again when a signal interrupts it."""
        pointer = ffi.cast("void *", argument)
        while self.libc.ioctl(file, request, pointer):
            if ffi.errno not in _INTERRUPTED:
                return int(ffi.errno)
        return 0

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        """Map memory and return where."""
        place = self.libc.mmap(ffi.cast("void *", address), size, protection, flags, file, offset)
        found = int(ffi.cast("uintptr_t", place))
        if found == _FAILED:
            raise OSError(ffi.errno, f"mmap of {size} bytes: {os.strerror(ffi.errno)}")
        return found

    def unmap(self, address: int, size: int) -> None:
        """Take `map` back."""
        self.libc.munmap(ffi.cast("void *", address), size)


_systems: Final[list[System]] = [Linux()]


def system() -> System:
    """The machine, or what stands in for it."""
    return _systems[-1]


@contextmanager
def use(other: System) -> Iterator[None]:
    """Have an object with the same methods in place of the machine."""
    _systems.append(other)
    try:
        yield
    finally:
        _systems.remove(other)


def address_of(memory: bytearray | memoryview) -> int:
    """Address of bytes. They must be kept while the address is used."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def bytes_at(address: int, size: int) -> memoryview:
    """Mapped memory as bytes, writable."""
    return memoryview(ffi.buffer(ffi.cast("char *", address), size))
