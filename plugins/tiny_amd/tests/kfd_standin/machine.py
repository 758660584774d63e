"""The operating system of a machine with cards: files, mappings, and KFD's ioctls.

Linux 6.12, drivers/gpu/drm/amd/amdkfd: kfd_chardev.c, kfd_queue.c, kfd_events.c. Structures are
read by their offsets (include/uapi/linux/kfd_ioctl.h), not by the driver's own declarations.
"""

from __future__ import annotations

import errno
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy
from emulation.backing import LARGEST_FILLED, Backing
from emulation.memory import GARBAGE

from kfd_standin.aql import AqlRing
from kfd_standin.cards import NAVI31, CardFacts
from kfd_standin.gpu import Array, Gpu, MemoryFault, Mistake, region_of
from kfd_standin.pm4 import Pm4Ring
from kfd_standin.queues import Ring, RingPlace
from kfd_standin.sdma import SdmaRing
from tiny_hcq import bytes_at
from tiny_testing.standin import StandInFiles
from tinycore._collector import without_collecting

__all__ = ["Machine"]

PAGE: Final = 4096
TOPOLOGY: Final = "/sys/devices/virtual/kfd/kfd/topology"
KFD_FILE: Final = 1 << 20
FIRST_MINOR: Final = 128
UNSIGNALED: Final = (1 << 64) - 1
DOORBELLS: Final = 0x2000
SIGNAL_EVENTS: Final = 4096
FIRST_OTHER_EVENT: Final = 0x4000_0000
SIGNAL, HARDWARE, MEMORY = 0, 3, 8
VRAM, GTT = 1, 2
PUBLIC, EXECUTABLE, WRITABLE = 1 << 29, 1 << 30, 1 << 31
Fields = dict[str, int]


@dataclass(frozen=True)
class Request:
    """An ioctl: its number, and its structure by offsets."""

    number: int
    layout: struct.Struct
    names: tuple[str, ...]


def request(number: int, layout: str, names: str) -> Request:
    """A row of the table."""
    return Request(number, struct.Struct(layout), tuple(names.split()))


REQUESTS: Final = {
    "get_version": request(0x80084B01, "<II", "major minor"),
    "create_queue": request(
        0xC0604B02,
        "<QQQQIIIIIIQQQIIII",
        "ring wptr rptr doorbell ring_size gpu_id type percentage priority queue_id "
        "eop eop_size cwsr cwsr_size ctl_size engine pad",
    ),
    "destroy_queue": request(0xC0084B03, "<II", "queue_id pad"),
    "create_event": request(0xC0204B08, "<QIIIIII", "page trigger type auto_reset node id slot"),
    "destroy_event": request(0x40084B09, "<II", "id pad"),
    "wait_events": request(0xC0184B0C, "<QIIII", "events count all timeout result"),
    "acquire_vm": request(0x40084B15, "<II", "drm_fd gpu_id"),
    "alloc_memory": request(0xC0284B16, "<QQQQII", "va size handle offset gpu_id flags"),
    "free_memory": request(0x40084B17, "<Q", "handle"),
    "map_memory": request(0xC0184B18, "<QQII", "handle devices count success"),
    "unmap_memory": request(0xC0184B19, "<QQII", "handle devices count success"),
    "runtime_enable": request(0xC0104B25, "<QII", "r_debug mode capabilities"),
}
BY_NUMBER: Final = {found.number & 0xFF: (name, found) for name, found in REQUESTS.items()}
EVENT_DATA: Final = struct.Struct("<32sQII")


@dataclass
class Memory:
    """An allocation of the process."""

    handle: int
    va: int
    size: int
    flags: int
    gpu: Gpu
    offset: int
    data: Array
    is_mapped_by_host: bool = False
    mapped: set[int] = field(default_factory=set)


@dataclass
class Event:
    """An event of the process."""

    type: int
    auto_reset: bool
    is_signaled: bool = False
    data: bytes = bytes(32)


class Machine(StandInFiles):
    """A machine with cards, as a process sees it. `use_system` puts it in place."""

    def __init__(
        self,
        cards: Iterable[CardFacts] = (NAVI31,),
        *,
        version: tuple[int, int] = (1, 17),
        reports_places: bool = False,
        peers: bool = True,
    ) -> None:
        """`reports_places`: queues report how far they are as a place in the ring, as some firmware
        does. `peers`: cards reach each other's memory.
        """
        super().__init__()
        self.version, self.reports_places, self.peers = version, reports_places, peers
        self.backing = Backing()
        self.gpus = [
            Gpu(facts, gpu_id=40_000 + 101 * index, node=index + 1, minor=FIRST_MINOR + index)
            for index, facts in enumerate(cards)
        ]
        self.files: dict[int, str] = {}
        self.memory: dict[int, Memory] = {}
        self.events: dict[int, Event] = {}
        self.event_page: Memory | None = None
        self.rings: dict[int, Ring] = {}
        self.failures: dict[str, int] = {}
        """Requests that return an errno of one's choice, by name."""
        self.requested: list[str] = []
        """Names of all requests so far."""
        self.searches = 0
        """Number of interrupts that named no event, for which the kernel looks through all."""
        self.exact = threading.local()
        """`size`: how many bytes of the next allocation may be touched; a page is what cards
        protect, so without it an access a little too far goes unseen."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.is_running = False
        self.last_fault = ""
        self._handles = 0
        self._numbers = 0

    # --- files

    def texts(self) -> dict[str, str]:
        """Files with a text."""
        found = {
            f"{TOPOLOGY}/generation_id": "2\n",
            f"{TOPOLOGY}/nodes/0/gpu_id": "0\n",
            f"{TOPOLOGY}/nodes/0/properties": "cpu_cores_count 16\nsimd_count 0\n",
        }
        for gpu in self.gpus:
            folder = f"{TOPOLOGY}/nodes/{gpu.node}"
            found[f"{folder}/gpu_id"] = f"{gpu.gpu_id}\n"
            found[f"{folder}/properties"] = gpu.facts.properties(gpu.minor)
            size = gpu.facts.memory_bytes
            found[f"{folder}/mem_banks/0/properties"] = f"heap_type 2\nsize_in_bytes {size}\n"
        return found

    def render_node(self, gpu: Gpu) -> str:
        """The path that a card's memory is mapped from."""
        return f"/dev/dri/renderD{gpu.minor}"

    def device_files(self) -> set[str]:
        """KFD's file and those of the cards."""
        return {"/dev/kfd", *map(self.render_node, self.gpus)}

    def open(self, path: str) -> int:
        self.verify_path(path)
        number = KFD_FILE + len(self.files)
        self.files[number] = path
        return number

    def close(self, file: int) -> None:
        self.files[file] = ""

    # --- mappings

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        if file == -1:
            return self.backing.map_own(address, size, protection, flags)
        path = self.files.get(file, "")
        if path == "/dev/kfd":
            return self.map_doorbells(size, protection, flags, offset)
        with self.lock:
            found = [m for m in self.memory.values() if self.render_node(m.gpu) == path]
        for memory in found:
            if offset == token_of(memory):
                return self.map_memory_of(memory, address, size, protection, flags)
        raise OSError(errno.EINVAL, f"{path or file} has nothing at offset {offset:#x}")

    def map_memory_of(
        self, memory: Memory, address: int, size: int, protection: int, flags: int
    ) -> int:
        """The pages of an allocation."""
        if not memory.flags & PUBLIC:
            raise PermissionError(errno.EPERM, "memory of the card that the host must not see")
        if size != memory.size:
            raise OSError(errno.EINVAL, f"{size} bytes of an allocation of {memory.size}")
        if address != memory.va:
            raise Mistake(f"{memory.va:#x} of the card is mapped at {address:#x} of the host")
        memory.is_mapped_by_host = True
        return self.backing.map(address, size, protection, flags, memory.offset)

    def map_doorbells(self, size: int, protection: int, flags: int, offset: int) -> int:
        """The page of a card's doorbells."""
        gpus = [gpu for gpu in self.gpus if offset == doorbell_offset(gpu)]
        if not gpus or size != DOORBELLS:
            raise OSError(errno.EINVAL, f"no doorbells: {size} bytes at {offset:#x}")
        place = self.doorbells_of(gpus[0])
        return self.backing.map(0, size, protection, flags, place)

    def doorbells_of(self, gpu: Gpu) -> int:
        """Offset of a card's doorbells in the backing file."""
        if gpu.doorbells is None:
            offset = self.backing.take(DOORBELLS)
            gpu.doorbells = self.backing.data[offset : offset + DOORBELLS].view(numpy.uint64)
            gpu.doorbells[:] = 0
            self.doorbell_places = {**getattr(self, "doorbell_places", {}), gpu.gpu_id: offset}
        return int(self.doorbell_places[gpu.gpu_id])

    def unmap(self, address: int, size: int) -> None:
        with self.lock:  # other threads allocate meanwhile
            here = list(self.memory.values())
        for memory in here:
            if memory.va == address and memory.size == size and memory.mapped:
                raise Mistake(f"{address:#x} is taken from the host while cards address it")
        self.backing.unmap(address, size)

    # --- requests

    def ioctl(self, file: int, number: int, argument: int) -> int:
        if self.files.get(file) != "/dev/kfd":
            raise Mistake(f"request {number:#x} to {self.files.get(file)!r}")
        name, found = BY_NUMBER.get(number & 0xFF, ("", None))
        if found is None or found.number != number:
            raise Mistake(f"no request has the number {number:#x}")
        memory = bytes_at(argument, found.layout.size)
        fields = dict(zip(found.names, found.layout.unpack(memory), strict=True))
        handler: Callable[[Fields], int] = getattr(self, name)
        with self.lock:
            self.requested.append(name)
            status = self.failures.get(name, 0) or handler(fields)
        memory[:] = found.layout.pack(*fields.values())
        return status

    def gpu_of(self, gpu_id: int) -> Gpu | None:
        """A card by its id."""
        return next((gpu for gpu in self.gpus if gpu.gpu_id == gpu_id), None)

    def get_version(self, f: Fields) -> int:
        f["major"], f["minor"] = self.version
        return 0

    def acquire_vm(self, f: Fields) -> int:
        gpu = self.gpu_of(f["gpu_id"])
        if gpu is None or self.files.get(f["drm_fd"]) != self.render_node(gpu):
            return errno.EINVAL
        if gpu.drm_file not in (None, f["drm_fd"]):
            return errno.EBUSY
        gpu.drm_file = f["drm_fd"]
        return 0

    def runtime_enable(self, f: Fields) -> int:
        if self.requested.count("runtime_enable") > 1:
            return errno.EBUSY
        return 0

    # --- memory

    def alloc_memory(self, f: Fields) -> int:
        gpu = self.gpu_of(f["gpu_id"])
        size, flags = f["size"], f["flags"]
        if gpu is None or gpu.drm_file is None or not size or size % PAGE or f["va"] % PAGE:
            return errno.EINVAL
        if flags & 31 not in (VRAM, GTT) or not flags & WRITABLE:
            return errno.EINVAL
        if any(m.va < f["va"] + size and f["va"] < m.va + m.size for m in self.memory.values()):
            return errno.EINVAL
        if gpu.used_bytes + size > gpu.facts.memory_bytes:
            return errno.ENOMEM
        gpu.used_bytes += size
        self._handles += 1
        offset = self.backing.take(size)
        usable = min(getattr(self.exact, "size", size) or size, size)
        data = self.backing.data[offset : offset + usable]
        data[: min(usable, LARGEST_FILLED)] = GARBAGE
        handle = gpu.gpu_id << 32 | self._handles
        self.memory[handle] = Memory(handle, f["va"], size, flags, gpu, offset, data)
        f["handle"], f["offset"] = handle, token_of(self.memory[handle])
        return 0

    def free_memory(self, f: Fields) -> int:
        memory = self.memory.get(f["handle"])
        if memory is None:
            return errno.EINVAL
        if memory.mapped:
            return errno.EBUSY
        if memory is self.event_page or any(r.place.ring == memory.va for r in self.rings.values()):
            raise Mistake(f"memory at {memory.va:#x} is freed while the kernel uses it")
        del self.memory[f["handle"]]
        memory.gpu.used_bytes -= memory.size
        self.backing.give_back(memory.offset, memory.size)
        return 0

    def devices(self, f: Fields) -> list[Gpu | None]:
        """The cards of an array in the process's memory."""
        array = bytes_at(f["devices"], 4 * f["count"]).cast("I")
        return [self.gpu_of(gpu_id) for gpu_id in array]

    def map_memory(self, f: Fields) -> int:
        memory = self.memory.get(f["handle"])
        if memory is None or f["success"]:
            return errno.EINVAL
        for gpu in self.devices(f):
            if gpu is None or gpu.drm_file is None:
                return errno.EINVAL
            if memory.flags & VRAM and gpu is not memory.gpu and not self.peers:
                return errno.EINVAL
            if gpu.gpu_id not in memory.mapped:
                name = f"{memory.size} bytes"
                gpu.memory.add(region_of(memory.va, memory.data, name))
                memory.mapped.add(gpu.gpu_id)
            f["success"] += 1
        return 0

    def unmap_memory(self, f: Fields) -> int:
        memory = self.memory.get(f["handle"])
        if memory is None or f["success"]:
            return errno.EINVAL
        for gpu in self.devices(f):
            if gpu is None:
                return errno.EINVAL
            if gpu.gpu_id in memory.mapped:
                gpu.memory.remove(memory.va)
                memory.mapped.remove(gpu.gpu_id)
            f["success"] += 1
        return 0

    # --- queues

    def is_buffer(self, gpu: Gpu, address: int, size: int) -> bool:
        """True if exactly these bytes are an allocation that the card addresses."""
        return any(
            m.va == address and m.size == size and gpu.gpu_id in m.mapped
            for m in self.memory.values()
        )

    def create_queue(self, f: Fields) -> int:
        gpu = self.gpu_of(f["gpu_id"])
        size, kind = f["ring_size"], f["type"]
        if gpu is None or gpu.drm_file is None or f["percentage"] > 100 or f["priority"] > 15:
            return errno.EINVAL
        if size < 1024 or size & size - 1 or kind not in (0, 1, 2):
            return errno.EINVAL
        pages = {f[name] & -PAGE for name in ("wptr", "rptr")}
        buffers = [(f["ring"], size), *((page, PAGE) for page in pages)]
        if kind != 1:
            facts = gpu.facts
            if f["eop_size"] != PAGE or f["ctl_size"] != facts.control_stack:
                return errno.EINVAL
            if f["cwsr_size"] < facts.saved_bytes:
                return errno.EINVAL
            larger = f["cwsr_size"] - facts.saved_bytes
            buffers += [(f["eop"], PAGE), (f["cwsr"], facts.saved_buffer + larger)]
        if not all(self.is_buffer(gpu, *buffer) for buffer in buffers):
            return errno.EINVAL
        self._numbers += 1
        number = self._numbers
        slot = 2 * (number % 500)
        place = RingPlace(number, f["ring"], size, f["wptr"], f["rptr"], slot)
        self.doorbells_of(gpu)
        assert gpu.doorbells is not None
        gpu.doorbells[slot] = UNSIGNALED if kind == 2 else 0
        makers: dict[int, Callable[[Machine, Gpu, RingPlace], Ring]]
        makers = {0: Pm4Ring, 1: SdmaRing, 2: AqlRing}
        self.rings[number] = makers[kind](self, gpu, place)
        f["queue_id"], f["doorbell"] = number, doorbell_offset(gpu) | slot * 8
        return 0

    def destroy_queue(self, f: Fields) -> int:
        if self.rings.pop(f["queue_id"], None) is None:
            return errno.EINVAL
        return 0

    # --- events

    def create_event(self, f: Fields) -> int:
        if f["page"]:
            if self.event_page is not None or f["page"] not in self.memory:
                return errno.EINVAL
            self.event_page = self.memory[f["page"]]
            if self.event_page.size != 8 * SIGNAL_EVENTS:
                return errno.EINVAL
            self.slots = self.event_page.data.view(numpy.uint64)
            self.slots[:] = UNSIGNALED
        first = 1 if f["type"] == SIGNAL else FIRST_OTHER_EVENT
        if f["type"] == SIGNAL and self.event_page is None:
            return errno.EINVAL
        number = next(n for n in range(first, first + SIGNAL_EVENTS) if n not in self.events)
        if f["type"] == SIGNAL:
            f["slot"] = f["trigger"] = number
        self.events[number] = Event(f["type"], bool(f["auto_reset"]))
        f["id"] = number
        return 0

    def destroy_event(self, f: Fields) -> int:
        return 0 if self.events.pop(f["id"], None) else errno.EINVAL

    def interrupt(self, context: int) -> None:
        """A card interrupts with an event's id, which counts if its mailbox has been written; 0
        has the kernel look through all of them."""
        self.searches += not context
        for slot in [context] if context else list(self.events):
            event = self.events.get(slot)
            if event is not None and event.type == SIGNAL and int(self.slots[slot]) != UNSIGNALED:
                self.slots[slot] = UNSIGNALED
                event.is_signaled = True

    def tell(self, kind: int, data: bytes) -> None:
        """Signal all events of a type."""
        for event in self.events.values():
            if event.type == kind:
                event.is_signaled, event.data = True, data.ljust(32, b"\0")

    def memory_fault(self, gpu: Gpu, fault: MemoryFault) -> None:
        """The kernel is told by an interrupt; the queues of the process run no more."""
        self.last_fault = str(fault)
        gpu.is_lost = True
        page = fault.address & -PAGE
        self.tell(MEMORY, struct.pack("<IIIIQII", 1, 0, 0, 0, page, gpu.gpu_id, 0))

    def reset(self, gpu: Gpu, *, kind: int = 1, cause: int = 0, memory_lost: int = 0) -> None:
        """The kernel resets queues that hang."""
        gpu.is_lost = True
        self.tell(HARDWARE, struct.pack("<IIII", kind, cause, memory_lost, gpu.gpu_id))

    def wait_events(self, f: Fields) -> int:
        size, end = EVENT_DATA.size, time.monotonic() + f["timeout"] / 1e3
        array = bytes_at(f["events"], size * f["count"])
        entries = [list(EVENT_DATA.unpack_from(array, n * size)) for n in range(f["count"])]
        if any(entry[2] not in self.events for entry in entries) or f["all"]:
            return errno.EINVAL
        while True:
            self.pump()
            fired = [e for e in entries if self.events[e[2]].is_signaled]
            if fired or time.monotonic() >= end:
                break
            self.changed.wait(5e-4)  # others may write to memory meanwhile
        for entry in fired:
            event = self.events[entry[2]]
            entry[0] = event.data if event.type != SIGNAL else entry[0]
            event.is_signaled = event.is_signaled and not event.auto_reset
        array[:] = b"".join(EVENT_DATA.pack(*entry) for entry in entries)
        f["result"] = 0 if fired else 1
        return 0

    # --- what cards do

    def pump(self) -> None:
        """Let queues run, a packet of each in turn, until all of them wait.

        Nothing is finalized meanwhile: what waits for a card in the middle of one of its packets
        would run that packet again.
        """
        if self.is_running:
            raise Mistake("a packet is waited for by what it runs")
        self.is_running = True
        try:
            with without_collecting:
                self.run_queues()
        finally:
            self.is_running = False

    def run_queues(self) -> None:
        """Run packets until none can."""
        moved = True
        while moved:
            moved = False
            for ring in list(self.rings.values()):
                if ring.gpu.is_lost or ring.is_stopped:
                    continue
                try:
                    moved = ring.step() or moved
                except MemoryFault as fault:
                    self.memory_fault(ring.gpu, fault)
                except Exception:  # a test fails; nobody is to wait for this card any more
                    self.reset(ring.gpu)
                    raise


def token_of(memory: Memory) -> int:
    """The offset that a render node maps an allocation from."""
    return 0x1_0000_0000 + (memory.handle & 0xFFFFFFFF) * PAGE


def doorbell_offset(gpu: Gpu) -> int:
    """The offset of a card's doorbells in /dev/kfd."""
    return 3 << 62 | (gpu.gpu_id & 0xFFFF) << 46
