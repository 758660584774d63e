"""Transactions: launches that update memory in place are each executed exactly once.

Floor 4. A launch into fresh memory is idempotent; an update in place is not. A transaction first
does everything that can fail (compile, allocate), then makes all launches inside one call of C
that appends to a log as each returns: where a launch is one native call, no signal handler runs
between a launch and its log entry. A transaction that is interrupted after its first launch is
rolled forward, by the interrupted call or by the next one that computes anything. One thread at a
time is in here, so that a write which two threads need is executed by one of them.
See docs/threads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from operator import call
from time import perf_counter
from typing import Any, Final

from tinycore._locks import in_child, replaced, writing
from tinycore._progress import progress
from tinycore._signals import deferred
from tinycore.device.buffer import Buffer
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.counters import profilers, report, trace, update_stats
from tinycore.engine.run import ExecItem, recordings
from tinycore.errors import DeviceError, OutOfMemory
from tinycore.schedule.device_memory import buffer_of
from tinycore.schedule.retention import OnResult, Realized
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

LONG_OPERATIONS: Final = 1e10
"""Operations from which on Ctrl-C does not wait for the end of a run: seconds of a processor."""
MOST_COPIED_BYTES: Final = 64 << 20
"""Memory that is copied for that, at most."""


class Transaction:
    """The launches of one run, the log of those completed, and the callback after the last."""

    def __init__(
        self,
        items: list[ExecItem],
        values: Mapping[str, int],
        computed: Realized,
        on_result: OnResult,
        existing: Iterable[UOp] = (),
    ) -> None:
        for item in items:
            if recordings:
                recordings.innermost.note(item)
            for buffer in item.bufs:
                buffer.ensure_allocated()
        wait = trace.on or bool(profilers)
        self.items = items
        self.values = values
        self.calls: list[Any] = [launch_of(item, values, wait) for item in items]
        self.existing = existing
        self.is_native = Shielded not in map(type, self.calls)
        """True if every launch is native code alone."""
        self.done: list[float | None] = []
        """The log: return values of the completed launches."""
        self.counted = 0
        """The number of completed launches that statistics include."""
        self.computed = computed
        self.on_result = on_result
        self.is_running = False
        """True while a frame executes it."""
        self.is_torn = False
        """True if the process was forked while another thread executed it."""

    def finish(self) -> None:
        """Execute the remaining launches."""
        began = perf_counter()
        with replaced(self, "is_running", True):
            if self.is_native and (copies := self.copies()) is not None:
                # no bound calls: an interrupt may end one that takes long, too
                calls = [partial(i.runner.launch, i.bufs, self.values, False) for i in self.items]
                all_or_none(
                    copies,
                    self.done,
                    lambda: self.launch(progress(calls, "computing kernels", len(calls))),
                )
            elif self.is_native:
                self.launch(self.calls)
            else:
                with deferred():
                    self.launch(self.calls)
        if recordings:
            recordings.innermost.seconds += perf_counter() - began
        self.count()
        self.on_result(self.computed)

    def copies(self) -> dict[Buffer, Buffer] | None:
        """Copies of what the launches overwrite, if they take long and it is little."""
        if sum(item.runner.estimate.ops for item in self.items) < LONG_OPERATIONS or self.done:
            return None
        written = {base_buffer(buffer_of(node)) for node in self.existing} & {
            base_buffer(b) for item in self.items for b in item.results
        }
        return copies_of(written) if sum(b.nbytes for b in written) <= MOST_COPIED_BYTES else None

    def launch(self, calls: Iterable[Any]) -> None:
        """Make the remaining launches, in one call of C."""
        try:
            self.done.extend(map(call, islice(calls, len(self.done), None)))
        except Exception as error:
            del calls  # or its progress would be told for as long as the traceback lives
            item = self.items[len(self.done)]
            report("failed", item.runner.name, item.runner.device, item.metadata, error)
            raise

    def count(self) -> None:
        """Report completed launches to profilers, counters, hooks and DEBUG=2."""
        while self.counted < len(self.done):
            number, self.counted = self.counted, self.counted + 1
            item, seconds = self.items[number], self.done[number]
            runner, metadata = item.runner, item.metadata
            for profiler in profilers:  # one that began meanwhile finds launches that nobody timed
                ended = getattr(self.calls[number], "ended", None)
                profiler.record(runner, seconds, item.bufs, metadata, ended)
            work = runner.estimate
            update_stats(runner.name, runner.device, work, seconds, metadata=metadata)

    def give_up(self) -> None:
        """Report the results that are complete; the others are recomputed when needed."""
        left = self.items[len(self.done) :]
        missing = {base_buffer(buffer) for item in left for buffer in item.results}
        given = {
            node: memory
            for node, memory in self.computed.replaced.items()
            if missing.isdisjoint(
                base_buffer(buffer_of(each))
                for each in memory.toposort()
                if each.op in (Op.BUFFER, Op.BUFFER_VIEW)
            )
        }
        self.on_result(Realized(given, {}))


def copies_of(memory: Iterable[Buffer]) -> dict[Buffer, Buffer] | None:
    """Copies of the content of buffers; None where there is no room for them."""
    try:
        return {buffer: Buffer.allocated_like(buffer).copy_from(buffer) for buffer in memory}
    except OutOfMemory:
        return None


def all_or_none(
    copies: Mapping[Buffer, Buffer], log: list[Any], launch: Callable[[], None]
) -> None:
    """Make some launches. If an error or an interrupt ends that, buffers have the content of their
    copies again, and the log is empty.

    No context manager: one that an interrupt ends before its block begins would restore what is
    long since another content, when its traceback is freed.
    """
    try:
        launch()
    except BaseException:
        with deferred():
            for buffer, copy in copies.items():
                buffer.copy_from(copy)
            log.clear()
        raise


def base_buffer(buffer: Buffer) -> Buffer:
    """The base of a view, or the buffer itself."""
    return buffer.base or buffer


unfinished: Final[list[Transaction]] = []
"""Transactions in progress, the oldest first."""


def commit(launches: Transaction) -> None:
    """Execute a transaction. After an interrupt either all of its launches are done, or none."""
    unfinished.append(launches)
    try:
        launches.finish()
        unfinished.remove(launches)
    except BaseException:
        settle(launches)
        raise


def settle(launches: Transaction) -> None:
    """After an interrupt: roll forward if a launch was made, abort otherwise."""
    if launches.done:
        launches.finish()
    if launches in unfinished:
        unfinished.remove(launches)


def finish_interrupted() -> None:
    """Complete interrupted transactions. Waits for one that another thread executes."""
    if not unfinished:
        return
    with writing:
        for launches in list(unfinished):
            if launches.is_torn:
                raise DeviceError(
                    "this process was forked while another thread of its parent wrote to tensors, "
                    "so what they hold here is half old and half new. Fork before threads compute"
                )
            if launches.is_running:  # a frame below this one is at it
                continue
            try:
                settle(launches)
            except Exception:  # it has failed twice
                unfinished.remove(launches)
                launches.give_up()
                raise


def launch_of(item: ExecItem, values: Mapping[str, int], wait: bool) -> Callable[[], float | None]:
    """A launch as a call without arguments, of native code alone where the device can bind one."""
    runner = item.runner
    if not wait and isinstance(runner, CompiledRunner) and runner.is_bindable:
        return runner.bound(item.bufs, values)
    return Shielded(partial(runner.launch, item.bufs, values, wait))


class Shielded:
    """A launch written in Python, during which signal handlers are deferred."""

    def __init__(self, launch: Callable[[], float | None]) -> None:
        self.launch = launch
        self.ended: float | None = None
        """The time when it returned, by `perf_counter`."""

    def __call__(self) -> float | None:
        """Launch; the seconds it took, or None if it was not timed."""
        seconds = self.launch()
        self.ended = perf_counter()
        return seconds


def mark_torn() -> None:
    """In a forked child: mark the transactions that threads of the parent were executing."""
    for launches in unfinished:
        launches.is_torn = True


in_child(mark_torn)
