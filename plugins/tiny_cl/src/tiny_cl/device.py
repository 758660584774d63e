"""An open OpenCL device: its context, its queue, and the toolchain that makes its programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tiny_cl._lib import Object, call, create, ffi, library
from tiny_cl.graph import ClGraph
from tiny_cl.memory import ClAllocator
from tiny_cl.probe import ClInfo, devices, reason
from tiny_cl.program import ClCompiler, ClProgram, Programs
from tiny_cl.render import OpenClC, OpenClCWithHalf, limits_of
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import CAPABILITIES, Launch, ProgramInfo, Toolchain

__all__ = ["ClDevice", "toolchain"]

_CONTEXT_PLATFORM = 0x1084
_PROFILING = 1 << 1


@cache
def context_of(index: int) -> tuple[ClInfo, Object, Programs]:
    """A device, its context and its programs, made once. Raises DeviceUnavailable."""
    found = devices()
    if index >= len(found):
        names = ", ".join(f"CL:{i} {info.name}" for i, info in enumerate(found))
        raise DeviceUnavailable(
            f"there is no CL:{index}; there are: {names}" if found else reason()
        )
    info = found[index]
    properties = ffi.new(
        "intptr_t[3]", [_CONTEXT_PLATFORM, int(ffi.cast("intptr_t", info.platform)), 0]
    )
    chosen = ffi.new("cl_device_id[]", [info.handle])
    context = create("clCreateContext", properties, 1, chosen, ffi.NULL, ffi.NULL, what=info.name)
    return info, context, Programs(info, context)


def toolchain(arch: str = "") -> Toolchain[OpenClC]:
    """The compiler of a device's driver; `arch` is the device's number."""
    if arch and not arch.isdecimal():
        raise DeviceUnavailable(
            f"the architecture of CL is a device's number, as in DEV=CL:OPENCL:1, not {arch!r}"
        )
    info, _, programs = context_of(int(arch or 0))
    language = OpenClCWithHalf if info.has_half else OpenClC
    renderer = language(limits_of(info), has_double=info.has_double)
    return Toolchain("OPENCL", arch, renderer, ClCompiler(info, programs))


class ClDevice:
    """An open device, with one queue that runs what it is asked in order."""

    def __init__(self, index: int = 0, interface: str = "") -> None:
        self.arch = str(index)
        self.info, self._context, self._programs = context_of(index)
        made = ("clCreateCommandQueue", self._context, self.info.handle, _PROFILING)
        self._queue = create(*made, what=self.info.name)
        self.allocator = ClAllocator(self._context, self._queue, self.info.shares_memory)

    @property
    def capabilities(self) -> frozenset[str]:
        """The declared capabilities that this device has."""
        has = {
            "float64": self.info.has_double,
            "host_memory": self.allocator.shares_memory,
            "image": self.info.largest_image is not None,
        }
        return frozenset(word for word in CAPABILITIES if has.get(word, True))

    @property
    def context_address(self) -> int:
        """Address of its cl_context, for code that makes a cl_mem to share."""
        return int(ffi.cast("uintptr_t", self._context))

    @property
    def queue_address(self) -> int:
        """Address of its cl_command_queue, for code that fills a cl_mem to share."""
        return int(ffi.cast("uintptr_t", self._queue))

    def load(self, binary: bytes, info: ProgramInfo) -> ClProgram:
        """Make a binary ready to launch. Raises DeviceError for one of another driver."""
        return ClProgram(self._programs.load(binary), info, self.info, self._queue)

    def graph(self, launches: Sequence[Launch]) -> ClGraph:
        """Launches of this device's programs, ready to be queued in one go."""
        return ClGraph(launches, self._queue)

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        call("clFinish", self._queue)

    def close(self) -> None:
        """Wait, and release the queue. The context lasts as long as the process."""
        library().clFinish(self._queue)
        library().clReleaseCommandQueue(self._queue)
