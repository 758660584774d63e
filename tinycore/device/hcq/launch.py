"""`EncodedLaunches`: launch commands of a program, encoded once and patched at each use.

Floor 1. Imports `memory`, `queue`, `signal`. To encode a launch costs several times what it costs
to write its arguments and a timeline value into commands that exist. So a program that is launched
again keeps some launches with their memory, and uses them in turn: one is used again when the
device is through with its last use. While all of them are under way, launches are encoded anew.
See docs/decisions/0054-encoded-launches.md.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from tinycore.device.hcq.memory import HCQBuffer
from tinycore.device.hcq.queue import HWQueue
from tinycore.device.hcq.signal import Moment
from tinycore.errors import OutOfMemory

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled
    from tinycore.device.hcq.program import HCQArgsState, HCQProgram

MOST_LAUNCHES: Final = 128
"""Most encoded launches of one program: the work of a device while the host prepares more."""
REAPED_EVERY: Final = 256
"""Submissions after which discarded memory is freed."""
KEPT_BYTES: Final = 1 << 16
"""Memory for the arguments of all encoded launches of one program."""


class ArgumentBlocks:
    """Memory for arguments that outlasts a submission: blocks by powers of two.

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
