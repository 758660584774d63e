"""Where intermediate results lie: in one block, those that never live at once in the same bytes.

Floor 3. A life is the steps from the first that touches a value to the last. The largest is placed
first, each in the smallest gap between the values that live at some time with it (Pisarchyk & Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020); then what lies highest is placed
before all others, again and again, and the best is taken. Nothing shares bytes with what the same
step reads: kernels are promised that their buffers do not overlap. Where a result may be written
over what it is made of (`overwrite.py`), the two are one value here.
See docs/decisions/0026-memory-plan.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ALIGNMENT: Final = 256
"""Bytes: where a value begins is a multiple, which the vectors of every device are content with."""
MOST_ATTEMPTS: Final = 64
MOST_WORK: Final = 1_000_000
"""Pairs of values looked at while places are sought: each attempt takes the square of their number,
so many values get fewer attempts."""


class Life(NamedTuple):
    """A value that takes so many bytes from step `first` to step `last`."""

    size_bytes: int
    first: int
    last: int

    @property
    def room(self) -> int:
        """Its size, up to where the next may begin."""
        return -(-self.size_bytes // ALIGNMENT) * ALIGNMENT


class Packed(NamedTuple):
    """Where values lie in a block, and its size."""

    offsets: tuple[int, ...]
    size_bytes: int


def pack(lives: Sequence[Life]) -> Packed:
    """Places for values in a block as small as was found."""
    least = largest_live(lives)
    order = sorted(range(len(lives)), key=lambda n: (-lives[n].size_bytes, lives[n].first))
    best = placed(lives, order)
    for _ in range(min(MOST_ATTEMPTS, MOST_WORK // (len(lives) ** 2 + 1))):
        if best.size_bytes == least:
            break
        found = placed(lives, order)
        if found.size_bytes < best.size_bytes:
            best = found
        ends = [start + life.room for start, life in zip(found.offsets, lives, strict=True)]
        highest = ends.index(max(ends))
        order.remove(highest)
        order.insert(0, highest)
    return best


def placed(lives: Sequence[Life], order: Sequence[int]) -> Packed:
    """Places for values, found one after the other."""
    offsets = [0] * len(lives)
    taken: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    size = 0
    for number in order:
        life = lives[number]
        beside = [t for t in taken if t[2] <= life.last and life.first <= t[3]]
        start = smallest_gap(sorted(beside), life.room)
        offsets[number] = start
        taken.append((start, start + life.room, life.first, life.last))
        size = max(size, start + life.room)
    return Packed(tuple(offsets), size)


def smallest_gap(taken: Sequence[tuple[int, ...]], room: int) -> int:
    """Where the smallest gap that is large enough begins, or what follows all that is taken."""
    best, best_room, end = -1, 0, 0
    for start, stop, *_ in taken:
        gap = start - end
        if gap >= room and (best < 0 or gap < best_room):
            best, best_room = end, gap
        end = max(end, stop)
    return end if best < 0 else best


def largest_live(lives: Sequence[Life]) -> int:
    """Bytes of the values that live at one step, the most of all steps: no block can be smaller."""
    change: dict[int, int] = {}
    for life in lives:
        change[life.first] = change.get(life.first, 0) + life.room
        change[life.last + 1] = change.get(life.last + 1, 0) - life.room
    live = most = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most
