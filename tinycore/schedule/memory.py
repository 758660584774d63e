"""Memory planning: offsets of temporary values in one block, so that disjoint lives share bytes.

Floor 3. The life of a value reaches from the first step that touches it to the last. The largest
value is placed first, each in the smallest gap between the values whose lives overlap with its own
(Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Then the value
that ends highest is moved to the front of the order, again and again, and the best plan is kept.
A step's operands and results never share bytes: kernels are promised that their buffers do not
overlap. Values under in-place reuse (`inplace.py`) are one value here.
See docs/decisions/0026-memory-plan.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

ALIGNMENT: Final = 256
"""Bytes: offsets are multiples, which suits the vectors of every device."""
MOST_ATTEMPTS: Final = 64
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
    """The smallest block found for some values."""
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
    """For each value those that are alive at some step at which it is."""
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
    """The start of the smallest gap that fits, else the end of all that is taken."""
    best, best_room, end = -1, 0, 0
    for start, stop in taken:
        if start > end:
            gap = start - end
            if gap >= room and (best < 0 or gap < best_room):
                best, best_room = end, gap
        end = max(end, stop)
    return end if best < 0 else best


def live_bytes(lives: Collection[Life], steps: int) -> list[int]:
    """The bytes live at each step."""
    change = [0] * (steps + 1)
    for life in lives:
        change[life.first] += life.room
        change[life.last + 1] -= life.room
    return list(itertools.accumulate(change[:-1]))


def peak_bytes(lives: Collection[Life]) -> int:
    """The most bytes live at one step: the lower bound of every block."""
    steps = max((life.last for life in lives), default=-1) + 1
    return max(live_bytes(lives, steps), default=0)
