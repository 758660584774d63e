"""`HCQProgram`: a loaded program, its arguments, and launch commands that are encoded once.

A driver inherits from `HCQProgram` and adds what its hardware needs to know of the code.
`ArgumentArena` is a ring buffer of arguments and commands of submissions: a device has one for
arguments; a driver makes others for commands that are not bound.

To encode a launch costs several times what it costs to write its arguments and a timeline value
into commands that exist. So a program that is launched again keeps some launches with their memory,
`EncodedLaunches`, and uses them in turn: one is used again when the device is through with its last
use. While all of them are under way, launches are encoded anew.
See docs/floors/device.md.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

from tiny_hcq.queue import HWQueue
from tiny_hcq.words import HCQBuffer, Moment, losses, verify_intact
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError
from tinycore.plugin import ProgramInfo

if TYPE_CHECKING:
    from tiny_hcq.compiled import HCQCompiled

MOST_LAUNCHES: Final = 128
"""Most encoded launches of one program: the work of a device while the host prepares more."""
REAPED_EVERY: Final = 256
"""Submissions after which discarded memory is freed."""
KEPT_BYTES: Final = 1 << 16
"""Memory for the arguments of all encoded launches of one program."""


class ArgumentBlocks:
    """Memory for arguments that outlive a submission, in blocks of powers of two.

    They are cut from larger allocations, since what hardware allocates is pages.
    """

    def __init__(self, device: HCQCompiled) -> None:
        self._device = device
        self._free: defaultdict[int, deque[tuple[HCQBuffer, Moment | None]]] = defaultdict(deque)

    def take(self, size: int) -> HCQBuffer:
        """A block of at least `size` bytes, aligned to its own size. Raises OutOfMemory."""
        block = 1 << (size - 1).bit_length()
        free = self._free[block]
        after = free[0][1] if free else None
        if not free or (after is not None and not after.passed):
            self._cut(block)
            return free.pop()[0]
        return free.popleft()[0]

    def _cut(self, block: int) -> None:
        """Add the blocks of another allocation."""
        chunk = self._device.own(self._device.allocator.alloc_visible(KEPT_BYTES))
        first = -chunk.address % block
        for start in range(first, KEPT_BYTES - block + 1, block):
            self._free[block].append((chunk.offset(start, block), None))

    def give_back(self, block: HCQBuffer, after: Moment | None) -> None:
        """Take a block back, which is used until a moment. Called by any thread; never waits."""
        self._free[block.size].append((block, after))


class EncodedLaunch:
    """The commands of a launch with memory for its arguments, and the timeline value of its last
    use.
    """

    __slots__ = ("arguments", "block", "queue", "value")

    def __init__(self, queue: HWQueue, arguments: HCQArgsState, block: HCQBuffer) -> None:
        self.queue = queue
        self.arguments = arguments
        self.block = block
        self.value = 0


class EncodedLaunches:
    """The encoded launches of one program, the one used longest ago first.

    Used with the device's lock held. It holds no reference to the program.
    """

    def __init__(self, device: HCQCompiled) -> None:
        self._device = device
        self._era = device.era
        self._ring: deque[EncodedLaunch] = deque()
        self._done = 0
        """Timeline value that was seen reached."""
        self._most = MOST_LAUNCHES

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # While the interpreter ends, names of modules are gone: what is needed is a default.
        if (ring := getattr(self, "_ring", None)) and not is_finalizing():
            self._give_back(ring)

    def _give_back(self, ring: deque[EncodedLaunch]) -> None:
        device = self._device
        for launch in ring:
            used = Moment(device, self._era, device.timeline_signal, launch.value)
            device.argument_blocks.give_back(launch.block, used)

    def launch(
        self, program: HCQProgram, buffers: Sequence[HCQBuffer], values: Sequence[int]
    ) -> int:
        """Submit a launch with these arguments; its timeline value, or 0 while all are under way.

        Called of a device that is ready. This is all of what a launch costs: no function is
        called here that need not be.
        """
        device, ring = self._device, self._ring
        if self._era != device.era:
            self._begin_anew()
        launch = ring[0] if ring else None
        if launch is not None and launch.value > self._done:
            self._done = device.timeline_signal.value
        if launch is not None and launch.value <= self._done:
            ring.rotate(-1)
            launch.arguments.fill(buffers, values)
        elif (launch := self._another(program, buffers, values)) is None:
            return 0
        known, value = device.known, device.timeline_value
        known[device.timeline_number] = launch.value = value
        if not device.follows_compute:
            known[device.awaited_number] = value - 1
            device.follows_compute = True
        device.recent.append((self._era, value, program.names))
        if not value % REAPED_EVERY:
            device.reap()
        device.timeline_value = value + 1
        try:
            launch.queue.submit(known)
        except Exception as error:
            device.fail(f"a submission failed: {error}", error)
            raise
        return value

    def _begin_anew(self) -> None:
        """Drop launches that signal the previous timeline."""
        self._give_back(self._ring)
        self._ring.clear()
        self._era, self._done = self._device.era, 0

    def _another(
        self, program: HCQProgram, buffers: Sequence[HCQBuffer], values: Sequence[int]
    ) -> EncodedLaunch | None:
        """One more launch, if there is room."""
        count = len(self._ring) + 1
        if count > self._most or program.argument_bytes * count > KEPT_BYTES:
            return None
        try:
            made = encoded(program, buffers, values)
        except OutOfMemory:  # the arena is there already
            return None
        if made.block.window is not None:  # its arguments are handed over as a whole
            self._device.argument_blocks.give_back(made.block, None)
            self._most = 0
            return None
        self._ring.append(made)
        return made


def encoded(
    program: HCQProgram, buffers: Sequence[HCQBuffer], values: Sequence[int]
) -> EncodedLaunch:
    """The commands of a launch with its arguments. Raises OutOfMemory.

    The wait is for what another queue does: its value stays as it was as long as this queue alone
    is used, whose order is enough.
    """
    device, info = program.device, program.info
    block = device.argument_blocks.take(max(program.argument_bytes, program.ARGUMENT_ALIGNMENT))
    arguments = program.arguments(block.offset(0, program.argument_bytes), buffers, values)
    queue = device.compute_queue()
    queue.wait(device.timeline_signal, device.awaited_number + 0).memory_barrier()
    queue.exec(program, arguments, info.grid, info.block)
    queue.signal(device.timeline_signal, device.timeline_number + 0)
    # A program that goes takes its launches along: they must not hold it.
    arguments.program = cast("HCQProgram", weakref.proxy(program))
    return EncodedLaunch(queue, arguments, block)


class ArgumentArena:
    """A ring buffer in two halves: a half is reused once all work that borrowed from it is done.

    Called with the device's lock held, or within a submission.
    """

    def __init__(
        self,
        device: HCQCompiled,
        size: int,
        *,
        purpose: str = "launch with {} bytes of arguments",
        within_submission: bool = False,
    ) -> None:
        """`purpose` is for the text of an error. An arena for commands is used `within_submission`:
        when the timeline value of the submission is taken already.
        """
        self._device = device
        self._size = size
        self._half = size // 2
        self._purpose = purpose
        self._within = within_submission
        self._next = 0
        self._limit = self._half
        """End of the half in use."""
        self._ends: list[Moment | None] = [None, None]
        """For each half the moment after which nothing uses it."""
        self._memory: HCQBuffer | None = None

    def take(self, size: int, alignment: int = 64) -> HCQBuffer:
        """`size` bytes for the submission being made, at a multiple of `alignment`.

        Raises UnsupportedError for more than there is, DeviceError when earlier work hangs.
        """
        memory = self._memory or self.memory
        start = self._next + -(memory.address + self._next) % alignment
        if start + size > self._limit:
            start = self._cross(start, size, alignment)
        self._next = start + size
        return memory.offset(start, size)

    @property
    def memory(self) -> HCQBuffer:
        """All of the memory, allocated at the first use."""
        if self._memory is None:
            self._memory = self._device.allocator.alloc_visible(self._size)
        return self._memory

    def _cross(self, start: int, size: int, alignment: int) -> int:
        """Allocate bytes that do not fit the half in use; their end may lie in the other half."""
        if start + size > self._size:
            start = -self.memory.address % alignment
            if start + size > self._size:
                raise UnsupportedError(
                    f"a {self._purpose.format(size)} does not fit the {self._size} that "
                    f"{self._device.name} has for them: compute it in several kernels"
                )
            self._enter(0)
        if start + size > self._half and self._limit == self._half:
            self._enter(1)
        return start

    def _enter(self, half: int) -> None:
        """Leave the other half, and wait for what last borrowed from this one."""
        device = self._device
        # What borrowed from the other half so far is submitted, or is the submission being made.
        upcoming = device.upcoming()
        self._ends[1 - half] = replace(upcoming, value=upcoming.value - self._within)
        end = self._ends[half]
        if end is not None and end.value < upcoming.value:  # else nothing came of that submission
            device.wait_for(end)
        elif end is not None:
            device.synchronize()
        self._limit = self._size if half else self._half

    def close(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._device.discard(self._memory, None)
            self._memory = None


WORD_BYTES: Final = 8


class HCQArgsState:
    """The arguments of one launch, as the program reads them: addresses, then values.

    The host reaches `memory`, at least `program.argument_bytes` of it. Laid out as C passes a
    structure of pointers and integers of 64 bits; a driver with another layout overrides the three
    methods.
    """

    __slots__ = ("addresses", "memory", "numbers", "program", "view")

    def __init__(
        self,
        program: HCQProgram,
        memory: HCQBuffer,
        buffers: Sequence[HCQBuffer],
        values: Sequence[int],
    ) -> None:
        self.program = program
        self.memory = memory
        view = memory.view
        self.view = memoryview(bytearray(memory.size)) if view is None else view
        split = program.info.buffers * WORD_BYTES
        self.addresses = self.view[:split].cast("Q")
        self.numbers = self.view[split : program.words_bytes].cast("q")
        self.fill(buffers, values)
        self.flush()

    def flush(self) -> None:
        """Hand what was written to memory that the host reaches by calls alone; `view` is a copy of
        it. Called by the core after each change.
        """
        if self.memory.window is not None:
            self.memory.window[0 : self.view.nbytes] = self.view

    def fill(self, buffers: Sequence[HCQBuffer], values: Sequence[int]) -> None:
        """Write all arguments."""
        addresses, numbers = self.addresses, self.numbers
        for place, buffer in enumerate(buffers):
            addresses[place] = buffer.address
        for place, value in enumerate(values):
            numbers[place] = value

    def set_buffer(self, slot: int, buffer: HCQBuffer) -> None:
        """Put another address into a slot."""
        self.addresses[slot] = buffer.address

    def set_value(self, position: int, value: int) -> None:
        """Put another value in the place of a variable."""
        self.numbers[position] = value


class HCQProgram:
    """A program of one device. Calling it launches it, after all earlier submissions."""

    ARGS_STATE: ClassVar[type[HCQArgsState]] = HCQArgsState
    ARGUMENT_ALIGNMENT: ClassVar[int] = 64
    """Alignment of the memory for the arguments of a launch, in bytes."""

    def __init__(
        self,
        device: HCQCompiled,
        info: ProgramInfo,
        *,
        argument_bytes: int = 0,
        scratch_bytes: int = 0,
    ) -> None:
        """`scratch_bytes` is the scratch of one thread."""
        self.device = device
        self.info = info
        self.scratch_bytes = scratch_bytes
        self.words_bytes = (info.buffers + len(info.values)) * WORD_BYTES
        """Bytes of addresses and values, a word each."""
        self.argument_bytes = max(self.words_bytes, argument_bytes, 1)
        self.names = (info.name,)
        self._era = self._value = 0
        """Era and timeline value of the last launch; 0 before the first."""
        self._encoded: EncodedLaunches | None = None
        self.owned: list[HCQBuffer] = []
        device.loaded_programs.add(self)
        with device.lock:
            device.reap()
            if scratch_bytes:
                device.need_scratch(scratch_bytes)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # names of modules are gone, and the device was closed
            return
        launched = getattr(self, "last_launch", None)
        owned = getattr(self, "owned", ())
        for buffer in owned:  # the hardware may still be in its code
            self.device.discard(buffer, launched)
        if launched is not None and not owned:  # a driver that frees its code by itself
            with suppress(DeviceError):
                launched.wait()

    @property
    def last_launch(self) -> Moment | None:
        """The end of the last launch; None before the first."""
        if not self._value:
            return None
        return Moment(self.device, self._era, self.device.timeline_signal, self._value)

    @last_launch.setter
    def last_launch(self, moment: Moment) -> None:
        self._era, self._value = moment.era, moment.value

    def launched_until(self, moment: Moment) -> None:
        """Record a later moment as the end of the last launch."""
        self._era, self._value = max((self._era, self._value), (moment.era, moment.value))

    def owns(self, buffer: HCQBuffer) -> HCQBuffer:
        """Hold memory such as code, which is freed some time after the last launch.

        Returns the buffer. `covers` says whether an address of a fault lies in it.
        """
        self.owned.append(self.device.own(buffer))
        return buffer

    def covers(self, address: int) -> bool:
        """True if the memory of the program contains an address."""
        return any(b.address <= address < b.address + b.size for b in self.owned)

    def arguments(
        self, memory: HCQBuffer, buffers: Sequence[HCQBuffer], values: Sequence[int]
    ) -> HCQArgsState:
        """The arguments of a launch, written to `memory`."""
        return self.ARGS_STATE(self, memory, buffers, values)

    def __call__(
        self, buffers: Sequence[HCQBuffer], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch. With `wait`, wait for the end and return the seconds between its two timestamps.

        Raises DeviceError when the device is lost, or becomes so during the wait.
        """
        device = self.device
        with device.lock:
            device.ready()
            if losses.count:
                verify_intact(buffers)
            if self._value and not wait and not self.info.grid_extents:
                if self._encoded is None:
                    self._encoded = EncodedLaunches(device)
                if value := self._encoded.launch(self, buffers, values):
                    self._era, self._value = device.era, value
                    return None
            return self._launch_once(buffers, values, wait)

    def _launch_once(
        self, buffers: Sequence[HCQBuffer], values: Sequence[int], wait: bool
    ) -> float | None:
        """Launch by commands that are not cached. Called with the lock held."""
        device, info = self.device, self.info
        place = device.kernel_arguments.take(self.argument_bytes, self.ARGUMENT_ALIGNMENT)
        arguments = self.arguments(place, buffers, values)
        queue = device.compute_queue()
        queue.wait(device.timeline_signal, device.timeline_value - 1).memory_barrier()
        grid = info.groups(values)
        if wait:
            begin, end = device.new_signal(), device.new_signal()
            queue.timestamp(begin).exec(self, arguments, grid, info.block).timestamp(end)
        else:
            queue.exec(self, arguments, grid, info.block)
        self.last_launch = launched = device.finish(queue, info.name)
        if not wait:
            return None
        device.wait_for(launched)
        return end.seconds - begin.seconds
