"""A taken card as this process reaches it: its BARs, and memory of the system that it addresses.

Two ways, by the driver that has the card:

KernelFiles  no driver: `resourceN` of sysfs, and huge pages, which the kernel does not move, whose
             physical addresses /proc/self/pagemap tells
Vfio         vfio-pci: regions of the device's file, and pages that the IOMMU is told of (vfio.py)

Linux: Documentation/ABI/testing/sysfs-bus-pci, Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from mmap import MAP_ANONYMOUS, MAP_POPULATE, MAP_SHARED, PROT_READ, PROT_WRITE
from typing import Final, Protocol

from tiny_nv.pci.bus import VFIO, TakenCard
from tiny_nv.pci.machine import CHUNK_BYTES, PAGE, read_at, write_at
from tiny_nv.pci.vfio import Vfio
from tinycore.errors import DeviceUnavailable, OutOfMemory

__all__ = ["Access", "KernelFiles", "open_access"]

_HUGE_PAGES: Final = 0x40000 | 21 << 26
"""MAP_HUGETLB, MAP_HUGE_2MB."""
_PAGEMAP: Final = "/proc/self/pagemap"
_PRESENT: Final = 1 << 63
_FRAME: Final = (1 << 55) - 1
_COMMAND: Final = 4
_MEMORY_SPACE, _BUS_MASTER = 2, 4
_TRANSLATED: Final = ("DMA", "DMA-FQ")


class Access(Protocol):
    """A way to a card that this process has to itself."""

    def map_bar(self, bar: int) -> int:
        """Map a whole BAR, and return where. Raises DeviceUnavailable."""
        ...

    def allocate(self, size: int) -> tuple[int, list[int]]:
        """Pinned memory of whole chunks: host address, and the bus address of each chunk. Raises
        OutOfMemory.
        """
        ...

    def release(self, address: int, size: int, bus: list[int]) -> None:
        """Take `allocate` back. Never raises."""
        ...

    def stop(self) -> None:
        """Let the card address memory no more. Never raises."""
        ...

    def reset(self) -> None:
        """Reset the function. Raises DeviceUnavailable where the kernel knows no way."""
        ...

    def close(self) -> None:
        """Take the mappings back. Never raises."""
        ...


def open_access(taken: TakenCard) -> Access:
    """The way to a taken card. Raises DeviceUnavailable."""
    if taken.card.driver == VFIO:
        return Vfio(taken.machine, taken.card)
    return KernelFiles(taken)


class KernelFiles:
    """Files of sysfs, and huge pages."""

    def __init__(self, taken: TakenCard) -> None:
        """Let the card address memory. Raises DeviceUnavailable."""
        self.taken, self.machine, self.card = taken, taken.machine, taken.card
        machine, card = self.machine, self.card
        kind = machine.read_text(f"{card.folder}/iommu_group/type").strip()
        if kind in _TRANSLATED:
            raise DeviceUnavailable(
                f"an IOMMU translates the addresses of {card} ({kind}), so that physical addresses "
                f"mean nothing to it: bind it to {VFIO}, or start Linux with iommu=pt"
            )
        self._undo = ExitStack()
        try:
            self._master(set_bits=True)
        except OSError as error:
            raise DeviceUnavailable(f"{card} cannot be let address memory: {error}") from error

    def _master(self, *, set_bits: bool) -> None:
        """Set or clear bus mastering in the function's command register."""
        file = self.machine.open(f"{self.card.folder}/config")
        try:
            old = int.from_bytes(read_at(self.machine, file, 2, _COMMAND), "little")
            new = old | _MEMORY_SPACE | _BUS_MASTER if set_bits else old & ~_BUS_MASTER
            write_at(self.machine, file, new.to_bytes(2, "little"), _COMMAND)
        finally:
            self.machine.close(file)

    def map_bar(self, bar: int) -> int:
        """Map `resourceN`."""
        machine, size = self.machine, self.card.bar_bytes[bar]
        path = f"{self.card.folder}/resource{bar}"
        try:
            file = machine.open(path)
        except OSError as error:
            raise DeviceUnavailable(f"{path} cannot be opened: {error}") from error
        try:
            found = machine.map(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
        except OSError as error:
            raise DeviceUnavailable(
                f"BAR {bar} of {self.card} cannot be mapped: {error}. A kernel that is locked down "
                "(secure boot) allows nobody to."
            ) from error
        finally:
            machine.close(file)
        self._undo.callback(machine.unmap, found, size)
        return found

    def allocate(self, size: int) -> tuple[int, list[int]]:
        """Huge pages, whose physical addresses are read from the page map."""
        machine = self.machine
        flags = MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE | _HUGE_PAGES
        try:
            address = machine.map(0, size, PROT_READ | PROT_WRITE, flags, -1, 0)
        except OSError as error:
            count = size // CHUNK_BYTES
            raise OutOfMemory(
                f"{count} huge pages of 2 MiB are not free ({error}): write a larger number to "
                "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
            ) from error
        try:
            return address, [
                self._physical(at) for at in range(address, address + size, CHUNK_BYTES)
            ]
        except OSError as error:
            machine.unmap(address, size)
            raise OutOfMemory(
                f"physical addresses cannot be read ({error}): it needs root (CAP_SYS_ADMIN)"
            ) from error

    def _physical(self, address: int) -> int:
        """Physical address of a mapped page. Raises OSError."""
        machine = self.machine
        file = machine.open(_PAGEMAP)
        try:
            told = int.from_bytes(read_at(machine, file, 8, address // PAGE * 8), "little")
        finally:
            machine.close(file)
        if not told & _PRESENT or not told & _FRAME:
            raise OSError(f"{_PAGEMAP} says {told:#x}")
        return (told & _FRAME) * PAGE

    def release(self, address: int, size: int, bus: list[int]) -> None:
        """Unmap huge pages."""
        self.machine.unmap(address, size)

    def reset(self) -> None:
        """Reset the function, whose command register the kernel keeps."""
        self.taken.reset()

    def close(self) -> None:
        """Unmap the BARs, and let the card address memory no more."""
        self._undo.close()
        self.stop()

    def stop(self) -> None:
        """Clear bus mastering."""
        with suppress(OSError):
            self._master(set_bits=False)
