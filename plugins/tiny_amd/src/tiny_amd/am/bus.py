"""`Bus`: the way to a card without a driver, and `KernelBus`, the PCI bus by the kernel's files.

The driver above it (AM) reads and writes registers, memory of the card and memory of the system by
nothing else, so that it runs over any bus that has these calls: PCI here, a USB bridge elsewhere.
What is found in sysfs and how a card is taken from its driver is in cards.py.

PCI Express Base Specification, 7.5.1 (configuration space); Linux, Documentation/PCI/sysfs-pci.rst,
Documentation/admin-guide/mm/pagemap.rst and Documentation/admin-guide/sysctl/vm.rst.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_SHARED, PROT_READ, PROT_WRITE
from typing import Final, Protocol, runtime_checkable

from tiny_hcq import MAP_FIXED, HostView, System, bytes_at
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory

__all__ = [
    "DOORBELL_BAR",
    "MEMORY_BAR",
    "PAGE",
    "REGISTER_BAR",
    "Bus",
    "KernelBus",
    "SupportsWindows",
    "SystemMemory",
    "Window",
]

PAGE: Final = 4096
MEMORY_BAR, DOORBELL_BAR, REGISTER_BAR = 0, 2, 5
"""BARs of a card: its memory or the start of it, 64-bit doorbells, and registers by bytes."""
_POPULATED_AND_LOCKED: Final = 0x8000 | 0x2000
"""MAP_POPULATE and MAP_LOCKED: pages are there, and stay in memory."""
_PRESENT: Final = 1 << 63
_FRAME: Final = (1 << 55) - 1
"""Fields of an entry of /proc/self/pagemap."""
_PAGEMAP: Final = "/proc/self/pagemap"
_ENTRY_BYTES: Final = 8


@dataclass(frozen=True)
class SystemMemory:
    """Memory of the system that a card reads and writes by itself, over the bus."""

    address: int
    """Address of the process at which the host sees it; 0 where it reaches it by calls alone."""
    size: int
    """A multiple of PAGE."""
    pages: tuple[int, ...]
    """Bus address of each PAGE bytes, in order; they need not follow each other."""
    host: memoryview | HostView
    """The same bytes as the host reaches them."""


class Bus(Protocol):
    """The way to one card. Offsets count bytes from the start of a BAR, and are multiples of what
    is read or written; the caller has checked that they lie inside of it.

    Every call raises DeviceError when the way is gone. A card that is gone reads as ones.
    """

    name: str
    """The card for people: "card 0000:03:00.0 (1002:744c)"."""
    device_id: int
    """PCI device id."""
    bar_bytes: Mapping[int, int]
    """Bytes of each BAR that the host reaches; those of MEMORY_BAR may be a part of the memory."""

    def read32(self, bar: int, offset: int) -> int:
        """Read 32 bits at once."""
        ...

    def write32(self, bar: int, offset: int, value: int) -> None:
        """Write 32 bits at once. Writes arrive in the order in which they are made."""
        ...

    def write64(self, bar: int, offset: int, value: int) -> None:
        """Write 64 bits at once, such as a doorbell."""
        ...

    def read_block(self, bar: int, offset: int, size: int) -> bytes:
        """Read `size` bytes of memory, a multiple of 4."""
        ...

    def write_block(self, bar: int, offset: int, content: bytes | memoryview) -> None:
        """Write bytes of memory, a multiple of 4."""
        ...

    def read_config(self, offset: int, size: int) -> int:
        """Read 1, 2 or 4 bytes of the configuration space."""
        ...

    def write_config(self, offset: int, size: int, value: int) -> None:
        """Write 1, 2 or 4 bytes of the configuration space."""
        ...

    def allocate(self, size: int, address: int = 0) -> SystemMemory:
        """At least `size` bytes of system memory, cleared; at an `address` that the caller has
        reserved, where the host maps memory at all. Raises OutOfMemory.
        """
        ...

    def free(self, memory: SystemMemory) -> None:
        """Give system memory back; the card uses it no more. Never raises."""
        ...

    def close(self) -> None:
        """End every access. The card stays with whoever took it. Never raises."""
        ...


class Window(Protocol):
    """A file of sysfs as memory: a BAR, or the configuration space."""

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes; 1, 2, 4 or 8 of them at once."""
        ...

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """Write bytes; 1, 2, 4 or 8 of them at once."""
        ...

    def close(self) -> None:
        """End the access."""
        ...


@runtime_checkable
class SupportsWindows(Protocol):
    """A machine whose BARs and memory are not this process's own: a stand-in."""

    def window(self, path: str, size: int) -> Window:
        """Open a file of sysfs. Raises OSError."""
        ...

    def bus_addresses(self, address: int, size: int) -> tuple[int, ...]:
        """Bus address of each page of locked memory. Raises OSError."""
        ...


class MappedWindow:
    """A BAR mapped into this process."""

    def __init__(self, machine: System, path: str, size: int) -> None:
        """Map it. Raises OSError."""
        self.machine, self.size = machine, size
        file = machine.open(path)
        try:
            self.at = machine.map(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
        finally:
            machine.close(file)
        self._bytes = bytes_at(self.at, size)
        aligned = self._bytes[: size - size % 8]
        self._words = {4: aligned.cast("I"), 8: aligned.cast("Q")}

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes; whole words at once, which registers need."""
        if words := self._words.get(size):
            return words[offset // size].to_bytes(size, "little")
        return bytes(self._bytes[offset : offset + size])

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """Write bytes; whole words at once."""
        size = len(content)
        if words := self._words.get(size):
            words[offset // size] = int.from_bytes(content, "little")
        else:
            self._bytes[offset : offset + size] = content

    def close(self) -> None:
        """Take the mapping back."""
        for words in self._words.values():
            words.release()
        self.machine.unmap(self.at, self.size)


class FileWindow:
    """The configuration space, which is read and written and never mapped."""

    def __init__(self, machine: System, path: str) -> None:
        """Open it. Raises OSError."""
        self.machine = machine
        self.file = machine.open(path)

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes."""
        return os.pread(self.file, size, offset)

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """Write bytes."""
        os.pwrite(self.file, content, offset)

    def close(self) -> None:
        """Close the file."""
        self.machine.close(self.file)


class KernelBus:
    """A card on the PCI bus that this process has taken from its driver (see cards.py)."""

    def __init__(
        self, machine: System, folder: str, name: str, device_id: int, bar_bytes: tuple[int, ...]
    ) -> None:
        """Open its BARs and its configuration. `folder` is that of the card in sysfs.

        Raises DeviceUnavailable, with nothing left open.
        """
        self.machine, self.name, self.device_id = machine, name, device_id
        bars = (MEMORY_BAR, DOORBELL_BAR, REGISTER_BAR)
        self.bar_bytes: Mapping[int, int] = {bar: bar_bytes[bar] for bar in bars}
        self._windows: dict[int, Window] = {}
        with ExitStack() as undo:
            undo.callback(self.close)
            for bar, size in self.bar_bytes.items():
                self._windows[bar] = self._open(f"{folder}/resource{bar}", size)
            self._config = self._open(f"{folder}/config", 0)
            undo.pop_all()

    def _open(self, path: str, size: int) -> Window:
        machine = self.machine
        try:
            if isinstance(machine, SupportsWindows):
                return machine.window(path, size)
            return MappedWindow(machine, path, size) if size else FileWindow(machine, path)
        except OSError as error:
            raise DeviceUnavailable(
                f"{path} of {self.name} cannot be mapped: {error}. It needs root; a kernel that is "
                "locked down (secure boot) allows nobody to."
            ) from error

    # --- BARs

    def read32(self, bar: int, offset: int) -> int:
        """Read 32 bits at once."""
        return int.from_bytes(self._windows[bar].read(offset, 4), "little")

    def write32(self, bar: int, offset: int, value: int) -> None:
        """Write 32 bits at once."""
        self._windows[bar].write(offset, value.to_bytes(4, "little"))

    def write64(self, bar: int, offset: int, value: int) -> None:
        """Write 64 bits at once."""
        self._windows[bar].write(offset, value.to_bytes(8, "little"))

    def read_block(self, bar: int, offset: int, size: int) -> bytes:
        """Read bytes of memory."""
        return self._windows[bar].read(offset, size)

    def write_block(self, bar: int, offset: int, content: bytes | memoryview) -> None:
        """Write bytes of memory."""
        self._windows[bar].write(offset, content)

    # --- configuration space

    def read_config(self, offset: int, size: int) -> int:
        """Read 1, 2 or 4 bytes."""
        try:
            return int.from_bytes(self._config.read(offset, size), "little")
        except OSError as error:
            raise DeviceError(f"the configuration of {self.name} is not read: {error}") from error

    def write_config(self, offset: int, size: int, value: int) -> None:
        """Write 1, 2 or 4 bytes."""
        try:
            self._config.write(offset, value.to_bytes(size, "little"))
        except OSError as error:
            raise DeviceError(
                f"the configuration of {self.name} is not written: {error}"
            ) from error

    # --- system memory

    def allocate(self, size: int, address: int = 0) -> SystemMemory:
        """Locked memory of this process, whose pages the kernel tells (as root)."""
        size = -(-size // PAGE) * PAGE
        flags = MAP_SHARED | MAP_ANONYMOUS | _POPULATED_AND_LOCKED
        flags |= MAP_FIXED if address else 0
        try:
            at = self.machine.map(address, size, PROT_READ | PROT_WRITE, flags, -1, 0)
        except OSError as error:
            raise OutOfMemory(
                f"{size:,} bytes of locked memory for {self.name}: {error}. `ulimit -l` bounds it"
            ) from error
        try:
            pages = self._bus_addresses(at, size)
        except OSError as error:
            self.machine.unmap(at, size)
            raise DeviceError(f"where memory lies is not told: {_PAGEMAP}: {error}") from error
        return SystemMemory(at, size, pages, bytes_at(at, size))

    def _bus_addresses(self, address: int, size: int) -> tuple[int, ...]:
        """Physical addresses, which are those of the bus where no IOMMU translates them."""
        if isinstance(self.machine, SupportsWindows):
            return self.machine.bus_addresses(address, size)
        file = os.open(_PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.pread(file, size // PAGE * _ENTRY_BYTES, address // PAGE * _ENTRY_BYTES)
        finally:
            os.close(file)
        entries = memoryview(content).cast("Q")
        if not all(entry & _PRESENT and entry & _FRAME for entry in entries):
            raise OSError("frames are hidden from who is not root")
        return tuple((entry & _FRAME) * PAGE for entry in entries)

    def free(self, memory: SystemMemory) -> None:
        """Give memory back."""
        self.machine.unmap(memory.address, memory.size)

    def close(self) -> None:
        """Close the files and mappings of the card."""
        while self._windows:
            self._windows.popitem()[1].close()
        if config := vars(self).pop("_config", None):
            config.close()
