"""Memory of a WebGPU device: buffers, written through the queue, read through a mapped buffer.

WebGPU copies whole words of four bytes; what starts or ends inside a word is done by reading the
words around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tiny_webgpu._lib import BufferUsage, Pointer
from tinycore.errors import OutOfMemory

if TYPE_CHECKING:
    from tiny_webgpu.device import WebGpuDevice

__all__ = ["STORAGE", "WORD_BYTES", "Block", "DeviceMemory", "WebGpuAllocator"]

WORD_BYTES: Final = 4
_BLOCK_BYTES: Final = 16
STORAGE: Final = BufferUsage.STORAGE | BufferUsage.COPY_SRC | BufferUsage.COPY_DST
"""The usage of memory that kernels work on."""


class Block:
    """A buffer of the device, and its size in bytes."""

    __slots__ = ("pointer", "size")

    def __init__(self, pointer: Pointer, size: int) -> None:
        self.pointer = pointer
        self.size = size


class DeviceMemory:
    """`size` bytes of a block from byte `start` on."""

    __slots__ = ("block", "size", "start")

    def __init__(self, block: Block, start: int, size: int) -> None:
        self.block = block
        self.start = start
        self.size = size

    def __repr__(self) -> str:
        return f"DeviceMemory({self.size} bytes from {self.start} of {self.block.size})"

    def words(self, size: int) -> tuple[int, int]:
        """Start and end of the whole words around the first `size` bytes."""
        end = self.start + size
        return self.start - self.start % WORD_BYTES, end + -end % WORD_BYTES


class WebGpuAllocator:
    """Allocates buffers of one device."""

    def __init__(self, device: WebGpuDevice) -> None:
        self._device = device

    def alloc(self, size: int) -> DeviceMemory:
        """`size` bytes. Raises OutOfMemory."""
        most = self._device.max_buffer_bytes
        if size > most:
            raise OutOfMemory(
                f"{self._device.name} holds at most {most:,} bytes in one buffer, and {size:,} "
                "were asked for. Use a smaller batch, or split the tensor."
            )
        whole = size + -size % _BLOCK_BYTES
        return DeviceMemory(self._device.create_block(whole, STORAGE), 0, size)

    def free(self, handle: DeviceMemory) -> None:
        """Give a buffer back."""
        self._device.destroy_block(handle.block)

    def write(self, dst: DeviceMemory, src: memoryview) -> None:
        """Copy host bytes to the start of `dst`."""
        start, end = dst.words(src.nbytes)
        if end - start == src.nbytes:
            self._device.write(dst.block, start, src)
            return
        around = bytearray(end - start)
        self._device.read(dst.block, start, memoryview(around))
        before = dst.start - start
        around[before : before + src.nbytes] = src
        self._device.write(dst.block, start, memoryview(around))

    def read(self, dst: memoryview, src: DeviceMemory) -> None:
        """Fill host bytes from the start of `src`."""
        start, end = src.words(dst.nbytes)
        if end - start == dst.nbytes:
            self._device.read(src.block, start, dst)
            return
        around = bytearray(end - start)
        self._device.read(src.block, start, memoryview(around))
        before = src.start - start
        dst[:] = memoryview(around)[before : before + dst.nbytes]

    def offset(self, handle: DeviceMemory, size: int, start: int) -> DeviceMemory:
        """The `size` bytes from `start` on, as a handle that shares the buffer."""
        return DeviceMemory(handle.block, handle.start + start, size)
