"""Compiled schedules: launches over numbered memory, and their cache.

Floor 3. Scheduling takes a thousand times as long as a lookup, so it is done once per canonical
graph (`canonical.py`). A `Schedule` holds the launches, each with the numbers of the memory in its
slots, the new memory, and what the graph's nodes are replaced by. A `BoundSchedule` is one use of
it, over real buffers. See docs/floors/schedule.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any, Final

from tinycore._collector import without_collecting
from tinycore._lru import Lru
from tinycore._progress import telling
from tinycore._stamp import decisive_values
from tinycore.device.buffer import Buffer
from tinycore.device.protocols import Toolchain
from tinycore.device.registry import Device
from tinycore.dtype import dtypes
from tinycore.errors import DeviceError
from tinycore.render.base import Limits
from tinycore.schedule import disk
from tinycore.schedule.canonical import CanonicalGraph
from tinycore.schedule.device_memory import buffer_of, new_memory
from tinycore.schedule.items import ScheduleItem, Step
from tinycore.schedule.limits import elsewhere
from tinycore.schedule.memory_plan import Block, Layout
from tinycore.schedule.pipeline import run_passes
from tinycore.schedule.retention import Replacements, RetentionPolicy, select_exclusive
from tinycore.schedule.state import State
from tinycore.uop.bindings import exchanging
from tinycore.uop.node import UOp, candidates_above, held_by, made_anew, ordered
from tinycore.uop.op import Op
from tinycore.uop.origins import origins_of
from tinycore.uop.rewrite import rebuilt


@dataclass(frozen=True)
class Schedule:
    """The launches of all graphs with one canonical graph. Memory is numbered, parameters first."""

    sink: UOp
    """The canonical graph, the key of the cache; held so that its nodes stay interned."""
    steps: tuple[Step, ...]
    memory: tuple[UOp, ...]
    """BUFFERs and views of the canonical graph, by memory number."""
    parameters: int
    results: Replacements
    """Nodes of the canonical graph that are replaced by memory, and that memory."""
    cached: Replacements = field(default_factory=dict)
    """Nodes whose value temporary memory could cache, likewise."""
    layouts: dict[frozenset[UOp], Layout] = field(default_factory=dict)
    kinds: dict[int, Buffer] = field(default_factory=dict)
    """Buffers by number, never allocated: prototypes of new ones."""
    targets: tuple[Target, ...] = ()
    """Toolchains that it was made for, held so that the ids in its key stay valid."""

    @cached_property
    def roots(self) -> frozenset[UOp]:
        """The roots of the canonical graph."""
        return frozenset(self.sink.src)

    @cached_property
    def inner(self) -> frozenset[UOp]:
        """Nodes with memory that are no roots: which of them are needed depends on other graphs."""
        return frozenset({**self.results, **self.cached}).difference(self.roots)

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The parameters that the steps touch."""
        found = {place for step in self.steps for place in step.places}
        return tuple(sorted(place for place in found if place < self.parameters))

    def kind(self, place: int) -> Buffer:
        """A prototype of the memory of a number."""
        if (found := self.kinds.get(place)) is None:
            found = self.kinds[place] = new_memory(self.memory[place])
        return found

    def layout(self, others: Sequence[UOp], canonical: CanonicalGraph) -> Layout:
        """The placement of new memory when only some nodes with memory are needed later.

        Needed are the roots, all writes, and the nodes that other living graphs meet first on the
        way down. A write is replaced by its memory even if no other graph has it: the graph that
        is read stays alive, and must not write a second time. Below a cached value the walk goes
        on, since its node stays in the graph.
        """
        needed = self.roots
        if canonical.assigned:
            needed |= {canonical.nodes[node] for node in canonical.assigned}
        inner = canonical.behind(self.inner) if others else ()
        if inner and (others := candidates_above(others, inner)):
            stops = {*canonical.roots, *canonical.behind(self.results)}
            cached_here = {*canonical.behind(self.cached)}
            scope = canonical.scope

            def enter(node: UOp) -> bool:
                return node not in cached_here and held_by(node, scope) is None

            met = [*ordered(UOp.sink(*others), enter, stops)]
            reached = [n for n in met if not enter(n)]
            needed |= {canonical.nodes[n] for n in reached if n in cached_here}
            if reached:
                met += ordered(UOp.sink(*reached), None, stops)
            needed |= {canonical.nodes[n] for n in met if n in stops}
        if (found := self.layouts.get(needed)) is None:
            found = self.layouts[needed] = self.plan(needed)
        return found

    def plan(self, needed: Collection[UOp]) -> Layout:
        """The layout when some nodes with memory are needed later: the last pass."""
        state = State(
            self.sink.src,
            parameters=self.memory[: self.parameters],
            memory=self.memory,
            steps=self.steps,
            results=self.results,
            cached=self.cached,
            needed=needed,
        )
        found = run_passes(state, first="memory plan").layout
        assert found is not None
        return found


BUFFER, OWN, RESHAPE = Op.BUFFER, Op.OWN, Op.RESHAPE
NOTHING_CACHED: Final[Mapping[UOp, UOp]] = {}
UNKNOWN: Final = repeat(None)
"""The program of each step, before it is known."""


class BoundSchedule:
    """One use of a schedule: a Buffer for each memory number, and the nodes of this graph.

    Without a layout every value has memory of its own, so that each can be inspected afterwards.
    `allocates` says whether persistent memory is allocated now, rather than at its first use.
    """

    def __init__(
        self,
        schedule: Schedule,
        canonical: CanonicalGraph,
        layout: Layout | None = None,
        allocates: bool = False,
    ) -> None:
        self.schedule, self.steps = schedule, schedule.steps
        self.canonical = canonical
        used = canonical.memory
        self.nodes: Replacements = dict(zip(schedule.memory, used, strict=False))
        self.memory: dict[int, Buffer] = {n: buffer_of(used[n]) for n in schedule.used}
        self.temporary: list[Buffer] = []
        if layout is None:
            self.shown = schedule.results
            self.cached: Mapping[UOp, UOp] = NOTHING_CACHED
            self.created: Sequence[int] = range(schedule.parameters, len(schedule.memory))
            """The numbers of persistent memory."""
        else:
            self.shown, self.cached = layout.results, layout.cached
            self.created = layout.persistent
        make = Buffer.allocated_like if allocates else Buffer.like
        for place in self.created:
            node = schedule.memory[place]
            self.nodes[node] = new = made_anew(node)
            new._memory = self.memory[place] = make(
                schedule.kinds.get(place) or schedule.kind(place)
            )
        for block in () if layout is None else layout.blocks:
            self.add_block(block)

    @property
    def persistent(self) -> list[tuple[weakref.ref[UOp], Buffer]]:
        """New memory that tensors may show, with its nodes."""
        nodes, places = self.schedule.memory, self.created
        return [(weakref.ref(self.nodes[nodes[place]]), self.memory[place]) for place in places]

    def add_block(self, block: Block) -> None:
        """Make the memory of temporary values."""
        whole = Buffer(block.device, block.size_bytes, dtypes.uint8)
        for place, offset in block.places:
            node = self.schedule.memory[place]
            view = whole.view(node.shape[0], node.dtype, offset)
            self.memory[place] = view
            self.temporary.append(view)

    def buffers(self) -> Iterator[tuple[Buffer, ...]]:
        """The memory of each launch."""
        memory = self.memory
        for _, places, _, _ in self.steps:
            yield tuple([memory[p] for p in places])

    def items(self, runners: Sequence[Any] | None = None) -> list[ScheduleItem]:
        """The launches, bound to this memory, of programs that are known."""
        memory = self.memory
        return [
            ScheduleItem(ast, tuple([memory[p] for p in places]), metadata, kernel, runner)
            for (ast, places, metadata, kernel), runner in zip(
                self.steps, runners or UNKNOWN, strict=False
            )
        ]

    def kernels(self) -> tuple[UOp, ...]:
        """The KERNEL of each launch, over nodes of this memory."""
        return UOp.sink(*[step.kernel for step in self.schedule.steps]).substitute(self.nodes).src

    def results(self) -> Replacements:
        """Nodes that are replaced by memory, and that memory."""
        actual = self.canonical.originals
        return {actual[old]: self.over(new) for old, new in self.shown.items() if old in actual}

    def cached_values(self) -> Replacements:
        """Nodes that stay in the graph, and the memory that has their value."""
        actual = self.canonical.originals if self.cached else {}
        return {actual[old]: self.over(new) for old, new in self.cached.items() if old in actual}

    def over(self, memory: UOp) -> UOp:
        """A node over canonical memory, over this memory instead."""
        if memory.op is RESHAPE and (found := self.nodes.get(memory.src[0])) is not None:
            return memory.with_src((found,))
        found = memory.substitute(self.nodes)
        if found.op is not BUFFER and any(n.op is OWN for n in found.toposort()):
            found = renumbered(found, self.canonical.apart)
        return exchanging(found, self.canonical.naming.back) if self.canonical.values else found


def renumbered(root: UOp, numbers: Sequence[int]) -> UOp:
    """A graph in which the nodes that are of one tensor alone have other numbers."""
    return rebuilt(root, lambda _, n: n.replace(arg=numbers[n.arg]) if n.op is OWN else n)


Target = Toolchain[Any] | Limits | None
"""Target of kernels: a toolchain, the limits of a device elsewhere, or None."""
Varying = frozenset[int] | None
"""Parameters whose content differs between replays of a capture that leaves out what does not."""
Key = tuple[UOp, RetentionPolicy, tuple[Any, ...], tuple[int, ...], Varying, tuple[Any, ...]]

schedules: Lru[Key, Schedule] = Lru(1024)
"""Compiled schedules by canonical graph, retention policy, settings, and toolchains by their id():
hashing limits takes longer than the lookup, and each schedule holds its own."""


def schedule_for(
    canonical: CanonicalGraph,
    policy: RetentionPolicy,
    on_disk: bool = False,
    varying: Varying = None,
) -> Schedule:
    """The schedule of a canonical graph, cached or compiled; `on_disk` searches the disk, too."""
    targets = targets_in_force(canonical.sink)
    origins = origins_of(canonical.nodes)
    key = canonical.sink, policy, decisive_values(), tuple(map(id, targets)), varying, origins
    if (found := schedules.find(key)) is not None:
        return found
    with telling("scheduling a graph, {:.0f} s".format), without_collecting:
        if on_disk and varying is None and not origins:
            made = load_or_compile(canonical, policy)
        else:
            made = compile_schedule(canonical, policy, varying)
        made = replace(made, targets=targets)
    schedules.keep(key, made)
    return made


def targets_in_force(sink: UOp) -> tuple[Target, ...]:
    """Toolchains that a graph is scheduled for: a device may be opened anew, or DEV changed.

    None for a device that cannot compile, which copies need not.
    """
    if (limits := elsewhere.get()) is not None:
        return (limits,)
    found: list[Target] = []
    for name in disk.devices_of(sink):
        try:
            found.append(Device[name].toolchain)
        except DeviceError:
            found.append(None)
    return tuple(found)


def load_or_compile(canonical: CanonicalGraph, policy: RetentionPolicy) -> Schedule:
    """The schedule from disk, else a new one, which is stored there."""
    key = disk.schedule_key(canonical, policy)
    if key is not None and (found := disk.find(key, canonical)) is not None:
        steps, memory, results, cached = found
        return Schedule(canonical.sink, steps, memory, len(canonical.memory), results, cached)
    made = compile_schedule(canonical, policy, None)
    if key is not None:
        disk.put(key, canonical, (made.steps, made.memory, made.results, made.cached))
    return made


def compile_schedule(
    canonical: CanonicalGraph, policy: RetentionPolicy, varying: Varying
) -> Schedule:
    """Schedule a graph: all passes but the memory plan, which depends on what is read later."""
    state = run_passes(
        State(
            canonical.sink.src,
            policy,
            parameters=tuple([canonical.nodes[node] for node in canonical.memory]),
            known=canonical.originals,
            varying=varying,
        ),
        last="emit kernels",
    )
    filled = {place for step in state.steps for place in step.places}
    new = enumerate(state.memory[len(state.parameters) :], len(state.parameters))
    free = {memory for place, memory in new if place in filled - state.persistent}
    return Schedule(
        canonical.sink,
        state.steps,
        state.memory,
        len(state.parameters),
        state.results,
        select_exclusive(state.cached, free),
    )
