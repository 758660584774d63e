"""OpenCL C to a binary, a binary to a kernel, and its launches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from tiny_cl import _prototypes
from tiny_cl._lib import Object, call, create, describe, ffi, library, number, owned, text
from tiny_cl.memory import ClMemory
from tiny_cl.probe import ClInfo
from tiny_cl.render import entry_name
from tiny_cl.settings import settings
from tinycore.errors import CompileError, LaunchTooLarge
from tinycore.plugin import ProgramInfo, lock

__all__ = ["ClCompiler", "ClProgram", "Prepared", "Programs", "seconds"]

# Keys of CL/cl.h.
_BUILD_LOG: Final = 0x1183
_BINARY_SIZES: Final = 0x1165
_BINARIES: Final = 0x1166
_GROUP_THREADS: Final = 0x11B0
_STARTED: Final = 0x1282
_ENDED: Final = 0x1283
_POCL: Final = "Portable Computing Language"
_KEPT: Final = 64
"""Programs kept between compiling and loading, which follows at once."""


class Programs:
    """Programs of one device: built from source, or from the binary of one built before.

    One that was just built is not built a second time from its binary.
    """

    def __init__(self, info: ClInfo, context: Object) -> None:
        self._info = info
        self._context = context
        self._devices = ffi.new("cl_device_id[]", [info.handle])
        self._built: OrderedDict[bytes, Object] = OrderedDict()
        self._lock = lock()

    def compile(self, source: str, options: str) -> bytes:
        """The binary of a source. Raises CompileError with the log of the build."""
        data = ffi.new("char[]", source.encode())
        texts = ffi.new("char *[]", [data])
        lengths = ffi.new("size_t[]", [len(data) - 1])
        place = (self._context, 1, texts, lengths)
        program = owned("clReleaseProgram", create("clCreateProgramWithSource", *place))
        self._build(program, options, source)
        binary = self._binary(program)
        with self._lock:
            self._built[binary] = program
            while len(self._built) > _KEPT:
                self._built.popitem(last=False)
        return binary

    def load(self, binary: bytes) -> Object:
        """The program of a binary. Raises DeviceError for one of another driver."""
        with self._lock:
            found = self._built.pop(binary, None)
        if found is not None:
            return found
        data = ffi.from_buffer("unsigned char[]", binary)
        parts, lengths = ffi.new("unsigned char *[]", [data]), ffi.new("size_t[]", [len(binary)])
        each = ffi.new("cl_int *")
        place = (self._context, 1, self._devices, lengths, parts, each)
        program = owned("clReleaseProgram", create("clCreateProgramWithBinary", *place))
        self._build(program, "", "")
        return program

    def _build(self, program: Object, options: str, source: str) -> None:
        given = (1, self._devices, options.encode(), ffi.NULL, ffi.NULL)
        status = library().clBuildProgram(program, *given)
        if status:
            asked = (program, self._info.handle)
            log = text("clGetProgramBuildInfo", *asked, key=_BUILD_LOG)
            raise CompileError(
                f"{self._info.platform_name} cannot build a kernel: {describe(status)}",
                log=log,
                source=source,
            )

    @staticmethod
    def _binary(program: Object) -> bytes:
        size = number("clGetProgramInfo", program, key=_BINARY_SIZES)
        data = ffi.new("unsigned char[]", size)
        parts = ffi.new("unsigned char *[]", [data])
        call("clGetProgramInfo", program, _BINARIES, ffi.sizeof(parts), parts, ffi.NULL)
        return bytes(ffi.buffer(data))


class ClCompiler:
    """The compiler of one device's driver."""

    name = "OPENCL"

    def __init__(self, info: ClInfo, programs: Programs) -> None:
        self._programs = programs
        # Without halves, as PoCL is on processors: what takes them is not among the prototypes.
        self._is_slow_to_begin = info.platform_name == _POCL and not info.has_half
        major, minor = info.c_version
        # Nothing newer than 1.2 is used; 2.x compilers spend time on what only they have.
        standard = "-cl-std=CL1.2" if (major, minor) >= (1, 2) else ""
        self._options = f"{standard} {settings.OPENCL_BUILD_OPTIONS}".strip()
        self.key = f"OPENCL {info.platform_name} {info.name} {info.version} {self._options}"

    def compile(self, source: str) -> bytes:
        """The binary. Raises CompileError with the log of the build."""
        known = _prototypes.prototypes(source) if self._is_slow_to_begin else None
        if known is not None:
            with suppress(CompileError):  # the log is to be about the source alone
                return self._programs.compile(
                    known + source, f"{self._options} {_prototypes.OPTION}"
                )
        return self._programs.compile(source, self._options)


class Prepared:
    """A kernel with arguments of its own, and what it is launched with."""

    def __init__(self, program: Object, info: ProgramInfo, queue: Object) -> None:
        self.info = info
        name = entry_name(info.name).encode()
        self.kernel = owned("clReleaseKernel", create("clCreateKernel", program, name))
        self._global = ffi.new("size_t[3]", self._threads(info.grid))
        self._local = ffi.new("size_t[3]", info.block)
        self._launch = (queue, self.kernel, 3, ffi.NULL, self._global, self._local, 0, ffi.NULL)
        self._memory = ffi.new("cl_mem *")
        self._number = ffi.new("int64_t *")
        self._given: list[object] = [None] * (2 * info.buffers + len(info.values))
        """The arguments of the last launch, which a kernel keeps."""
        self._is_resized = False
        """True if a value changed that the number of groups depends on."""

    def give_buffer(self, slot: int, handle: ClMemory) -> None:
        """Set the arguments of a buffer that changed: the object, and where it starts."""
        given, start = self._given, self.info.buffers + slot
        if given[slot] is not handle.memory:
            self._memory[0] = handle.memory
            self._set(slot, self._memory, handle.memory)
        if given[start] != handle.start:
            self._number[0] = handle.start
            self._set(start, self._number, handle.start)

    def give_value(self, position: int, value: int) -> None:
        """Set the argument of a variable, if it changed."""
        place = 2 * self.info.buffers + position
        if self._given[place] != value:
            self._number[0] = value
            self._set(place, self._number, value)
            self._is_resized = bool(self.info.grid_extents)

    def give(self, buffers: Sequence[ClMemory], values: Sequence[int]) -> None:
        """Set all arguments that changed."""
        for slot, handle in enumerate(buffers):
            self.give_buffer(slot, handle)
        for position, value in enumerate(values):
            self.give_value(position, value)

    def _threads(self, groups: Sequence[int]) -> list[int]:
        """The threads of some groups per axis: what OpenCL calls the global work size."""
        return [g * b for g, b in zip(groups, self.info.block, strict=True)]

    def enqueue(self, event: Any = ffi.NULL) -> None:
        """Ask for a launch with the arguments of now."""
        if self._is_resized:
            values: Any = self._given[2 * self.info.buffers :]
            self._global[0:3] = self._threads(self.info.groups(values))
            self._is_resized = False
        what = f"kernel {self.info.name}"
        call("clEnqueueNDRangeKernel", *self._launch, event, what=what)

    def _set(self, position: int, pointer: Any, value: object) -> None:
        size = ffi.sizeof(ffi.typeof(pointer).item)
        call("clSetKernelArg", self.kernel, position, size, pointer)
        self._given[position] = value


class ClProgram:
    """A kernel, launched by calling it."""

    def __init__(self, program: Object, info: ProgramInfo, device: ClInfo, queue: Object) -> None:
        self.info = info
        self._program = program
        self._queue = queue
        self._prepared = self.prepared()
        self._verify_threads(device)
        self._lock = lock()

    def prepared(self) -> Prepared:
        """The kernel once more, with arguments of its own."""
        return Prepared(self._program, self.info, self._queue)

    def _verify_threads(self, device: ClInfo) -> None:
        asked = (self._prepared.kernel, device.handle)
        most = number("clGetKernelWorkGroupInfo", *asked, key=_GROUP_THREADS)
        x, y, z = self.info.block
        if x * y * z > most:
            raise LaunchTooLarge(
                f"kernel {self.info.name} has groups of {x * y * z} threads; as {device.name} "
                f"compiled it, {most} fit. NOOPT=1 leaves groups out.",
                most=most,
            )

    def __call__(
        self, buffers: Sequence[ClMemory], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch. With `wait`, wait for the end and return the seconds the device took."""
        event = ffi.new("cl_event *") if wait else ffi.NULL
        with self._lock:  # the arguments belong to the kernel until it is launched
            self._prepared.give(buffers, values)
            self._prepared.enqueue(event)
        if not wait:
            call("clFlush", self._queue)
            return None
        return seconds(event, event)


def seconds(first: Any, last: Any) -> float:
    """Seconds of the device from the start of one launch to the end of another."""
    events = {first, last}
    try:
        call("clWaitForEvents", 1, last)
        began = number("clGetEventProfilingInfo", first[0], key=_STARTED)
        return (number("clGetEventProfilingInfo", last[0], key=_ENDED) - began) * 1e-9
    finally:
        for event in events:
            library().clReleaseEvent(event[0])
