"""Unified memory: the address spaces that a process builds through /dev/nvidia-uvm.

open-gpu-kernel-modules 580.142: uvm_ioctl.h, uvm_map_external.c, uvm_va_space.c.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rm_standin.gpu import Gpu
from rm_standin.layouts import Record
from rm_standin.objects import Channel, Client, Mapping, Memory, VaSpace
from rm_standin.status import Mistake, Refused, Status

if TYPE_CHECKING:
    from rm_standin.machine import Machine

__all__ = ["Uvm"]

PAGE: Final = 4096
REQUESTS: Final = {
    0x30000001: "initialize",
    0x4B: "mm_initialize",
    0x25: "register_gpu",
    0x26: "unregister_gpu",
    0x19: "register_vaspace",
    0x1A: "unregister_vaspace",
    0x1B: "register_channel",
    0x1C: "unregister_channel",
    0x49: "create_range",
    0x21: "map",
    0x42: "unmap",
    0x22: "free",
    0x1D: "enable_peer",
    0x1E: "disable_peer",
    0x48: "validate_range",
}
KNOWN_FLAGS: Final = 3
MOST_ATTRIBUTES: Final = 256
READ_ONLY: Final = 3
MAPPING_TYPES: Final = range(4)
CACHING_TYPES: Final = range(3)


@dataclass(eq=False)
class Range:
    """Addresses set apart. `channels` hold theirs for contexts, on the card `gpu`."""

    base: int
    size: int
    channels: list[Channel] = field(default_factory=list)


class Uvm:
    """An open file of UVM: one address space over all of its cards."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.is_initialized = False
        self.gpus: list[Gpu] = []
        self.spaces: dict[Gpu, VaSpace] = {}
        self.ranges: dict[int, Range] = {}
        self.peers: set[frozenset[Gpu]] = set()

    def ioctl(self, number: int, argument: int) -> int:
        """A request, whose result is in its structure."""
        self.machine.requested.append(f"uvm {number:#x}")
        name = REQUESTS.get(number)
        if name is None:
            return errno.EINVAL
        record = Record(self.machine.layouts[f"uvm_{name}"], argument)
        handler: Callable[[Record], None] = getattr(self, name)
        try:
            if status := self.machine.failures.get(self.machine.requested[-1], 0):
                raise Refused(Status(status))
            if not self.is_initialized and name not in ("initialize", "mm_initialize"):
                raise Refused(Status.ILLEGAL_ACTION)
            handler(record)
            record["rmStatus"] = Status.OK
        except Refused as refused:
            record["rmStatus"] = refused.status
        return 0

    def close(self) -> None:
        """All of it ends with the file."""
        for base in list(self.ranges):
            self.drop(base)
        for space in self.spaces.values():
            space.is_registered = False

    # --- cards and address spaces

    def initialize(self, r: Record) -> None:
        if r["flags"] & ~KNOWN_FLAGS or self.is_initialized:
            raise Refused(Status.INVALID_ARGUMENT if not self.is_initialized else Status.IN_USE)
        self.is_initialized = True

    def mm_initialize(self, r: Record) -> None:
        other = self.machine.file_of(r["uvmFd"])
        if other is None or other.uvm is None or other.uvm is self:
            raise Refused(Status.INVALID_ARGUMENT)
        if not other.uvm.is_initialized:
            raise Refused(Status.ILLEGAL_ACTION)

    def gpu_at(self, r: Record, offset: int = 0, *, registered: bool = True) -> Gpu:
        """A card by the UUID at an offset of a request."""
        identity = bytes(r.bytes[offset : offset + 16])
        known = self.gpus if registered else self.machine.gpus
        found = next((gpu for gpu in known if gpu.identity == identity), None)
        if found is None:
            raise Refused(Status.INVALID_DEVICE)
        if found.is_lost:
            raise Refused(Status.GPU_IS_LOST)
        return found

    def client_of(self, r: Record) -> Client:
        """The client that a request names."""
        if "rmCtrlFd" in r:
            control = self.machine.file_of(r["rmCtrlFd"])
            if control is None or control.path != "/dev/nvidiactl":
                raise Refused(Status.INVALID_ARGUMENT)
        return self.machine.resources.client(r["hClient"])

    def register_gpu(self, r: Record) -> None:
        gpu = self.gpu_at(r, registered=False)
        if not self.machine.resources.is_open(gpu):
            raise Refused(Status.INVALID_DEVICE)
        if gpu not in self.gpus:
            self.gpus.append(gpu)
        r["numaEnabled"], r["numaNodeId"] = 0, -1

    def unregister_gpu(self, r: Record) -> None:
        gpu = self.gpu_at(r)
        if gpu in self.spaces:
            raise Refused(Status.IN_USE)
        self.gpus.remove(gpu)

    def register_vaspace(self, r: Record) -> None:
        gpu = self.gpu_at(r)
        space = self.client_of(r).get(r["hVaSpace"], VaSpace)
        if space.gpu is not gpu or gpu in self.spaces:
            raise Refused(Status.INVALID_DEVICE)
        if not space.is_external or space.is_registered:
            raise Refused(Status.INVALID_STATE)
        self.spaces[gpu] = space
        space.is_registered = True

    def unregister_vaspace(self, r: Record) -> None:
        gpu = self.gpu_at(r)
        space = self.spaces.pop(gpu, None)
        if space is None:
            raise Refused(Status.INVALID_DEVICE)
        for address in list(space.mapped):
            space.unmap(address)
        space.is_registered = False

    def space_of(self, gpu: Gpu) -> VaSpace:
        """The address space of a card."""
        if gpu not in self.spaces:
            raise Refused(Status.INVALID_DEVICE)
        return self.spaces[gpu]

    def enable_peer(self, r: Record) -> None:
        one, other = self.gpu_at(r), self.gpu_at(r, 16)
        if one is other or not self.machine.peers:
            raise Refused(Status.NOT_SUPPORTED)
        self.peers.add(frozenset((one, other)))

    def disable_peer(self, r: Record) -> None:
        pair = frozenset((self.gpu_at(r), self.gpu_at(r, 16)))
        if pair not in self.peers:
            raise Refused(Status.INVALID_DEVICE)
        self.peers.remove(pair)

    # --- channels

    def register_channel(self, r: Record) -> None:
        gpu = self.gpu_at(r)
        channel = self.client_of(r).get(r["hChannel"], Channel)
        if channel.space is not self.space_of(gpu):
            raise Refused(Status.INVALID_STATE)
        if channel.is_registered:
            raise Refused(Status.INVALID_STATE)
        base, size = r["base"], r["length"]
        shared = self.ranges.get(base)
        if shared is None or shared.size != size or not shared.channels:
            self.set_apart(base, size)
        if size < self.machine.resources.context_bytes(channel):
            del self.ranges[base]
            raise Refused(Status.NO_MEMORY)
        self.ranges[base].channels.append(channel)
        channel.is_registered = True

    def unregister_channel(self, r: Record) -> None:
        channel = self.client_of(r).get(r["hChannel"], Channel)
        if not channel.is_registered:
            raise Refused(Status.INVALID_STATE)
        channel.is_registered = False
        for found in list(self.ranges.values()):
            if channel in found.channels:
                found.channels.remove(channel)
                if not found.channels:
                    del self.ranges[found.base]

    # --- memory

    def set_apart(self, base: int, size: int) -> None:
        """Make addresses a range. Raises Refused."""
        if base % PAGE or size % PAGE or not size:
            raise Refused(Status.INVALID_ADDRESS)
        if not base or base + size > 1 << 47:
            raise Refused(Status.INVALID_ADDRESS)
        if any(f.base < base + size and base < f.base + f.size for f in self.ranges.values()):
            raise Refused(Status.INVALID_ADDRESS)
        self.ranges[base] = Range(base, size)

    def create_range(self, r: Record) -> None:
        self.set_apart(r["base"], r["length"])

    def range_around(self, base: int, size: int) -> Range:
        """The range that addresses lie in."""
        for found in self.ranges.values():
            if found.base <= base and base + size <= found.base + found.size and size:
                if found.channels:
                    break
                return found
        raise Refused(Status.INVALID_ADDRESS)

    def map(self, r: Record) -> None:
        """Map a part of an allocation into a range, on one card or several."""
        if not 0 < r["count"] <= MOST_ATTRIBUTES:
            raise Refused(Status.INVALID_ARGUMENT)
        base, size, offset = r["base"], r["length"], r["offset"]
        if base % PAGE or size % PAGE or offset % PAGE or not size:
            raise Refused(Status.INVALID_ADDRESS)
        self.range_around(base, size)
        memory = self.client_of(r).get(r["hMemory"], Memory)
        if offset + size > memory.pages.size:
            raise Refused(Status.INVALID_ARGUMENT)
        layout = self.machine.layouts["uvm_map_attributes"]
        places = [r.address + 24 + layout.size * n for n in range(r["count"])]
        for attributes in [Record(layout, place) for place in places]:
            self.map_on(self.gpu_at(attributes), memory, base, size, offset, attributes)

    def map_on(
        self, gpu: Gpu, memory: Memory, base: int, size: int, offset: int, attributes: Record
    ) -> None:
        """Map on one card."""
        space, pages = self.space_of(gpu), memory.pages
        kind, caching = attributes["mappingType"], attributes["cachingType"]
        others = ("formatType", "elementBits", "compressionType")
        if kind not in MAPPING_TYPES or caching not in CACHING_TYPES:
            raise Refused(Status.INVALID_ARGUMENT)
        if any(attributes[name] for name in others):
            raise Refused(Status.INVALID_ARGUMENT)
        if pages.gpu not in (None, gpu):
            assert pages.gpu is not None
            if frozenset((gpu, pages.gpu)) not in self.peers:
                raise Refused(Status.INVALID_DEVICE)
        if base < space.base or base + size > space.limit:
            raise Refused(Status.INVALID_ADDRESS)
        if space.overlaps(base, size):
            raise Mistake(f"{size:#x} bytes at {base:#x} are mapped, and are mapped again")
        is_cached = caching == 2 or (caching == 0 and pages.gpu is gpu)
        mapping = Mapping(pages, offset, size, kind != READ_ONLY, is_cached)
        data = pages.data[offset : offset + size]
        if kind == READ_ONLY:
            data = data.view()
            data.flags.writeable = False
        space.map(base, mapping, data, f"{size} bytes")

    def unmap(self, r: Record) -> None:
        space = self.space_of(self.gpu_at(r, 16))
        if r["base"] not in space.mapped or space.mapped[r["base"]].size != r["length"]:
            raise Refused(Status.INVALID_ADDRESS)
        space.unmap(r["base"])

    def free(self, r: Record) -> None:
        found = self.ranges.get(r["base"])
        if found is None or found.channels:
            raise Refused(Status.INVALID_ADDRESS)
        if "length" in r and r["length"] not in (0, found.size):
            raise Refused(Status.INVALID_ADDRESS)
        self.drop(r["base"])

    def drop(self, base: int) -> None:
        """Forget a range and what is mapped in it."""
        found = self.ranges.pop(base)
        for channel in found.channels:
            channel.is_registered = False
        for space in self.spaces.values():
            for address in list(space.mapped):
                if found.base <= address < found.base + found.size:
                    space.unmap(address)

    def validate_range(self, r: Record) -> None:
        self.range_around(r["base"], r["length"])
