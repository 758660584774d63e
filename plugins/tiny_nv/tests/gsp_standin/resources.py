"""The resource manager on a card's own processor: handles of the host's, memory by addresses.

open-gpu-kernel-modules 570.144: alloc_channel.h (NV_CHANNEL_ALLOC_PARAMS), ctrl2080gpu.h.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Final

import numpy
from rm_standin import Mistake, Status
from rm_standin.channels import Ring
from rm_standin.gpu import Pages
from rm_standin.layouts import Record
from rm_standin.objects import Channel, Client, Device, Group, Memory, Object, VaSpace
from rm_standin.resources import Resources
from rm_standin.status import Refused

from gsp_standin.memory import Memory as Physical

if TYPE_CHECKING:
    from rm_standin.machine import Machine

__all__ = ["GspResources"]

SYSTEM, VIDEO = 1, 2
PLACES: Final = {
    "instance": (144, VIDEO, 4096),
    "userd": (168, VIDEO, 512),
    "ramfc": (192, VIDEO, 512),
    "methods": (216, SYSTEM, 0x5000),
    "notifier": (248, SYSTEM, 48),
}
"""Offset in the parameters of a channel, where it may be, and its size at least."""
INTERNAL_FLAGS: Final = 0x1A
OWN_TABLES: Final = 8


class GspResources(Resources):
    """Resources that the messages of one host make."""

    def __init__(self, machine: Machine, memory: Physical) -> None:
        super().__init__(machine)
        self.memory = memory
        self.roots: dict[VaSpace, int] = {}
        """Bus address of the page tables of each address space."""
        self.promoted: dict[Channel, dict[int, tuple[int, int, int]]] = {}
        """Context buffers by their numbers: virtual and physical address, and size."""

    def alloc_root(self, file: int, r: Record) -> int:
        """A client, by the host's number."""
        handle = r["hObjectNew"]
        if not handle or handle != r["hRoot"] or handle in self.clients or r["paramsSize"] != 120:
            return Status.INVALID_ARGUMENT
        if struct.unpack_from("<I", ctypes.string_at(r["pAllocParms"], 8))[0] != handle:
            return Status.INVALID_CLIENT
        client = self.clients[handle] = Client(handle, 0, None, file=file)
        client.objects[handle] = client
        return Status.OK

    def is_open(self, gpu: object) -> bool:
        """True if the card is there: it is what this runs on."""
        return True

    def make_memory(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        raise Mistake(f"memory of class {number:#x} is allocated by the GSP")

    make_usermode = make_memory

    def make_space(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Device)
        p = self.needed(r, "vaspace")
        if p["flags"] != OWN_TABLES or p["vaBase"] % 4096 or p["index"]:
            raise Refused(Status.INVALID_ARGUMENT)
        return VaSpace(handle, number, parent, base=p["vaBase"], limit=1 << 49)

    def make_channel(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Group)
        assert isinstance(parent, Group)
        if parent.is_scheduled:
            raise Refused(Status.INVALID_STATE)
        p = self.needed(r, "channel")
        raw = ctypes.string_at(r["pAllocParms"], r["paramsSize"])
        space = self.space_of_channel(client, parent, p)
        entries = p["gpFifoEntries"]
        if not entries or entries & entries - 1 or space not in self.roots:
            raise Refused(Status.INVALID_ARGUMENT)
        if struct.unpack_from("<I", raw, 244)[0] != INTERNAL_FLAGS or p["hUserdMemory"]:
            raise Refused(Status.INVALID_ARGUMENT)
        found = {name: self.place(raw, name) for name in PLACES}
        if struct.unpack_from("<Q", raw, 144) != struct.unpack_from("<Q", raw, 192):
            raise Mistake("RAMFC is not in the instance memory")
        number_of_channel, self._next_channel = self._next_channel, self._next_channel + 1
        made = Channel(
            handle,
            number,
            parent,
            space=space,
            group=parent,
            id=number_of_channel,
            notifier=Memory(0, 0x3E, parent, pages=found["notifier"]),
            userd=Memory(0, 0x40, parent, pages=found["userd"]),
            ring_address=p["gpFifoOffset"],
            entries=entries,
            engine=parent.engine,
        )
        self.refresh(space)
        made.ring = Ring(self.machine, made)
        self.channels.append(made)
        return made

    def place(self, raw: bytes, name: str) -> Pages:
        """Memory that a channel's parameters describe."""
        at, wanted, least = PLACES[name]
        base, size, space, _ = struct.unpack_from("<QQII", raw, at)
        if space != wanted or size < least or base % 512:
            raise Mistake(f"a channel's {name} memory: {size} bytes at {base:#x} in space {space}")
        physical = self.memory
        host = physical.video(base, size) if space == VIDEO else physical.host_of(base, size)
        return Pages(size, array(host, size), gpu=self.machine.gpus[0] if space == VIDEO else None)

    def make_engine(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        if number == self.machine.gpus[0].facts.compute and parent not in self.promoted:
            raise Refused(Status.INVALID_STATE)
        return super().make_engine(client, parent, handle, number, r)

    # --- page tables

    def refresh(self, space: VaSpace) -> None:
        """Look at the page tables of an address space."""
        regions = self.memory.regions(self.roots[space])
        space.memory.table = ([region.address for region in regions], regions)

    def refresh_all(self) -> None:
        """Look at all page tables: what was cached of them is forgotten."""
        for space in self.roots:
            self.refresh(space)


def array(host: int, size: int) -> numpy.ndarray:
    """Memory of the process."""
    return numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(host))
