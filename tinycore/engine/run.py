"""Execution of a schedule: each item becomes an `ExecItem`, a launch or a copy.

Floor 4.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Final, Protocol

from tinycore._progress import progress
from tinycore.device.buffer import Buffer
from tinycore.device.hooks import hooks
from tinycore.device.registry import Device
from tinycore.engine.compile import runner_for
from tinycore.engine.counters import Estimate, profilers, report, trace, update_stats
from tinycore.engine.estimate import estimate
from tinycore.schedule.device_memory import buffers
from tinycore.schedule.items import ScheduleItem
from tinycore.schedule.kernel import kernel_name
from tinycore.trace import Trace
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

trace_schedule = Trace("schedule")


class Runner(Protocol):
    """The executable of an ExecItem: a compiled program, or a copy."""

    @property
    def name(self) -> str:
        """The name in the lines of DEBUG=2."""

    @property
    def device(self) -> str:
        """The name of the device."""

    @property
    def estimate(self) -> Estimate:
        """The work of one launch."""

    @property
    def written(self) -> frozenset[int]:
        """The positions of the buffers it writes to."""

    def launch(
        self, bufs: tuple[Buffer, ...], values: Mapping[str, int], wait: bool
    ) -> float | None:
        """Launch once; the seconds it took if `wait`, else None."""


@dataclass(frozen=True)
class CopyRunner:
    """Copies one buffer to another, on any two devices."""

    device: str
    estimate: Estimate
    name: str = "copy"
    written: frozenset[int] = frozenset({0})

    def launch(
        self, bufs: tuple[Buffer, ...], values: Mapping[str, int], wait: bool
    ) -> float | None:
        """Copy the second buffer into the first."""
        began = time.perf_counter()
        bufs[0].ensure_allocated().copy_from(bufs[1])
        if wait:
            Device[self.device].synchronize()
        return time.perf_counter() - began if wait else None


@dataclass(slots=True, eq=False)
class ExecItem:
    """One launch: its runner, and its memory."""

    runner: Runner
    bufs: tuple[Buffer, ...]
    metadata: tuple[str, ...] = ()

    @property
    def results(self) -> list[Buffer]:
        """The buffers that the launch writes to."""
        return [self.bufs[slot] for slot in self.runner.written]

    def on(self, exchange: Mapping[Buffer, Buffer]) -> ExecItem:
        """The same launch with some of its buffers replaced."""
        return replace(self, bufs=tuple([exchange.get(b, b) for b in self.bufs]))

    def run(
        self, values: Mapping[str, int] | None = None, *, wait: bool = False, jit: bool = False
    ) -> float | None:
        """Launch, count it, and return the seconds it took if `wait` (or DEBUG=2), else None."""
        return launch(self.runner, self.bufs, values or {}, self.metadata, wait=wait, jit=jit)


def launch(
    runner: Runner,
    bufs: tuple[Buffer, ...],
    values: Mapping[str, int],
    metadata: tuple[str, ...] = (),
    *,
    wait: bool = False,
    jit: bool = False,
) -> float | None:
    """Launch a program, count it, and return the seconds it took if `wait` (or DEBUG=2)."""
    wait = wait or trace.on or bool(profilers)
    try:
        seconds = runner.launch(bufs, values, wait)
    except Exception as error:
        report("failed", runner.name, runner.device, metadata, error)
        raise
    for profiler in profilers:
        profiler.record(runner, seconds, bufs, metadata)
    name, device, work = runner.name, runner.device, runner.estimate
    update_stats(name, device, work, seconds, jit=jit, metadata=metadata)
    return seconds


def lower_item(item: ScheduleItem, others: Iterable[tuple[UOp, str]] = ()) -> ExecItem:
    """A schedule item with its program compiled and loaded.

    If it was not compiled yet, compiling the `others` begins too.
    """
    runner, device = item.runner, item.bufs[0].device
    try:
        if runner is None and item.ast.op is Op.COPY:
            runner = CopyRunner(device, estimate(item.ast))
        return ExecItem(runner or runner_for(item.ast, device, others), item.bufs, item.metadata)
    except Exception as error:
        report("failed", kernel_name(item.ast), device, item.metadata, error)
        raise


def lower_schedule(items: Iterable[ScheduleItem]) -> Iterator[ExecItem]:
    """ExecItems for schedule items, each created on demand."""
    order = tuple(items)
    if order and order[0].runner is not None:
        return map(lower_item, order)
    kernels = ((i.ast, i.bufs[0].device) for i in order if i.ast.op is not Op.COPY)
    items_made = map(lower_item, order, repeat(kernels))  # the first uses `kernels` up
    return progress(items_made, "compiling kernels", len(order))


Repeated = tuple[Buffer | None, Callable[[], Any]]
"""A host action before each replay, and the buffer to which its array is written."""


@dataclass
class Recording:
    """The record of a capture in progress: launches, their values, newly allocated buffers."""

    refuses: bool = True
    """True if reading values back is refused."""
    read: set[Buffer] = field(default_factory=set)
    """Memory that the host has read, where it may."""
    items: list[ExecItem] = field(default_factory=list)
    fills: list[ExecItem] = field(default_factory=list)
    """Copies of data of the host to new memory, as replays make them before the launches."""
    values: set[tuple[str, int]] = field(default_factory=set)
    """Numbers of bound variables in a computation, by the names of their nodes."""
    seconds: float = 0.0
    """Time that its runs which overwrite memory took, without compilation."""
    made: set[Buffer] = field(default_factory=set)
    temporary: set[Buffer] = field(default_factory=set)
    """Memory of intermediate results, which no tensor shows."""
    persistent: list[tuple[weakref.ref[UOp], Buffer]] = field(default_factory=list)
    """Memory that tensors may show, with the nodes by which they do."""
    held: set[Buffer | None] = field(default_factory=set)
    """Memory that other nodes may show: of which launches use views, or which they write again."""
    repeated: list[Repeated] = field(default_factory=list)
    """Host actions to repeat before each replay, in this order."""
    host: list[Hashable] = field(default_factory=list)
    """Hashes of the data that the host wrote into buffers, and fingerprints of what it did else."""
    varying: tuple[Buffer, ...] | None = None
    """The inputs of a capture whose invariant launches are left out of replays; None of others."""

    written: weakref.WeakSet[Buffer] = field(default_factory=weakref.WeakSet)
    """Memory that launches wrote to."""

    @property
    def holds(self) -> bool:
        """True if the memory of launches is held to the end, as a step is made of them; not so in
        the first call of a function, whose intermediates would all be there at once.
        """
        return self.refuses or self.varying is not None

    def note(self, item: ExecItem) -> None:
        """A launch that is about to happen."""
        self.written.update(b.base or b for b in item.results)
        self.held.update(b for b in item.results if b.is_allocated)
        self.held.update(b.base for b in item.bufs)
        if not self.holds:
            item = ExecItem(item.runner, ())
        self.items.append(item)
        self.made.update(b for b in item.bufs if not b.is_allocated)

    def fill(self, node: UOp, content: memoryview) -> None:
        """Note the data of the host in a new BUFFER, to which the function may write."""
        target = buffers[node]
        self.host.append(hash((node.dtype, bytes(content))))
        if self.holds:
            runner = CopyRunner(target.device, Estimate(0, 2 * target.nbytes))
            self.fills.append(ExecItem(runner, (target, Buffer.like(target).copyin(content))))
            self.made.add(target)
            self.persistent.append((weakref.ref(node), target))


class Recordings(threading.local):
    """The captures under way in this thread. `recordings` is the one instance."""

    def __init__(self) -> None:
        self.open: list[Recording] = []

    def __bool__(self) -> bool:
        return bool(self.open)

    @property
    def innermost(self) -> Recording:
        """The capture that launches belong to."""
        return self.open[-1]


recordings: Final = Recordings()


def run_schedule(
    items: Iterable[ScheduleItem], values: Mapping[str, int] | None = None
) -> list[Runner]:
    """Run schedule items in order; the program of each."""
    done = []
    for item in announce(items):
        if recordings:
            recordings.innermost.note(item)
        item.run(values)
        done.append(item.runner)
    return done


def is_watched() -> bool:
    """True if a capture, a hook or a trace looks at the items of schedules."""
    return bool(recordings or trace_schedule.on or hooks.active("tinycore_schedule_created"))


def announce(items: Iterable[ScheduleItem]) -> Iterator[ExecItem]:
    """ExecItems for schedule items, each reported to hooks and traces."""
    if created := hooks.active("tinycore_schedule_created"):
        items = tuple(items)
        created(schedule=items)
    made = lower_schedule(items)
    return traced(made) if trace_schedule.on else made


def traced(items: Iterable[ExecItem]) -> Iterator[ExecItem]:
    """The same items, with a line for each."""
    for number, item in enumerate(items):
        fused = ", ".join(item.metadata)
        trace_schedule(f"{number:4d} {item.runner.name} ({fused}) {list(item.bufs)}")
        yield item
