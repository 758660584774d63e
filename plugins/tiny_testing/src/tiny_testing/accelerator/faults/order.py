"""Faults of launches, of their order, and of graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

from tiny_testing.accelerator.device import (
    Accelerator,
    Kept,
    KeptGraph,
    Memory,
    Parts,
    Queue,
    Span,
)
from tiny_testing.accelerator.faults.fault import found_by
from tinycore.device.extent import Extent
from tinycore.device.protocols import Launch, Program, ProgramInfo
from tinycore.errors import PluginError

# --- launches


@found_by("test_variables_are_passed_by_name")
class UnsortedValues(Accelerator):
    """Values are passed in the opposite order."""

    def run(self, kept: Kept, buffers: Sequence[Span], values: Sequence[int]) -> None:
        """Reverse the values."""
        super().run(kept, buffers, values[::-1])


@found_by("test_a_launch_has_the_groups_of_its_value")
class LargestGrid(Accelerator):
    """A launch has the most groups that there can be, whatever its values."""

    def load(self, binary: bytes, info: ProgramInfo) -> Kept:
        """Load a program with a grid of fixed size."""
        return super().load(binary, replace(info, grid_extents=()))


@found_by("test_threads_have_arrays")
class SharedArrays(Accelerator):
    """Threads of all groups spill to the scratch of the first."""

    def run(self, kept: Kept, buffers: Sequence[Span], values: Sequence[int]) -> None:
        """The last group's elements arrive in all results."""
        super().run(kept, buffers, values)
        if not kept.spilled_bytes:
            return
        memory = self.argument(buffers[0]).view("int32")
        groups = kept.info.groups(values)[0]
        memory.reshape(groups, -1)[:] = memory.reshape(groups, -1)[-1]


@found_by("test_buffers_that_are_not_used")
class PackedSlots(Accelerator):
    """Slots are numbered without those that a program does not write."""

    def run(self, kept: Kept, buffers: Sequence[Span], values: Sequence[int]) -> None:
        """Pass written buffers first, whatever their slots."""
        written = [b for n, b in enumerate(buffers) if n in kept.info.written]
        others = [b for n, b in enumerate(buffers) if n not in kept.info.written]
        super().run(kept, [*written, *others], values)


@found_by("test_a_program_keeps_no_state")
class CachedByName(Accelerator):
    """Programs are kept by their name alone."""

    def __init__(self, index: int, interface: str, parts: Parts) -> None:
        super().__init__(index, interface, parts)
        self.programs: dict[str, Kept] = {}

    def load(self, binary: bytes, info: ProgramInfo) -> Kept:
        """The first of its name."""
        return self.programs.setdefault(info.name, super().load(binary, info))


@found_by("test_views_are_arguments[64]")
class ViewIsWhole(Accelerator):
    """Programs get the block, not the part of it that a view is."""

    def argument(self, span: Span) -> Any:
        """The block from its beginning."""
        return self.allocator.place(Span(span.block, 0, span.block.size))


@found_by("test_a_launch_says_how_long_it_took")
class WrongClock(Accelerator):
    """Times are milliseconds."""

    def launch(
        self, kept: Kept, buffers: list[Span], values: list[int], wait: bool
    ) -> float | None:
        """A thousand times as long."""
        seconds = super().launch(kept, buffers, values, wait)
        return None if seconds is None else seconds * 1000 + 1.0


# --- order


@found_by("test_a_read_waits_for_launches")
class StaleSignal(Queue):
    """Waiting compares with the signal's value before the last command."""

    def wait(self, value: int) -> None:
        """Wait for a value that is one too small."""
        super().wait(value - 1)

    def ask(self, command: Callable[[], None]) -> int:
        """Delay a command, so that what is not waited for is not done."""

        def slow() -> None:
            time.sleep(0.005)
            command()

        return super().ask(slow)


@found_by("test_a_write_waits_for_launches")
class WriteOvertakes(Memory):
    """A write goes to memory at once, past the queue."""

    def write(self, dst: Span, src: memoryview) -> None:
        """Do it at once, past the queue."""
        self.inner.write(self.place(dst), src)


@found_by("test_a_launch_sees_the_write_before_it")
class LateWrite(Memory):
    """Writes go through a queue of their own, which launches do not wait for."""

    def __init__(self, queue: Queue, inner: Any) -> None:
        super().__init__(queue, inner)
        self.copies = Queue()

    def write(self, dst: Span, src: memoryview) -> None:
        """Write from another queue."""
        staged = bytes(src)

        def late() -> None:
            time.sleep(0.01)
            self.inner.write(self.place(dst), memoryview(staged))

        self.copies.ask(late)

    def read(self, dst: memoryview, src: Span) -> None:
        """After both queues."""
        self.copies.wait(self.copies.asked)
        super().read(dst, src)


@found_by("test_launches_happen_in_order")
class SwappedLaunches(Accelerator):
    """Two launches that wait are done in the opposite order."""

    waiting: Callable[[], None] | None = None

    def launch(
        self, kept: Kept, buffers: list[Span], values: list[int], wait: bool
    ) -> float | None:
        """Delay the launch until the next one is submitted."""
        before, self.waiting = self.waiting, None
        if before is None and not wait:
            self.waiting = lambda: self.run(kept, buffers, values)
            return None
        seconds = super().launch(kept, buffers, values, wait)
        if before is not None:
            self.queue.ask(before)
        return seconds

    def synchronize(self) -> None:
        """Submit the delayed launch, and wait for all."""
        self.launch_waiting()
        super().synchronize()

    def launch_waiting(self) -> None:
        """Submit the delayed launch."""
        before, self.waiting = self.waiting, None
        if before is not None:
            self.queue.ask(before)


@found_by("test_thousands_of_launches")
class WrappedRing(Accelerator):
    """A ring of 1024 places loses the launch that comes when it is full."""

    count = 0

    def launch(
        self, kept: Kept, buffers: list[Span], values: list[int], wait: bool
    ) -> float | None:
        """Every 1024th is lost."""
        self.count += 1
        if self.count % 1024 == 0:
            return 0.0 if wait else None
        return super().launch(kept, buffers, values, wait)


@found_by("test_launches_happen_in_order")
class SharedArguments(Accelerator):
    """All launches read their arguments from one place, which the next one overwrites."""

    arguments: tuple[list[Span], list[int]] = ([], [])

    def launch(
        self, kept: Kept, buffers: list[Span], values: list[int], wait: bool
    ) -> float | None:
        """Launch with arguments that all launches share."""
        self.arguments = buffers, values
        self.queue.ask(lambda: time.sleep(0.0005))
        self.queue.ask(lambda: self.run(kept, *self.arguments))
        if not wait:
            return None
        self.synchronize()
        return 0.0


# --- graphs


@found_by("test_a_graph_takes_other_memory_and_values")
class FrozenGraph(KeptGraph):
    """A graph keeps the memory it was made with."""

    def set_buffer(self, launch: int, slot: int, handle: Span) -> None:
        """Nothing."""


@found_by("test_a_graph_takes_other_memory_and_values")
class MixedValues(KeptGraph):
    """A value that is set arrives at the first launch."""

    def set_value(self, launch: int, position: int, value: int) -> None:
        """Set the value of the wrong launch."""
        super().set_value(0, position, value)


@found_by("test_a_graph_launches_the_groups_of_its_values")
class FrozenGrid(KeptGraph):
    """A graph launches the groups of the values that it was made with."""

    def __init__(self, device: Accelerator, launches: Sequence[Launch]) -> None:
        super().__init__(device, launches)
        self.launches = [(self.frozen(p, v), handles, v) for p, handles, v in self.launches]

    def frozen(self, program: Program, values: Sequence[int]) -> Program:
        """The program with a grid of the size that these values ask for."""
        if not isinstance(program, Kept) or not program.info.grid_extents:
            return program
        sizes = tuple(Extent((count,)) for count in program.info.groups(values))
        inner = copy(program.program)
        vars(inner)["info"] = replace(program.info, grid_extents=sizes)
        return replace(program, program=inner)


@found_by("test_a_graph_outlives_the_scratch_it_was_made_with")
class StaleScratch(KeptGraph):
    """A graph spills to the scratch that there was when it was made."""

    def __init__(self, device: Accelerator, launches: Sequence[Launch]) -> None:
        super().__init__(device, launches)
        self.scratch = device.scratch

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch with the scratch memory of the time when the graph was made."""
        self.device.synchronize()
        now, self.device.scratch = self.device.scratch, self.scratch
        super().__call__(wait=True)
        self.device.scratch = now
        return 0.0 if wait else None


@found_by("test_a_graph_computes_what_launches_do")
class GraphOnce(KeptGraph):
    """A graph runs only the first time."""

    is_done = False

    def __call__(self, *, wait: bool = False) -> float | None:
        """Run the first time alone."""
        if self.is_done:
            return 0.0 if wait else None
        self.is_done = True
        return super().__call__(wait=wait)


@found_by("test_a_graph_keeps_the_order")
class UnorderedGraph(KeptGraph):
    """A graph runs its launches in the opposite order."""

    def __init__(self, device: Accelerator, launches: Sequence[Launch]) -> None:
        super().__init__(device, launches)
        self.launches.reverse()


@found_by("test_replays_that_follow_each_other_keep_their_values")
class ReplayedArguments(KeptGraph):
    """A graph writes its arguments while a run that reads them is under way."""

    def __call__(self, *, wait: bool = False) -> float | None:
        """Ask for all, each with arguments that are read when its turn comes."""
        for program, handles, values in self.launches:
            assert isinstance(program, Kept)
            self.device.queue.ask(partial(self.device.run, program, handles, values))
        if wait:
            self.device.synchronize()
        return 0.0 if wait else None


@found_by("test_launches_of_a_graph_that_share_memory_are_ordered")
class ForgottenReaders(KeptGraph):
    """A launch waits for who wrote what it touches, and not for who reads what it writes."""

    def __init__(self, device: Accelerator, launches: Sequence[Launch]) -> None:
        super().__init__(device, launches)
        writers: dict[int, int] = {}
        depths = []
        for _, handles, _ in self.launches:
            depth = 1 + max((writers.get(id(handle), 0) for handle in handles), default=0)
            writers[id(handles[0])] = depth
            depths.append(depth)
        order = sorted(range(len(depths)), key=depths.__getitem__)
        self.launches = [self.launches[number] for number in order]


@found_by("test_a_graph_keeps_the_order")
class EarlyGraph(KeptGraph):
    """A graph runs at once, past the queue."""

    def __init__(self, device: Accelerator, launches: Sequence[Launch]) -> None:
        super().__init__(device, launches)
        self.has_run = Event()
        device.queue.ask(self.hold)  # until then, nothing asked is done

    def __call__(self, *, wait: bool = False) -> float | None:
        """Do it at once, past the queue."""
        for program, handles, values in self.launches:
            self.past_the_queue(program, handles, values)
        self.has_run.set()
        return 0.0 if wait else None

    def hold(self) -> None:
        """Wait until the graph has run; not for ever, as it may never be called."""
        self.has_run.wait(5)

    def past_the_queue(self, program: Program, handles: list[Span], values: list[int]) -> None:
        """A launch that nothing waits for."""
        if not isinstance(program, Kept):
            raise PluginError(f"{program!r} is no program of this device")
        self.device.run(program, handles, values)


class OverlappedGraph(KeptGraph):
    """Launches begin as soon as none that they must wait for is left."""

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch in rounds: those that wait for none, those that wait for these, and so on."""
        held, rounds = self.launches, [0] * len(self.launches)
        for later, (_, theirs, _) in enumerate(held):
            for earlier, (_, ours, _) in enumerate(held[:later]):
                if self.must_wait(theirs, ours):
                    rounds[later] = max(rounds[later], rounds[earlier] + 1)
        self.launches = [held[n] for n in sorted(range(len(held)), key=rounds.__getitem__)]
        try:
            return super().__call__(wait=wait)
        finally:
            self.launches = held

    def must_wait(self, later: list[Span], earlier: list[Span]) -> bool:
        """True if they share memory that one of them writes: its first span."""
        written = [(later[0], span) for span in earlier] + [(earlier[0], span) for span in later]
        return any(overlap(one, other) for one, other in written)


def overlap(one: Span, other: Span) -> bool:
    """True if two spans share bytes."""
    within = one.start < other.start + other.size and other.start < one.start + one.size
    return one.block is other.block and within


@found_by("test_a_graph_overlaps_only_what_is_independent[seed1]")
class PartsApart(OverlappedGraph):
    """Parts of one memory that begin elsewhere are taken for memory of their own."""

    def must_wait(self, later: list[Span], earlier: list[Span]) -> bool:
        """True only if two spans begin at one byte."""
        written = [(later[0], span) for span in earlier] + [(earlier[0], span) for span in later]
        return any(overlap(a, b) and a.start == b.start for a, b in written)
