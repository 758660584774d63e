"""A card of vfio-pci: BARs as regions of its file, memory as the IOMMU maps it.

Linux, include/uapi/linux/vfio.h and Documentation/driver-api/vfio.rst.
"""

from __future__ import annotations

import struct
from contextlib import ExitStack, suppress
from mmap import MAP_ANONYMOUS, MAP_POPULATE, MAP_SHARED, PROT_READ, PROT_WRITE
from typing import Final

from tiny_hcq import PciFunction, System
from tiny_nv.nvk.addresses import Addresses
from tiny_nv.pci.machine import CHUNK_BYTES, ioctl_value, read_at, write_at
from tinycore.errors import DeviceUnavailable, OutOfMemory

__all__ = ["Vfio"]

_CONTAINER: Final = "/dev/vfio/vfio"
_GROUPS: Final = "/sys/kernel/iommu_groups"
_API_VERSION, _TYPE1, _VIABLE = 0, 1, 1
_GET_API_VERSION, _CHECK_EXTENSION, _SET_IOMMU = 0x3B64, 0x3B65, 0x3B66
_GROUP_GET_STATUS, _GROUP_SET_CONTAINER, _GROUP_GET_DEVICE = 0x3B67, 0x3B68, 0x3B6A
_DEVICE_REGION, _DEVICE_RESET = 0x3B6C, 0x3B6F
_MAP_DMA, _UNMAP_DMA = 0x3B71, 0x3B72
_READ_AND_WRITE: Final = 1 | 2
_CONFIG_REGION: Final = 7
_CAN_MAP: Final = 4
_COMMAND: Final = 4
_MEMORY_SPACE, _BUS_MASTER = 2, 4
_BUS_ADDRESSES: Final = (1 << 32, 1 << 38)
"""Addresses that the card sees, given out by this process: above those that an IOMMU reserves."""
_REGION: Final = struct.Struct("<IIIIQQ")
_MAP: Final = struct.Struct("<IIQQQ")
_UNMAP: Final = struct.Struct("<IIQQ")
_STATUS: Final = struct.Struct("<II")


class Vfio:
    """Container, group and device of a card."""

    def __init__(self, machine: System, card: PciFunction) -> None:
        """Raises DeviceUnavailable."""
        self.machine, self.card = machine, card
        self._bus = Addresses(_BUS_ADDRESSES)
        with ExitStack() as undo:
            try:
                self._open(undo)
            except OSError as error:
                raise DeviceUnavailable(
                    f"{card} cannot be opened through vfio: {error}. Its group of the IOMMU must "
                    "be this user's, and vfio-pci must have all of the group's functions."
                ) from error
            self._undo = undo.pop_all()

    def _open(self, undo: ExitStack) -> None:
        machine, address = self.machine, self.card.address
        self.container = machine.open(_CONTAINER)
        undo.callback(machine.close, self.container)
        if ioctl_value(machine, self.container, _GET_API_VERSION, 0) != _API_VERSION:
            raise OSError("this version of vfio is not known")
        if not ioctl_value(machine, self.container, _CHECK_EXTENSION, _TYPE1):
            raise OSError("the IOMMU is of no type that is known")
        group = machine.open(f"/dev/vfio/{self._group()}")
        undo.callback(machine.close, group)
        status = bytearray(_STATUS.pack(_STATUS.size, 0))
        ioctl_value(machine, group, _GROUP_GET_STATUS, status)
        if not _STATUS.unpack(status)[1] & _VIABLE:
            raise OSError("a kernel driver has another function of its group")
        ioctl_value(
            machine, group, _GROUP_SET_CONTAINER, bytearray(struct.pack("<i", self.container))
        )
        ioctl_value(machine, self.container, _SET_IOMMU, _TYPE1)
        name = bytearray(address.encode() + b"\0")
        self.device = ioctl_value(machine, group, _GROUP_GET_DEVICE, name)
        undo.callback(machine.close, self.device)
        offset = self._region(_CONFIG_REGION)[1] + _COMMAND
        old = int.from_bytes(read_at(machine, self.device, 2, offset), "little")
        new = old | _MEMORY_SPACE | _BUS_MASTER
        write_at(machine, self.device, new.to_bytes(2, "little"), offset)
        self._command = (offset, old & ~_BUS_MASTER)
        undo.callback(self.stop)

    def stop(self) -> None:
        """Let the card address memory no more."""
        offset, command = self._command
        with suppress(OSError):
            write_at(self.machine, self.device, command.to_bytes(2, "little"), offset)

    def _group(self) -> str:
        names = self.machine.names
        for group in names(_GROUPS):
            if self.card.address in names(f"{_GROUPS}/{group}/devices"):
                return group
        raise OSError("it is in no group of an IOMMU")

    def _region(self, index: int) -> tuple[int, int, int]:
        """Size, offset and flags of a region."""
        record = bytearray(_REGION.pack(_REGION.size, 0, index, 0, 0, 0))
        ioctl_value(self.machine, self.device, _DEVICE_REGION, record)
        _, flags, _, _, size, offset = _REGION.unpack(record)
        return size, offset, flags

    def map_bar(self, bar: int) -> int:
        """Map the region of a BAR."""
        machine = self.machine
        try:
            size, offset, flags = self._region(bar)
            if not flags & _CAN_MAP:
                raise OSError("vfio does not map it")
            found = machine.map(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, self.device, offset)
        except OSError as error:
            raise DeviceUnavailable(
                f"BAR {bar} of {self.card} cannot be mapped: {error}"
            ) from error
        self._undo.callback(machine.unmap, found, size)
        return found

    def reset(self) -> None:
        """Reset the function. Raises DeviceUnavailable where vfio cannot."""
        try:
            ioctl_value(self.machine, self.device, _DEVICE_RESET, 0)
        except OSError as error:
            raise DeviceUnavailable(f"{self.card} cannot be reset: {error}") from error

    def allocate(self, size: int) -> tuple[int, list[int]]:
        """Pages of this process, mapped for the card at addresses that follow each other."""
        machine, flags = self.machine, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE
        at = self._bus.take(size, CHUNK_BYTES)
        try:
            address = machine.map(0, size, PROT_READ | PROT_WRITE, flags, -1, 0)
        except OSError as error:
            self._bus.give_back(at, size)
            raise OutOfMemory(f"{size:,} bytes cannot be allocated: {error}") from error
        record = bytearray(_MAP.pack(_MAP.size, _READ_AND_WRITE, address, at, size))
        try:
            ioctl_value(machine, self.container, _MAP_DMA, record)
        except OSError as error:
            machine.unmap(address, size)
            self._bus.give_back(at, size)
            raise OutOfMemory(
                f"{size:,} bytes cannot be pinned: {error}. `ulimit -l` limits them."
            ) from error
        return address, list(range(at, at + size, CHUNK_BYTES))

    def release(self, address: int, size: int, bus: list[int]) -> None:
        """Take pages away from the card, then from this process."""
        record = bytearray(_UNMAP.pack(_UNMAP.size, 0, bus[0], size))
        with suppress(OSError):
            ioctl_value(self.machine, self.container, _UNMAP_DMA, record)
        self.machine.unmap(address, size)
        self._bus.give_back(bus[0], size)

    def close(self) -> None:
        """Unmap the BARs, and close the files."""
        self._undo.close()
