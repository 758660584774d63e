"""`HCQTransfer`: copies between two devices, synchronized without the host.

Floor 1. It is a program like any other: called with two buffers, or held in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from tinycore.device.hcq.memory import HCQBuffer, verify_intact
from tinycore.device.hcq.signal import Moment
from tinycore.errors import UnsupportedError

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled


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
        done = self._within(dst, src) if self.device is self.source else self._across(dst, src)
        if not wait:
            return None
        self.device.wait_for(done)
        return perf_counter() - began

    def _within(self, dst: HCQBuffer, src: HCQBuffer) -> Moment:
        device = self.device
        with device.lock:
            device.ready()
            queue = device.copy_queues[device.copy_engine(dst, src)]()
            queue.wait(device.timeline_signal, device.timeline_value - 1).memory_barrier()
            return device.finish(queue.copy(dst.address, src.address, self.size))

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
            queue = source.copy_queues[source.copy_engine(dst, src)]()
            queue.wait(source.timeline_signal, source.timeline_value - 1)
            queue.wait(device.timeline_signal, device.timeline_value - 1)
            queue.memory_barrier().copy(dst.address, src.address, self.size)
            copied = source.finish(queue)
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
        done = device.upcoming()
        for start in range(0, self.size, source.allocator.staging_bytes):
            size = min(self.size - start, source.allocator.staging_bytes)
            device.ready()
            source.ready()
            with source.allocator.staging() as lent:
                staging = lent.buffer
                device.reach(staging)
                sending = source.copy_queues[source.copy_engine(staging, src)]()
                sending.wait(source.timeline_signal, source.timeline_value - 1)
                sending.memory_barrier().copy(staging.address, src.address + start, size)
                sent = source.finish(sending)
                taking = device.copy_queues[device.copy_engine(dst, staging)]()
                taking.wait(device.timeline_signal, device.timeline_value - 1)
                taking.wait(sent.signal, sent.value)
                taking.memory_barrier().copy(dst.address + start, staging.address, size)
                lent.until = done = device.finish(taking)
            source.watched_by(device, done)
        return done
