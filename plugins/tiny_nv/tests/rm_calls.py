"""Requests to the stand-in of NVIDIA's driver as a program without any driver of ours makes them.

Structures are filled by the names of their fields (rm_standin.layouts); nothing here checks
anything: statuses are returned, for tests to look at.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from dataclasses import dataclass, field
from typing import Final

from rm_standin import Machine
from rm_standin.gpu import Gpu
from rm_standin.layouts import Record

__all__ = ["Opened", "Raw"]

PAGE: Final = 4096
VIDEO_ATTR: Final = 3 << 27
SYSTEM_ATTR: Final = 0x1A000000
HUGE: Final = 3 << 23
UVM_SPACE: Final = 0x48
FIRST_ADDRESS: Final = 0x10_0000_0000


class Raw:
    """A process that makes requests."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.kept: list[object] = []
        self.control_file = machine.open("/dev/nvidiactl")
        self.handles = itertools.count(0xA0000001)

    def record(self, name: str, **values: int) -> Record:
        """A structure in memory of its own."""
        layout = self.machine.layouts[name]
        memory = ctypes.create_string_buffer(max(layout.size, 8))
        self.kept.append(memory)
        record = Record(layout, ctypes.addressof(memory))
        for key, value in values.items():
            record[key] = value
        return record

    def escape(self, number: int, record: Record, file: int | None = None, size: int = 0) -> int:
        """A request to nvidiactl, or to another file: the errno."""
        request = 3 << 30 | (size or record.kind.size) << 16 | 0x46 << 8 | number
        return self.machine.ioctl(file or self.control_file, request, record.address)

    def alloc(self, root: int, parent: int, number: int, params: Record | None = None) -> Record:
        """RM_ALLOC."""
        record = self.record(
            "alloc",
            hRoot=root,
            hObjectParent=parent,
            hClass=number,
            pAllocParms=params.address if params else 0,
            paramsSize=params.kind.size if params else 0,
        )
        assert self.escape(0x2B, record) == 0
        return record

    def control(self, root: int, thing: int, command: int, params: Record) -> int:
        """RM_CONTROL: the status."""
        record = self.record(
            "control",
            hClient=root,
            hObject=thing,
            cmd=command,
            params=params.address,
            paramsSize=params.kind.size,
        )
        assert self.escape(0x2A, record) == 0
        return record["status"]

    def free(self, root: int, thing: int) -> int:
        """RM_FREE: the status."""
        record = self.record("free", hRoot=root, hObjectParent=root, hObjectOld=thing)
        assert self.escape(0x29, record) == 0
        return record["status"]

    def uvm(self, file: int, number: int, record: Record) -> int:
        """A request to UVM: the status."""
        assert self.machine.ioctl(file, number, record.address) == 0
        return record["rmStatus"]


@dataclass
class Buffer:
    """Memory with an address of the card, and of the host where it has one."""

    handle: int
    address: int
    size: int
    host: int = 0

    @property
    def bytes(self) -> memoryview:
        """What is in it."""
        return memoryview((ctypes.c_char * self.size).from_address(self.host)).cast("B")

    def word(self, offset: int, value: int | None = None, width: int = 4) -> int:
        """Read a number, or write it."""
        place = self.bytes[offset : offset + width]
        if value is not None:
            place[:] = value.to_bytes(width, "little")
        return int.from_bytes(place, "little")


@dataclass
class Opened:
    """A card with an address space and UVM, opened step by step."""

    raw: Raw
    gpu: Gpu
    root: int = 0
    device: int = 0
    subdevice: int = 0
    space: int = 0
    file: int = 0
    uvm_file: int = 0
    next_address: int = FIRST_ADDRESS
    buffers: list[Buffer] = field(default_factory=list)

    @classmethod
    def of(cls, machine: Machine, index: int = 0, *, root: int = 0, uvm_file: int = 0) -> Opened:
        """All steps to an address space that buffers can be mapped in."""
        made = cls(Raw(machine), machine.gpus[index], root, uvm_file=uvm_file)
        made.open_device()
        made.open_space()
        return made

    def got(self, parent: int, number: int, params: Record | None = None) -> int:
        """The handle of a new object."""
        record = self.raw.alloc(self.root, parent, number, params)
        assert record["status"] == 0, hex(record["status"])
        return record["hObjectNew"]

    def open_device(self) -> None:
        """Root, file, device, subdevice."""
        raw, machine = self.raw, self.raw.machine
        self.root = self.root or raw.alloc(0, 0, 0x41)["hObjectNew"]
        self.file = machine.open(machine.device_path(self.gpu))
        assert raw.escape(0xC9, raw.record("register_fd", ctl_fd=raw.control_file), self.file) == 0
        params = raw.record("device", deviceId=self.gpu.index, hClientShare=self.root)
        self.device = self.got(self.root, 0x80, params)
        self.subdevice = self.got(self.device, 0x2080, raw.record("subdevice"))

    def open_space(self) -> None:
        """The address space, known to UVM."""
        raw = self.raw
        space = raw.record("vaspace", flags=UVM_SPACE, vaBase=0x1000, vaSize=0x1FFFFFB000000)
        self.space = self.got(self.device, 0x90F1, space)
        if not self.uvm_file:
            self.uvm_file = raw.machine.open("/dev/nvidia-uvm")
            assert raw.uvm(self.uvm_file, 0x30000001, raw.record("uvm_initialize")) == 0
        assert raw.uvm(self.uvm_file, 0x25, self.named("uvm_register_gpu")) == 0
        register = self.named("uvm_register_vaspace", hVaSpace=self.space)
        assert raw.uvm(self.uvm_file, 0x19, register) == 0

    def named(self, name: str, **values: int) -> Record:
        """A request to UVM about this card."""
        known = self.raw.machine.layouts[name].fields
        if "rmCtrlFd" in known:
            values.setdefault("rmCtrlFd", self.raw.control_file)
            values.setdefault("hClient", self.root)
        record = self.raw.record(name, **values)
        record.bytes[:16] = self.gpu.identity
        return record

    # --- memory

    def memory(self, size: int, *, video: bool = True, attr: int | None = None) -> Record:
        """Allocate; the record of RM_ALLOC."""
        found = VIDEO_ATTR if video else SYSTEM_ATTR
        params = self.raw.record(
            "memory",
            owner=self.root,
            size=size,
            limit=size - 1,
            alignment=PAGE,
            format=6,
            flags=0x1C101,
            attr=(found | 1 << 23 if attr is None else attr),
        )
        return self.raw.alloc(self.root, self.device, 0x40 if video else 0x3E, params)

    def host_view(self, handle: int, size: int, *, video: bool = True) -> int:
        """Map memory for the host."""
        machine = self.raw.machine
        file = machine.open(machine.device_path(self.gpu) if video else "/dev/nvidiactl")
        record = self.map_record(handle, size, file)
        assert self.raw.escape(0x4E, record) == 0
        assert record["status"] == 0, hex(record["status"])
        return machine.map(0, size, 3, mmap.MAP_SHARED, file, 0)

    def map_record(self, handle: int, size: int, file: int) -> Record:
        """RM_MAP_MEMORY's structure."""
        return self.raw.record(
            "map_memory",
            hClient=self.root,
            hDevice=self.device,
            hMemory=handle,
            length=size,
            fd=file,
        )

    def map_request(self, handle: int, address: int, size: int, **values: int) -> Record:
        """UVM_MAP_EXTERNAL_ALLOCATION's structure, for this card alone."""
        record = self.raw.record(
            "uvm_map",
            base=address,
            length=size,
            count=values.pop("count", 1),
            rmCtrlFd=self.raw.control_file,
            hClient=self.root,
            hMemory=handle,
            offset=values.pop("offset", 0),
        )
        attributes = Record(self.raw.machine.layouts["uvm_map_attributes"], record.address + 24)
        attributes.bytes[:16] = self.gpu.identity
        attributes["mappingType"] = values.pop("mappingType", 1)
        attributes["cachingType"] = values.pop("cachingType", 0)
        assert not values
        return record

    def map(self, handle: int, size: int) -> int:
        """Give memory an address of the card."""
        address = self.next_address
        self.next_address += -(-size // (1 << 21)) * (1 << 21) + (1 << 21)
        made = self.raw.record("uvm_create_range", base=address, length=size)
        assert self.raw.uvm(self.uvm_file, 0x49, made) == 0
        assert self.raw.uvm(self.uvm_file, 0x21, self.map_request(handle, address, size)) == 0
        return address

    def buffer(self, size: int, *, video: bool = True) -> Buffer:
        """Memory that card and host address."""
        record = self.memory(size, video=video)
        assert record["status"] == 0
        handle = record["hObjectNew"]
        host = self.host_view(handle, size, video=video)
        made = Buffer(handle, self.map(handle, size), size, host)
        self.buffers.append(made)
        return made

    def registered(self, address: int, size: int, **values: int) -> Record:
        """RM_ALLOC_MEMORY of the process's own pages."""
        fields = {
            "hRoot": self.root,
            "hObjectParent": self.device,
            "hObjectNew": next(self.raw.handles),
            "hClass": 0x71,
            "flags": 0x40001010,
            "pMemory": address,
            "limit": size - 1,
            "fd": -1,
        }
        record = self.raw.record("alloc_memory", **(fields | values))
        assert self.raw.escape(0x27, record, self.file) == 0
        return record
