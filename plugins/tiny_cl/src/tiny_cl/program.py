"""OpenCL C to a binary, a binary to a kernel, and its launches."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from tiny_cl._lib import Object, call, create, describe, ffi, library, number, text
from tiny_cl.memory import ClMemory
from tiny_cl.probe import ClInfo
from tiny_cl.render import entry_name
from tinycore.errors import CompileError, DeviceError
from tinycore.plugin import ProgramInfo

__all__ = ["ClCompiler", "ClProgram", "Programs"]

# Keys of CL/cl.h.
_BUILD_LOG: Final = 0x1183
_BINARY_SIZES: Final = 0x1165
_BINARIES: Final = 0x1166
_GROUP_THREADS: Final = 0x11B0
_STARTED: Final = 0x1282
_ENDED: Final = 0x1283
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
        self._lock = threading.Lock()

    def compile(self, source: str, options: str) -> bytes:
        """The binary of a source. Raises CompileError with the log of the build."""
        data = ffi.new("char[]", source.encode())
        texts = ffi.new("char *[]", [data])
        lengths = ffi.new("size_t[]", [len(data) - 1])
        place = (self._context, 1, texts, lengths)
        program = _owned("clReleaseProgram", create("clCreateProgramWithSource", *place))
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
        program = _owned("clReleaseProgram", create("clCreateProgramWithBinary", *place))
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
        major, minor = info.c_version
        # Nothing newer than 1.2 is used; 2.x compilers spend time on what only they have.
        standard = "-cl-std=CL1.2" if (major, minor) >= (1, 2) else ""
        self._options = f"{standard} {os.environ.get('OPENCL_BUILD_OPTIONS', '')}".strip()
        self.key = f"OPENCL {info.platform_name} {info.name} {info.version} {self._options}"

    def compile(self, source: str) -> bytes:
        """The binary. Raises CompileError with the log of the build."""
        return self._programs.compile(source, self._options)


class ClProgram:
    """A kernel, launched by calling it."""

    def __init__(self, program: Object, info: ProgramInfo, device: ClInfo, queue: Object) -> None:
        self.info = info
        self._program = program
        self._queue = queue
        name = entry_name(info.name).encode()
        self._kernel = _owned("clReleaseKernel", create("clCreateKernel", program, name))
        self._verify_threads(device)
        self._global = ffi.new(
            "size_t[3]", [g * b for g, b in zip(info.grid, info.block, strict=True)]
        )
        self._local = ffi.new("size_t[3]", info.block)
        self._memory = ffi.new("cl_mem *")
        self._number = ffi.new("int64_t *")
        self._given: list[object] = [None] * (2 * info.buffers + len(info.values))
        """The arguments of the last launch, which a kernel keeps."""
        self._lock = threading.Lock()

    def _verify_threads(self, device: ClInfo) -> None:
        asked = (self._kernel, device.handle)
        most = number("clGetKernelWorkGroupInfo", *asked, key=_GROUP_THREADS)
        x, y, z = self.info.block
        if x * y * z > most:
            raise DeviceError(
                f"kernel {self.info.name} has groups of {x * y * z} threads; as {device.name} "
                f"compiled it, {most} fit. NOOPT=1 leaves groups out."
            )

    def __call__(
        self, buffers: Sequence[ClMemory], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch. With `wait`, wait for the end and return the seconds the device took."""
        event = ffi.new("cl_event *") if wait else ffi.NULL
        launch = (3, ffi.NULL, self._global, self._local, 0, ffi.NULL, event)
        with self._lock:  # the arguments belong to the kernel until it is launched
            self._give(buffers, values)
            queued = (self._queue, self._kernel, *launch)
            call("clEnqueueNDRangeKernel", *queued, what=f"kernel {self.info.name}")
        if not wait:
            call("clFlush", self._queue)
            return None
        return _seconds(event)

    def _give(self, buffers: Sequence[ClMemory], values: Sequence[int]) -> None:
        """Set the arguments that changed: buffers, where each starts, values."""
        given, count = self._given, len(buffers)
        for position, handle in enumerate(buffers):
            if given[position] is not handle.memory:
                self._memory[0] = handle.memory
                self._set(position, self._memory, handle.memory)
            if given[count + position] != handle.start:
                self._number[0] = handle.start
                self._set(count + position, self._number, handle.start)
        for position, value in enumerate(values, 2 * count):
            if given[position] != value:
                self._number[0] = value
                self._set(position, self._number, value)

    def _set(self, position: int, pointer: Any, value: object) -> None:
        size = ffi.sizeof(ffi.typeof(pointer).item)
        call("clSetKernelArg", self._kernel, position, size, pointer)
        self._given[position] = value


def _seconds(event: Any) -> float:
    """How long what an event stands for took, once it is over."""
    try:
        call("clWaitForEvents", 1, event)
        asked = ("clGetEventProfilingInfo", event[0])
        return (number(*asked, key=_ENDED) - number(*asked, key=_STARTED)) * 1e-9
    finally:
        library().clReleaseEvent(event[0])


def _owned(release: str, made: Object) -> Object:
    """An object that is released with its last reference."""
    return ffi.gc(made, getattr(library(), release))
