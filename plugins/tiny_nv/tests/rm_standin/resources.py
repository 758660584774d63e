"""The resource manager: what clients allocate, and how it may be mapped.

open-gpu-kernel-modules 580.142: nvos.h, class/*.h, alloc_channel.h, rs_server.c, mem_mgr.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from rm_standin.channels import Ring
from rm_standin.controls import Controls
from rm_standin.gpu import Gpu, Pages, pages_at, pages_of
from rm_standin.layouts import Record
from rm_standin.objects import (
    Channel,
    Client,
    ContextShare,
    Debugger,
    Device,
    Engine,
    Event,
    Group,
    Mapping,
    Memory,
    Object,
    Subdevice,
    Usermode,
    VaSpace,
    Virtual,
)
from rm_standin.status import Mistake, Refused, Status

if TYPE_CHECKING:
    from rm_standin.machine import Machine, OpenFile

__all__ = ["Resources"]

PAGE: Final = 4096
ROOTS: Final = (0x0, 0x1, 0x41)
VIDEO_MEMORY, SYSTEM_MEMORY, HOST_MEMORY = 0x40, 0x3E, 0x71
VIRTUAL: Final = (0x70, 0x50A0)
CHANNELS: Final = (0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F)
USERMODES: Final = (0xC361, 0xC461, 0xC561, 0xC661, 0xC761)
WITH_BAR1: Final = (0xC661, 0xC761)
COMPUTES: Final = (0xC5C0, 0xC6C0, 0xC7C0, 0xC9C0, 0xCBC0, 0xCDC0, 0xCEC0)
COPIES: Final = (0xC5B5, 0xC6B5, 0xC7B5, 0xC8B5, 0xC9B5, 0xCAB5)
DEBUGGER: Final = 0x83DE
EVENTS: Final = (0x5, 0x79)
SANDBOX_REFUSES: Final = {0x70, 0x2, 0xC361, 0xC561, 0xDA}
"""Classes that gVisor's nvproxy does not let through."""

PAGE_BYTES: Final = {0: 1 << 16, 1: 1 << 12, 2: 1 << 16, 3: 1 << 21}
"""By the field PAGE_SIZE of an allocation's attributes."""
LOCATION_VIDEO, LOCATION_SYSTEM = 0, 1
CACHED: Final = (1, 5)
ALIGNMENT_FORCE: Final = 0x100
EXTERNALLY_OWNED, PAGE_FAULTING = 1 << 3, 1 << 6
HOST_FLAGS: Final = 0x40001010
"""NONCONTIGUOUS, COHERENCY_CACHED and MAPPING_NO_MAP."""
USERD_BYTES: Final = 512
RING_ENTRY: Final = 8
ENGINE_GRAPHICS, FIRST_COPY_ENGINE, LAST_COPY_ENGINE = 1, 9, 0x12
EVENT_OF_INTERRUPTS: Final = 1 << 30
"""NV01_EVENT_NONSTALL_INTR."""
FIXED_OFFSET: Final = 1 << 15
CONTEXT_BYTES: Final = 0x1800000
DOORBELL_BYTES: Final = 1 << 16


class Resources:
    """All clients and what they have."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.clients: dict[int, Client] = {}
        self.doorbells: dict[Gpu, Pages] = {}
        self.channels: list[Channel] = []
        """Channels that are open, the oldest first."""
        self.controls = Controls(self)
        self._next_client = 0xC1D00001
        self._next_channel = 1

    # --- looking up

    def client(self, handle: int) -> Client:
        """A client. Raises Refused."""
        if handle not in self.clients:
            raise Refused(Status.INVALID_CLIENT)
        return self.clients[handle]

    def spaces(self) -> Iterator[VaSpace]:
        """All address spaces."""
        for client in self.clients.values():
            for found in client.objects.values():
                if isinstance(found, VaSpace):
                    yield found
                elif isinstance(found, Device) and found.default is not None:
                    yield found.default

    def is_open(self, gpu: Gpu) -> bool:
        """True if the process has the file of a card open."""
        files = self.machine.files.values()
        return any(file.gpu is gpu and file.control is not None for file in files)

    def doorbell(self, gpu: Gpu) -> Pages:
        """The page that tokens are written to."""
        if gpu not in self.doorbells:
            pages = pages_of(self.machine.backing, DOORBELL_BYTES, DOORBELL_BYTES, None)
            pages.data[:] = 0xFF
            self.doorbells[gpu] = pages
        return self.doorbells[gpu]

    def context_bytes(self, channel: Channel) -> int:
        """Bytes that a channel's context needs."""
        return CONTEXT_BYTES if channel.engine == ENGINE_GRAPHICS else 0x10000

    # --- RM_ALLOC

    def alloc(self, file: int, r: Record) -> int:
        """Make an object. The status."""
        number = r["hClass"]
        if self.machine.sandbox and number in SANDBOX_REFUSES:
            raise Refused(Status.INVALID_CLASS)
        if number in ROOTS:
            return self.alloc_root(file, r)
        client = self.client(r["hRoot"])
        parent = client.objects.get(r["hObjectParent"])
        if parent is None:
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        if r["hObjectNew"] in client.objects:
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        handle = r["hObjectNew"] or next(client.numbers)
        made = self.make(client, parent, handle, number, r)
        client.objects[handle] = parent.children[handle] = made
        r["hObjectNew"] = handle
        return Status.OK

    def alloc_root(self, file: int, r: Record) -> int:
        """A client."""
        if r["hRoot"] or r["hObjectParent"]:
            raise Refused(Status.INVALID_ARGUMENT)
        handle, self._next_client = self._next_client, self._next_client + 1
        client = Client(handle, 0x41, None, file=file)
        client.objects[handle] = client
        self.clients[handle] = client
        r["hObjectNew"] = handle
        return Status.OK

    def make(self, client: Client, parent: Object, handle: int, number: int, r: Record) -> Object:
        """An object below its parent."""
        if number == 0x80:
            return self.make_device(client, parent, handle, number, r)
        if isinstance(parent, Client):
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        gpu = parent.gpu
        if gpu.is_lost:
            raise Refused(Status.GPU_IS_LOST)
        if number not in gpu.facts.classes:
            raise Refused(Status.INVALID_CLASS)
        makers: dict[int, Callable[..., Object]] = {
            0x2080: self.make_subdevice,
            0x90F1: self.make_space,
            0xA06C: self.make_group,
            0x9067: self.make_context_share,
            VIDEO_MEMORY: self.make_memory,
            SYSTEM_MEMORY: self.make_memory,
            DEBUGGER: self.make_debugger,
            **dict.fromkeys(CHANNELS, self.make_channel),
            **dict.fromkeys(USERMODES, self.make_usermode),
            **dict.fromkeys((*COMPUTES, *COPIES), self.make_engine),
            **dict.fromkeys(VIRTUAL, self.make_virtual),
            **dict.fromkeys(EVENTS, self.make_event),
        }
        if number not in makers:
            raise Refused(Status.INVALID_CLASS)
        return makers[number](client, parent, handle, number, r)

    def parameters(self, r: Record, name: str, *, optional: bool = False) -> Record | None:
        """The structure that a class takes. Raises Refused where its size is another."""
        layout = self.machine.layouts[name]
        if not r["pAllocParms"]:
            if optional and not r["paramsSize"]:
                return None
            raise Refused(Status.INVALID_ARGUMENT)
        if r["paramsSize"] not in (0, layout.size):
            raise Refused(Status.INVALID_PARAM_STRUCT)
        return Record(layout, r["pAllocParms"])

    def needed(self, r: Record, name: str) -> Record:
        """The structure that a class cannot do without."""
        found = self.parameters(r, name)
        assert found is not None
        return found

    def below(self, parent: Object, *kinds: type[Object]) -> None:
        """Refuse another parent than one of these."""
        if not isinstance(parent, kinds):
            raise Refused(Status.INVALID_OBJECT_HANDLE)

    def make_device(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Client)
        p = self.needed(r, "device")
        gpus = self.machine.gpus
        if p["deviceId"] >= len(gpus) or not self.is_open(gpus[p["deviceId"]]):
            raise Refused(Status.INVALID_DEVICE)
        if p["hClientShare"] not in (0, client.handle) or p["vaMode"] > 2:
            raise Refused(Status.INVALID_ARGUMENT)
        gpu = gpus[p["deviceId"]]
        if gpu.is_lost:
            raise Refused(Status.GPU_IS_LOST)
        return Device(handle, number, parent, owner=gpu)

    def make_subdevice(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Device)
        if self.needed(r, "subdevice")["subDeviceId"]:
            raise Refused(Status.INVALID_ARGUMENT)
        return Subdevice(handle, number, parent)

    def make_usermode(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Subdevice)
        p = None
        if number in WITH_BAR1:
            p = self.parameters(r, "usermode", optional=True)
        elif r["pAllocParms"]:
            raise Refused(Status.INVALID_PARAM_STRUCT)
        if p is not None and p["bPriv"]:
            raise Refused(Status.INSUFFICIENT_PERMISSIONS)
        return Usermode(handle, number, parent, is_bar1=p is not None and p["bBar1Mapping"] == 1)

    def make_space(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Device)
        p, bits = self.needed(r, "vaspace"), parent.gpu.facts.address_bits
        if p["index"]:
            raise Refused(Status.INVALID_ARGUMENT)
        base, size = p["vaBase"], p["vaSize"] or (1 << bits) - p["vaBase"]
        if base + size > 1 << bits or base % PAGE:
            raise Refused(Status.INVALID_ARGUMENT)
        is_external = bool(p["flags"] & EXTERNALLY_OWNED)
        if is_external and not p["flags"] & PAGE_FAULTING:
            raise Refused(Status.INVALID_ARGUMENT)
        return VaSpace(
            handle, number, parent, base=base, limit=base + size, is_external=is_external
        )

    def make_virtual(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Device)
        made = Virtual(handle, number, parent)
        made.space = self.space_named(client, parent, self.needed(r, "virtual")["hVASpace"])
        return made

    def space_named(self, client: Client, device: Object, handle: int) -> VaSpace:
        """An address space by its handle; 0 is the device's own."""
        if handle:
            return client.get(handle, VaSpace)
        assert isinstance(device, Device)
        if device.default is None:
            limit = 1 << device.gpu.facts.address_bits
            device.default = VaSpace(0, 0x90F1, device, base=PAGE, limit=limit)
        return device.default

    # --- memory

    def make_memory(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Device)
        p, gpu = self.needed(r, "memory"), parent.gpu
        attr, attr2 = p["attr"], p["attr2"]
        location = attr >> 25 & 3
        if location != (LOCATION_VIDEO if number == VIDEO_MEMORY else LOCATION_SYSTEM):
            raise Refused(Status.INVALID_ARGUMENT)
        alignment = p["alignment"]
        if not p["size"] or (p["flags"] & ALIGNMENT_FORCE and alignment & alignment - 1):
            raise Refused(Status.INVALID_ARGUMENT)
        page = PAGE_BYTES[attr >> 23 & 3] if number == VIDEO_MEMORY else PAGE
        if attr >> 23 & 3 == 3 and attr2 >> 20 & 3 == 2:
            page = 1 << 29
        size = -(-p["size"] // page) * page
        owner = gpu if number == VIDEO_MEMORY else None
        if owner is not None and gpu.used_bytes + size > gpu.facts.memory_bytes:
            raise Refused(Status.NO_MEMORY)
        usable = min(getattr(self.machine.exact, "size", 0) or size, size)
        try:
            pages = pages_of(self.machine.backing, size, usable, owner)
        except MemoryError as error:
            raise Refused(Status.NO_MEMORY) from error
        pages.is_cached = number == SYSTEM_MEMORY and attr >> 29 in CACHED
        p["size"], p["limit"], p["alignment"] = size, size - 1, max(alignment, page)
        p["offset"] = pages.offset
        return Memory(handle, number, parent, pages=pages)

    def register_host(self, file: OpenFile, r: Record) -> int:
        """RM_ALLOC_MEMORY: pages of the process."""
        if r["hClass"] not in (HOST_MEMORY, SYSTEM_MEMORY, VIDEO_MEMORY):
            raise Refused(Status.INVALID_CLASS)
        if r["hClass"] != HOST_MEMORY:
            raise Mistake(f"class {r['hClass']:#x} is allocated by the old call")
        client = self.client(r["hRoot"])
        device = client.get(r["hObjectParent"], Device)
        if device.gpu is not file.gpu:
            raise Refused(Status.INVALID_DEVICE)
        if device.gpu.is_lost:
            raise Refused(Status.GPU_IS_LOST)
        if not r["hObjectNew"] or r["hObjectNew"] in client.objects:
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        size = r["limit"] + 1
        if r["pMemory"] % PAGE or size % PAGE or not r["pMemory"] or r["fd"] != 0xFFFFFFFF:
            raise Refused(Status.INVALID_ARGUMENT)
        if r["flags"] & HOST_FLAGS != HOST_FLAGS:
            raise Refused(Status.INVALID_ARGUMENT)
        if not self.is_mapped_by_host(r["pMemory"], size):
            raise Refused(Status.INVALID_ADDRESS)
        usable = min(getattr(self.machine.exact, "size", 0) or size, size)
        pages = pages_at(r["pMemory"], size)
        pages.data = pages.data[:usable]
        made = Memory(r["hObjectNew"], HOST_MEMORY, device, pages=pages)
        client.objects[made.handle] = device.children[made.handle] = made
        return Status.OK

    def is_mapped_by_host(self, address: int, size: int) -> bool:
        """True if the process has all of these pages."""
        vector = (ctypes.c_uint8 * (size // PAGE))()
        place = (ctypes.c_void_p(address), ctypes.c_size_t(size))
        return not self.machine.libc.mincore(*place, vector)

    def mappable(self, r: Record) -> tuple[Memory | Usermode, int, int]:
        """Target of RM_MAP_MEMORY: the object, its offset in the backing file, and bytes."""
        client = self.client(r["hClient"])
        thing = client.objects.get(r["hMemory"])
        above = client.objects.get(r["hDevice"])
        if not isinstance(thing, Memory | Usermode):
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        if not isinstance(above, Device | Subdevice) or above.gpu is not thing.gpu:
            raise Refused(Status.INVALID_DEVICE)
        if thing.gpu.is_lost:
            raise Refused(Status.GPU_IS_LOST)
        pages = thing.pages if isinstance(thing, Memory) else self.doorbell(thing.gpu)
        if pages.host_address:
            raise Refused(Status.NOT_SUPPORTED)
        offset, size = r["offset"], r["length"]
        if not size or offset % PAGE or offset + size > pages.size:
            raise Refused(Status.INVALID_ARGUMENT)
        return thing, pages.offset + offset, size

    def take_bar(self, memory: Memory, size: int) -> None:
        """Use a part of the window through which the host sees a card's memory."""
        gpu = memory.pages.gpu
        if gpu is None:
            return
        if gpu.bar1_used + size > gpu.facts.bar1_bytes:
            raise Refused(Status.INSUFFICIENT_RESOURCES)
        gpu.bar1_used += size
        memory.host_size += size

    def give_bar(self, memory: Memory) -> None:
        """Take `take_bar` back."""
        if memory.pages.gpu is not None:
            memory.pages.gpu.bar1_used -= memory.host_size
            memory.host_size = 0

    def map_dma(self, r: Record) -> None:
        """Map memory into an address space that the resource manager owns."""
        client = self.client(r["hClient"])
        client.get(r["hDevice"], Device)
        target = client.objects.get(r["hDma"])
        memory = client.get(r["hMemory"], Memory)
        if isinstance(target, Virtual):
            target = target.space
        if not isinstance(target, VaSpace):
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        if target.is_external:
            raise Refused(Status.INVALID_STATE)
        offset, size = r["offset"], r["length"]
        if offset % PAGE or not size or offset + size > memory.pages.size:
            raise Refused(Status.INVALID_ARGUMENT)
        size = -(-size // PAGE) * PAGE
        if r["flags"] & FIXED_OFFSET:
            address = r["dmaOffset"]
        else:
            address = target.next_free
            target.next_free += -(-size // (1 << 21)) * (1 << 21) + (1 << 21)
        if address % PAGE or address < target.base or address + size > target.limit:
            raise Refused(Status.INVALID_ADDRESS)
        if target.overlaps(address, size):
            raise Refused(Status.INVALID_ADDRESS)
        mapping = Mapping(memory.pages, offset, size, True, memory.pages.gpu is not None)
        target.map(address, mapping, memory.pages.data[offset : offset + size], f"{size} bytes")
        r["dmaOffset"] = address

    def unmap_dma(self, r: Record) -> None:
        """Take `map_dma` back."""
        target = self.client(r["hClient"]).objects.get(r["hDma"])
        if isinstance(target, Virtual):
            target = target.space
        if not isinstance(target, VaSpace) or r["dmaOffset"] not in target.mapped:
            raise Refused(Status.INVALID_ADDRESS)
        target.unmap(r["dmaOffset"])

    # --- channels

    def make_group(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Device)
        p = self.needed(r, "group")
        space = self.space_named(client, parent, p["hVASpace"])
        engine = p["engineType"]
        self.check_engine(engine)
        return Group(handle, number, parent, space=space, engine=engine)

    def check_engine(self, engine: int) -> None:
        """Graphics or a copy engine."""
        if engine != ENGINE_GRAPHICS and not FIRST_COPY_ENGINE <= engine <= LAST_COPY_ENGINE:
            raise Refused(Status.INVALID_ARGUMENT)

    def make_context_share(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Group)
        assert isinstance(parent, Group)
        p = self.needed(r, "context_share")
        space = client.get(p["hVASpace"], VaSpace) if p["hVASpace"] else parent.space
        if space.gpu is not parent.gpu or p["flags"] > 2:
            raise Refused(Status.INVALID_ARGUMENT)
        p["subctxId"] = len(parent.children)
        return ContextShare(handle, number, parent, space=space, subcontext=p["subctxId"])

    def make_channel(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Group, Device)
        p = self.needed(r, "channel")
        group = parent if isinstance(parent, Group) else None
        if group is not None and group.is_scheduled:
            raise Refused(Status.INVALID_STATE)
        space = self.space_of_channel(client, parent, p)
        entries = p["gpFifoEntries"]
        if not entries or entries & entries - 1:
            raise Refused(Status.INVALID_ARGUMENT)
        if group is None:
            self.check_engine(p["engineType"])
        userd = client.get(p["hUserdMemory"], Memory)
        offset = p["userdOffset"]
        if offset % USERD_BYTES or offset + USERD_BYTES > userd.pages.size:
            raise Refused(Status.INVALID_ARGUMENT)
        if userd.pages.host_address:
            raise Refused(Status.INVALID_ARGUMENT)
        notifier = None
        if p["hObjectError"]:
            notifier = client.get(p["hObjectError"], Memory)
            if notifier.pages.gpu is not None:
                raise Refused(Status.INVALID_ARGUMENT)
        if p["hObjectBuffer"]:
            client.get(p["hObjectBuffer"], Memory)
        number_of_channel, self._next_channel = self._next_channel, self._next_channel + 1
        made = Channel(
            handle,
            number,
            parent,
            space=space,
            group=group,
            id=number_of_channel,
            notifier=notifier,
            userd=userd,
            userd_offset=offset,
            ring_address=p["gpFifoOffset"],
            entries=entries,
            engine=group.engine if group is not None else p["engineType"],
        )
        made.ring = Ring(self.machine, made)
        self.channels.append(made)
        return made

    def space_of_channel(self, client: Client, parent: Object, p: Record) -> VaSpace:
        """The address space that a channel's parameters name."""
        if p["hContextShare"]:
            share = client.get(p["hContextShare"], ContextShare)
            if share.parent is not parent or p["hVASpace"]:
                raise Refused(Status.INVALID_ARGUMENT)
            return share.space
        if isinstance(parent, Group):
            if p["hVASpace"]:
                raise Refused(Status.INVALID_ARGUMENT)
            return parent.space
        return self.space_named(client, parent, p["hVASpace"])

    def make_engine(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Channel)
        assert isinstance(parent, Channel)
        is_compute = number in COMPUTES
        self.parameters(r, "compute_engine" if is_compute else "copy_engine", optional=True)
        if is_compute and parent.engine != ENGINE_GRAPHICS:
            raise Refused(Status.INVALID_CLASS)
        if any(child.number == number for child in parent.children.values()):
            raise Refused(Status.INVALID_STATE)
        return Engine(handle, number, parent)

    def make_debugger(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Device)
        p = self.needed(r, "debugger")
        app = self.client(p["hAppClient"])
        if app.get(p["hClass3dObject"], Engine).number not in COMPUTES:
            raise Refused(Status.INVALID_ARGUMENT)
        return Debugger(handle, number, parent)

    def make_event(
        self, client: Client, parent: Object, handle: int, number: int, r: Record
    ) -> Object:
        self.below(parent, Subdevice)
        p = self.needed(r, "event")
        if p["hParentClient"] != client.handle or p["hSrcResource"] != parent.handle:
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        if p["hClass"] != number or p["data"] not in self.machine.event_files:
            raise Refused(Status.INVALID_ARGUMENT)
        index = p["notifyIndex"]
        return Event(
            handle,
            number,
            parent,
            file=p["data"],
            index=index & 0xFFFF,
            of_interrupts=bool(index & EVENT_OF_INTERRUPTS),
        )

    # --- the end

    def free(self, r: Record) -> None:
        """RM_FREE: an object and all below it."""
        client = self.client(r["hRoot"])
        found = client.objects.get(r["hObjectOld"])
        if found is None:
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        self.drop(client, found)

    def drop(self, client: Client, found: Object) -> None:
        """Forget an object and all below it, children first."""
        for each in sorted(found.below(), key=lambda each: not isinstance(each, Channel)):
            if isinstance(each, Memory):
                self.check_unused(client, each)
                self.give_bar(each)
                each.pages.release()
            if isinstance(each, Channel):
                self.channels.remove(each)
            if isinstance(each, VaSpace):
                for address in list(each.mapped):
                    each.unmap(address)
            client.objects.pop(each.handle, None)
        if found.parent is not None:
            found.parent.children.pop(found.handle, None)
        if found is client:
            del self.clients[client.handle]

    def check_unused(self, client: Client, memory: Memory) -> None:
        """Memory that a channel reads by itself must outlive it."""
        for channel in self.channels:
            if memory in (channel.userd, channel.notifier) and channel.handle in client.objects:
                raise Mistake(
                    f"memory {memory.handle:#x} is freed, and channel {channel.id} has it"
                )

    def close_file(self, file: int) -> None:
        """All clients that were made through a file end."""
        for client in [c for c in self.clients.values() if c.file == file]:
            self.drop(client, client)

    def control(self, r: Record) -> int:
        """RM_CONTROL."""
        return self.controls.answer(r)
