"""A captured step: the recorded launches of one call, replayable on other inputs.

Floor 4. The frontend maps tensors and arguments to buffers (`tensor/capture/`); here a step is a
list of launches over buffers. Each of its schedules has a memory plan of its own; here temporaries
of all schedules are packed by their lifetimes into one block per device, and with them the results
of one schedule that only later ones read: buffers whose node died during the capture, so that no
tensor refers to them.

`TinyJit(prune=True)` hoists replay-invariant launches: loop-invariant code motion, with the replay
as the loop. A launch varies if it reads an argument, the number of a Variable, random numbers or
the output of another launch that varies, or if it writes a result or memory that existed before the
capture. Outputs of invariant launches may have been overwritten by temporaries by now: these
launches run once more, into buffers of their own.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, dropwhile, filterfalse
from threading import RLock
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tinycore._locks import lock as new_lock
from tinycore._locks import replaced
from tinycore._progress import progress
from tinycore._signals import deferred
from tinycore.config import in_force
from tinycore.device.buffer import Buffer
from tinycore.device.hooks import hooks
from tinycore.device.registry import Device, OpenDevice, at_close
from tinycore.dtype import dtypes
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.counters import profilers
from tinycore.engine.counters import trace as trace_run
from tinycore.engine.device_graph import Part, Single, graph_parts
from tinycore.engine.run import ExecItem, Recording, Repeated, recordings
from tinycore.engine.transactions import all_or_none, base_buffer, copies_of
from tinycore.errors import DeviceError
from tinycore.schedule.memory_plan import Life, pack
from tinycore.trace import Trace

Buffers = tuple[Buffer, ...]

trace = Trace("jit")

LONG_SECONDS: Final = 0.25
"""Time of a replay from which Ctrl-C does not wait for its end."""
PIECE_SECONDS: Final = 0.02
"""Time of the launches between two points at which a long replay can be interrupted, on average:
each of them alone takes some 5 us more than in one graph."""
COPIED_BYTES_PER_SECOND: Final = 100 << 20
"""Memory that is copied before a long replay overwrites it, for each second that it takes: a copy
takes about a fiftieth of the time then.
"""

NOTHING: Final[Any] = MappingProxyType({})


@contextmanager
def capture(refuses: bool = True, varying: Buffers | None = None) -> Iterator[Recording]:
    """Record every launch of this thread inside the block, in order.

    Reading values back raises JitError, unless `refuses` is false. With `varying`, the inputs,
    launches that depend on none of them are scheduled by themselves, so that they can be hoisted.
    """
    recording = Recording(refuses, varying=varying)
    with replaced(recordings, "open", [*recordings.open, recording]):
        yield recording


class Pieces(NamedTuple):
    """Launches of a long step: those that can be interrupted, by piece, and the others."""

    copied: Sequence[Buffer]
    """Memory that they overwrite and an interrupt restores."""
    early: list[Part]
    late: list[Part]


@dataclass(eq=False)
class CapturedStep:
    """Launches, the buffers that were inputs, and the buffers that are results.

    `made` are the buffers allocated during the capture, which hold no earlier state. A pickled step
    includes the content of all other buffers, such as weights.
    """

    items: tuple[ExecItem, ...]
    inputs: Buffers
    outputs: Buffers
    made: frozenset[Buffer] = frozenset()
    repeated: tuple[Repeated, ...] = ()
    """Host actions before each replay, such as drawing random numbers, in this order."""
    closed: tuple[str, str] | None = None
    """A program that was lost with its device, and that."""
    atomic: bool = True
    """True if an interrupt restores what a replay has overwritten."""
    graphs: list[Part] | None = None
    """The launches as they are submitted, from the first replay on."""
    kept_results: list[Any] = field(default_factory=list)
    """Results of earlier replays whose memory may be used again (`tensor/capture/`)."""
    seconds: float = 0.0
    """The time that the last replay took, or the launches of the capture."""
    pieces: Pieces | None = None
    """The launches of a long step as they are submitted."""
    lock: RLock = field(default_factory=new_lock)

    def __post_init__(self) -> None:
        steps.add(self)

    @classmethod
    def of(
        cls,
        recording: Recording,
        inputs: Buffers,
        outputs: Buffers,
        prune: bool = False,
    ) -> CapturedStep:
        """The step of a recording. It does not retain the memory of inputs and results.

        With `prune`, replay-invariant launches run now, and are left out of replays.
        """
        if prune or recording.fills:
            recording = hoist_invariants(recording, (*inputs, *outputs), prune)
        launches = pack_temporaries(recording, {*inputs, *outputs})
        before = {b for item in recording.items for b in item.bufs}
        now = {b for item in launches for b in item.bufs}
        made = (recording.made & now) - set(inputs) | (now - before)
        changing = {b: Buffer.like(b) for b in (*inputs, *(b for b in outputs if b in made))}
        return cls(
            tuple([item.on(changing) for item in launches]),
            tuple([changing[b] for b in inputs]),
            tuple([changing.get(b, b) for b in outputs]),
            frozenset([changing.get(b, b) for b in made]),
            tuple([(b if b in now else None, action) for b, action in recording.repeated]),
            seconds=recording.seconds,
        )

    @cached_property
    def fresh_outputs(self) -> Buffers:
        """Results without state: each replay gets new memory for them."""
        return tuple(b for b in dict.fromkeys(self.outputs) if b in self.made)

    @cached_property
    def used(self) -> frozenset[Buffer]:
        """Buffers that every replay uses: state, constants, and intermediates."""
        found = {b for item in self.items for b in item.bufs}
        return frozenset(found.difference(self.inputs, self.fresh_outputs))

    @cached_property
    def overwritten(self) -> frozenset[Buffer]:
        """Memory from before that every replay writes to."""
        written = {buffer for item in self.items for buffer in item.results}
        return frozenset(map(base_buffer, written - self.made))

    def exchanged(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """The memory of some inputs that a replay on them writes to."""
        pairs = zip(self.inputs, inputs, strict=True)
        return [base_buffer(given) for own, given in pairs if base_buffer(own) in self.overwritten]

    def lose_programs(self, device: str) -> None:
        """Drop the launches, if programs of a device that is closed are among them: replays raise
        an error.
        """
        if any(buffer.device == device for item in self.items for buffer in item.bufs):
            with self.lock:
                self.graphs = self.pieces = None  # they hold memory and queues of the device
                for runner in [item.runner for item in self.items]:
                    if isinstance(runner, CompiledRunner) and runner.device == device:
                        self.items, self.closed = (), (runner.name, device)

    def free_intermediates(self) -> None:
        """Free the memory of intermediates and of earlier results, until the next replay."""
        with self.lock:
            self.graphs = self.pieces = None
            self.kept_results.clear()
            between = self.made - set(self.fresh_outputs)
            for buffer in between.union(map(base_buffer, between)):
                buffer.deallocate()

    def replay(
        self,
        inputs: Iterable[Buffer],
        numbers: Mapping[str, int],
        again: dict[Buffer, Buffer] = NOTHING,
        last: ExitStack | None = None,
    ) -> Buffers:
        """Run the step on other inputs; the results, in memory that no later replay touches.

        `again` gives memory of earlier results that may be overwritten. A long step enters a block
        in `last` once it cannot be interrupted any more.
        `JIT=2`, DEBUG=2 and hooks that are called for each kernel ask for one launch at a time.
        Raises DeviceError if a device was closed since the capture.
        """
        if self.closed is not None:
            name, device = self.closed
            raise DeviceError(
                f"{name} was captured on {device}, which was closed since. Call reset() of the "
                "captured function: the next calls capture it on the device as it is opened again"
            )
        exchange = dict(zip(self.inputs, inputs, strict=True)) | again
        for made in filterfalse(exchange.__contains__, self.fresh_outputs):
            exchange[made] = Buffer.allocated_like(made)
        values = in_force()  # once for all that is asked below
        is_observed = values["JIT"] >= 2 or hooks.active("tinycore_kernel_ran") is not None
        if values["DEBUG"] or values["TRACE"]:
            held = "".join(f", {name}={value}" for name, value in numbers.items())
            trace(f"replaying {len(self.items)} launches{held}")
            is_observed |= trace_run.is_on(values)
        noting = [] if is_observed else [p.unobserved(self) for p in profilers]
        is_observed |= None in noting
        with self.lock:
            if self.repeated:
                self.repeat()
            if is_observed:
                if last is not None:
                    last.enter_context(deferred())
                for item in self.items:
                    Single(item).run(exchange, numbers)
            else:
                began = perf_counter()
                if self.is_long:
                    with ExitStack() as own:
                        self.run_interruptibly(exchange, numbers, last or own)
                else:
                    if (parts := self.graphs) is None:
                        parts = self.graphs = graph_parts(self.items, numbers, exchange)
                    for part in parts:
                        part.run(exchange, numbers)
                self.seconds = perf_counter() - began
                for note in noting:
                    note((self.seconds, began))
        return tuple(map(exchange.get, self.outputs, self.outputs))

    @property
    def is_long(self) -> bool:
        """True if replays are so long that Ctrl-C can end one midway."""
        return self.seconds > LONG_SECONDS

    def run_interruptibly(
        self, exchange: Mapping[Buffer, Buffer], numbers: Mapping[str, int], last: ExitStack
    ) -> None:
        """Run the launches in pieces. An interrupt between two restores what they wrote to.

        Where that is too much to be copied before, an interrupt waits from the first write to
        what is not copied on.
        """
        copied, early, late = self.pieces or self.divide(self.cheap_copies(), exchange, numbers)
        written = {base_buffer(exchange.get(b, b)) for b in copied if self.atomic}
        if (copies := copies_of(written)) is None:
            _, early, late = self.divide((), exchange, numbers)

        def launch() -> None:
            for part in progress(early, "computing parts of a step", len(early)):
                part.run(exchange, numbers)
            last.enter_context(deferred())
            for part in late:
                part.run(exchange, numbers)

        all_or_none(copies or {}, [], launch)

    def divide(
        self,
        copied: Sequence[Buffer],
        exchange: Mapping[Buffer, Buffer],
        numbers: Mapping[str, int],
    ) -> Pieces:
        """The step in pieces, of which it copies some of what it overwrites."""
        written = self.overwritten.difference(copied)
        late = dropwhile(lambda i: written.isdisjoint(map(base_buffer, i.results)), self.items)
        count = len(self.items) - len([*late])
        size = 1 + int(len(self.items) * PIECE_SECONDS / self.seconds)
        pieces = [self.items[n : min(n + size, count)] for n in range(0, count, size)]
        early = [part for piece in pieces for part in graph_parts(piece, numbers, exchange)]
        self.pieces = Pieces(copied, early, graph_parts(self.items[count:], numbers, exchange))
        return self.pieces

    def cheap_copies(self) -> list[Buffer]:
        """Memory that the launches overwrite, the smallest first: as much as may be copied, or all
        where no copy is made."""
        by_size = sorted(self.overwritten, key=lambda b: b.nbytes)
        totals = zip(by_size, accumulate(b.nbytes for b in by_size), strict=True)
        return [
            b
            for b, total in totals
            if not self.atomic or total <= self.seconds * COPIED_BYTES_PER_SECOND
        ]

    def repeat(self) -> None:
        """Do the host's part of a replay."""
        for buffer, action in self.repeated:
            content = action()
            if buffer is not None:
                buffer.copyin(content.data)

    def __reduce__(self) -> tuple[object, ...]:
        self.free_intermediates()  # whose content nobody needs
        return CapturedStep, (
            self.items,
            self.inputs,
            self.outputs,
            self.made,
            self.repeated,
            self.closed,
            self.atomic,
        )


steps: Final[weakref.WeakSet[CapturedStep]] = weakref.WeakSet()
"""All captured steps, whose programs are lost with their device."""


def lose_programs(device: OpenDevice) -> None:
    """Take from captured steps the programs of a device that is closed."""
    if all(other.name != device.name for other in Device.opened()):
        for step in list(steps):
            step.lose_programs(device.name)


at_close.append(lose_programs)


def hoist_invariants(
    recording: Recording, fixed: Iterable[Buffer], prune: bool = True
) -> Recording:
    """A recording without its invariant launches: with `prune` all, else those that copy data
    of the host. `fixed` are the inputs and the results.
    """
    recording = replace(recording, items=[*recording.fills, *recording.items])
    varying = VaryingMemory(recording, fixed, prune)
    once = [item for item in recording.items if not varying.includes(item)]
    own = {buffer: Buffer.like(buffer) for item in once for buffer in item.results}

    def moved(item: ExecItem) -> ExecItem:
        return item.on({b: own.get(b) or view_of(b, own) for b in item.bufs})

    for item in once:
        moved(item).run()
    kept = [moved(item) for item in recording.items if varying.includes(item)]
    return replace(
        recording,
        items=kept,
        made=recording.made - own.keys(),
        temporary=recording.temporary - own.keys(),
    )


def view_of(buffer: Buffer, own: Mapping[Any, Buffer]) -> Buffer:
    """A buffer, or the same view of the replacement of its base."""
    base = own.get(buffer.base)
    return buffer if base is None else base.view(buffer.size, buffer.dtype, buffer.offset)


class VaryingMemory:
    """The set of memory whose content differs between replays, by fixpoint iteration."""

    def __init__(self, recording: Recording, fixed: Iterable[Buffer], prune: bool = True) -> None:
        self.recording, self.prune = recording, prune
        used = {b for item in recording.items for b in item.bufs}
        drawn = used.intersection([buffer for buffer, _ in recording.repeated])
        self.memory = {*map(self.whole, (*fixed, *drawn)), *[b.base for b in recording.temporary]}
        before = -1
        while before != len(self.memory):
            before = len(self.memory)
            for item in filter(self.includes, recording.items):
                self.memory.update(map(self.whole, item.results))

    def whole(self, buffer: Buffer) -> Buffer:
        """The identity of memory: a temporary itself, the base of any other view."""
        return buffer if buffer in self.recording.temporary else base_buffer(buffer)

    def includes(self, item: ExecItem) -> bool:
        """True if a launch must run in each replay."""
        if isinstance(item.runner, CompiledRunner) and item.runner.info.values:
            return True
        return (
            not (self.prune or item in self.recording.fills)
            or not all(map(self.is_new, item.results))
            or any(map(self.has, item.bufs))
        )

    def has(self, buffer: Buffer) -> bool:
        """True if the content of a buffer differs between replays."""
        return self.whole(buffer) in self.memory

    def is_new(self, buffer: Buffer) -> bool:
        """True if memory was allocated during the capture and is no view of other such memory."""
        return buffer in self.recording.made and self.whole(buffer) is buffer


def pack_temporaries(recording: Recording, kept: Collection[Buffer]) -> tuple[ExecItem, ...]:
    """The launches of a capture on packed temporaries; `kept` buffers are not moved."""
    lives = lifetimes(recording, set(kept))
    by_device: dict[str, list[Buffer]] = defaultdict(list)
    for buffer in lives:
        by_device[buffer.device].append(buffer)
    exchange: dict[Buffer, Buffer] = {}
    for device, found in by_device.items():
        plan = pack([lives[buffer] for buffer in found])
        block = Buffer(device, plan.size_bytes, dtypes.uint8)
        for buffer, offset in zip(found, plan.offsets, strict=True):
            exchange[buffer] = block.view(buffer.size, buffer.dtype, offset)
    return tuple([item.on(exchange) for item in recording.items])


def lifetimes(recording: Recording, kept: set[Buffer]) -> dict[Buffer, Life]:
    """The live range of each temporary: first and last launch that uses it. Images are left out."""
    forgotten = {buffer for node, buffer in recording.persistent if node() is None}
    temporary = (recording.temporary | forgotten) - kept
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, item in enumerate(recording.items):
        for slot, buffer in enumerate(item.bufs):
            if buffer.base in forgotten:
                temporary.discard(buffer.base)  # a view of it is read too
            if buffer not in first and slot not in item.runner.written:
                temporary.discard(buffer)
            first.setdefault(buffer, number)
            last[buffer] = number
    return {
        b: Life(b.nbytes, first[b], last[b]) for b in first if b in temporary and b.image is None
    }
