"""Memory of a GPU: buffers that the host addresses where both share memory, private ones elsewhere.

A handle is an MTLBuffer and the byte where a span starts. The host writes to shared memory once the
GPU has done what was asked before; to private memory it copies through a shared buffer, in order
with launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tiny_metal._lib import NIL, Object, Pool, ffi
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError

if TYPE_CHECKING:
    from tiny_metal.device import MetalDevice

__all__ = ["MetalAllocator", "MetalMemory"]

# Values of MTLResourceOptions and MTLStorageMode.
_SHARED: Final = 0
_PRIVATE: Final = 32
_PRIVATE_MODE: Final = 2
_OBJECT_ALIGNMENT: Final = 16
"""Alignment of the addresses of objects, in bytes."""
PIECE_BYTES: Final = 32 << 20
"""Size of the staging buffer of copies."""


class MetalMemory:
    """A span of a buffer: the MTLBuffer, the byte where the span starts, and what the host sees."""

    __slots__ = ("buffer", "host", "start")

    def __init__(self, buffer: Object, start: int, host: Any) -> None:
        self.buffer = buffer
        self.start = start
        self.host = host
        """Host address of the buffer's first byte; None for private memory."""

    def __repr__(self) -> str:
        return f"MetalMemory({self.buffer}, from byte {self.start})"


class MetalAllocator:
    """The memory of one GPU."""

    def __init__(self, device: MetalDevice) -> None:
        self._device = device
        self._shares = device.info.shares_memory

    def buffer(self, size: int, options: int) -> Object:
        """An MTLBuffer. Raises OutOfMemory."""
        device = self._device
        with Pool(device.metal):
            made = device.send(device.handle, "newBufferWithLength:options:", size, options)
        if made == NIL:
            most = device.info.most_bytes
            limit = f"; a buffer has at most {most:,}" if size > most else ""
            raise OutOfMemory(
                f"{device.info.name} has no memory left for {size:,} bytes{limit}. Free tensors, "
                "or use a smaller batch."
            )
        return made

    def alloc(self, size: int) -> MetalMemory:
        """A buffer of `size` bytes, not cleared. Raises OutOfMemory."""
        made = self.buffer(size, _SHARED if self._shares else _PRIVATE)
        host = self._device.send(made, "contents") if self._shares else None
        return MetalMemory(made, 0, host)

    def shared(self, size: int) -> MetalMemory:
        """A buffer that the host addresses, also of a GPU with memory of its own."""
        made = self.buffer(size, _SHARED)
        return MetalMemory(made, 0, self._device.send(made, "contents"))

    def free(self, handle: MetalMemory) -> None:
        """Release a buffer."""
        self._device.release(handle.buffer)
        handle.buffer = handle.host = None  # a launch that still names it fails in Python

    def write(self, dst: MetalMemory, src: memoryview) -> None:
        """Copy host bytes to the start of `dst`, after all launches before."""
        if dst.host is not None:
            self._device.synchronize()
            ffi.memmove(dst.host + dst.start, src, src.nbytes)
            return
        for start in range(0, src.nbytes, PIECE_BYTES):
            size = min(PIECE_BYTES, src.nbytes - start)
            staging = self.buffer(size, _SHARED)
            ffi.memmove(self._device.send(staging, "contents"), src[start : start + size], size)
            self._device.blit(staging, 0, dst.buffer, dst.start + start, size)
            self._device.release(staging)  # the command buffer keeps it until it has ended

    def read(self, dst: memoryview, src: MetalMemory) -> None:
        """Fill host bytes from the start of `src`, after all launches before."""
        if src.host is not None:
            self._device.synchronize()
            ffi.memmove(dst, src.host + src.start, dst.nbytes)
            return
        for start in range(0, dst.nbytes, PIECE_BYTES):
            size = min(PIECE_BYTES, dst.nbytes - start)
            staging = self.buffer(size, _SHARED)
            try:
                self._device.blit(src.buffer, src.start + start, staging, 0, size)
                self._device.synchronize()
                there = self._device.send(staging, "contents")
                ffi.memmove(dst[start : start + size], there, size)
            finally:
                self._device.release(staging)

    def offset(self, handle: MetalMemory, size: int, start: int) -> MetalMemory:
        """The span from byte `start` on."""
        return MetalMemory(handle.buffer, handle.start + start, handle.host)

    def map(self, handle: MetalMemory, size: int) -> memoryview:
        """The bytes themselves. Raises UnsupportedError where the host cannot address them."""
        if handle.host is None:
            raise UnsupportedError(
                "the host cannot address a private MTLBuffer; copy it, as in (tensor + 0).realize()"
            )
        return memoryview(ffi.buffer(handle.host + handle.start, size))

    def wrap(self, pointer: int, size: int) -> MetalMemory:
        """A buffer that somebody else made: `pointer` is the address of its MTLBuffer.

        Raises DeviceError for one that is too short.
        """
        device = self._device
        if pointer % _OBJECT_ALIGNMENT:
            raise DeviceError(
                f"{pointer:#x} is no object of Metal. data_ptr() of a torch tensor that starts "
                "inside its storage is none: use Tensor.from_dlpack, or "
                "untyped_storage().data_ptr() and slice the tensor"
            )
        buffer = ffi.cast("id", pointer)
        if not device.metal.responds(buffer, "contents"):
            raise DeviceError(f"{pointer:#x} is an object of Metal, but no MTLBuffer")
        if (room := int(device.send(buffer, "length"))) < size:
            raise DeviceError(f"the MTLBuffer has {room:,} bytes, the tensor {size:,}")
        private = device.send(buffer, "storageMode") == _PRIVATE_MODE
        return MetalMemory(buffer, 0, None if private else device.send(buffer, "contents"))
