"""`HCQCompiled`: a device driven through queues, with its timeline and signals.

A driver inherits from it; what comes out is an ordinary `DeviceRuntime`, with the capabilities
`graph` and `queues`.

**The timeline.** Each submission waits for `timeline_value - 1`, which means everything before, and
ends by signaling `next_timeline()`. So one device does things in the order in which they are asked,
whatever queue they take, and to wait for the device is to wait for one number. Signals of 32 bits
are common in hardware: past TIMELINE_LIMIT the device waits until nothing is under way, and goes on
with a second signal, the shadow, from 1.
"""

from __future__ import annotations

import itertools
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import ClassVar, Final

from tiny_hcq.allocator import HCQAllocator, HCQTransfer
from tiny_hcq.graph import HCQGraph
from tiny_hcq.program import REAPED_EVERY, ArgumentArena, ArgumentBlocks, HCQProgram
from tiny_hcq.queue import HWQueue
from tiny_hcq.words import (
    HCQBuffer,
    HCQSignal,
    Moment,
    Place,
    Symbol,
    SymbolicSignal,
    losses,
    pause,
)
from tinycore.errors import DeviceError, UnsupportedError
from tinycore.plugin import DeviceRuntime, Launch, ProgramInfo, in_child, recursive_lock
from tinycore.trace import Trace

trace: Final = Trace("device")

CLOCK_READINGS: Final = 5
"""Readings of both clocks, of which the shortest counts."""
REMEMBERED: Final = 64
"""Submissions whose kernels an error can name."""
MOST_NAMED_KERNELS: Final = 4
"""Kernels of a submission that an error names."""
_SIGNALS_AT_ONCE: Final = 256
_numbers: Final = itertools.count()


class Forks:
    """Count of the forks of this process and its parents: `os.getpid` is a system call."""

    count = 0

    def add(self) -> None:
        """Increase the count of forks, in the child."""
        self.count += 1


forks: Final = Forks()
in_child(forks.add)


class HCQCompiled(ABC):
    """A device, opened, that is driven through queues."""

    TIMELINE_LIMIT: ClassVar[int] = 1 << 31
    """Timeline values past which the other signal takes over, from 1."""

    SIGNAL: ClassVar[type[HCQSignal]] = HCQSignal
    """Class of its signals."""

    ticks_per_second: float = 1e9
    """Rate of the clock that timestamps are read from."""

    def __init__(
        self,
        name: str,
        allocator: HCQAllocator,
        compute_queue: Callable[[], HWQueue],
        copy_queue: Callable[[], HWQueue] | None = None,
        *,
        further_copy_queues: Sequence[Callable[[], HWQueue]] = (),
        peer_group: str = "",
        argument_bytes: int = 16 << 20,
    ) -> None:
        """`compute_queue` and `copy_queue` make empty queues; without the second, the first also
        copies. Where several engines copy, `copy_engine` says which is for a copy. Devices of one
        `peer_group` see each other's signals, and can map each other's memory. The driver has made
        ready all that `allocator` needs.
        """
        self.name = name
        self.allocator = allocator
        self.compute_queue = compute_queue
        self.copy_queue = copy_queue or compute_queue
        self.copy_queues = (self.copy_queue, *further_copy_queues)
        """By the numbers of their engines."""
        self.has_copy_queue = copy_queue is not None
        self.peer_group = peer_group
        self.lock = recursive_lock()
        self.number = next(_numbers)
        self.error_state: DeviceError | None = None
        self.is_lost = False
        """True if work that was submitted did not end; also after it was closed."""
        self.free_slots: deque[HCQBuffer] = deque()
        self._process = forks.count
        self._pages: list[HCQBuffer] = []
        self._met: set[HCQCompiled] = set()
        self._refusals: dict[HCQCompiled, str] = {}
        """Devices of the group whose signals cannot be reached, and why."""
        self._discarded: deque[tuple[HCQBuffer, Moment | None]] = deque()
        self._kept: deque[tuple[object, Sequence[Moment]]] = deque()
        self._owned: set[HCQBuffer] = set()
        self._is_closed = False
        self.loaded_programs: weakref.WeakSet[HCQProgram] = weakref.WeakSet()
        """Programs loaded here, to find out what an address belongs to."""
        self.recent: deque[tuple[int, int, Sequence[str]]] = deque(maxlen=REMEMBERED)
        """Era, timeline value and kernels of submissions, the latest last; "" is a copy."""
        self.sources: dict[HCQCompiled, int] = {}
        """Devices that submitted work here waits for, with the timeline value of that work."""
        self.era = 0
        self.timeline_value = 1
        """The value the next submission will signal."""
        self.timeline_signal = self.new_signal()
        self._shadow_signal = self.new_signal()
        self._watchers: dict[HCQCompiled, Moment] = {}
        self.timeline_address = Symbol(f"address of the timeline of {name}")
        self.timeline_number = Symbol(f"next timeline value of {name}")
        self.symbolic_timeline = SymbolicSignal(self.timeline_address)
        self.awaited_number = Symbol(f"timeline value of {name} that another queue reaches")
        self.follows_compute = False
        """True if the last submission is one of the queue of kernels, which keeps its order."""
        self.kernel_arguments = ArgumentArena(self, argument_bytes)
        self.argument_blocks = ArgumentBlocks(self)
        self.scratch: HCQBuffer | None = None
        """Memory that threads spill to; replaced when a kernel needs more."""
        self.scratch_address = Symbol(f"address of the scratch of {name}")
        self.known: dict[Symbol, int] = {self.awaited_number: 0}
        """Numbers that every submission provides: `scratch_address`, and those of a driver."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.state()}>"

    # --- what a driver says

    @abstractmethod
    def load(self, binary: bytes, info: ProgramInfo) -> HCQProgram:
        """Load a binary of a toolchain of this backend."""

    def fault(self) -> str:
        """Fault reported by the hardware; "" without one. Polled while waiting."""
        return ""

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        """Wait briefly for a signal, milliseconds at most; by an interrupt if there is one."""
        pause(waited_seconds)

    def clock(self) -> tuple[int, int]:
        """Ticks of the clock of timestamps, and `time.perf_counter_ns` at the same time.

        By a submission, the shortest of some, unless the driver has a call for it. Raises
        DeviceError when the device is lost.
        """
        readings = []
        for _ in range(CLOCK_READINGS):
            signal, began = self.new_signal(), time.perf_counter_ns()
            with self.lock:
                self.ready()
                queue = self.compute_queue()
                queue.wait(self.timeline_signal, self.timeline_value - 1).timestamp(signal)
                moment = self.finish(queue, "clock")
            self.wait_for(moment)
            ended = time.perf_counter_ns()
            readings.append((ended - began, signal.timestamp, (began + ended) // 2))
        _, ticks, nanoseconds = min(readings)
        return ticks, nanoseconds

    def copy_engine(self, dst: HCQBuffer, src: HCQBuffer) -> int:
        """Number of the engine that copies, by the direction: one of `copy_queues`."""
        return 0

    def scratch_size(self, bytes_per_thread: int) -> int:
        """Scratch for all threads that may run at once, if each spills this number of bytes.

        Raises UnsupportedError where kernels cannot spill.
        """
        raise UnsupportedError(
            f"{self.name} has no scratch, and a kernel needs {bytes_per_thread} bytes for a thread"
        )

    def release(self) -> None:  # noqa: B027  memory may be all there is
        """Release the hardware. All other resources have been released."""

    # --- submissions

    def ready(self) -> None:
        """Check that work can be submitted, and restart the timeline when it is due.

        Called with the lock held, before the first word of a submission is made. Raises DeviceError
        when the device is lost.
        """
        if self.error_state is not None:
            raise DeviceError(
                f"{self.name} is lost and takes no more work. Close it and open it again: "
                f"Device.close(...). What happened: {self.error_state}"
            ) from self.error_state
        self.verify_process()
        if self.timeline_value > self.TIMELINE_LIMIT:
            self._begin_anew()

    @property
    def is_inherited(self) -> bool:
        """True in a forked child: the device, and what it holds, is the parent's."""
        return self._process != forks.count

    def verify_process(self) -> None:
        """Raise DeviceError in a forked child."""
        if self.is_inherited:
            raise DeviceError(
                f"{self.name} was opened by the parent of this process. Open devices after fork, "
                "or start processes by spawn."
            )

    def next_timeline(self) -> int:
        """The value for the submission being made; the next one gets the next."""
        self.timeline_value += 1
        return self.timeline_value - 1

    def finish(self, queue: HWQueue, name: str = "") -> Moment:
        """Let a queue signal the timeline and submit it. Called with the lock held.

        `name` is the kernel's, for the text of an error; "" is a copy.
        """
        moment = self.upcoming()
        self.note((name,))
        self.follows_compute = False
        queue.signal(self.timeline_signal, self.next_timeline())
        try:
            queue.submit(self.known)
        except Exception as error:  # as in `submitting`, which costs more than a command
            self.fail(f"a submission failed: {error}", error)
            raise
        return moment

    def note(self, names: Sequence[str]) -> None:
        """Record what the present submission uses, and free discarded memory from time to time."""
        value = self.timeline_value
        self.recent.append((self.era, value, names))
        if not value % REAPED_EVERY:
            self.reap()

    def upcoming(self) -> Moment:
        """Timeline value at which the submission being made is done."""
        return Moment(self, self.era, self.timeline_signal, self.timeline_value)

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """A submission that fails half-way would never signal: the device is lost then."""
        try:
            yield
        except Exception as error:
            self.fail(f"a submission failed: {error}", error)
            raise

    def _begin_anew(self) -> None:
        self.wait_for(self.submitted())
        for moment in list(self._watchers.values()):  # who waits for a value of the old signal
            moment.wait()
        self._watchers.clear()
        self.timeline_signal, self._shadow_signal = self._shadow_signal, self.timeline_signal
        self.timeline_signal.value = 0
        self.timeline_value = 1
        self.known[self.awaited_number] = 0
        self.era += 1
        trace(f"{self.name:<8} the timeline begins anew")

    def watched_by(self, other: HCQCompiled, moment: Moment) -> None:
        """Note that work of another device, done at `moment`, waits for this timeline."""
        self._watchers[other] = moment
        other.sources[self] = moment.value

    # --- waiting

    @cached_property
    def can_copy(self) -> bool:
        """True if its queues copy memory: a driver of memory that the host shares need not."""
        return type(self.copy_queue()).copy is not HWQueue.copy

    @property
    def is_idle(self) -> bool:
        """True if all submitted work is done."""
        return self.timeline_signal.value >= self.timeline_value - 1

    def submitted(self) -> Moment:
        """The end of all work that is submitted."""
        with self.lock:
            return Moment(self, self.era, self.timeline_signal, self.timeline_value - 1)

    def wait_for(self, moment: Moment) -> None:
        """Wait for submitted work. Raises DeviceError, and the device is lost, when it hangs."""
        if self.error_state is not None and not moment.passed:
            raise self.error_state
        try:
            moment.wait()
        except DeviceError as error:
            self.fail(str(error), error)
            raise

    def synchronize(self) -> None:
        """Wait until all submitted work is done.

        Raises DeviceError when it hangs; after that, as it is lost, returns at once.
        """
        if self.error_state is None:
            self.wait_for(self.submitted())
            self.sources.clear()

    def fail(self, reason: str, cause: BaseException | None = None) -> None:
        """Mark the device as lost: all later calls raise DeviceError."""
        if self.error_state is None:
            self.error_state = cause if isinstance(cause, DeviceError) else DeviceError(reason)
            self.is_lost = True
            losses.count += 1
            trace(f"{self.name:<8} lost: {reason}")

    def verify_intact(self) -> None:
        """Raise DeviceError if the device was lost, of which its memory says nothing: kernels that
        should have written there did not end.
        """
        if self.is_lost:
            raise DeviceError(
                f"memory of {self.name} is lost with it, as kernels that should have written it "
                f"did not end. Compute it again. What happened: {self.error_state}"
            )

    def lost(self, reason: str) -> DeviceError:
        """The error of this device, which is lost from now on."""
        ran = f". What ran: {found}" if (found := self.under_way()) else ""
        text = f"{self.name} is lost, {reason}{ran} ({self._progress()})"
        self.fail(reason, DeviceError(text))
        assert self.error_state is not None
        return self.error_state

    def trouble(self) -> str:
        """Why waiting for this device is useless: it or a device it waits for is lost; else ""."""
        for device in (self, *list(self.sources)):
            name = "" if device is self else f"it waits for {device.name}, where "
            if device.error_state is not None:
                return f"{name}{device.error_state}"
            if reason := device.fault():
                if device is not self:
                    device.fail(reason)
                return f"{name}{reason}"
        return ""

    def state(self) -> str:
        """State of the timeline, and faults reported by the hardware."""
        told = f", {reason}" if (reason := self.fault()) else ""
        running = f"; what may be stuck: {found}" if (found := self.under_way()) else ""
        return f"{self._progress()}{told}{running}"

    def _progress(self) -> str:
        done, asked = self.timeline_signal.value, self.timeline_value - 1
        return f"{done} of {asked} submissions are done"

    def under_way(self) -> str:
        """Kernels of the first submission that is not done; "" when all are."""
        era, done = self.era, self.timeline_signal.value
        if done >= self.timeline_value - 1:
            return ""
        later = (names for at, value, names in list(self.recent) if at == era and value > done)
        names = next(later, None)
        if names is None:
            return "nothing that is remembered"
        kernels = [name for name in names if name]
        if not kernels:
            return "a copy"
        more = (
            f" and {len(kernels) - MOST_NAMED_KERNELS} more"
            if len(kernels) > MOST_NAMED_KERNELS
            else ""
        )
        one = "kernel" if len(names) == 1 else "one of the kernels"
        return f"{one} {', '.join(kernels[:MOST_NAMED_KERNELS])}{more}"

    def program_at(self, address: int) -> HCQProgram | None:
        """The program whose own memory contains an address, such as that of a fault."""
        return next((one for one in list(self.loaded_programs) if one.covers(address)), None)

    # --- signals, programs, graphs

    def new_signal(self, value: int = 0) -> HCQSignal:
        """A signal from the pool, returned when it is dropped."""
        while True:
            try:
                return self.SIGNAL(self.free_slots.popleft(), value)
            except IndexError:
                self._add_signals()

    def _add_signals(self) -> None:
        size = self.SIGNAL.BYTES
        page = self.allocator.alloc_visible(size * _SIGNALS_AT_ONCE, Place.SIGNALS)
        with self.lock:
            for other in self._met:
                other.reach(page)
            self._pages.append(page)
        self.free_slots.extend(page.offset(n * size, size) for n in range(_SIGNALS_AT_ONCE))

    def copier(self, size: int, source: DeviceRuntime) -> HCQTransfer:
        """A program that copies `size` bytes of the device `source` to memory of this one.

        Its buffers are the destination and the source. It is done in order on both devices, and a
        graph takes it among its launches. Raises UnsupportedError for a device that this one does
        not reach.
        """
        if not isinstance(source, HCQCompiled) or not self.reaches(source):
            raise UnsupportedError(
                f"{self.name} cannot wait for {source!r}: {self._refusal(source)}. Synchronize "
                "that one, and copy through the host"
            )
        return HCQTransfer(self, source, size)

    def reaches(self, source: DeviceRuntime) -> bool:
        """True if this device and another can wait for each other.

        By default they can if they are of one group and their signals can be mapped.
        """
        if source is self or source in self._met:
            return True
        if not isinstance(source, HCQCompiled) or source.peer_group != self.peer_group:
            return False
        if source in self._refusals:
            return False
        try:
            self.meet(source)
        except UnsupportedError as error:
            self._refusals[source] = source._refusals[self] = str(error)
            trace(f"{self.name:<8} does not reach {source.name}: {error}")
            return False
        return True

    def _refusal(self, source: DeviceRuntime) -> str:
        """Why a device is not reached."""
        if isinstance(source, HCQCompiled) and source in self._refusals:
            return self._refusals[source]
        return "it is of another group of devices"

    def meet(self, other: HCQCompiled) -> None:
        """Make the signals of this device and of another addressable by each other, also those that
        are made later. Raises UnsupportedError where the driver cannot map them.
        """
        if other is self or other in self._met:
            return
        first, second = sorted((self, other), key=lambda one: one.number)
        with first.lock, second.lock:
            if self._is_closed or other._is_closed:  # told by what is asked of it
                return
            for page in self._pages:
                other.reach(page)
            for page in other._pages:
                self.reach(page)
            self._met.add(other)
            other._met.add(self)

    def _part(self) -> None:
        """Take `meet` back, of a device that is about to be closed."""
        for other in self._met:
            other._met.discard(self)
            for page in other._pages:
                if self in page.mapped:
                    page.mapped.discard(self)
                    self.allocator.unmap_peer(page)
        self._met.clear()
        for other in self._refusals:
            other._refusals.pop(self, None)
        self._refusals.clear()

    def graph(self, launches: Sequence[Launch]) -> HCQGraph:
        """Launches of programs and copies, of any devices of this group, submitted at once."""
        return HCQGraph(self, launches)

    def need_scratch(self, bytes_per_thread: int) -> None:
        """Ensure scratch for a kernel that spills this number of bytes. Called with the lock held.

        Commands name scratch by `scratch_address`, so those that are bound take the new memory at
        their next submission. Raises UnsupportedError, OutOfMemory.
        """
        size = self.scratch_size(bytes_per_thread)
        before = self.scratch
        if before is not None and before.size >= size:
            return
        self.ready()
        self.scratch = self.own(self.allocator.alloc(size))
        self.known[self.scratch_address] = self.scratch.address
        if before is not None:  # what was submitted until now may use it
            self.discard(before, self.submitted())

    def reach(self, buffer: HCQBuffer) -> None:
        """Make memory of another device addressable by this one. Raises UnsupportedError."""
        root = buffer.root
        if root.owner is not self and self not in root.mapped:
            self.allocator.map_peer(root)
            root.mapped.add(self)

    # --- the end

    def own(self, buffer: HCQBuffer) -> HCQBuffer:
        """Keep memory of the driver alive until `discard`, or until the device is closed."""
        self._owned.add(buffer)
        return buffer

    def discard(self, buffer: HCQBuffer, after: Moment | None) -> None:
        """Free memory of the driver some time after a moment. Never waits."""
        if not self._is_closed:  # else it went with the device
            self._owned.discard(buffer)
            self._discarded.append((buffer, after))

    def keep(self, thing: object, until: Sequence[Moment]) -> None:
        """Hold a reference until some moments have passed. Never waits."""
        if not self._is_closed:
            self._kept.append((thing, until))

    def reap(self) -> None:
        """Free discarded memory that is no longer used."""
        if not self._kept and not self._discarded:
            return
        with self.lock:
            for _ in range(len(self._kept)):
                thing, until = self._kept.popleft()
                if not all(moment.passed for moment in until):
                    self._kept.append((thing, until))
                del thing  # which may discard memory
            for _ in range(len(self._discarded)):
                buffer, after = self._discarded.popleft()
                if after is None or after.passed:
                    self.allocator.free(buffer)
                else:
                    self._discarded.append((buffer, after))

    def reclaim(self) -> bool:
        """Free all discarded memory, waiting for it; True if there was any."""
        with self.lock:
            if not self._discarded and not self._kept:
                return False
            with suppress(DeviceError):
                self.synchronize()
            self.reap()
            return True

    def close(self) -> None:
        """Wait, then release everything; a second time does nothing, nor does a forked child."""
        if self.is_inherited:
            return
        with self.lock:
            if self._is_closed:
                return
            with suppress(DeviceError):
                self.synchronize()
                lost = self.error_state is not None
                for moment in () if lost else list(self._watchers.values()):
                    moment.wait()  # it waits for a signal of this device
            if self.error_state is None:
                self.error_state = DeviceError("it was closed")
            self.era += 1  # its moments have passed: their signals are given back
            self._part()
            self._leave_signals()
            self._discarded.extend((page, None) for page in self._pages)
            self._pages.clear()
            self.kernel_arguments.close()
            self.allocator.close()
            self._kept.clear()
            self._is_closed = True
            while self._discarded:
                self.allocator.free(self._discarded.popleft()[0])
            while self._owned:
                self.allocator.free(self._owned.pop())
            self.release()

    def _leave_signals(self) -> None:
        """Stop reading the device's state from memory that is given back."""
        size = self.SIGNAL.BYTES
        place = HCQBuffer(0, size, self, view=memoryview(bytearray(size)))
        self.timeline_signal = self._shadow_signal = self.SIGNAL(place, self.timeline_value - 1)
