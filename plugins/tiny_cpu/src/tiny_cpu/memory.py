"""Host memory as device memory: what kernels on the CPU compute on.

A block belongs to Python objects: the handle, sub-handles made by `offset`, and views made by
`map`. It is given back when the last of them goes, so it is freed once and never under a live
view.
"""

from __future__ import annotations

from typing import Final

from tiny_cpu._lib import Pointer, address_of, aligned_memory, as_pointer, mapped_memory, view
from tinycore.plugin import ALIGNMENT_BYTES

__all__ = ["CpuAllocator", "HostMemory"]

_MAPPED_FROM_BYTES: Final = 1 << 20
"""Blocks from this size on have pages of their own, which go back to the system when freed."""


class HostMemory:
    """A span of host memory: `address`, `size` in bytes, and what keeps it alive."""

    __slots__ = ("_pointer", "address", "size")

    def __init__(self, pointer: Pointer, address: int, size: int) -> None:
        self._pointer = pointer  # owns the block; of a sub-span, still the whole block
        self.address = address
        self.size = size

    def __repr__(self) -> str:
        return f"HostMemory({self.address:#x}, {self.size} bytes)"

    def view(self) -> memoryview:
        """The bytes, writable and without a copy; the view keeps the block alive."""
        start = self.address - address_of(self._pointer)
        return view(self._pointer, start + self.size)[start:]


class CpuAllocator:
    """Allocates host memory. Blocks are aligned to a cache line, large ones to a huge page."""

    def alloc(self, size: int) -> HostMemory:
        """`size` bytes, not cleared. Raises OutOfMemory."""
        if size >= _MAPPED_FROM_BYTES:
            pointer = mapped_memory(size)
        else:
            pointer = aligned_memory(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, ALIGNMENT_BYTES)
        return HostMemory(pointer, address_of(pointer), size)

    def free(self, handle: HostMemory) -> None:
        """Let go of the block; it is given back once no view of it is left."""
        handle._pointer = None
        handle.address = -1  # a launch that still names it fails in Python, instead of crashing

    def write(self, dst: HostMemory, src: memoryview) -> None:
        """Copy `src` to the start of `dst`."""
        dst.view()[: src.nbytes] = src.cast("B")

    def read(self, dst: memoryview, src: HostMemory) -> None:
        """Fill `dst` from the start of `src`."""
        dst.cast("B")[:] = src.view()[: dst.nbytes]

    def offset(self, handle: HostMemory, size: int, start: int) -> HostMemory:
        """The `size` bytes from `start` on, as a handle that shares the block."""
        return HostMemory(handle._pointer, handle.address + start, size)

    def copy_from(self, dst: HostMemory, src: HostMemory, size: int, source: object) -> None:
        """Copy between two CPU devices: their memory is the same kind."""
        dst.view()[:size] = src.view()[:size]

    def map(self, handle: HostMemory, size: int) -> memoryview:
        """The first `size` bytes without a copy."""
        return handle.view()[:size]

    def wrap(self, pointer: int, size: int) -> HostMemory:
        """Memory that somebody else owns, and keeps until the handle is gone."""
        return HostMemory(as_pointer(pointer), pointer, size)
