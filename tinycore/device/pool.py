"""`LRUAllocator`: a caching allocator, and the statistics of memory in use.

Floor 1. Imports `config`, `errors`, `trace`, `protocols`.
A freed block waits, by its size, for the next allocation of that size; an image for its like. What
waits is bounded: together with what is in use it never exceeds the most that was in use at one
time, or a few blocks more, the longest unused going first, before the device is asked for a new
one. So a loop that allocates the same sizes again asks the device for nothing, and a program holds
hardly more than it needed. A block that nobody wanted for a minute goes back too, at a later call.
When the device is out of memory, everything that waits is given back and the request tried once
more. `LRU=0` keeps nothing. See docs/floors/device.md.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from tinycore._locks import Busy, Turn
from tinycore.config import in_force, settings
from tinycore.device.protocols import Allocator, Handle
from tinycore.dtype import ImageDType
from tinycore.errors import ArgumentError, DeviceError, OutOfMemory
from tinycore.trace import Trace

trace: Final = Trace("memory")

SPARE: Final = 1 / 16
"""Part of the most that was in use, which may wait beyond it."""
LEAST_SPARE_BYTES: Final = 32 << 20
"""Bytes that may always wait: small programs gain more from them than they cost."""

MOST_WAITS: Final = 50
"""Waits for the turn, of TURN_SECONDS each, before the device is out of memory beside it."""

AGE_SECONDS: Final = 60.0
"""Seconds that a block may wait: longer than the steps, or an evaluation between them."""
LOOK_SECONDS: Final = 10.0
"""Seconds between searches for such blocks."""


class MemoryStats:
    """Bytes of device memory in use. `memory` is the one instance, over all devices."""

    def __init__(self) -> None:
        self._pools: weakref.WeakSet[LRUAllocator] = weakref.WeakSet()

    def add(self, pool: LRUAllocator) -> None:
        """Count a device's memory too, as long as its pool lives."""
        self._pools.add(pool)

    @property
    def used(self) -> int:
        """Bytes in allocated buffers on all devices."""
        return sum(pool.used for pool in list(self._pools))

    @property
    def peak(self) -> int:
        """The most bytes that each device had in use at one time since `reset_peak`, together."""
        return sum(pool.highest for pool in list(self._pools))

    def reset_peak(self) -> None:
        """Reset the peak to the memory in use now."""
        for pool in list(self._pools):
            pool.reset_highest()

    @property
    def cached(self) -> int:
        """Bytes that wait for reuse on all devices."""
        return sum(pool.cached for pool in list(self._pools))

    @property
    def per_device(self) -> dict[str, int]:
        """Bytes in allocated buffers of each device that is open."""
        return {
            pool.device: pool.used for pool in sorted(self._pools, key=lambda pool: pool.device)
        }


memory: Final = MemoryStats()

Kind: TypeAlias = int | ImageDType
"""Kind of an allocation: a number of bytes, or an image."""


def size_bytes(kind: Kind) -> int:
    """The bytes that a block or the pixels of an image take."""
    return kind.size * kind.itemsize if isinstance(kind, ImageDType) else kind


def synchronize_nothing() -> None:
    """Wait for nothing: the synchronization of memory that no device uses."""


class LRUAllocator:
    """The allocator of a device, with a cache of freed blocks. Usable from several threads."""

    def __init__(
        self,
        allocator: Allocator,
        device: str = "",
        synchronize: Callable[[], None] = synchronize_nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.allocator = allocator
        self.device = device
        self._used = 0
        self.peak = 0
        self.highest = 0
        self._cached = 0
        self.closed = False
        self.write = allocator.write
        self.read = allocator.read
        self.offset = allocator.offset
        self._synchronize = synchronize
        self._clock = clock
        self._look_at = clock() + LOOK_SECONDS
        self._turn = Turn()
        self._changing = False
        """True while the counts are being changed; also after an interrupt in the middle of it."""
        self._waiting: OrderedDict[Kind, list[tuple[Handle, float]]] = OrderedDict()
        """Blocks with the time since when they wait, the longest first."""
        # Buffers may be dropped by the garbage collector at any point, also inside `alloc`, so
        # freeing never waits for the lock: what comes is noted here, as still in use, until some
        # `alloc` wants just that or somebody looks.
        self._returned: deque[tuple[Handle, Kind]] = deque()
        self._uncounted: deque[int] = deque()
        """Sizes of allocations that were made beside the turn."""
        memory.add(self)

    def alloc(self, kind: Kind) -> Handle:
        """Memory of a size, aligned, or an image; not cleared.

        Raises ArgumentError for a size below 1, OutOfMemory when the device has no more.
        """
        returned = self._returned
        if returned and (handle := self._last_returned(kind)) is not None:
            return handle
        size = size_bytes(kind)
        if size <= 0:
            raise ArgumentError(f"a block of memory has at least 1 byte, not {size}")
        for _ in range(MOST_WAITS):
            try:
                return self._taken(kind, size)
            except Busy:
                with suppress(OutOfMemory):  # what waits may help, once it is given back
                    return self._made_beside(kind, size)
        return self._made_beside(kind, size)

    def _taken(self, kind: Kind, size: int) -> Handle:
        """Memory that waits, or new memory. Raises Busy while another frame has the turn."""
        with self._turn.soon:
            self._take_back()
            if is_new := kind not in self._waiting:
                if settings.LRU:
                    self._shrink(self._bound(self._used + size))
                handle = self._ask(kind)
                trace(f"{self.device:<8} {size} B allocated")
            self._changing = True
            if not is_new:
                handle = self._reuse(kind)
            self._count(size)
            self._changing = False
        return handle

    def _made_beside(self, kind: Kind, size: int) -> Handle:
        """New memory while a frame below a signal handler, or another thread, has the turn."""
        handle = self._made(kind)
        self._uncounted.append(size)
        return handle

    def _count(self, size: int) -> None:
        self._used += size
        self.peak = max(self.peak, self._used)
        self.highest = max(self.highest, self._used)

    def _last_returned(self, kind: Kind) -> Handle | None:
        """The memory returned last, if it is of a kind: in a loop it mostly is."""
        try:
            last = self._returned.pop()
        except IndexError:  # another thread has taken it
            return None
        if last[1] == kind and not self.closed:
            return last[0]
        self._returned.append(last)
        return None

    def free(self, handle: Handle, kind: Kind) -> None:
        """Free an allocation of `alloc` for `kind`. Never waits, never raises."""
        if self.closed:
            return
        returned = self._returned
        returned.append((handle, kind))
        if (
            len(returned) == 1
            and in_force()["LRU"]
            and (self._cached <= LEAST_SPARE_BYTES or self._cached <= self._bound(self._used))
            and self._clock() < self._look_at
        ):
            return  # the next `alloc` may want just that
        try:
            while returned:
                with self._turn.at_once:
                    self._take_back()
        except Busy:  # who has the turn, or comes next, takes it back
            return

    @property
    def used(self) -> int:
        """Bytes in use."""
        self._look()
        return self._used

    @property
    def cached(self) -> int:
        """Bytes that wait for reuse."""
        self._look()
        return self._cached

    def _look(self) -> None:
        """Take back what was freed, unless a frame that has the turn is about to."""
        with suppress(Busy), self._turn.soon:
            self._take_back()

    def reset_highest(self) -> None:
        """Forget that more than now was in use."""
        self._look()
        self.highest = self._used

    def free_cache(self) -> None:
        """Give all that waits for reuse back to the device, unless another frame has the turn."""
        with suppress(Busy), self._turn.soon:
            self._take_back()
            self._shrink(0)

    def close(self) -> None:
        """Give everything back, and take no more: the device is about to close."""
        self.free_cache()
        self.closed = True

    def _ask(self, kind: Kind) -> Handle:
        if self.closed:
            raise DeviceError(f"device {self.device} is closed")
        try:
            return self._made(kind)
        except OutOfMemory:
            cached = self._cached
            self._shrink(0)
        size = size_bytes(kind)
        trace(f"{self.device:<8} out of memory at {size} B: {cached} B of cache released")
        try:
            return self._made(kind)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"{self.device or 'the device'} has no room for {size:,} bytes: {self._used:,} are "
                f"in use by this program, and {cached:,} kept for reuse were released. ({error})"
            ) from error

    def _made(self, kind: Kind) -> Handle:
        if not isinstance(kind, ImageDType):
            return self.allocator.alloc(kind)
        images: Any = self.allocator
        return images.image(kind.height, kind.width, kind.itemsize)

    def _reuse(self, kind: Kind) -> Handle:
        blocks = self._waiting[kind]
        handle, _ = blocks.pop()
        if not blocks:
            del self._waiting[kind]
        self._cached -= size_bytes(kind)
        return handle

    def _take_back(self) -> None:
        """Put freed memory in the cache, shrink the cache to its bound, and free old blocks."""
        if self._changing:
            self._count_again()
        while self._uncounted:
            self._changing = True
            self._count(self._uncounted.popleft())
            self._changing = False
        now = self._clock()
        while self._returned:
            self._changing = True
            try:
                handle, kind = self._returned.popleft()
            except IndexError:  # another thread has taken the last one
                self._changing = False
                break
            size = size_bytes(kind)
            self._used -= size
            self._cached += size
            self._waiting.setdefault(kind, []).append((handle, now))
            self._waiting.move_to_end(kind)
            self._changing = False
            bound = self._bound(self._used) if settings.LRU else 0
            if self._cached > bound:
                self._shrink(bound)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._leave_out(now - AGE_SECONDS)

    def _bound(self, used: int) -> int:
        """The most cached bytes while this number of bytes is in use."""
        spare = max(int(self.peak * SPARE), LEAST_SPARE_BYTES)
        return max(self.peak - used, 0) + spare

    def _count_again(self) -> None:
        """Count cached and used bytes again after a change that was interrupted."""
        self._waiting = OrderedDict((k, b) for k, b in self._waiting.items() if b)
        cached = sum(size_bytes(kind) * len(blocks) for kind, blocks in self._waiting.items())
        self._used += self._cached - cached
        self._cached = cached
        self._changing = False

    def _shrink(self, bound: int) -> None:
        """Give blocks back, the longest unused sizes first, until `bound` bytes wait."""
        if self._cached <= bound:
            return
        self._wait()
        before = self._cached
        while self._cached > bound:
            self._give_back(next(iter(self._waiting)))
        trace(f"{self.device:<8} {before - self._cached} B given back")

    def _leave_out(self, before: float) -> None:
        """Give back all blocks that have waited since a time, or longer."""
        old = [k for k, blocks in self._waiting.items() for _, since in blocks if since <= before]
        if not old:
            return
        self._wait()
        for kind in old:
            self._give_back(kind)
        trace(f"{self.device:<8} {sum(map(size_bytes, old))} B given back, unused for long")

    def _wait(self) -> None:
        """Wait for the kernels that may still use freed memory."""
        try:
            self._synchronize()
        except DeviceError as error:  # a device that failed runs nothing any more
            trace(f"{self.device:<8} cannot be waited for: {error}")

    def _give_back(self, kind: Kind) -> None:
        """Give the block of a kind that waits longest back to the device."""
        self._changing = True
        blocks = self._waiting[kind]
        handle, _ = blocks.pop(0)
        if not blocks:
            del self._waiting[kind]
        self._cached -= size_bytes(kind)
        self._changing = False
        self.allocator.free(handle)
