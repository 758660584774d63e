"""Compiled schedules: launches over numbered memory, and the cache of those compiled lately.

Floor 3. Scheduling takes a thousand times as long as a lookup, so it is done once per canonical
graph (`canonical.py`). A `Schedule` holds the launches, each with the numbers of the memory in its
slots, the new memory, and what the graph's nodes are replaced by. A `BoundSchedule` is one use of
it, over real buffers. See docs/decisions/0025-schedule-cache.md.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from tinycore._collector import without_collecting
from tinycore._locks import lock
from tinycore.config import settings
from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes
from tinycore.render.base import Limits
from tinycore.schedule import disk
from tinycore.schedule.canonical import CanonicalGraph
from tinycore.schedule.device_memory import buffer_of, buffers, new_memory
from tinycore.schedule.inplace import Reuse, find_reuses, reuse_in_place
from tinycore.schedule.items import ScheduleItem, Step, kernels_below
from tinycore.schedule.kernel import image_of, memory_of
from tinycore.schedule.kernelize import kernelize
from tinycore.schedule.memory import Life, pack, peak_bytes
from tinycore.schedule.multi import PerDevice
from tinycore.schedule.order import order_for_liveness
from tinycore.schedule.results import HeldValue, Keep, Replacements, alone_in
from tinycore.schedule.row_fusion import fuse_rows
from tinycore.schedule.target import elsewhere
from tinycore.trace import Trace
from tinycore.uop.bindings import exchanging
from tinycore.uop.node import UOp, made_anew
from tinycore.uop.op import Op

trace = Trace("layout")

LEAST_BYTES: Final = 64 << 10
"""Live bytes of a block from which in-place reuse is tried."""
LEAST_GAIN: Final = 1 / 32
"""Fraction of a block that in-place reuse must save: each costs another kernel to compile."""


@dataclass(frozen=True)
class Schedule:
    """The launches of all graphs with one canonical graph. Memory is numbered, parameters first."""

    sink: UOp
    """The canonical graph, the key of the cache; held so that its nodes stay interned."""
    steps: tuple[Step, ...]
    memory: tuple[UOp, ...]
    """By number, BUFFERs and views as they stand in the canonical graph."""
    parameters: int
    results: Replacements
    """Nodes that are replaced by memory, both as they stand in the canonical graph."""
    held: Replacements = field(default_factory=dict)
    """Nodes whose value temporary memory could cache, likewise."""
    layouts: dict[frozenset[UOp], Layout] = field(default_factory=dict)
    kinds: dict[int, Buffer] = field(default_factory=dict)
    """Buffers by number, never allocated: prototypes of new ones."""

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The parameters that the steps touch."""
        found = {place for step in self.steps for place in step.places}
        return tuple(sorted(place for place in found if place < self.parameters))

    def like(self, place: int) -> Buffer:
        """A new Buffer for the memory of a number."""
        if (kind := self.kinds.get(place)) is None:
            kind = self.kinds[place] = new_memory(self.memory[place])
        return Buffer.like(kind)

    @cached_property
    def lives(self) -> dict[int, Life]:
        """The live range of each new memory."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for place in step.places:
                first.setdefault(place, number)
                last[place] = number
        new = [place for place in first if place >= self.parameters]
        return {p: Life(size_bytes(self.memory[p]), first[p], last[p]) for p in new}

    @cached_property
    def reads(self) -> dict[UOp, tuple[int, ...]]:
        """The parameters that each cacheable value is computed from."""
        masks = {self.memory[number]: 1 << number for number in range(self.parameters)}
        for node in self.sink.toposort():
            mask = masks.get(node, 0)
            for source in node.src:
                mask |= masks[source]
            masks[node] = mask
        numbers = range(self.parameters)
        return {n: tuple([k for k in numbers if masks[n] >> k & 1]) for n in self.held}

    def layout(self, others: Sequence[UOp], canonical: CanonicalGraph) -> Layout:
        """The placement of new memory when only some nodes with memory are needed later.

        Needed are the roots, all writes, and the nodes that other living graphs meet first on the
        way down. A write is replaced by its memory even if no other graph has it: the graph that
        is read stays alive, and must not write a second time. Below a cached value the walk goes
        on, since its node stays in the graph.
        """
        needed = frozenset(
            (*self.sink.src, *(canonical.nodes[node] for node in canonical.assigned))
        )
        if others:
            stops = set(canonical.roots) | {
                n for n, f in canonical.nodes.items() if f in self.results
            }
            holds = (
                {n for n, f in canonical.nodes.items() if f in self.held} if self.held else set()
            )
            first = stops | holds | canonical.held.keys()
            met = UOp.sink(*others).toposort(lambda n: n not in first)
            holding = [n for n in met if n in holds or n in canonical.held]
            needed |= {canonical.nodes[n] for n in holding if n in holds}
            if holding:
                met += UOp.sink(*holding).toposort(lambda n: n not in stops)
            needed |= {canonical.nodes[n] for n in met if n in stops}
        if (found := self.layouts.get(needed)) is None:
            found = self.layouts[needed] = plan_memory(self, needed)
        return found


@dataclass(frozen=True)
class Layout:
    """The placement of new memory: in blocks, but for persistent memory and images."""

    results: Replacements
    held: Replacements
    persistent: tuple[int, ...]
    blocks: tuple[Block, ...]
    steps: tuple[Step, ...]
    """The steps of the schedule, some of them with in-place reuse."""


class Block(NamedTuple):
    """Memory of one device shared by temporary values: (number, offset) of each."""

    device: str
    size_bytes: int
    places: tuple[tuple[int, int], ...]
    live_bytes: int
    """Peak memory: the most bytes live at one step."""
    reuses: tuple[Reuse, ...]
    holder: Mapping[int, int]
    """Results of in-place reuse, and the value whose offset each takes."""


def plan_memory(schedule: Schedule, needed: Collection[UOp]) -> Layout:
    """The layout of new memory when some nodes with memory are needed later."""
    results = {node: memory for node, memory in schedule.results.items() if node in needed}
    held = {node: memory for node, memory in schedule.held.items() if node in needed}
    shown = set(UOp.sink(*results.values(), *held.values()).toposort())
    new = range(schedule.parameters, len(schedule.memory))
    images = {place for place in new if image_of(schedule.memory[place]) is not None}
    persistent = tuple(
        [place for place in new if place in images or schedule.memory[place] in shown]
    )
    temporary = defaultdict(list)
    for place in schedule.lives.keys() - set(persistent):
        temporary[schedule.memory[place].device].append(place)
    blocks = [plan_block(device, sorted(found), schedule) for device, found in temporary.items()]
    steps = list(schedule.steps)
    for block in blocks:
        for number, dying, defined in block.reuses:
            steps[number] = reuse_in_place(steps[number], dying, defined)
        if trace.on:
            trace_block(block, schedule)
    return Layout(results, held, persistent, tuple(blocks), tuple(steps))


def plan_block(device: str, places: Sequence[int], schedule: Schedule) -> Block:
    """The block of a device, with in-place reuse if that makes it smaller."""
    lives = {place: schedule.lives[place] for place in places}
    plain = pack_block(device, lives, {}, ())
    large = plain.live_bytes >= LEAST_BYTES
    found = find_reuses(schedule.steps, schedule.memory, lives) if large else []
    if not found:
        return plain
    holder: dict[int, int] = {}
    for _, dying, defined in sorted(found):
        holder[defined] = holder.get(dying, dying)
    block = pack_block(device, lives, holder, found)
    return block if block.size_bytes <= plain.size_bytes * (1 - LEAST_GAIN) else plain


def pack_block(
    device: str, lives: Mapping[int, Life], holder: Mapping[int, int], found: Sequence[Reuse]
) -> Block:
    """A block in which some values share the memory of their `holder`."""
    whole = {place: life for place, life in lives.items() if place not in holder}
    for place, first in holder.items():
        last = max(whole[first].last, lives[place].last)
        whole[first] = whole[first]._replace(last=last)
    packed = pack(list(whole.values()))
    where = dict(zip(whole, packed.offsets, strict=True))
    live = peak_bytes(list(whole.values()))
    return Block(device, packed.size_bytes, tuple(where.items()), live, tuple(found), dict(holder))


def trace_block(block: Block, schedule: Schedule) -> None:
    """A line of DEBUG=1 on a new block."""
    values = len(block.places) + len(block.holder)
    apart = sum(schedule.lives[place].size_bytes for place in (*dict(block.places), *block.holder))
    trace(
        f"{block.device:<8} {values} intermediate results in {block.size_bytes:,} B, "
        f"{block.live_bytes:,} B live at once, {apart:,} B if they shared none, "
        f"{len(block.holder)} in place of another"
    )


def size_bytes(buffer: UOp) -> int:
    """Bytes of a BUFFER."""
    return int(buffer.shape[0]) * buffer.dtype.itemsize


class BoundSchedule:
    """One use of a schedule: a Buffer for each memory number, and the nodes that stand for it.

    Without a layout every value has memory of its own, to be looked at afterwards.
    """

    def __init__(
        self, schedule: Schedule, canonical: CanonicalGraph, layout: Layout | None = None
    ) -> None:
        self.schedule = schedule
        self.canonical = canonical
        self.nodes: Replacements = dict(zip(schedule.memory, canonical.memory, strict=False))
        self.memory: dict[int, Buffer] = {n: buffer_of(canonical.memory[n]) for n in schedule.used}
        self.temporary: list[Buffer] = []
        self.persistent: list[tuple[weakref.ref[UOp], Buffer]] = []
        everything = range(schedule.parameters, len(schedule.memory))
        self.shown = schedule.results if layout is None else layout.results
        self.holds = {} if layout is None else layout.held
        self.steps = schedule.steps if layout is None else layout.steps
        for place in everything if layout is None else layout.persistent:
            self.add_persistent(place)
        for block in () if layout is None else layout.blocks:
            self.add_block(block)

    def add_persistent(self, place: int) -> None:
        """Make persistent memory, and its node."""
        node = self.schedule.memory[place]
        self.nodes[node] = new = made_anew(node)
        buffers[new] = self.memory[place] = self.schedule.like(place)
        self.persistent.append((weakref.ref(new), self.memory[place]))

    def add_block(self, block: Block) -> None:
        """Make the memory of temporary values."""
        whole = Buffer(block.device, block.size_bytes, dtypes.uint8)
        for place, offset in block.places:
            node = self.schedule.memory[place]
            view = whole.view(node.shape[0], node.dtype, offset)
            self.memory[place] = view
            self.temporary.append(view)
        for defined, place in block.holder.items():
            self.memory[defined] = self.memory[place]

    def items(self) -> list[ScheduleItem]:
        """The launches, bound to this memory."""
        memory = self.memory
        return [
            ScheduleItem(ast, tuple([memory[p] for p in places]), metadata, kernel)
            for ast, places, metadata, kernel in self.steps
        ]

    def kernels(self) -> tuple[UOp, ...]:
        """The KERNEL of each launch, over nodes of this memory."""
        return UOp.sink(*[step.kernel for step in self.schedule.steps]).substitute(self.nodes).src

    def results(self) -> Replacements:
        """Nodes that are replaced by memory, and that memory."""
        actual = self.canonical.originals
        return {actual[old]: self.over(new) for old, new in self.shown.items() if old in actual}

    def held(self) -> list[HeldValue]:
        """Nodes that stay in the graph, and the memory that caches their value."""
        actual, reads = self.canonical.originals, self.schedule.reads if self.holds else {}
        return [
            HeldValue(
                actual[old], self.over(new), tuple([self.canonical.memory[k] for k in reads[old]])
            )
            for old, new in self.holds.items()
            if old in actual
        ]

    def over(self, memory: UOp) -> UOp:
        """A node over canonical memory, over this memory instead."""
        if memory.op is Op.RESHAPE and (found := self.nodes.get(memory.src[0])) is not None:
            return memory.with_src((found,))
        found = memory.substitute(self.nodes)
        return exchanging(found, self.canonical.naming.back) if self.canonical.values else found


Key = tuple[UOp, Keep, int, Limits | None]

schedules: dict[Key, Schedule] = {}
MOST_SCHEDULES: Final = 1024
"""The size of the cache, which drops the least recently used."""
table = lock()
"""Held during a lookup, never while a schedule is compiled."""


def schedule_for(canonical: CanonicalGraph, keep: Keep, on_disk: bool = False) -> Schedule:
    """The schedule of a canonical graph, from the cache, or compiled; `on_disk` looks there too."""
    key = canonical.sink, keep, settings.RING, elsewhere.get()
    with table:
        if (found := schedules.pop(key, None)) is not None:
            schedules[key] = found
            return found
    with without_collecting:
        compile_new = load_or_compile if on_disk else compile_schedule
        made = compile_new(canonical, keep)
    with table:
        schedules[key] = made
        if len(schedules) > MOST_SCHEDULES:
            del schedules[next(iter(schedules))]
    return made


def load_or_compile(canonical: CanonicalGraph, keep: Keep) -> Schedule:
    """The schedule from disk, else a new one, which goes there."""
    key = disk.key_of(canonical, keep)
    if key is not None and (found := disk.find(key, canonical)) is not None:
        steps, memory, results, held = found
        return Schedule(canonical.sink, steps, memory, len(canonical.memory), results, held)
    made = compile_schedule(canonical, keep)
    if key is not None:
        disk.put(key, canonical, (made.steps, made.memory, made.results, made.held))
    return made


def compile_schedule(canonical: CanonicalGraph, keep: Keep) -> Schedule:
    """Schedule a graph, and number the memory of its launches."""
    roots = list(canonical.sink.src)
    graph = PerDevice(roots)
    cut = kernelize(graph.parts)
    sink = UOp.sink(*graph.parts).substitute(cut)
    kernels = kernels_below(sink)
    ran = set(kernels)  # one kernel may have stored more than the roots
    stored = UOp.sink(sink, *cut.values()).toposort()
    done = {n: memory_of(n) for n in stored if n.op is Op.ASSIGN and n.src[1] in ran}
    memory = {node: found.substitute(done) for node, found in cut.items()}
    given, held = keep(roots, graph.together(done | memory))
    results = {old: new for old, new in given.items() if old in canonical.originals}
    numbers = {canonical.nodes[node]: number for number, node in enumerate(canonical.memory)}
    shown = UOp.sink(*results.values()).toposort()
    for node in (*shown, *(n for k in kernels for n in k.src[: k.arg.slots])):
        if (found := memory_of(node)).op in (Op.BUFFER, Op.BUFFER_VIEW):
            numbers.setdefault(found, len(numbers))
    steps = []
    for kernel in kernels:
        slots = kernel.src[: kernel.arg.slots]
        places = tuple([numbers[memory_of(slot)] for slot in slots])
        steps.append(Step(kernel.arg.ast, places, kernel.arg.metadata, kernel))
    persistent = frozenset(numbers[m] for n in shown if (m := memory_of(n)) in numbers)
    ordered = order_for_liveness(steps, tuple(numbers), len(canonical.memory), persistent)
    fused = fuse_rows(ordered, tuple(numbers), len(canonical.memory), persistent)
    filled = {place for step in fused for place in step.places if place >= len(canonical.memory)}
    free = {memory for memory, place in numbers.items() if place in filled - persistent}
    alone = {n: m for n, m in alone_in(held, free).items() if n in canonical.originals}
    return Schedule(
        canonical.sink, tuple(fused), tuple(numbers), len(canonical.memory), results, alone
    )
