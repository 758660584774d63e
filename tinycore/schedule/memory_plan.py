"""Memory plan: which new memory is persistent, and where temporary values lie in one block.

Floor 3. Values that a living tensor may read later get memory of their own. The others of each
device share one block, so that values with disjoint lifetimes share bytes. The lifetime of a value
extends from the first step that touches it to the last. The largest value is placed first, each in
the smallest gap between the values whose lifetimes overlap with its own (Pisarchyk & Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020). Then the value that ends highest
is moved to the front of the order, again and again, and the best plan is kept. A step's operands
and results never share bytes: kernels are promised that their buffers do not overlap. See
docs/floors/schedule.md.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tinycore.schedule.items import Step
from tinycore.schedule.kernel import image_of, nbytes
from tinycore.schedule.retention import Replacements
from tinycore.trace import Trace
from tinycore.uop.node import UOp

if TYPE_CHECKING:
    from tinycore.schedule.state import State

ALIGNMENT: Final = 256
"""Bytes: offsets are multiples, which suits the vectors of every device."""
MOST_ATTEMPTS: Final = 64
"""Layouts of a block that are tried, of which the smallest is kept."""
MOST_WORK: Final = 1_000_000
"""Pairs of values compared in all attempts together: one attempt is quadratic in their number."""


class Life(NamedTuple):
    """The live range of a value: its bytes, and its first and last step."""

    size_bytes: int
    first: int
    last: int

    @property
    def room(self) -> int:
        """The size rounded up to the alignment."""
        return -(-self.size_bytes // ALIGNMENT) * ALIGNMENT


class Packed(NamedTuple):
    """Offsets of values in a block, and its size."""

    offsets: tuple[int, ...]
    size_bytes: int


def pack(lives: Sequence[Life]) -> Packed:
    """The smallest block that was found for some values."""
    least = peak_bytes(lives)
    beside = overlaps(lives)
    order = sorted(range(len(lives)), key=lambda n: (-lives[n].size_bytes, lives[n].first))
    best = found = place_in_order(lives, beside, order)
    for _ in range(min(MOST_ATTEMPTS, MOST_WORK // (len(lives) ** 2 + 1)) - 1):
        if best.size_bytes == least:
            break
        ends = [start + life.room for start, life in zip(found.offsets, lives, strict=True)]
        highest = ends.index(max(ends))
        order.remove(highest)
        order.insert(0, highest)
        found = place_in_order(lives, beside, order)
        if found.size_bytes < best.size_bytes:
            best = found
    return best


def overlaps(lives: Sequence[Life]) -> list[list[int]]:
    """For each value, the values whose live ranges overlap with its own."""
    return [
        [n for n, (_, first, last) in enumerate(lives) if first <= life.last and life.first <= last]
        for life in lives
    ]


def place_in_order(
    lives: Sequence[Life], beside: Sequence[Sequence[int]], order: Sequence[int]
) -> Packed:
    """Greedy placement: each value in order goes to the smallest gap that fits it."""
    taken: dict[int, tuple[int, int]] = {}
    for number in order:
        room = lives[number].room
        start = smallest_gap(sorted([taken[n] for n in beside[number] if n in taken]), room)
        taken[number] = start, start + room
    offsets = tuple([taken[n][0] for n in range(len(lives))])
    return Packed(offsets, max((end for _, end in taken.values()), default=0))


def smallest_gap(taken: Sequence[tuple[int, int]], room: int) -> int:
    """The start of the smallest gap that fits, else the end of the used part."""
    best, best_room, end = -1, 0, 0
    for start, stop in taken:
        if start > end:
            gap = start - end
            if gap >= room and (best < 0 or gap < best_room):
                best, best_room = end, gap
        end = max(end, stop)
    return end if best < 0 else best


def live_bytes(lives: Collection[Life], steps: int) -> list[int]:
    """The live bytes at each step."""
    change = [0] * (steps + 1)
    for life in lives:
        change[life.first] += life.room
        change[life.last + 1] -= life.room
    return list(itertools.accumulate(change[:-1]))


def peak_bytes(lives: Collection[Life]) -> int:
    """The most live bytes at one step: the lower bound of every block."""
    steps = max((life.last for life in lives), default=-1) + 1
    return max(live_bytes(lives, steps), default=0)


# --- placement

trace = Trace("layout")


@dataclass(frozen=True)
class Layout:
    """The placement of new memory: in blocks, but for persistent memory and images."""

    results: Replacements
    cached: Replacements
    persistent: tuple[int, ...]
    blocks: tuple[Block, ...]
    runners: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict, compare=False)
    """The programs of the steps once they have run, by the settings that decide them."""


class Block(NamedTuple):
    """Memory of one device shared by temporary values: (number, offset) of each."""

    device: str
    size_bytes: int
    places: tuple[tuple[int, int], ...]
    live_bytes: int
    """Peak memory: the most bytes live at one step."""


def plan_memory(state: State) -> Layout:
    """The layout of new memory when the nodes `needed` of a state are read later."""
    memory, count = state.memory, len(state.parameters)
    results, cached = (
        {node: found for node, found in nodes.items() if node in state.needed}
        for nodes in (state.results, state.cached)
    )
    shown = set(UOp.sink(*results.values(), *cached.values()).toposort())
    new = range(count, len(memory))
    images = {place for place in new if image_of(memory[place]) is not None}
    persistent = tuple([place for place in new if place in images or memory[place] in shown])
    lives = live_ranges(state.steps, memory, count)
    temporary: dict[str, dict[int, Life]] = defaultdict(dict)
    for place in sorted(lives.keys() - set(persistent)):
        temporary[memory[place].single_device][place] = lives[place]
    blocks = tuple([plan_block(device, found) for device, found in temporary.items()])
    return Layout(results, cached, persistent, blocks)


def live_ranges(steps: Sequence[Step], memory: Sequence[UOp], parameters: int) -> dict[int, Life]:
    """The live range of each new memory, by number."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        for place in step.places:
            first.setdefault(place, number)
            last[place] = number
    new = [place for place in first if place >= parameters]
    return {p: Life(nbytes(memory[p]), first[p], last[p]) for p in new}


def plan_block(device: str, lives: Mapping[int, Life]) -> Block:
    """The block of a device."""
    packed = pack([*lives.values()])
    places = tuple(zip(lives, packed.offsets, strict=True))
    block = Block(device, packed.size_bytes, places, peak_bytes(lives.values()))
    if trace.on:
        apart = sum(life.size_bytes for life in lives.values())
        trace(
            f"{device:<8} {len(lives)} intermediate results in {block.size_bytes:,} B, "
            f"{block.live_bytes:,} B live at once, {apart:,} B if they shared none"
        )
    return block
