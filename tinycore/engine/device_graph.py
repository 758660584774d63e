"""Device graphs (CUDA graphs): a captured step in one submission; replays rebind its buffers.

Floor 4. Neighboring launches on one device that can hold them (capability `graph`) are submitted
together, and so are those of several devices that wait for each other (`queues`), with the copies
between them; a replay patches only what changes from call to call. Anything else runs as it was
captured. Launches of a graph are counted but not reported: where a hook or a trace listens,
`CapturedStep.replay` launches them one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count, groupby, repeat
from operator import attrgetter, is_not
from typing import Any, Final, TypeAlias

from tinycore.device.buffer import Buffer
from tinycore.device.protocols import Graph, Handle, Launch
from tinycore.device.registry import Device
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.counters import Estimate, GlobalCounters
from tinycore.engine.run import CopyRunner, ExecItem
from tinycore.errors import UnsupportedError

Numbers = Mapping[str, int]
"""Values of variables by name."""

Bound = Mapping[Buffer, Buffer]
"""Buffers in the place of those of the recorded step."""

Place: TypeAlias = tuple[int, int]
"""The number of a launch, and a slot or position in it."""
SHORTEST: int = 2
"""Launches from which asking for them at once pays."""


HANDLE: Final = attrgetter("_handle")
"""Handle of a Buffer, without a Python call; None before it is allocated."""
UNSET: Final = object()
"""Placeholder of a handle or number while it is being changed."""


class HeldLaunches:
    """Launches that a device holds, and the places of their changing buffers and numbers.

    A graph is updated only where a run differs from the one before. The record of its content is
    dropped before an update, so that a run after an interrupt updates it again.
    """

    def __init__(
        self,
        graph: Graph,
        items: Sequence[ExecItem],
        exchange: Bound,
        values: Numbers,
    ) -> None:
        self.graph, self.items, self.launches = graph, items, len(items)
        places: dict[Buffer, list[Place]] = defaultdict(list)
        positions: dict[str, list[Place]] = defaultdict(list)
        needs: dict[Buffer, int] = defaultdict(int)
        for number, item in enumerate(items):
            need = 1
            if isinstance(item.runner, CompiledRunner):
                need = item.runner.for_buffers([exchange.get(b, b) for b in item.bufs]).alignment
                for position, name in enumerate(item.runner.info.values):
                    positions[name].append((number, position))
            for slot, buffer in enumerate(item.bufs):
                if buffer in exchange:
                    places[buffer].append((number, slot))
                    needs[buffer] = max(needs[buffer], need)
        self.exchanged = tuple(places)
        self.places = tuple(places.values())
        """Launches and slots of each buffer that is exchanged."""
        self.handles: list[Any] = [exchange[buffer].handle for buffer in places]
        """Handles that the graph holds now."""
        self.needs = [needs[buffer] for buffer in places]
        """The alignment in bytes that programs of the graph require of these buffers."""
        self.positions = dict(positions)
        """Launches and positions of each variable."""
        self.numbers: dict[str, Any] = {name: values[name] for name in positions}
        """Values of the variables in the graph now."""
        work = [item.runner.estimate for item in items]
        self.estimate = Estimate(sum(w.ops for w in work), sum(w.bytes for w in work))

    def run(self, exchange: Bound, values: Numbers) -> None:
        """Launch all, with replaced buffers, and numbers for variables."""
        buffers = [*map(exchange.__getitem__, self.exchanged)]
        changed = [*compress(count(), map(is_not, map(HANDLE, buffers), self.handles))]
        if changed:
            handles, set_buffer = self.handles, self.graph.set_buffer
            for number in changed:
                buffer, need = buffers[number], self.needs[number]
                if need > 1 and buffer.alignment < need:
                    for item in self.items:
                        Single(item).run(exchange, values)
                    return
                # An interrupt between the places leaves UNSET, so that the next run sets them
                # all.
                handle, handles[number] = buffer.handle, UNSET
                for launch, slot in self.places[number]:
                    set_buffer(launch, slot, handle)
                handles[number] = handle
        for name, positions in self.positions.items():
            if self.numbers[name] != values[name]:
                self.numbers[name] = UNSET
                for launch, position in positions:
                    self.graph.set_value(launch, position, values[name])
                self.numbers[name] = values[name]
        self.graph()
        GlobalCounters.count(self.estimate, self.launches)


@dataclass(frozen=True)
class Single:
    """A launch outside of any graph."""

    item: ExecItem

    def run(self, exchange: Bound, values: Numbers) -> None:
        """Launch it, with replaced buffers."""
        self.item.on(exchange).run(values, jit=True)


@dataclass(frozen=True)
class Alone:
    """A program that is launched alone, with its fixed arguments prepared."""

    single: Single
    runner: CompiledRunner
    handles: tuple[Handle, ...]
    """By slot; None for a buffer that is exchanged. Empty where all are."""
    changing: tuple[int, ...]
    """The slots of these buffers."""
    exchanged: tuple[Buffer, ...]
    names: tuple[str, ...]
    """The variables of the program."""

    @classmethod
    def of(cls, item: ExecItem, exchange: Bound) -> Alone | Single:
        """The launch of a program, or of anything else."""
        runner, single = item.runner, Single(item)
        if not isinstance(runner, CompiledRunner):
            return single
        runner = runner.for_buffers([exchange.get(b, b) for b in item.bufs])
        changing = tuple([slot for slot, b in enumerate(item.bufs) if b in exchange])
        is_fixed = len(changing) < len(item.bufs)
        handles = [None if b in exchange else b.handle for b in item.bufs] if is_fixed else ()
        exchanged = tuple([item.bufs[slot] for slot in changing])
        return cls(single, runner, tuple(handles), changing, exchanged, runner.info.values)

    def run(self, exchange: Bound, values: Numbers) -> None:
        """Launch it, with replaced buffers."""
        runner, buffers = self.runner, [*map(exchange.__getitem__, self.exchanged)]
        handles = [*map(HANDLE, buffers)]
        if not all(map(is_not, handles, NO_HANDLES)) or not all(map(IS_WHOLE, map(PLACE, buffers))):
            if any(buffer.alignment < runner.alignment for buffer in buffers):
                return self.single.run(exchange, values)
            handles = [buffer.handle for buffer in buffers]
        if self.handles:
            found, handles = handles, [*self.handles]
            for slot, handle in zip(self.changing, found, strict=True):
                handles[slot] = handle
        numbers = [values[name] for name in self.names] if self.names else ()
        runner.program(handles, numbers, wait=False)
        GlobalCounters.count(runner.estimate, 1)
        return None


NO_HANDLES: Final = repeat(None)
PLACE: Final = attrgetter("origin", "base")
IS_WHOLE: Final = (0, None).__eq__
"""True for the PLACE of memory that was allocated by itself, and so is aligned to any need."""
Part: TypeAlias = HeldLaunches | Alone | Single


def graph_parts(items: Iterable[ExecItem], values: Numbers, exchange: Bound) -> list[Part]:
    """A step as few parts as possible. `exchange` has placeholders for buffers that change."""
    parts: list[Part] = []
    for together, neighbors in groupby(items, key=holder):
        parts += held_or_alone(list(neighbors), together is not None, values, exchange)
    return parts


def held_or_alone(
    run: Sequence[ExecItem],
    together: bool,
    values: Numbers,
    exchange: Bound,
) -> list[Part]:
    """Neighbors held in one graph, else in one for each device, else launched singly."""
    if not together or len(run) < SHORTEST:
        return [Alone.of(item, exchange) for item in run]
    if (held := hold(run, values, exchange)) is not None:
        return [held]
    parts: list[Part] = []
    for is_program, neighbors in groupby(run, key=is_launch):
        for own in by_device(neighbors) if is_program else [list(neighbors)]:
            parts += held_or_alone(own, is_program and len(own) < len(run), values, exchange)
    return parts


def is_launch(item: ExecItem) -> bool:
    """True if a program of one device is launched; not for a copy between two."""
    return isinstance(item.runner, CompiledRunner)


def by_device(items: Iterable[ExecItem]) -> Iterable[list[ExecItem]]:
    """Launches grouped by device, if no copy is between them."""
    found: dict[str, list[ExecItem]] = {}
    for item in items:
        found.setdefault(item.runner.device, []).append(item)
    return found.values()


def holder(item: ExecItem) -> tuple[str, ...] | None:
    """The graph class for a launch, of one device or of several; None if there is none."""
    runner = item.runner
    device = Device[runner.device]
    if not device.has("graph"):
        return None
    is_copy = isinstance(runner, CopyRunner)
    if not (is_copy or isinstance(runner, CompiledRunner)):
        return None
    if device.waits_for(Device[item.bufs[1].device] if is_copy else device):
        return device.backend.name, device.interface
    return None if is_copy else (device.name,)


def launch_of(item: ExecItem, values: Numbers, exchange: Bound) -> Launch:
    """A launch as a device takes it."""
    bufs = [exchange.get(b, b) for b in item.bufs]
    handles = [b.handle for b in bufs]
    runner = item.runner
    if isinstance(runner, CompiledRunner):
        return (
            runner.for_buffers(bufs).program,
            handles,
            [values[name] for name in runner.info.values],
        )
    target, source = item.bufs
    return Device[target.device].copier(target.nbytes, Device[source.device]), handles, []


def hold(items: Sequence[ExecItem], values: Numbers, exchange: Bound) -> HeldLaunches | None:
    """Launches handed to their device; None if it cannot hold them."""
    device = items[0].runner.device
    try:
        launches = [launch_of(item, values, exchange) for item in items]
        graph = Device[device].runtime.graph(launches)  # type: ignore[attr-defined]
    except UnsupportedError:
        return None
    return HeldLaunches(graph, items, exchange, values)
