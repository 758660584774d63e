"""Buffers of an OpenCL device.

A handle is a buffer and a place in it. A view is another place in the same buffer, at any byte:
kernels take both, where OpenCL's own sub-buffers would have to start at coarse multiples.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from tiny_cl._lib import Object, call, create, ffi, library
from tinycore.errors import DeviceError, UnsupportedError

__all__ = ["ClAllocator", "ClMemory"]

# Values of CL/cl.h.
_READ_WRITE: Final = 1 << 0
_HOST_MEMORY: Final = 1 << 4
_MAP_READ_WRITE: Final = 3
_MEMORY_CONTEXT: Final = 0x1106
_MEMORY_SIZE: Final = 0x1102
_BLOCKING: Final = 1


class ClMemory:
    """A span of a buffer: the cl_mem, and the byte where the span starts."""

    __slots__ = ("memory", "start")

    def __init__(self, memory: Object, start: int) -> None:
        self.memory = memory
        self.start = start

    def __repr__(self) -> str:
        return f"ClMemory({self.memory}, from byte {self.start})"


class ClAllocator:
    """The memory of one device, read and written through its queue."""

    def __init__(self, context: Object, queue: Object, shares_memory: bool) -> None:
        self._context = context
        self._queue = queue
        self._shares_memory = shares_memory
        self._addresses: dict[Any, int] = {}
        """Where the host sees a buffer that was mapped once; it stays there."""
        self._lock = threading.Lock()

    def alloc(self, size: int) -> ClMemory:
        """A buffer of `size` bytes, not cleared. Raises OutOfMemory."""
        flags = _READ_WRITE | (_HOST_MEMORY if self._shares_memory else 0)
        what = f"{size:,} bytes"
        buffer = create("clCreateBuffer", self._context, flags, size, ffi.NULL, what=what)
        return ClMemory(buffer, 0)

    def free(self, handle: ClMemory) -> None:
        """Release a buffer."""
        self._addresses.pop(handle.memory, None)
        library().clReleaseMemObject(handle.memory)
        handle.memory = None  # a launch that still names it fails in Python

    def write(self, dst: ClMemory, src: memoryview) -> None:
        """Copy host bytes to the start of `dst`."""
        place = (dst.start, src.nbytes, ffi.from_buffer(src))
        call("clEnqueueWriteBuffer", self._queue, dst.memory, _BLOCKING, *place, *_no_events())

    def read(self, dst: memoryview, src: ClMemory) -> None:
        """Fill host bytes from the start of `src`."""
        place = (src.start, dst.nbytes, ffi.from_buffer(dst, require_writable=True))
        call("clEnqueueReadBuffer", self._queue, src.memory, _BLOCKING, *place, *_no_events())

    def offset(self, handle: ClMemory, size: int, start: int) -> ClMemory:
        """The span from byte `start` on."""
        return ClMemory(handle.memory, handle.start + start)

    def map(self, handle: ClMemory, size: int) -> memoryview:
        """The bytes themselves, on a device that shares its memory."""
        with self._lock:
            address = self._addresses.get(handle.memory)
            if address is None:
                address = self._addresses[handle.memory] = self._mapped(handle.memory)
        start = ffi.cast("char *", address) + handle.start
        return memoryview(ffi.buffer(start, size))

    def _mapped(self, memory: Object) -> int:
        """The address of a buffer's first byte, which on such a device is where it always is."""
        size = int(_asked(memory, _MEMORY_SIZE, "size_t *"))
        place = (_BLOCKING, _MAP_READ_WRITE, 0, size)
        pointer = create("clEnqueueMapBuffer", self._queue, memory, *place, *_no_events())
        call("clEnqueueUnmapMemObject", self._queue, memory, pointer, *_no_events())
        call("clFinish", self._queue)
        return int(ffi.cast("uintptr_t", pointer))

    def wrap(self, pointer: int, size: int) -> ClMemory:
        """A buffer that somebody else made: `pointer` is the address of its cl_mem.

        Raises DeviceError for what is none, UnsupportedError for one of another context.
        """
        # By cl_khr_icd the first word of every object is its driver's table of calls.
        if ffi.cast("void **", pointer)[0] != ffi.cast("void **", self._context)[0]:
            raise DeviceError(
                f"{pointer:#x} is no cl_mem of this device's driver. Memory of the host gets here "
                "by Tensor(array), or by a cl_mem made of it."
            )
        memory = ffi.cast("cl_mem", pointer)
        if _asked(memory, _MEMORY_CONTEXT, "cl_context *") != self._context:
            raise UnsupportedError(
                "the cl_mem belongs to another context. Make it in the one of this device, "
                'Device["CL"].runtime.context_address.'
            )
        if (room := int(_asked(memory, _MEMORY_SIZE, "size_t *"))) < size:
            raise DeviceError(f"the cl_mem has {room} bytes, the tensor {size}")
        return ClMemory(memory, 0)


def _asked(memory: Object, key: int, kind: str) -> Any:
    """What a buffer says of itself."""
    value = ffi.new(kind)
    size = ffi.sizeof(ffi.typeof(value).item)
    call("clGetMemObjectInfo", memory, key, size, value, ffi.NULL)
    return value[0]


def _no_events() -> tuple[int, Any, Any]:
    """Waits for nothing, and is waited for by nothing."""
    return 0, ffi.NULL, ffi.NULL
