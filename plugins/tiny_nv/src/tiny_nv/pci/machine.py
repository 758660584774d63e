"""System calls beyond `tiny_hcq.System` that a driver of a PCI card makes.

A stand-in of a machine implements `SupportsPci`; on Linux the functions below make the calls.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeAlias, runtime_checkable

from tiny_hcq import System, bytes_at

__all__ = [
    "CHUNK_BYTES",
    "PAGE",
    "Load",
    "Store",
    "SupportsPci",
    "holders",
    "ioctl_value",
    "keep_text",
    "lock_file",
    "read_at",
    "read_bytes",
    "register_calls",
    "write_at",
]

Load: TypeAlias = Callable[[int], int]
"""Read of a 32-bit register by its offset."""
Store: TypeAlias = Callable[[int, int], None]
"""Write of a 32-bit register by its offset."""
PAGE: Final = 4096
CHUNK_BYTES: Final = 2 << 20
"""Bytes that are pinned at a time: a huge page."""
_WORD: Final = 4


@runtime_checkable
class SupportsPci(Protocol):
    """A machine whose files are not this process's own, and whose registers are not memory."""

    def read_bytes(self, path: str) -> bytes:
        """The content of a file. Raises OSError."""
        ...

    def read_at(self, file: int, size: int, offset: int) -> bytes:
        """pread(2). Raises OSError."""
        ...

    def write_at(self, file: int, content: bytes, offset: int) -> None:
        """pwrite(2). Raises OSError."""
        ...

    def ioctl_value(self, file: int, request: int, argument: int | bytearray) -> int:
        """ioctl(2) with a result. Raises OSError."""
        ...

    def lock_file(self, path: str) -> int:
        """Open a file and lock it. Raises OSError, BlockingIOError where another process has it."""
        ...

    def keep_text(self, path: str, text: str) -> None:
        """Write a file, made where there is none. Raises OSError."""
        ...

    def holders(self, files: Collection[str]) -> list[str]:
        """Processes that have one of some files open or mapped."""
        ...

    def load_register(self, address: int) -> int:
        """Read a word of a mapped BAR."""
        ...

    def store_register(self, address: int, value: int) -> None:
        """Write a word of a mapped BAR."""
        ...


def keep_text(machine: System, path: str, text: str) -> None:
    """Write a file, made where there is none, whose text it becomes. Raises OSError."""
    if isinstance(machine, SupportsPci):
        machine.keep_text(path, text)
    else:
        Path(path).write_text(text, "ascii")


def read_bytes(machine: System, path: str) -> bytes:
    """The content of a file. Raises OSError."""
    if isinstance(machine, SupportsPci):
        return machine.read_bytes(path)
    return Path(path).read_bytes()


def read_at(machine: System, file: int, size: int, offset: int) -> bytes:
    """Bytes of an open file. Raises OSError, also for a short read."""
    if isinstance(machine, SupportsPci):
        found = machine.read_at(file, size, offset)
    else:
        found = os.pread(file, size, offset)
    if len(found) != size:
        raise OSError(f"{len(found)} of {size} bytes at {offset:#x} could be read")
    return found


def write_at(machine: System, file: int, content: bytes, offset: int) -> None:
    """Write bytes of an open file. Raises OSError."""
    if isinstance(machine, SupportsPci):
        machine.write_at(file, content, offset)
    elif os.pwrite(file, content, offset) != len(content):
        raise OSError(f"{len(content)} bytes at {offset:#x} could not be written")


def ioctl_value(machine: System, file: int, request: int, argument: int | bytearray) -> int:
    """Result of an ioctl whose argument is a number or a structure. Raises OSError."""
    if isinstance(machine, SupportsPci):
        return machine.ioctl_value(file, request, argument)
    return fcntl.ioctl(file, request, argument)


def lock_file(machine: System, path: str) -> int:
    """An open file that no other process has locked, until it is closed or this process ends.

    Raises OSError, BlockingIOError where another process has the lock.
    """
    if isinstance(machine, SupportsPci):
        return machine.lock_file(path)
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(file)
        raise
    return file


def holders(machine: System, files: Collection[str]) -> list[str]:
    """Processes that have one of some files open or mapped, by number and name; of other users only
    where this process may see their files.
    """
    if isinstance(machine, SupportsPci):
        return machine.holders(files)
    return [
        f"{process} ({machine.read_text(f'/proc/{process}/comm').strip()})"
        for process in machine.names("/proc")
        if process.isdecimal() and _holds(machine, process, files)
    ]


def _holds(machine: System, process: str, files: Collection[str]) -> bool:
    folder = f"/proc/{process}/fd"
    for name in machine.names(folder):
        with suppress(OSError):  # it was closed meanwhile
            if os.readlink(f"{folder}/{name}") in files:
                return True
    lines = machine.read_text(f"/proc/{process}/maps").splitlines()
    return any(line.rpartition(" ")[2] in files for line in lines)


def register_calls(machine: System, address: int, size: int) -> tuple[Load, Store]:
    """Reads and writes of a BAR that is mapped at an address."""
    if isinstance(machine, SupportsPci):
        stand_in = machine
        return (
            lambda register: stand_in.load_register(address + register),
            lambda register, value: stand_in.store_register(address + register, value),
        )
    words = bytes_at(address, size).cast("I")

    def store(register: int, value: int) -> None:
        words[register // _WORD] = value

    return lambda register: words[register // _WORD], store
