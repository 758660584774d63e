"""KGSL, Qualcomm's kernel driver of Adrenos: its calls as data, and the one place that makes them.

`System` is all that is asked of the operating system; tests put a stand-in in its place. `Kgsl` is
an open device file with one context. Facts: include/uapi/linux/msm_kgsl.h of Qualcomm's driver.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from cffi import FFI

from tiny_qcom.probe import DEVICE_FILE
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.trace import Trace

__all__ = ["Allocation", "Call", "Kgsl", "LinuxSystem", "System", "Waited", "address_of"]

trace: Final = Trace("tiny_qcom.ioctl")
ffi: Final = FFI()

PAGE: Final = 4096


class System(Protocol):
    """System calls that the driver makes."""

    def open(self, path: Path) -> int:
        """A file descriptor, for reading and writing. Raises OSError."""
        ...

    def ioctl(self, file: int, request: int, argument: bytearray) -> None:
        """A call of the driver, which reads and writes `argument`. Raises OSError."""
        ...

    def map(self, file: int, size: int, offset: int) -> Any:
        """Memory shared with the driver, as a writable buffer. Raises OSError."""
        ...

    def close(self, file: int) -> None:
        """Close a file descriptor."""
        ...


class LinuxSystem:
    """The operating system itself."""

    def open(self, path: Path) -> int:
        """A file descriptor."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def ioctl(self, file: int, request: int, argument: bytearray) -> None:
        """A call of the driver; interrupted ones are made again where they have no time limit."""
        fcntl.ioctl(file, request, argument, True)

    def map(self, file: int, size: int, offset: int) -> mmap.mmap:
        """Memory of the driver's, which stays mapped until the last view of it is dropped."""
        return mmap.mmap(
            file, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
        )

    def close(self, file: int) -> None:
        """Close a file descriptor."""
        os.close(file)


# --- calls

READ: Final = 2
WRITE: Final = 1
LETTERS: Final = {"I": 4, "Q": 8, "i": 4}


@dataclass(frozen=True)
class Call:
    """One ioctl: its number, and the fields of its argument in their order, padding named `_`."""

    name: str
    number: int
    direction: int
    fields: tuple[tuple[str, str], ...]

    @property
    def layout(self) -> struct.Struct:
        """The argument as C lays it out on a machine of 64 bits."""
        return struct.Struct("<" + "".join(letter for _, letter in self.fields))

    @property
    def request(self) -> int:
        """Request number of the ioctl."""
        return self.direction << 30 | self.layout.size << 16 | 0x09 << 8 | self.number

    def pack(self, **values: int) -> bytearray:
        """The argument; fields that are not named are 0."""
        numbers = [values.pop(name, 0) for name, _ in self.fields]
        assert not values, f"{self.name} has no field {', '.join(values)}"
        return bytearray(self.layout.pack(*numbers))

    def unpack(self, argument: bytearray) -> dict[str, int]:
        """The fields by name, after the call."""
        names = [name for name, _ in self.fields]
        return dict(zip(names, self.layout.unpack(argument), strict=True))


def call(name: str, number: int, direction: int, fields: str) -> Call:
    """A call, from words such as `id:I size:Q`."""
    split = [word.split(":") for word in fields.split()]
    return Call(name, number, direction, tuple((name, letter) for name, letter in split))


GET_PROPERTY: Final = call(
    "DEVICE_GETPROPERTY", 0x02, READ | WRITE, "type:I _:I value:Q sizebytes:Q"
)
SET_PROPERTY: Final = call("SETPROPERTY", 0x32, WRITE, "type:I _:I value:Q sizebytes:Q")
WAIT_TIMESTAMP: Final = call(
    "DEVICE_WAITTIMESTAMP_CTXTID", 0x07, WRITE, "context_id:I timestamp:I timeout_ms:I"
)
CONTEXT_CREATE: Final = call("DRAWCTXT_CREATE", 0x13, READ | WRITE, "flags:I drawctxt_id:I")
CONTEXT_DESTROY: Final = call("DRAWCTXT_DESTROY", 0x14, WRITE, "drawctxt_id:I")
MAP_USER_MEMORY: Final = call(
    "MAP_USER_MEM",
    0x15,
    READ | WRITE,
    "fd:i _:I gpuaddr:Q len:Q offset:Q hostptr:Q memtype:I flags:I",
)
SHARED_FREE: Final = call("SHAREDMEM_FREE", 0x21, WRITE, "gpuaddr:Q")
OBJECT_ALLOCATE: Final = call(
    "GPUOBJ_ALLOC",
    0x45,
    READ | WRITE,
    "size:Q flags:Q va_len:Q mmapsize:Q id:I metadata_len:I metadata:Q",
)
OBJECT_FREE: Final = call("GPUOBJ_FREE", 0x46, WRITE, "flags:Q priv:Q id:I type:I len:I _:I")
COMMAND: Final = call(
    "GPU_COMMAND",
    0x4A,
    READ | WRITE,
    "flags:Q cmdlist:Q cmdsize:I numcmds:I objlist:Q objsize:I numobjs:I "
    "synclist:Q syncsize:I numsyncs:I context_id:I timestamp:I",
)
CALLS: Final = (
    *(GET_PROPERTY, SET_PROPERTY, WAIT_TIMESTAMP, CONTEXT_CREATE),
    *(CONTEXT_DESTROY, MAP_USER_MEMORY, SHARED_FREE, OBJECT_ALLOCATE, OBJECT_FREE, COMMAND),
)
COMMAND_OBJECT: Final = struct.Struct("<QQQII")
"""offset, gpuaddr, size in bytes, flags, id."""
DEVICE_INFO: Final = struct.Struct("<IIIIQIIQ")
"""device_id, chip_id, mmu_enabled, padding, gmem_gpubaseaddr, gpu_id, padding, gmem_sizebytes."""
CONSTRAINT: Final = struct.Struct("<IIQQ")
"""type, context_id, data, size."""

PROPERTY_DEVICE_INFO: Final = 0x1
PROPERTY_POWER: Final = 0x12
POWER_LEVEL: Final = 1
POWER_MOST: Final = 1
FLAG_IB: Final = 1
MOST_WORDS: Final = 0xF_FFFF
"""Words of one indirect buffer."""

CONTEXT_NO_GMEM: Final = 0x2
CONTEXT_PREAMBLE: Final = 0x10
CONTEXT_NO_FAULT_TOLERANCE: Final = 0x200
CONTEXT_POWER_CONSTRAINT: Final = 0x800
CONTEXT_PRIORITY_SHIFT: Final = 12
CONTEXT_TYPE_CL: Final = 2 << 20
CONTEXT_PREEMPT_FINE: Final = 2 << 25
LEAST_PRIORITY: Final = 15
MEDIUM_PRIORITY: Final = 8

OBJECT_BYTES: Final = 1 << 32
"""The least size that no object has."""
MEMORY_ALIGN_SHIFT: Final = 16
MEMORY_ALIGN_PAGE: Final = 12
MEMORY_READ_ONLY: Final = 1 << 24
MEMORY_CPU_MAP: Final = 1 << 28
MEMORY_USER: Final = 2


class Waited:
    """Outcome of a wait for a timestamp."""

    DONE: Final = "done"
    LATE: Final = "late"


@dataclass
class Allocation:
    """A GPU object and its mapping; host and device find it at the same address."""

    id: int
    mapping: Any
    address: int
    size: int


def address_of(memory: Any) -> int:
    """Host address of a buffer."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def said(error: OSError) -> str:
    """An error by its name, such as EINVAL."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))


class Kgsl:
    """The device file, open, with one context."""

    def __init__(self, system: System, priority: int = MEDIUM_PRIORITY) -> None:
        self.system = system
        self.fault = ""
        """Fault reported by the driver; "" without one."""
        try:
            self.file = system.open(DEVICE_FILE)
        except OSError as error:
            raise DeviceUnavailable(
                f"{DEVICE_FILE} cannot be opened: {said(error)}. It must be readable and writable "
                "by this user, and the kernel's KGSL driver must be running."
            ) from error
        try:
            self.chip_id = self._chip_id()
            self.context = self._create_context(priority)
        except BaseException:
            system.close(self.file)
            raise
        self.last = 0
        """The timestamp of the last submission."""

    def ask(self, made: Call, **values: int) -> dict[str, int]:
        """Make a call. Raises DeviceError naming it, its arguments and the status."""
        argument = made.pack(**values)
        try:
            self.system.ioctl(self.file, made.request, argument)
        except OSError as error:
            stated = ", ".join(f"{name}={value:#x}" for name, value in values.items())
            raise DeviceError(f"{made.name}({stated}) of KGSL failed: {said(error)}") from error
        if trace.on:
            trace(f"{made.name:<30} {values}")
        return made.unpack(argument)

    # --- device and context

    def _chip_id(self) -> int:
        info = bytearray(DEVICE_INFO.size)
        self.ask(
            GET_PROPERTY, type=PROPERTY_DEVICE_INFO, value=address_of(info), sizebytes=len(info)
        )
        return int(DEVICE_INFO.unpack(info)[1])

    def _create_context(self, priority: int) -> int:
        flags = CONTEXT_PREAMBLE | CONTEXT_NO_GMEM | CONTEXT_NO_FAULT_TOLERANCE
        flags |= CONTEXT_POWER_CONSTRAINT | CONTEXT_TYPE_CL | CONTEXT_PREEMPT_FINE
        return self.ask(CONTEXT_CREATE, flags=flags | priority << CONTEXT_PRIORITY_SHIFT)[
            "drawctxt_id"
        ]

    def want_power(self, level: int = POWER_MOST) -> None:
        """Ask for the highest clock while the context works; a wish that a driver may refuse."""
        data = bytearray(struct.pack("<I", level))
        constraint = bytearray(
            CONSTRAINT.pack(POWER_LEVEL, self.context, address_of(data), len(data))
        )
        try:
            self.ask(
                SET_PROPERTY,
                type=PROPERTY_POWER,
                value=address_of(constraint),
                sizebytes=len(constraint),
            )
        except DeviceError as error:
            trace(f"no power constraint: {error}")

    def close(self) -> None:
        """Destroy the context and close the file."""
        try:
            self.ask(CONTEXT_DESTROY, drawctxt_id=self.context)
        except DeviceError as error:
            trace(str(error))
        self.system.close(self.file)

    # --- memory

    def allocate(self, size: int) -> Allocation:
        """Write-combined memory at one address for host and device. Raises OutOfMemory."""
        flags = MEMORY_ALIGN_PAGE << MEMORY_ALIGN_SHIFT | MEMORY_CPU_MAP
        try:
            made = self.ask(OBJECT_ALLOCATE, size=size, flags=flags)
        except DeviceError as error:
            if (status := getattr(error.__cause__, "errno", 0)) not in (errno.ENOMEM, errno.EINVAL):
                raise
            if status == errno.EINVAL and size < OBJECT_BYTES:
                raise
            advice = "Free tensors, or use a smaller batch."
            if size >= OBJECT_BYTES:
                advice = "An object of KGSL has less than 4 GiB: keep the tensor in parts."
            raise OutOfMemory(
                f"KGSL has no {size:,} bytes ({errno.errorcode[status]}). {advice}"
            ) from error
        try:
            mapping = self.system.map(self.file, made["mmapsize"], made["id"] * PAGE)
        except OSError as error:
            self.ask(OBJECT_FREE, id=made["id"])
            if error.errno == errno.ENOMEM:
                raise OutOfMemory(f"{size:,} bytes of KGSL cannot be mapped: ENOMEM") from error
            raise DeviceError(f"{size:,} bytes of KGSL cannot be mapped: {said(error)}") from error
        return Allocation(made["id"], mapping, address_of(mapping), made["size"])

    def free(self, allocation: Allocation) -> None:
        """Give memory back; its mapping goes with the last view of it."""
        try:
            self.ask(OBJECT_FREE, id=allocation.id)
        except DeviceError as error:
            trace(str(error))

    def import_host(self, address: int, size: int) -> int | None:
        """Make pages of this process addressable by the device, and return where it finds them.

        None where they are memory of KGSL already, which the device finds at their own address: the
        driver says EFAULT to those, and to pages that may only be read unless they are asked for
        so. Raises DeviceError.
        """
        for flags in (MEMORY_CPU_MAP, MEMORY_CPU_MAP | MEMORY_READ_ONLY):
            try:
                made = self.ask(
                    MAP_USER_MEMORY,
                    fd=-1,
                    len=size,
                    hostptr=address,
                    memtype=MEMORY_USER,
                    flags=flags,
                )
            except DeviceError as error:
                if getattr(error.__cause__, "errno", 0) != errno.EFAULT:
                    raise
            else:
                return made["gpuaddr"]
        return None

    def forget_host(self, address: int) -> None:
        """Take `import_host` back; `address` is the device's."""
        try:
            self.ask(SHARED_FREE, gpuaddr=address)
        except DeviceError as error:
            trace(str(error))

    # --- commands

    def submit(self, address: int, words: int) -> int:
        """Queue commands that lie in memory of KGSL; return the timestamp of their end.

        Raises DeviceError.
        """
        assert 0 < words <= MOST_WORDS, f"{words} words are no indirect buffer"
        commands = bytearray(COMMAND_OBJECT.pack(0, address, words * 4, FLAG_IB, 0))
        try:
            done = self.ask(
                COMMAND,
                cmdlist=address_of(commands),
                cmdsize=COMMAND_OBJECT.size,
                numcmds=1,
                context_id=self.context,
            )
        except DeviceError as error:
            self._note(error)
            raise DeviceError(self.fault) from error.__cause__
        self.last = done["timestamp"]
        return self.last

    def wait(self, timestamp: int, timeout_ms: int) -> str:
        """Wait until a submission has ended: DONE, or LATE. A fault is noted, and LATE."""
        if self.fault:
            return Waited.LATE
        try:
            self.ask(
                WAIT_TIMESTAMP,
                context_id=self.context,
                timestamp=timestamp,
                timeout_ms=timeout_ms,
            )
        except DeviceError as error:
            status = getattr(error.__cause__, "errno", 0)
            if status not in (errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN):
                self._note(error)
            return Waited.LATE
        return Waited.DONE

    def _note(self, error: DeviceError) -> None:
        """Remember that the context does not work any more."""
        status = getattr(error.__cause__, "errno", 0)
        what = FAULTS.get(status, "")
        self.fault = self.fault or f"{error}{f', {what}' if what else ''}"


FAULTS: Final = {
    errno.EPROTO: "the GPU faulted while it ran commands of this context",
    errno.EDEADLK: "the driver gave up the context after a hang or a fault",
    errno.ENOENT: "the context was detached",
}
