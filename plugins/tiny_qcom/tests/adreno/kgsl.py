"""A stand-in of KGSL: the calls of Qualcomm's kernel driver, with its checks and its statuses.

Numbers and offsets are written here once more, from the driver's header, so that a mistake of the
plugin's own table is found. Commands are executed by a thread for each context.
"""

from __future__ import annotations

import errno
import mmap
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy
from cffi import FFI
from emulation.faults import Fault
from emulation.memory import GARBAGE, GlobalMemory, Region

from adreno.processor import Processor
from adreno.state import Launch

ffi: Final = FFI()
PAGE: Final = 4096
MOST: Final = (1 << 32) - 1
ALIASES: Final = 0x0000_0005_0000_0000
"""Address of imported pages for the device, away from those in this process."""

GET_PROPERTY: Final = 0xC0180902
WAIT: Final = 0x400C0907
CREATE: Final = 0xC0080913
DESTROY: Final = 0x40040914
MAP_USER: Final = 0xC0300915
SHARED_FREE: Final = 0x40080921
SET_PROPERTY: Final = 0x40180932
ALLOCATE: Final = 0xC0300945
FREE: Final = 0x40200946
COMMAND: Final = 0xC040094A
SIZES: Final = {
    number: number >> 16 & 0x3FFF
    for number in (
        *(GET_PROPERTY, WAIT, CREATE, DESTROY, MAP_USER, SHARED_FREE, SET_PROPERTY),
        *(ALLOCATE, FREE, COMMAND),
    )
}
PREAMBLE: Final = 0x10
NO_GMEM: Final = 0x2
PER_CONTEXT_TIMESTAMP: Final = 0x40
PRIORITY: Final = 0xF000
DEFAULT_PRIORITY: Final = 0x8000
KNOWN_FLAGS: Final = 0x7FF6_FEFF
GUARD_PAGE: Final = 1 << 33
CPU_MAP: Final = 1 << 28
READ_ONLY: Final = 1 << 24


class Status(OSError):
    """Error status of a call of the driver."""

    def __init__(self, number: int) -> None:
        super().__init__(number, errno.errorcode[number])


@dataclass
class Object:
    """A GPU object."""

    id: int
    size: int
    mapped_size: int
    mapping: mmap.mmap | None = None
    address: int = 0


@dataclass
class Context:
    """A context: its timestamps, what waits to be executed, and whether it faulted."""

    id: int
    flags: int
    queued: int
    retired: int
    inbox: deque[tuple[int, list[tuple[int, int]]]] = field(default_factory=deque)
    condition: threading.Condition = field(default_factory=threading.Condition)
    faulted: bool = False
    told: bool = False
    """True once EPROTO said so."""
    level: int | None = None
    closing: bool = False
    thread: threading.Thread | None = None


def is_later(timestamp: int, other: int) -> bool:
    return (timestamp - other) & MOST < 1 << 31


class Kgsl:
    """The driver, in place of the operating system's calls (`tiny_qcom.kgsl.System`)."""

    def __init__(
        self,
        execute: Callable[[Launch, GlobalMemory], None] | None = None,
        *,
        chip_id: int = 0x0603_0001,
        memory_bytes: int = 1 << 33,
        first_timestamp: int = 0,
        seconds_of_a_submission: float = 0.0,
    ) -> None:
        self.execute = execute or refuse
        self.chip_id = chip_id
        self.memory_bytes = memory_bytes
        self.first_timestamp = first_timestamp
        self.delay = seconds_of_a_submission
        self.going = threading.Event()
        """Submissions begin while it is set."""
        self.going.set()
        self.memory = GlobalMemory()
        self.objects: dict[int, Object] = {}
        self.contexts: dict[int, Context] = {}
        self.imports: dict[int, int] = {}
        self.next_id = 1
        self.next_context = 1
        self.next_alias = ALIASES
        self.open_files: set[int] = set()
        self.next_file = 1000
        self.used = 0
        self.faults: list[str] = []
        self.fault_errors: list[Exception] = []
        self.injected: dict[int, deque[int]] = {}
        """Statuses that calls, by request, end with before they do anything."""
        self.lock = threading.RLock()
        self.calls: list[int] = []
        self.submissions = 0
        self.launches: list[Launch] = []

    # --- what a process sees

    def open(self, path: Path) -> int:
        if str(path) != "/dev/kgsl-3d0":
            raise Status(errno.ENOENT)
        self.fail_if_asked(0)
        self.next_file += 1
        self.open_files.add(self.next_file)
        return self.next_file

    def close(self, file: int) -> None:
        self.open_files.remove(file)
        for context in list(self.contexts.values()):
            self.stop(context)

    def ioctl(self, file: int, request: int, argument: bytearray) -> None:
        if file not in self.open_files:
            raise Status(errno.EBADF)
        if request not in SIZES:
            raise Status(errno.ENOTTY)
        if len(argument) != SIZES[request]:
            raise Fault(f"the call {request:#x} has {len(argument)} bytes")
        self.calls.append(request)
        self.fail_if_asked(request)
        HANDLERS[request](self, argument)

    def map(self, file: int, size: int, offset: int) -> mmap.mmap:
        if file not in self.open_files:
            raise Status(errno.EBADF)
        with self.lock:
            found = self.objects.get(offset >> 12)
            if found is None or offset % PAGE:
                raise Status(errno.EINVAL)
            if found.mapping is not None:
                raise Status(errno.EBUSY)
            if size != found.mapped_size:
                raise Status(errno.ERANGE)
            found.mapping = mmap.mmap(-1, size)
            data = numpy.frombuffer(found.mapping, numpy.uint8)
            data[:] = GARBAGE
            found.address = int(data.ctypes.data)
            self.memory.add(Region(found.address, data[: found.size], f"object {found.id}"))
            return found.mapping

    def fail_if_asked(self, request: int) -> None:
        if waiting := self.injected.get(request):
            raise Status(waiting.popleft())

    # --- calls

    def get_property(self, argument: bytearray) -> None:
        kind, _, value, size = struct.unpack("<IIQQ", argument)
        if kind != 1 or size != 40:
            raise Status(errno.EINVAL)
        info = struct.pack("<IIIIQIIQ", 1, self.chip_id, 1, 0, 0, 0, 0, 1 << 20)
        ffi.buffer(ffi.cast("char *", value), size)[:] = info

    def set_property(self, argument: bytearray) -> None:
        kind, _, value, size = struct.unpack("<IIQQ", argument)
        if kind != 0x12 or size != 24:
            raise Status(errno.EINVAL)
        constraint, context, data, length = struct.unpack(
            "<IIQQ", ffi.buffer(ffi.cast("char *", value), size)[:]
        )
        if constraint != 1 or length != 4:
            raise Status(errno.EINVAL)
        (level,) = struct.unpack("<I", ffi.buffer(ffi.cast("char *", data), 4)[:])
        if level > 1:
            raise Status(errno.EINVAL)
        self.context(context).level = level

    def create_context(self, argument: bytearray) -> None:
        (flags,) = struct.unpack_from("<I", argument)
        if not flags & PREAMBLE or not flags & NO_GMEM:
            raise Status(errno.EINVAL)
        flags = flags & KNOWN_FLAGS | PER_CONTEXT_TIMESTAMP
        if not flags & PRIORITY:
            flags |= DEFAULT_PRIORITY
        with self.lock:
            number, self.next_context = self.next_context, self.next_context + 1
            made = Context(number, flags, self.first_timestamp, self.first_timestamp)
            self.contexts[number] = made
        made.thread = threading.Thread(target=self.work, args=(made,), daemon=True)
        made.thread.start()
        struct.pack_into("<II", argument, 0, flags, number)

    def destroy_context(self, argument: bytearray) -> None:
        self.stop(self.context(struct.unpack("<I", argument)[0]))

    def stop(self, context: Context) -> None:
        with context.condition:
            context.closing = True
            context.condition.notify_all()
        self.contexts.pop(context.id, None)
        if context.thread is not None and context.thread is not threading.current_thread():
            context.thread.join(10)

    def context(self, number: int) -> Context:
        if number not in self.contexts:
            raise Status(errno.EINVAL)
        return self.contexts[number]

    def allocate(self, argument: bytearray) -> None:
        size, flags = struct.unpack_from("<QQ", argument)
        if not 0 < size <= MOST:
            raise Status(errno.EINVAL)
        size = -(-size // PAGE) * PAGE
        with self.lock:
            if self.used + size > self.memory_bytes:
                raise Status(errno.ENOMEM)
            if not flags & CPU_MAP:
                raise Fault("an object that is not mapped at one address for host and device")
            self.used += size
            mapped = size + (PAGE if flags & GUARD_PAGE else 0)
            number, self.next_id = self.next_id, self.next_id + 1
            self.objects[number] = Object(number, size, mapped)
        struct.pack_into("<QQQQI", argument, 0, size, flags, 0, mapped, number)

    def free(self, argument: bytearray) -> None:
        flags, _, number = struct.unpack_from("<QQI", argument)
        with self.lock:
            if flags or number not in self.objects:
                raise Status(errno.EINVAL)
            gone = self.objects.pop(number)
            self.used -= gone.size
            if gone.mapping is not None:
                self.memory.remove(gone.address)

    def map_user(self, argument: bytearray) -> None:
        _, _, _, size, offset, host, kind, flags = struct.unpack("<iIQQQQII", argument)
        if kind != 2 or offset or not size or size % PAGE or host % PAGE:
            raise Status(errno.EINVAL)
        writable = not flags & READ_ONLY
        if writable and not is_writable(host, size):
            raise Status(errno.EFAULT)
        with self.lock:
            for one in self.objects.values():
                end = one.address + one.size
                if one.mapping is not None and host < end and one.address < host + size:
                    raise Status(errno.EFAULT)
            address, self.next_alias = self.next_alias, self.next_alias + size + PAGE
            data = numpy.frombuffer(ffi.buffer(ffi.cast("char *", host), size), numpy.uint8)
            data.flags.writeable = writable
            self.memory.add(Region(address, data, "imported pages"))
            self.imports[address] = size
        struct.pack_into("<Q", argument, 8, address)

    def free_shared(self, argument: bytearray) -> None:
        (address,) = struct.unpack("<Q", argument)
        if address not in self.imports:
            raise Status(errno.EINVAL)
        del self.imports[address]
        self.memory.remove(address)

    def command(self, argument: bytearray) -> None:
        fields = struct.unpack("<QQIIQIIQIIII", argument)
        _, commands, size, count, objects, object_size, object_count = fields[:7]
        context = self.context(fields[10])
        empty = [not commands, not size, not count]  # all are: a marker, which retires in order
        if any(empty) != all(empty) or count > 2000 or (count and size != 32):
            raise Status(errno.EINVAL)
        if objects or object_size or object_count or fields[7] or fields[8] or fields[9]:
            raise Fault("lists of objects or of waits, which the driver of tinycore has not")
        pieces = []
        for number in range(count):
            place = ffi.cast("char *", commands + number * size)
            offset, address, length, kind, _ = struct.unpack("<QQQII", ffi.buffer(place, size)[:])
            if offset or not kind & 7 or address % 4 or not 0 < length <= 0xF_FFFF * 4:
                raise Status(errno.EINVAL)
            if length % 4 or self.memory.region_at(address) is None:
                raise Status(errno.EINVAL)
            pieces.append((address, length // 4))
        if context.faulted and not context.told:
            context.told = True
            raise Status(errno.EPROTO)
        with context.condition:
            context.queued = context.queued + 1 & MOST
            context.inbox.append((context.queued, pieces))
            context.condition.notify_all()
            struct.pack_into("<I", argument, 60, context.queued)
        self.submissions += 1

    def wait(self, argument: bytearray) -> None:
        number, timestamp, timeout = struct.unpack("<III", argument)
        context = self.context(number)
        if not is_later(context.queued, timestamp):
            raise Status(errno.EINVAL)
        forever = timeout == 0 or timeout > (1 << 31) - 1
        limit = time.monotonic() + (10.0 if forever else timeout / 1e3)
        with context.condition:
            while not is_later(context.retired, timestamp):
                left = limit - time.monotonic()
                if left <= 0:
                    raise Status(errno.ETIMEDOUT)
                context.condition.wait(left)
        if context.faulted and not context.told:
            context.told = True
            raise Status(errno.EPROTO)

    # --- execution

    def work(self, context: Context) -> None:
        processor = Processor(self.memory, self.launch, lambda: context.closing)
        while True:
            with context.condition:
                while not context.inbox and not context.closing:
                    context.condition.wait()
                if not context.inbox:
                    return
                timestamp, pieces = context.inbox.popleft()
            if self.delay:
                time.sleep(self.delay)
            self.going.wait()
            if not context.faulted:
                try:
                    for address, words in pieces:
                        processor.run(address, words)
                except Exception as fault:
                    self.faults.append(f"{type(fault).__name__}: {fault}")
                    self.fault_errors.append(fault)
                    context.faulted = True
            with context.condition:
                context.retired = timestamp
                context.condition.notify_all()

    def launch(self, launch: Launch) -> None:
        self.launches.append(launch)
        self.execute(launch, self.memory)


def is_writable(address: int, size: int) -> bool:
    """True if this process may write all pages of a range."""
    end = address + size
    for line in Path("/proc/self/maps").read_text("ascii").splitlines():
        place, rights, *_ = line.split()
        first, last = (int(number, 16) for number in place.split("-"))
        if first < end and address < last and "w" not in rights:
            return False
    return True


def refuse(launch: Launch, memory: GlobalMemory) -> None:
    raise Fault("nothing here runs kernels")


HANDLERS: Final[dict[int, Callable[[Kgsl, bytearray], Any]]] = {
    GET_PROPERTY: Kgsl.get_property,
    SET_PROPERTY: Kgsl.set_property,
    WAIT: Kgsl.wait,
    CREATE: Kgsl.create_context,
    DESTROY: Kgsl.destroy_context,
    MAP_USER: Kgsl.map_user,
    SHARED_FREE: Kgsl.free_shared,
    ALLOCATE: Kgsl.allocate,
    FREE: Kgsl.free,
    COMMAND: Kgsl.command,
}
