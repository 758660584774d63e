"""Placement: which new memory of a schedule is persistent, and where temporary values lie.

Floor 3. Values that a living tensor may read later get memory of their own. The others of each
device share one block (`memory.py`), with in-place reuse where it makes the block smaller
(`inplace.py`). See docs/decisions/0026-memory-plan.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tinycore.schedule.donation import Reuse, find_reuses, reuse_in_place
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import image_of
from tinycore.schedule.memory import Life, pack, peak_bytes
from tinycore.schedule.results import Replacements
from tinycore.trace import Trace
from tinycore.uop.node import UOp

trace = Trace("layout")

LEAST_LIVE_BYTES: Final = 64 << 10
"""Live bytes of a block from which in-place reuse is tried."""
LEAST_SAVING: Final = 1 / 32
"""Fraction of a block that in-place reuse must save: each costs another kernel to compile."""


@dataclass(frozen=True)
class Layout:
    """The placement of new memory: in blocks, but for persistent memory and images."""

    results: Replacements
    cached: Replacements
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


def plan_memory(
    steps: Sequence[Step],
    memory: Sequence[UOp],
    parameters: int,
    results: Replacements,
    cached: Replacements,
    needed: Collection[UOp],
) -> Layout:
    """The layout of new memory when the nodes `needed` are read later.

    `memory` is by number, parameters first. Of the nodes with memory, `results` are replaced by it
    and the values of `cached` may be read from it.
    """
    results = {node: found for node, found in results.items() if node in needed}
    cached = {node: found for node, found in cached.items() if node in needed}
    shown = set(UOp.sink(*results.values(), *cached.values()).toposort())
    new = range(parameters, len(memory))
    images = {place for place in new if image_of(memory[place]) is not None}
    persistent = tuple([place for place in new if place in images or memory[place] in shown])
    lives = live_ranges(steps, memory, parameters)
    temporary: dict[str, dict[int, Life]] = defaultdict(dict)
    for place in sorted(lives.keys() - set(persistent)):
        temporary[memory[place].device][place] = lives[place]
    blocks = [plan_block(device, found, steps, memory) for device, found in temporary.items()]
    placed = list(steps)
    for block in blocks:
        for number, dying, defined in block.reuses:
            placed[number] = reuse_in_place(placed[number], dying, defined)
        if trace.on:
            trace_block(block, lives)
    return Layout(results, cached, persistent, tuple(blocks), tuple(placed))


def live_ranges(steps: Sequence[Step], memory: Sequence[UOp], parameters: int) -> dict[int, Life]:
    """The live range of each new memory, by number."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        for place in step.places:
            first.setdefault(place, number)
            last[place] = number
    new = [place for place in first if place >= parameters]
    return {p: Life(bytes_of_buffer(memory[p]), first[p], last[p]) for p in new}


def plan_block(
    device: str, lives: Mapping[int, Life], steps: Sequence[Step], memory: Sequence[UOp]
) -> Block:
    """The block of a device, with in-place reuse if that makes it smaller."""
    plain = pack_block(device, lives, {}, ())
    large = plain.live_bytes >= LEAST_LIVE_BYTES
    found = find_reuses(steps, memory, lives) if large else []
    if not found:
        return plain
    holder: dict[int, int] = {}
    for _, dying, defined in sorted(found):
        holder[defined] = holder.get(dying, dying)
    block = pack_block(device, lives, holder, found)
    return block if block.size_bytes <= plain.size_bytes * (1 - LEAST_SAVING) else plain


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


def trace_block(block: Block, lives: Mapping[int, Life]) -> None:
    """A line of DEBUG=1 on a new block."""
    values = len(block.places) + len(block.holder)
    apart = sum(lives[place].size_bytes for place in (*dict(block.places), *block.holder))
    trace(
        f"{block.device:<8} {values} intermediate results in {block.size_bytes:,} B, "
        f"{block.live_bytes:,} B live at once, {apart:,} B if they shared none, "
        f"{len(block.holder)} in place of another"
    )


def bytes_of_buffer(buffer: UOp) -> int:
    """Bytes of a BUFFER."""
    return int(buffer.shape[0]) * buffer.dtype.itemsize
