"""Buffers and images of an OpenCL device.

A handle is a buffer and a place in it. A view is another place in the same buffer, at any byte:
kernels take both, where OpenCL's own sub-buffers would have to start at coarse multiples.
"""

from __future__ import annotations

from typing import Any, Final

from tiny_cl._lib import Object, call, create, ffi, is_inherited, library
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError
from tinycore.plugin import ALIGNMENT_BYTES

__all__ = ["ClAllocator", "ClMemory"]

# Values of CL/cl.h.
_READ_WRITE: Final = 1 << 0
_USE_HOST_MEMORY: Final = 1 << 3
_SHARED: Final = _READ_WRITE | 1 << 10  # of fine grain: seen by both without being mapped
_PROBE_BYTES: Final = 64
_MEMORY_CONTEXT: Final = 0x1106
_MEMORY_SIZE: Final = 0x1102
_MEMORY_TYPE: Final = 0x1100
_BUFFER: Final = 0x10F0
_BLOCKING: Final = 1
_RGBA: Final = 0x10B5
_HALF: Final = 0x10DD
_FLOAT: Final = 0x10DE
_FLOAT_BYTES: Final = 4
_PLANE: Final = 0x10F1


class ClMemory:
    """A span of a buffer: the cl_mem, the byte where the span starts, and what the host sees."""

    __slots__ = ("host", "memory", "size", "start")

    def __init__(
        self,
        memory: Object,
        start: int,
        host: Object | None = None,
        size: Object | None = None,
    ) -> None:
        self.memory = memory
        self.start = start
        self.host = host
        """Host address of the buffer's first byte; None where the host cannot reach it."""
        self.size = size
        """Columns, rows and layers of an image; None for a buffer."""

    def __repr__(self) -> str:
        return f"ClMemory({self.memory}, from byte {self.start})"


class ClAllocator:
    """The memory of one device, read and written through its queue."""

    def __init__(self, context: Object, queue: Object, shares_memory: bool) -> None:
        self._context = context
        self._queue = queue
        self.shares_memory = shares_memory and self._is_shared()

    def _is_shared(self) -> bool:
        """True if the host finds in memory the data that a queue wrote: a driver may keep a copy.

        A write that was waited for may still be on its way there: the source is free, no more.
        """
        self.shares_memory = True
        probe = self.alloc(_PROBE_BYTES)
        self.write(probe, memoryview(bytes(range(_PROBE_BYTES))))
        call("clFinish", self._queue)
        shared = bytes(self.map(probe, _PROBE_BYTES)) == bytes(range(_PROBE_BYTES))
        self.free(probe)
        return shared

    def alloc(self, size: int) -> ClMemory:
        """A buffer of `size` bytes, not cleared. Raises OutOfMemory."""
        what = f"{size:,} bytes"
        if not self.shares_memory:
            place = (self._context, _READ_WRITE, size, ffi.NULL)
            return ClMemory(create("clCreateBuffer", *place, what=what), 0)
        host = library().clSVMAlloc(self._context, _SHARED, size, ALIGNMENT_BYTES)
        if host == ffi.NULL:
            raise OutOfMemory(
                f"the device has no memory left for {what}. Free tensors, or use a smaller batch."
            )
        place = (self._context, _READ_WRITE | _USE_HOST_MEMORY, size, host)
        try:
            return ClMemory(create("clCreateBuffer", *place, what=what), 0, host)
        except DeviceError:
            library().clSVMFree(self._context, host)
            raise

    def image(self, height: int, width: int, channel_bytes: int) -> ClMemory:
        """An image of pixels of four floats, not cleared. Raises OutOfMemory."""
        channel = _FLOAT if channel_bytes == _FLOAT_BYTES else _HALF
        pixels = ffi.new("cl_image_format *", {"order": _RGBA, "channel": channel})
        size = {"kind": _PLANE, "width": width, "height": height}
        plane = ffi.new("cl_image_desc *", size)
        place = (self._context, _READ_WRITE, pixels, plane, ffi.NULL)
        made = create("clCreateImage", *place, what=f"an image of {height} rows of {width} pixels")
        return ClMemory(made, 0, size=ffi.new("size_t[3]", [width, height, 1]))

    def free(self, handle: ClMemory) -> None:
        """Release a buffer or an image."""
        if is_inherited():
            return
        library().clReleaseMemObject(handle.memory)
        if handle.host is not None:
            library().clSVMFree(self._context, handle.host)
        handle.memory = handle.host = None  # a launch that still names it fails in Python

    def write(self, dst: ClMemory, src: memoryview) -> None:
        """Copy host bytes to the start of `dst`, or to all pixels of an image."""
        if dst.size is not None:
            pixels = (ffi.new("size_t[3]"), dst.size, 0, 0, ffi.from_buffer(src))
            call("clEnqueueWriteImage", self._queue, dst.memory, _BLOCKING, *pixels, *_no_events())
            return
        place = (dst.start, src.nbytes, ffi.from_buffer(src))
        call("clEnqueueWriteBuffer", self._queue, dst.memory, _BLOCKING, *place, *_no_events())

    def read(self, dst: memoryview, src: ClMemory) -> None:
        """Fill host bytes from the start of `src`, or from all pixels of an image."""
        if src.size is not None:
            host = ffi.from_buffer(dst, require_writable=True)
            pixels = (ffi.new("size_t[3]"), src.size, 0, 0, host)
            call("clEnqueueReadImage", self._queue, src.memory, _BLOCKING, *pixels, *_no_events())
            return
        place = (src.start, dst.nbytes, ffi.from_buffer(dst, require_writable=True))
        call("clEnqueueReadBuffer", self._queue, src.memory, _BLOCKING, *place, *_no_events())

    def offset(self, handle: ClMemory, size: int, start: int) -> ClMemory:
        """The span from byte `start` on."""
        return ClMemory(handle.memory, handle.start + start, handle.host)

    def map(self, handle: ClMemory, size: int) -> memoryview:
        """The bytes themselves, on a device that shares its memory.

        Raises UnsupportedError for a buffer that somebody else made: who did may have its address.
        """
        if handle.host is None:
            raise UnsupportedError(
                "the host cannot address a cl_mem that was made elsewhere; copy it, "
                "as in (tensor + 0).realize()"
            )
        return memoryview(ffi.buffer(ffi.cast("char *", handle.host) + handle.start, size))

    def wrap(self, pointer: int, size: int) -> ClMemory:
        """A buffer that somebody else made: `pointer` is the address of its cl_mem.

        Raises DeviceError for what is none, UnsupportedError for an image, and for a buffer of
        another context.
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
        if _asked(memory, _MEMORY_TYPE, "cl_uint *") != _BUFFER:
            raise UnsupportedError(
                "the cl_mem is an image, whose pixels lie as the device likes. Copy it to a buffer "
                "by clEnqueueCopyImageToBuffer, and take that; x.cast(dtypes.imagef((height, "
                "width))) puts a tensor into an image of its own."
            )
        if (room := int(_asked(memory, _MEMORY_SIZE, "size_t *"))) < size:
            raise DeviceError(f"the cl_mem has {room} bytes, the tensor {size}")
        return ClMemory(memory, 0)


def _asked(memory: Object, key: int, kind: str) -> Any:
    """Query a property of a buffer."""
    value = ffi.new(kind)
    size = ffi.sizeof(ffi.typeof(value).item)
    call("clGetMemObjectInfo", memory, key, size, value, ffi.NULL)
    return value[0]


def _no_events() -> tuple[int, Any, Any]:
    """Waits for nothing, and is waited for by nothing."""
    return 0, ffi.NULL, ffi.NULL
