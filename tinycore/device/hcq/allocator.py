"""`HCQAllocator`: memory of a device with queues, and copies between it and the host.

Floor 1. Imports `protocols`, `signal`. A driver says how memory is had and given back. Host copies
go straight to memory that the host sees, else through a ring of staging buffers: while the queue
moves one, the host fills or empties the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinycore.device.hcq.memory import HCQBuffer
from tinycore.device.hcq.signal import Moment
from tinycore.device.protocols import DeviceRuntime
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled

__all__ = ["HCQAllocator"]


@dataclass
class Lent:
    """A staging buffer in use, and when it is free again; None for at once."""

    buffer: HCQBuffer
    until: Moment | None = None


class HCQAllocator(ABC):
    """Memory of one device. `device` is set before anything is asked of it."""

    device: HCQCompiled

    def __init__(self, *, staging_bytes: int = 2 << 20, staging_buffers: int = 32) -> None:
        self.staging_bytes = staging_bytes
        self.staging_buffers = staging_buffers
        self._staging: deque[tuple[HCQBuffer, Moment | None]] = deque()
        self._staged = 0

    # --- what a driver says

    @abstractmethod
    def allocate(self, size: int, visible: bool) -> HCQBuffer:
        """`size` bytes; when `visible`, memory that the host sees as well.

        Other devices of the group address it after `map_peer`. Raises OutOfMemory.
        """

    @abstractmethod
    def release(self, buffer: HCQBuffer) -> None:
        """Give an allocation back. Never raises."""

    def map_peer(self, buffer: HCQBuffer) -> None:  # noqa: B027  one address space needs none
        """Make an allocation of another device of the group addressable by this one.

        By default nothing is to be done. Raises UnsupportedError where it cannot be.
        """

    def unmap_peer(self, buffer: HCQBuffer) -> None:  # noqa: B027
        """Take `map_peer` back: the allocation is about to be freed. Never raises."""

    # --- the protocol

    def alloc(self, size: int) -> HCQBuffer:
        """`size` bytes, aligned, not cleared. Raises OutOfMemory."""
        return self._allocate(size, visible=False)

    def alloc_visible(self, size: int) -> HCQBuffer:
        """`size` bytes that the host and the device see. Raises OutOfMemory."""
        return self._allocate(size, visible=True)

    def _allocate(self, size: int, visible: bool) -> HCQBuffer:
        try:
            return self.allocate(size, visible)
        except OutOfMemory:
            if not self.device.reclaim():
                raise
        return self.allocate(size, visible)

    def free(self, handle: HCQBuffer) -> None:
        """Give an allocation back. Never raises."""
        for device in handle.mapped:
            device.allocator.unmap_peer(handle)
        handle.mapped.clear()
        self.release(handle)

    def offset(self, handle: HCQBuffer, size: int, start: int) -> HCQBuffer:
        """The `size` bytes from `start` on."""
        return handle.offset(start, size)

    def write(self, dst: HCQBuffer, src: memoryview) -> None:
        """Copy host bytes to the start of `dst`; `src` is free when this returns."""
        with self.device.lock:
            self.device.ready()
            if dst.view is not None:
                self.device.synchronize()
                dst.view[: src.nbytes] = src
                return
            for start in range(0, src.nbytes, self.staging_bytes):
                piece = src[start : start + self.staging_bytes]
                staging = self._take_staging()
                assert staging.view is not None
                staging.view[: piece.nbytes] = piece
                moment = self._copy(dst.address + start, staging.address, piece.nbytes)
                self._staging.append((staging, moment))

    def read(self, dst: memoryview, src: HCQBuffer) -> None:
        """Fill host bytes from the start of `src`."""
        with self.device.lock:
            self.device.ready()
            if src.view is not None:
                self.device.synchronize()
                dst[:] = src.view[: dst.nbytes]
                return
            under_way: deque[tuple[HCQBuffer, Moment, memoryview]] = deque()
            for start in range(0, dst.nbytes, self.staging_bytes):
                if len(under_way) == min(self.staging_buffers, 2):
                    self._arrive(*under_way.popleft())
                piece = dst[start : start + self.staging_bytes]
                staging = self._take_staging()
                moment = self._copy(staging.address, src.address + start, piece.nbytes)
                under_way.append((staging, moment, piece))
            while under_way:
                self._arrive(*under_way.popleft())

    def map(self, handle: HCQBuffer, size: int) -> memoryview:
        """The first `size` bytes without a copy, where the host sees them."""
        if handle.view is None:
            raise UnsupportedError(f"the host does not see {handle!r}")
        return handle.view[:size]

    def copy_from(self, dst: HCQBuffer, src: HCQBuffer, size: int, source: DeviceRuntime) -> None:
        """Copy from memory of another device of the group, and wait until it is done."""
        self.device.copier(size, source)([dst, src], (), wait=True)

    def close(self) -> None:
        """Give the staging buffers back; the device is idle."""
        while self._staging:
            self.free(self._staging.popleft()[0])

    # --- staging

    @contextmanager
    def staging(self) -> Iterator[Lent]:
        """Lend a staging buffer, which is used again when the moment `until` has passed."""
        lent = Lent(self._take_staging())
        try:
            yield lent
        finally:
            self._staging.append((lent.buffer, lent.until))

    def _take_staging(self) -> HCQBuffer:
        """An unused staging buffer: a new one as long as there are few, then the oldest."""
        if self._staging and (self._staged >= self.staging_buffers or self._is_idle()):
            buffer, moment = self._staging.popleft()
            if moment is not None:
                moment.device.wait_for(moment)
            return buffer
        self._staged += 1
        return self.alloc_visible(self.staging_bytes)

    def _is_idle(self) -> bool:
        moment = self._staging[0][1]
        return moment is None or moment.passed

    def _copy(self, dst: int, src: int, size: int) -> Moment:
        device = self.device
        device.ready()
        queue = device.copy_queue().wait(device.timeline_signal, device.timeline_value - 1)
        return device.finish(queue.memory_barrier().copy(dst, src, size))

    def _arrive(self, staging: HCQBuffer, moment: Moment, piece: memoryview) -> None:
        self.device.wait_for(moment)
        if not moment.passed:
            raise DeviceError(f"{self.device.name} did not copy {piece.nbytes} bytes to the host")
        assert staging.view is not None
        piece[:] = staging.view[: piece.nbytes]
        self._staging.append((staging, None))
