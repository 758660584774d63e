"""Memory of a device with queues, and copies between it, the host and other devices.

A driver says how memory is had and given back. Host copies go straight to memory that the host
sees, else through a ring of staging buffers: while the queue moves one, threads of the host fill or
empty the next. `HCQTransfer`, a copy between two devices that the host does not wait for, is a
program like any other: called with two buffers, or held in a graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar, Final

from tiny_hcq.words import HCQBuffer, Moment, Place, verify_intact
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError
from tinycore.plugin import COPY_THREADS, DeviceRuntime, HostCopy, copied, host_copy

if TYPE_CHECKING:
    from tiny_hcq.compiled import HCQCompiled

_MUCH: Final = 1 << 16
"""Bytes from which on a busy device copies by its queue, and the host does not wait for it."""
_PINNED_PIECES: Final = 2
"""Staging buffers of a copy from which on its host memory is pinned instead."""


class HCQAllocator(ABC):
    """Memory of one device. `device` is set before the first call."""

    device: HCQCompiled

    def __init__(self, *, staging_bytes: int = 2 << 20, staging_buffers: int = 32) -> None:
        """Without staging buffers the host waits for the device, and copies."""
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

    def allocate_at(self, size: int, place: Place) -> HCQBuffer:
        """`size` bytes of a kind of memory: by default `allocate`, visible unless it is LOCAL.

        A driver that has several kinds overrides this. Raises OutOfMemory.
        """
        return self.allocate(size, place is not Place.LOCAL)

    def pin(self, memory: memoryview) -> HCQBuffer | None:
        """Let the device address memory of this process, for a copy without staging. None where it
        cannot; the default.
        """
        return None

    def unpin(self, buffer: HCQBuffer) -> None:  # noqa: B027
        """Take `pin` back. Never raises."""

    def map_peer(self, buffer: HCQBuffer) -> None:  # noqa: B027  one address space needs none
        """Make an allocation of another device of the group addressable by this one.

        By default nothing is to be done. Raises UnsupportedError where it cannot be.
        """

    def unmap_peer(self, buffer: HCQBuffer) -> None:  # noqa: B027
        """Take `map_peer` back: the allocation is about to be freed. Never raises."""

    # --- the protocol

    def alloc(self, size: int) -> HCQBuffer:
        """`size` bytes, aligned, not cleared. Raises OutOfMemory."""
        return self._allocate(size, Place.LOCAL)

    def alloc_visible(self, size: int, place: Place = Place.COMMANDS) -> HCQBuffer:
        """`size` bytes that the host and the device see. Raises OutOfMemory."""
        return self._allocate(size, place)

    def _allocate(self, size: int, place: Place) -> HCQBuffer:
        self.device.verify_process()
        try:
            return self.allocate_at(size, place)
        except OutOfMemory:
            if not self.device.reclaim():
                raise
        return self.allocate_at(size, place)

    def free(self, handle: HCQBuffer) -> None:
        """Give an allocation back; in a forked child it stays its parent's. Never raises."""
        if self.device.is_inherited:
            return
        for device in handle.mapped:
            device.allocator.unmap_peer(handle)
        handle.mapped.clear()
        self.release(handle)

    def offset(self, handle: HCQBuffer, size: int, start: int) -> HCQBuffer:
        """The `size` bytes from `start` on."""
        return handle.offset(start, size)

    def write(self, dst: HCQBuffer, src: memoryview) -> None:
        """Copy host bytes to the start of `dst`; `src` is free when this returns.

        They go straight to memory that the host reaches, but for much of it while the device is
        busy, whom to wait for takes longer than to copy twice.
        """
        with self.device.lock:
            self.device.ready()
            host = dst.host
            waits = src.nbytes < _MUCH or not self.stages or self.device.is_idle
            if host is not None and waits:
                self.device.synchronize()
                host[0 : src.nbytes] = src
            elif (pinned := self._pinned(src)) is not None:
                self._copy_pinned(dst, pinned, pinned, src.nbytes)
            else:
                self._write_staged(dst, src)

    def read(self, dst: memoryview, src: HCQBuffer) -> None:
        """Fill host bytes from the start of `src`: straight where the host reads it fast."""
        with self.device.lock:
            self.device.ready()
            verify_intact((src,))
            host = src.host
            if host is not None and (src.readable or not self.stages):
                self.device.synchronize()
                dst[:] = host[0 : dst.nbytes]
            elif (pinned := self._pinned(dst)) is not None:
                self._copy_pinned(pinned, src, pinned, dst.nbytes)
            else:
                self._read_staged(dst, src)

    @property
    def stages(self) -> bool:
        """True if copies may go by staging buffers: the device copies, and has some."""
        return self.staging_buffers > 0 and self.device.can_copy

    def _pinned(self, memory: memoryview) -> HCQBuffer | None:
        """Host memory that is copied as a whole, which pays off for large copies."""
        return self.pin(memory) if memory.nbytes >= _PINNED_PIECES * self.staging_bytes else None

    def _copy_pinned(self, dst: HCQBuffer, src: HCQBuffer, pinned: HCQBuffer, size: int) -> None:
        try:
            self.device.wait_for(self.copy(dst, src, size))
        finally:
            self.unpin(pinned)

    def _write_staged(self, dst: HCQBuffer, src: memoryview) -> None:
        """Let threads fill staging buffers, and the device take those that are full, in order."""
        filling: deque[tuple[HCQBuffer, HostCopy, int, int]] = deque()
        try:
            for start in range(0, src.nbytes, self.staging_bytes):
                piece = src[start : start + self.staging_bytes]
                staging = self.take_staging()
                filling.append((staging, fill(staging, piece), start, piece.nbytes))
                if len(filling) >= min(COPY_THREADS, self.staging_buffers):
                    self._send(dst, *filling[0])
                    filling.popleft()
            while filling:
                self._send(dst, *filling[0])
                filling.popleft()
        except BaseException:
            wait_for_all([filled for _, filled, _, _ in filling])
            raise

    def _send(
        self, dst: HCQBuffer, staging: HCQBuffer, filled: HostCopy, start: int, size: int
    ) -> None:
        filled()
        moment = self.copy(dst.offset(start, size), staging, size)
        self.give_staging(staging, moment)

    def _read_staged(self, dst: memoryview, src: HCQBuffer) -> None:
        """Let the device fill staging buffers, and threads empty those that are full."""
        under_way: deque[tuple[HCQBuffer, Moment, memoryview]] = deque()
        emptying: deque[tuple[HCQBuffer, HostCopy]] = deque()
        ahead = min(self.staging_buffers, 2)
        most = min(self.staging_buffers - ahead, COPY_THREADS)
        try:
            for start in range(0, dst.nbytes, self.staging_bytes):
                if len(under_way) == ahead:
                    emptying.append(self._arrive(*under_way.popleft()))
                if len(emptying) > most:
                    self._emptied(*emptying[0])
                    emptying.popleft()
                piece = dst[start : start + self.staging_bytes]
                staging = self.take_staging()
                moment = self.copy(staging, src.offset(start, piece.nbytes), piece.nbytes)
                under_way.append((staging, moment, piece))
            while under_way:
                emptying.append(self._arrive(*under_way.popleft()))
            while emptying:
                self._emptied(*emptying[0])
                emptying.popleft()
        except BaseException:
            wait_for_all([emptied for _, emptied in emptying])
            raise

    def map(self, handle: HCQBuffer, size: int) -> memoryview:
        """The first `size` bytes without a copy, where the host sees them."""
        if handle.view is None:
            raise UnsupportedError(f"the host does not see {handle!r}")
        verify_intact((handle,))
        return handle.view[:size]

    def copy_from(self, dst: HCQBuffer, src: HCQBuffer, size: int, source: DeviceRuntime) -> None:
        """Copy from memory of another device of the group, and wait until it is done."""
        self.device.copier(size, source)([dst, src], (), wait=True)

    def close(self) -> None:
        """Give the staging buffers back; the device is idle."""
        while self._staging:
            self.free(self._staging.popleft()[0])

    # --- staging

    def take_staging(self) -> HCQBuffer:
        """An unused staging buffer: a new one while there are few, then the oldest."""
        if self._staging and (self._staged >= self.staging_buffers or self._is_idle()):
            buffer, moment = self._staging.popleft()
            if moment is not None:
                moment.device.wait_for(moment)
            return buffer
        self._staged += 1
        return self.alloc_visible(self.staging_bytes, Place.STAGING)

    def give_staging(self, buffer: HCQBuffer, until: Moment | None) -> None:
        """Let a staging buffer be used again when a moment has passed; None for at once."""
        self._staging.append((buffer, until))

    def _is_idle(self) -> bool:
        moment = self._staging[0][1]
        return moment is None or moment.passed

    def copy(
        self, dst: HCQBuffer, src: HCQBuffer, size: int, after: Moment | None = None
    ) -> Moment:
        """Copy by a queue, when earlier work is done, and what `after` tells of another device.

        Called with the lock held.
        """
        device = self.device
        device.ready()
        queue = device.copy_queues[device.copy_engine(dst, src)]()
        queue.wait(device.timeline_signal, device.timeline_value - 1)
        if after is not None:
            queue.wait(after.signal, after.value)
        return device.finish(queue.memory_barrier().copy(dst.address, src.address, size))

    def _arrive(
        self, staging: HCQBuffer, moment: Moment, piece: memoryview
    ) -> tuple[HCQBuffer, HostCopy]:
        self.device.wait_for(moment)
        if not moment.passed:
            raise DeviceError(f"{self.device.name} did not copy {piece.nbytes} bytes to the host")
        if staging.view is not None:
            return staging, host_copy(piece, staging.view[: piece.nbytes])
        assert staging.host is not None
        piece[:] = staging.host[0 : piece.nbytes]
        return staging, copied

    def _emptied(self, staging: HCQBuffer, emptied: HostCopy) -> None:
        emptied()
        self.give_staging(staging, None)


def fill(staging: HCQBuffer, piece: memoryview) -> HostCopy:
    """Begin to copy host bytes to a staging buffer: by a thread where the host sees its memory."""
    if staging.view is not None:
        return host_copy(staging.view, piece)
    assert staging.host is not None
    staging.host[0 : piece.nbytes] = piece
    return copied


def wait_for_all(copies: Iterable[HostCopy]) -> None:
    """Wait for copies whose memory its owner is about to have back."""
    for wait in copies:
        wait()


class HCQTransfer:
    """Copies `size` bytes of `source` to `device`. Made by `HCQCompiled.copier`."""

    WRITTEN: ClassVar[frozenset[int]] = frozenset({0})

    def __init__(self, device: HCQCompiled, source: HCQCompiled, size: int) -> None:
        self.device = device
        self.source = source
        self.size = size

    def __call__(
        self, buffers: Sequence[HCQBuffer], values: Sequence[int] = (), *, wait: bool = False
    ) -> float | None:
        """Copy the second buffer into the first, in order on both devices.

        With `wait`, wait for the end and return the seconds. Raises DeviceError for a lost device.
        """
        began = perf_counter()
        dst, src = buffers
        verify_intact(buffers)
        if self.device is self.source:
            with self.device.lock:
                done = self.device.allocator.copy(dst, src, self.size)
        else:
            done = self._across(dst, src)
        if not wait:
            return None
        self.device.wait_for(done)
        return perf_counter() - began

    def _across(self, dst: HCQBuffer, src: HCQBuffer) -> Moment:
        """Copy on the source's queue when both devices are ready; then the destination goes on."""
        device, source = self.device, self.source
        first, second = sorted((device, source), key=lambda one: one.number)
        with first.lock, second.lock:
            device.ready()
            source.ready()
            try:
                source.reach(dst)
            except UnsupportedError:  # they share signals, and not memory
                return self._through_the_host(dst, src)
            copied = source.allocator.copy(dst, src, self.size, device.submitted())
            device.watched_by(source, copied)
            going_on = device.compute_queue()
            going_on.wait(device.timeline_signal, device.timeline_value - 1)
            going_on.wait(copied.signal, copied.value)
            done = device.finish(going_on)
            source.watched_by(device, done)
            return done

    def _through_the_host(self, dst: HCQBuffer, src: HCQBuffer) -> Moment:
        """Both queues copy: the source's to staging memory of the host, a piece at a time, and the
        destination's from there. Called with both locks held.
        """
        device, source = self.device, self.source
        done, piece = device.upcoming(), source.allocator.staging_bytes
        for start in range(0, self.size, piece):
            size = min(self.size - start, piece)
            staging, until = source.allocator.take_staging(), None
            try:
                device.reach(staging)
                sent = source.allocator.copy(staging, src.offset(start, size), size)
                until = done = device.allocator.copy(dst.offset(start, size), staging, size, sent)
            finally:
                source.allocator.give_staging(staging, until)
            source.watched_by(device, done)
        return done
