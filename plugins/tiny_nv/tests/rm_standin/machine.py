"""The operating system of a machine with cards: files, mappings, and requests to the driver.

open-gpu-kernel-modules 580.142: nv.c, escape.c, nv-mmap.c, nv-ioctl-numbers.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from emulation.backing import Backing

from rm_standin.cards import H200, CardFacts
from rm_standin.channels import Ring
from rm_standin.gpu import Gpu
from rm_standin.layouts import Layout, Record, branch_of, layouts_of
from rm_standin.objects import Event, Memory, Usermode
from rm_standin.resources import Resources
from rm_standin.status import Mistake, Refused, Status
from rm_standin.uvm import Uvm
from tiny_testing.standin import StandInFiles

__all__ = ["Machine", "OpenFile"]

PAGE: Final = 4096
FIRST_FILE: Final = 1 << 20
SHARED, PRIVATE, FIXED = 0x1, 0x2, 0x10
CONTROL, UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
LARGEST_DIRECT: Final = 1 << 14
MAGIC: Final = 0x46
DOORBELL: Final = 0x90
FIFO_EVENT: Final = 35
"""NV2080_NOTIFIERS_FIFO_EVENT_MTHD."""
SILENT: Final = 0xFFFFFFFF

ESCAPES: Final = {
    0x27: "alloc_memory",
    0x29: "free",
    0x2A: "control",
    0x2B: "alloc",
    0x4E: "map_memory",
    0x4F: "unmap_memory",
    0x57: "map_dma",
    0x58: "unmap_dma",
    0xC8: "card_info",
    0xC9: "register_fd",
    0xCE: "alloc_os_event",
    0xCF: "free_os_event",
    0xD2: "check_version",
    0xD3: "xfer",
    0xD4: "attach",
    0xD6: "sys_params",
    0xDA: "wait_open",
}
NEEDS_CONTROL: Final = {0x29, 0x2A, 0x2B, 0x4E, 0x4F, 0x57, 0x58, 0xC8, 0xD2, 0xD4, 0xD6}
"""Requests that only nvidiactl takes."""
NEEDS_DEVICE: Final = {0x27, 0xC9, 0xDA}
SANDBOX_REFUSES: Final = {0x57, 0x58}
"""gVisor's nvproxy with the capabilities compute and utility: EINVAL."""


class Errno(Exception):
    """A request that fails as a system call."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


@dataclass(eq=False)
class OpenFile:
    """A file that the process has opened."""

    number: int
    path: str
    gpu: Gpu | None = None
    control: OpenFile | None = None
    """The nvidiactl that a device's file was registered with."""
    mapping: Mapped | None = None
    """Mapping that RM_MAP_MEMORY has prepared for mmap."""
    uvm: Uvm | None = None


@dataclass(frozen=True)
class Mapped:
    """Mapping that mmap of a file gives."""

    thing: Memory | Usermode
    offset: int
    """Offset of its pages in the backing."""
    size: int
    is_bar: bool


class Machine(StandInFiles):
    """A machine with cards, as a process sees it. `use_system` puts it in place."""

    def __init__(
        self,
        cards: Iterable[CardFacts] = (H200,),
        *,
        version: str = "580.159.03",
        sandbox: bool = False,
        peers: bool = True,
        bar1_doorbells: bool = True,
    ) -> None:
        """`sandbox`: gVisor is between the process and the driver, and refuses what it does.
        `peers`: cards reach each other's memory. `bar1_doorbells`: doorbells are mapped by BAR1.
        """
        super().__init__()
        self.version, self.sandbox, self.peers = version, sandbox, peers
        self.bar1_doorbells = bar1_doorbells
        self.branch = branch_of(version)
        self.layouts: dict[str, Layout] = layouts_of(self.branch)
        self.backing = Backing()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.gpus = [Gpu(facts, index) for index, facts in enumerate(cards)]
        self.files: dict[int, OpenFile] = {}
        self.failures: dict[str, int] = {}
        """Requests that return a status of one's choice: "alloc 0x40", "control 0x205",
        "uvm 0x21"; and "escape 0xc8", which returns an errno."""
        self.requested: list[str] = []
        """Names of all requests so far."""
        self.exact = threading.local()
        """`size`: how many bytes of the next allocation may be touched; a page is what cards
        protect, so without it an access a little too far goes unseen."""
        self.stuck: set[int] = set()
        """Channels, by their ids, that execute nothing more."""
        self.tells_faults = False
        """True if what a kernel does wrong is told by the card alone, and not raised here."""
        self.interrupts = 0
        self.armed: dict[int, set[int]] = {}
        """Notifications that are told, by the handle of the subdevice."""
        self.event_files: dict[int, bool] = {}
        """Files with an event, and whether it is pending."""
        self.inline_launches = 0
        """Launches whose descriptors were within commands."""
        self.woken = 0
        """Polls that an interrupt has ended."""
        self.launched: list[str] = []
        """Kernels that have run."""
        self.last_fault = ""
        self.lock = threading.RLock()
        self.resources = Resources(self)
        self._opened = 0

    # --- files

    def device_path(self, gpu: Gpu) -> str:
        """The file of a card."""
        return f"/dev/nvidia{gpu.minor}"

    def texts(self) -> dict[str, str]:
        """Files with a text."""
        found = {
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for "
            f"x86_64  {self.version}  Release Build  (builder@host)\nGCC version:  gcc 13.3.0\n"
        }
        for gpu in self.gpus:
            folder = f"/proc/driver/nvidia/gpus/0000:{gpu.index + 1:02x}:00.0"
            identity = f"GPU-{uuid.UUID(bytes=gpu.identity)}"
            found[f"{folder}/information"] = (
                f"Model: \t\t {gpu.facts.name}\nIRQ:   \t\t 42\nGPU UUID: \t {identity}\n"
                f"Bus Type: \t PCIe\nDevice Minor: \t {gpu.minor}\n"
            )
        return found

    def device_files(self) -> set[str]:
        """The driver's files and those of the cards."""
        return {CONTROL, UVM, *map(self.device_path, self.gpus)}

    def open(self, path: str) -> int:
        self.verify_path(path)
        gpu = next((gpu for gpu in self.gpus if self.device_path(gpu) == path), None)
        if gpu is not None and gpu.is_lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        with self.lock:
            self._opened += 1
            number = FIRST_FILE + self._opened
            found = self.files[number] = OpenFile(number, path, gpu)
            if path == UVM:
                found.uvm = Uvm(self)
        return number

    def close(self, file: int) -> None:
        with self.lock:
            found = self.files.pop(file, None)
            if found is None:
                raise Mistake(f"file {file} is closed, and not open")
            if found.uvm is not None:
                found.uvm.close()
            if found.path == CONTROL:
                self.resources.close_file(file)

    # --- mappings

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        if file == -1:
            return self.backing.map_own(address, size, protection, flags)
        found = self.files.get(file)
        if found is None or found.mapping is None or offset:
            raise OSError(errno.EINVAL, f"file {file} has nothing to map at {offset:#x}")
        mapped = found.mapping
        if (mapped.is_bar and size != mapped.size) or size > mapped.size:
            raise OSError(errno.ENXIO, f"{size} bytes of a mapping of {mapped.size}")
        if not flags & SHARED:
            raise OSError(errno.EINVAL, "memory of the driver is mapped to be shared")
        return self.backing.map(address, size, protection, flags, mapped.offset)

    def unmap(self, address: int, size: int) -> None:
        for space in self.resources.spaces():
            for at, mapping in space.mapped.items():
                host = mapping.pages.host_address
                if host and host < address + size and address < host + mapping.pages.size:
                    raise Mistake(f"{address:#x} is taken from the host, and mapped at {at:#x}")
        self.backing.unmap(address, size)

    def file_of(self, number: int) -> OpenFile | None:
        """An open file, by its number in a structure."""
        return self.files.get(number)

    # --- requests

    def ioctl(self, file: int, number: int, argument: int) -> int:
        with self.lock:
            found = self.files.get(file)
            if found is None:
                return errno.EBADF
            if found.uvm is not None:
                return found.uvm.ioctl(number, argument)
            try:
                return self.escape(found, number, argument)
            except Errno as error:
                return error.number

    def escape(self, file: OpenFile, number: int, argument: int) -> int:
        """A request to nvidiactl or nvidiaN."""
        size, escape = number >> 16 & 0x3FFF, number & 0xFF
        if number >> 30 != 3 or number >> 8 & 0xFF != MAGIC:
            return errno.ENOTTY
        if escape == 0xD3:
            self.must(size == self.layouts["xfer"].size)
            xfer = Record(self.layouts["xfer"], argument)
            self.must(xfer["size"] <= LARGEST_DIRECT and xfer["nr"] != 0xD3)
            return self.answer(file, xfer["nr"], xfer["size"], xfer["ptr"])
        return self.answer(file, escape, size, argument)

    def must(self, holds: bool, number: int = errno.EINVAL) -> None:
        """Fail as a system call."""
        if not holds:
            raise Errno(number)

    def answer(self, file: OpenFile, escape: int, size: int, argument: int) -> int:
        """A request by its number."""
        name = f"escape {escape:#x}"
        self.requested.append(name)
        if found := self.failures.get(name, 0):
            return found
        self.must(escape in ESCAPES)
        self.must(not (self.sandbox and escape in SANDBOX_REFUSES))
        is_control = file.path == CONTROL
        self.must(is_control or escape not in NEEDS_CONTROL)
        self.must(not is_control or escape not in NEEDS_DEVICE)
        kind = ESCAPES[escape]
        if kind == "card_info":
            return self.card_info(size, argument)
        if kind == "attach":
            return self.attach(size, argument)
        if kind == "alloc" and size == self.layouts["alloc_64"].size:
            layout = self.layouts["alloc_64"]
        else:
            layout = self.layouts["alloc_os_event" if kind == "free_os_event" else kind]
        self.must(size == layout.size)
        handler: Callable[[OpenFile, Record], int | None] = getattr(self, kind)
        record = Record(layout, argument)
        try:
            status = handler(file, record) or Status.OK
        except Refused as refused:
            status = refused.status
        if "status" in record:
            record["status"] = status
        return 0

    # --- requests that any file answers by itself

    def card_info(self, size: int, argument: int) -> int:
        layout = self.layouts["card_info"]
        self.must(size > 0 and size % layout.size == 0)
        ctypes.memset(argument, 0, size)
        room = size // layout.size
        self.must(room >= len(self.gpus), errno.ENOMEM)
        for place, gpu in enumerate(reversed(self.gpus)):  # in no order that means anything
            record = Record(layout, argument + place * layout.size)
            record["valid"], record["bus"] = 1, gpu.index + 1
            record["vendor"], record["device"] = 0x10DE, gpu.facts.device_id
            record["gpu_id"], record["minor_number"] = gpu.gpu_id, gpu.minor
            record["fb_size"] = gpu.facts.bar1_bytes
        return 0

    def attach(self, size: int, argument: int) -> int:
        self.must(size > 0 and size % 4 == 0)
        wanted = (ctypes.c_uint32 * (size // 4)).from_address(argument)
        known = {gpu.gpu_id for gpu in self.gpus}
        self.must(all(gpu_id in known for gpu_id in wanted))
        return 0

    def register_fd(self, file: OpenFile, r: Record) -> None:
        control = self.file_of(r["ctl_fd"])
        self.must(control is not None and control.path == CONTROL)
        self.must(file.control is None, errno.EALREADY)
        file.control = control

    def alloc_os_event(self, file: OpenFile, r: Record) -> None:
        self.resources.client(r["hClient"])
        self.must(r["fd"] == file.number)
        if r["fd"] in self.event_files:
            raise Refused(Status.INVALID_ARGUMENT)
        self.event_files[r["fd"]] = False

    def free_os_event(self, file: OpenFile, r: Record) -> None:
        self.resources.client(r["hClient"])
        if self.event_files.pop(r["fd"], None) is None:
            raise Refused(Status.INVALID_ARGUMENT)

    def interrupt(self, gpu: Gpu) -> None:
        """A channel of a card wakes who waits for its interrupts."""
        self.interrupts += 1
        for client in self.resources.clients.values():
            for event in client.objects.values():
                if isinstance(event, Event) and event.gpu is gpu and event.of_interrupts:
                    armed = self.armed.get(event.parent.handle, set()) if event.parent else set()
                    if event.index == FIFO_EVENT and event.index in armed:
                        self.event_files[event.file] = True

    def poll(self, file: int, timeout_ms: int) -> bool:
        """poll(2) of a file with an event. Nothing else is to come once cards have run."""
        if file not in self.files or file not in self.event_files:
            raise Mistake(f"file {file} is polled, and has no event")
        self.pump()
        with self.lock:
            found, self.event_files[file] = self.event_files[file], False
            self.woken += found
        if not found:
            time.sleep(min(timeout_ms, 1) / 1e3)
        return found

    def check_version(self, file: OpenFile, r: Record) -> None:
        asked = bytes(r.bytes[8:72]).split(b"\0")[0].decode()
        if r["cmd"] != ord("2"):  # anything else has the driver compare versions
            self.must(asked == self.version)
        r["reply"] = 1
        r.bytes[8:72] = self.version.encode().ljust(64, b"\0")

    def sys_params(self, file: OpenFile, r: Record) -> None:
        r["memblock_size"] = 128 << 20

    def wait_open(self, file: OpenFile, r: Record) -> None:
        r["rc"] = r["adapterStatus"] = 0

    # --- requests to the resource manager

    def alloc(self, file: OpenFile, r: Record) -> int:
        self.requested.append(f"alloc {r['hClass']:#x}")
        return self.failures.get(self.requested[-1], 0) or self.resources.alloc(file.number, r)

    def alloc_memory(self, file: OpenFile, r: Record) -> int:
        self.requested.append(f"alloc {r['hClass']:#x}")
        if file.control is None:  # its clients are those of the nvidiactl it is registered with
            raise Refused(Status.INVALID_CLIENT)
        return self.failures.get(self.requested[-1], 0) or self.resources.register_host(file, r)

    def free(self, file: OpenFile, r: Record) -> None:
        self.resources.free(r)

    def control(self, file: OpenFile, r: Record) -> int:
        self.requested.append(f"control {r['cmd']:#x}")
        return self.failures.get(self.requested[-1], 0) or self.resources.control(r)

    def map_memory(self, file: OpenFile, r: Record) -> None:
        """Prepare a mapping, which mmap of the file that is named then makes."""
        thing, data_offset, size = self.resources.mappable(r)
        target = self.file_of(r["fd"])
        is_bar = isinstance(thing, Usermode) or thing.pages.gpu is not None
        if isinstance(thing, Usermode) and thing.is_bar1 and not self.bar1_doorbells:
            raise Refused(Status.NOT_SUPPORTED)
        if target is None or target.gpu is not (thing.gpu if is_bar else None) or target.uvm:
            raise Refused(Status.INVALID_ARGUMENT)
        if target.mapping is not None:
            raise Refused(Status.STATE_IN_USE)
        if isinstance(thing, Memory):
            self.resources.take_bar(thing, size)
        target.mapping = Mapped(thing, data_offset, size, is_bar)
        r["pLinearAddress"] = 0x5000_0000_0000 + target.number * PAGE

    def unmap_memory(self, file: OpenFile, r: Record) -> None:
        found = self.resources.client(r["hClient"]).get(r["hMemory"], Memory)
        self.resources.give_bar(found)

    def map_dma(self, file: OpenFile, r: Record) -> None:
        self.resources.map_dma(r)

    def unmap_dma(self, file: OpenFile, r: Record) -> None:
        self.resources.unmap_dma(r)

    # --- what cards do

    def pump(self) -> None:
        """Let channels run, a few methods of each in turn, until all of them wait.

        Launches that nothing waits for run last of all.
        """
        with self.lock:
            self.hear_doorbells()
            moved = True
            while moved:
                rings = [ring for ring in self.rings() if not ring.is_stopped]
                moved = True in [ring.guarded(ring.step) for ring in rings]
                if not moved:
                    moved = True in [ring.guarded(ring.flush) for ring in rings]

    def rings(self) -> list[Ring]:
        """Rings of the channels that may run."""
        return [
            channel.ring
            for channel in self.resources.channels
            if channel.ring is not None
            and channel.is_scheduled
            and channel.id not in self.stuck
            and not channel.gpu.is_lost
        ]

    def hear_doorbells(self) -> None:
        """Look for tokens. The register keeps the last one; the cards' own channels whose rings
        have more in them are taken to have been rung before."""
        for gpu, pages in self.resources.doorbells.items():
            register = pages.data[DOORBELL : DOORBELL + 4].view("u4")
            token = int(register[0])
            if token == SILENT:
                continue
            register[0] = SILENT
            channels = [c for c in self.resources.channels if c.gpu is gpu]
            found = [c for c in channels if c.token == token]
            if not found:
                raise Mistake(f"the doorbell is rung with {token:#x}, which is no channel's token")
            if not found[0].is_scheduled:
                raise Mistake(f"the doorbell of channel {found[0].id} is rung: it is not scheduled")
            for channel in channels:
                ring = channel.ring
                if ring is not None and not ring.is_stopped and channel.is_scheduled:
                    ring.guarded(ring.ring)

    def waiting(self) -> list[str]:
        """The wait of each channel that does not go on."""
        return [
            f"channel {ring.channel.id} waits for {ring.waits_for or 'its turn'}"
            for channel in self.resources.channels
            if (ring := channel.ring) is not None and not ring.is_idle
        ]
