"""Requests to the stand-in of NVIDIA's driver as a program without any driver of ours makes them.

Structures are filled by the names of their fields (rm_standin.layouts); nothing here checks
anything: statuses are returned, for tests to look at.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import struct
from dataclasses import dataclass, field
from typing import Final

from cubin import code_of
from executor.launch import Kernel
from executor.syntax import parse
from rm_standin import Machine
from rm_standin.gpu import Gpu
from rm_standin.layouts import Record
from rm_standin.qmd import FIELDS, RELEASE_FIELDS, RELEASE_PLACES, SHIFTED

__all__ = ["Buffer", "Channels", "Launch", "Opened", "Raw"]

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
        """Its content."""
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


ENTRIES: Final = 16
USERD_OFFSET: Final = 8 * ENTRIES // 512 * 512 + 512
GP_GET, GP_PUT = 0x88, 0x8C
DOORBELL: Final = 0x90
CONTEXT_BYTES: Final = 64 << 20


def methods(subchannel: int, method: int, *values: int, form: int = 1) -> list[int]:
    """A header, and the values of methods from one on; form 3 gives all to the same one."""
    return [form << 29 | len(values) << 16 | subchannel << 13 | method >> 2, *values]


def halves(number: int) -> tuple[int, int]:
    """The low and the high word."""
    return number & 0xFFFFFFFF, number >> 32


def release(address: int, value: int, *, flags: int = 1 << 20 | 1 << 24) -> list[int]:
    """SEM_EXECUTE: a semaphore is set, after all before it."""
    return methods(0, 0x5C, *halves(address), *halves(value), 1 | flags)


def acquire(address: int, value: int) -> list[int]:
    """SEM_EXECUTE: wait until a semaphore is at least at a value."""
    return methods(0, 0x5C, *halves(address), *halves(value), 3 | 1 << 24)


class Channels:
    """A group with a channel that computes and one that copies, and memory to push from."""

    def __init__(self, opened: Opened, *, starts: bool = True) -> None:
        self.opened = opened
        raw = opened.raw
        self.notifier = opened.buffer(PAGE, video=False)
        self.notifier.bytes[:] = bytes(PAGE)
        self.rings = [opened.buffer(PAGE), opened.buffer(PAGE)]
        self.commands = opened.buffer(16 * PAGE)
        self.used = 0
        self.group = opened.got(
            opened.device, 0xA06C, raw.record("group", hVASpace=opened.space, engineType=1)
        )
        share = raw.record("context_share", hVASpace=opened.space, flags=1)
        self.share = opened.got(self.group, 0x9067, share)
        facts = opened.gpu.facts
        self.classes = [facts.compute, facts.copy]
        self.handles = [self.channel(ring) for ring in self.rings]
        self.engines = [
            opened.got(handle, number)
            for handle, number in zip(self.handles, self.classes, strict=True)
        ]
        self.puts = [0, 0]
        usermode = opened.got(opened.subdevice, max(facts.usermodes))
        self.page = opened.host_view(usermode, 1 << 16)
        self.debugger = opened.got(
            opened.device,
            0x83DE,
            raw.record("debugger", hAppClient=opened.root, hClass3dObject=self.engines[0]),
        )
        if starts:
            self.start()

    def parameters(self, ring: Buffer, **values: int) -> Record:
        """The structure of a channel."""
        fields = {
            "hObjectError": self.notifier.handle,
            "gpFifoOffset": ring.address,
            "gpFifoEntries": ENTRIES,
            "hContextShare": self.share,
            "hUserdMemory": ring.handle,
            "userdOffset": USERD_OFFSET,
        }
        return self.opened.raw.record("channel", **(fields | values))

    def channel(self, ring: Buffer) -> int:
        """A channel of the group."""
        facts = self.opened.gpu.facts
        return self.opened.got(self.group, max(facts.channels), self.parameters(ring))

    def register(self, handle: int, base: int, size: int = CONTEXT_BYTES) -> int:
        """UVM_REGISTER_CHANNEL: the status."""
        record = self.opened.named("uvm_register_channel", hChannel=handle, base=base, length=size)
        return self.opened.raw.uvm(self.opened.uvm_file, 0x1B, record)

    def schedule(self) -> int:
        """GPFIFO_SCHEDULE: the status."""
        raw = self.opened.raw
        return raw.control(
            self.opened.root, self.group, 0xA06C0101, raw.record("schedule", bEnable=1)
        )

    def start(self) -> None:
        """Contexts, tokens, schedule."""
        raw, root = self.opened.raw, self.opened.root
        self.tokens = []
        for index, handle in enumerate(self.handles):
            assert self.register(handle, 0x70_0000_0000 + index * CONTEXT_BYTES) == 0
            token = raw.record("token")
            assert raw.control(root, handle, 0xC36F0108, token) == 0
            self.tokens.append(token["token"])
        assert self.schedule() == 0

    # --- submission

    def write(self, words: list[int]) -> int:
        """Put words where they can be pushed from; their address."""
        place = self.used
        self.used += 4 * len(words)
        for index, word in enumerate(words):
            self.commands.word(place + 4 * index, word)
        return self.commands.address + place

    def entry(self, index: int, entry: int) -> None:
        """Put an entry into a ring."""
        ring, put = self.rings[index], self.puts[index]
        ring.word(8 * put, entry, 8)
        self.puts[index] = (put + 1) % ENTRIES
        ring.word(USERD_OFFSET + GP_PUT, self.puts[index])

    def ring(self, token: int) -> None:
        """Ring the doorbell."""
        ctypes.c_uint32.from_address(self.page + DOORBELL).value = token

    def push(self, index: int, *parts: list[int], runs: bool = True) -> None:
        """Submit methods to a channel: 0 computes, 1 copies."""
        words = [word for part in parts for word in part]
        address = self.write(words)
        self.entry(index, address | 1 << 41 | len(words) << 42)
        self.ring(self.tokens[index])
        if runs:
            self.opened.raw.machine.pump()

    def bind(self) -> None:
        """The classes on their subchannels, and windows."""
        windows = methods(1, 0x2A0, 0x7294, 0) + methods(1, 0x7B0, 0x7293, 0)
        self.push(0, methods(1, 0, self.classes[0]), windows)
        self.push(1, methods(4, 0, self.classes[1]))

    @property
    def error(self) -> int:
        """The code of the error notifier; 0 without one."""
        told = self.notifier.word(14, width=2) == 0xFFFF
        return self.notifier.word(8) if told else 0


class Launch:
    """A kernel in memory, with its descriptor and constant bank 0, as a driver builds them."""

    def __init__(self, channels: Channels, source: str, parameters: bytes) -> None:
        self.channels = channels
        opened = channels.opened
        facts = opened.gpu.facts
        self.version = facts.qmd[0]
        self.code = opened.buffer(8 * PAGE)
        self.code.bytes[:] = bytes(8 * PAGE)
        kernel = Kernel(parse(source), "k")
        self.made = code_of(kernel.module, "k", source.encode(), facts.arch)
        self.place_code()
        self.bank = opened.buffer(PAGE)
        self.bank.bytes[:] = bytes(PAGE)
        self.descriptor = opened.buffer(PAGE)
        self.descriptor.bytes[:] = bytes(PAGE)
        self.bank_bytes = facts.bank.parameters + len(parameters)
        self.bank.bytes[facts.bank.parameters : self.bank_bytes] = parameters
        self.fill((1, 1, 1), (1, 1, 1))

    def place_code(self) -> None:
        """Copy the code and relocate it."""
        packed = bytearray(self.made.packed(0))
        low, high = halves(self.code.address + self.made.ADDEND)
        struct.pack_into("<I", packed, self.made.LOW_PLACE, low)
        struct.pack_into("<I", packed, self.made.HIGH_PLACE, high)
        self.code.bytes[: len(packed)] = bytes(packed)

    def put(self, name: str, value: int, index: int = 0) -> None:
        """Set a field of the descriptor."""
        first, count, distance = FIELDS[self.version][name]
        self.put_bits(first + index * distance, count, value)

    def put_bits(self, first: int, count: int, value: int) -> None:
        """Set bits of the descriptor."""
        size = self.channels.opened.gpu.facts.qmd[1]
        number = int.from_bytes(self.descriptor.bytes[:size], "little")
        number &= ~(((1 << count) - 1) << first)
        number |= (value & (1 << count) - 1) << first
        self.descriptor.bytes[:size] = number.to_bytes(size, "little")

    def put_pair(self, name: str, value: int) -> None:
        """Set an address of two fields."""
        low, high = halves(value >> SHIFTED[self.version].get(name, 0))
        self.put(f"{name}_low", low)
        self.put(f"{name}_high", high)

    def put_release(self, address: int, value: int, structure: int = 0) -> None:
        """Have the end of the kernel set a semaphore."""
        for name, number in (("enable", 1), ("structure", structure), ("membar", 1), ("long", 1)):
            first, count, _ = RELEASE_FIELDS[self.version][f"release_{name}"]
            self.put_bits(first, count, number)
        low, high, high_bits, payload = RELEASE_PLACES[self.version][0]
        self.put_bits(low, 32, address & 0xFFFFFFFF)
        self.put_bits(high, high_bits, address >> 32)
        self.put_bits(payload, 64, value)

    def fill(self, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        """All fields, and the driver's words of bank 0."""
        facts = self.channels.opened.gpu.facts
        self.put("major", self.version)
        if self.version > 3:
            self.put("type", 2)
        for name in ("call_limit", "membar", "invalidate_data", "constants_invalidate"):
            self.put(name, 1)
        self.put("constants_valid", 1)
        self.put_pair("constants", self.bank.address)
        self.put("constants_size", -(-self.bank_bytes // 16))
        self.put_pair("program", self.code.address)
        self.put("registers", self.made.registers)
        self.put("barriers", 1)
        shared = -(-(0x400 + self.made.shared) // 128) * 128
        self.put("shared", shared >> (7 if self.version == 5 else 0))
        least = next(kib for kib in facts.shared_choices if kib << 10 >= shared)
        self.put("shared_min", least // 4 + 1)
        self.put("shared_target", least // 4 + 1)
        self.put("shared_max", max(facts.shared_choices) // 4 + 1)
        for axis, count, threads in zip("xyz", grid, block, strict=True):
            self.put(f"grid_{axis}", count)
            self.put(f"block_{axis}", threads)
        bank = facts.bank
        for index in range(3):
            self.bank.word(bank.block + 4 * index, block[index])
            self.bank.word(bank.grid + 4 * index, grid[index])
        self.bank.word(bank.shared_window, 0x7294_0000_0000, 8)
        self.bank.word(bank.local_window, 0x7293_0000_0000, 8)
        self.bank.word(bank.stack, 0xFFFDC0)
        if bank.own_address is not None:
            self.bank.word(bank.own_address, self.bank.address, 8)

    def send(self, action: int = 3) -> list[int]:
        """The methods of a launch."""
        return methods(1, 0x2B4, self.descriptor.address >> 8) + methods(1, 0x2C0, action)
