"""Bank conflicts: padding of the rows of a staged array for the fewest shared-memory transactions.

Tiles of a convolution are few columns of several rows of an image, and elements along a sum are
stored across rows. The distance between rows decides which banks neighboring threads access
together.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Final

from tinycore.render.base import pointer_of
from tinycore.tiling import Draft, fill_of, least_stride, loads_of_elements, threads_of
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["NEAR_BYTES", "NEAR_TURNS", "is_filled_across", "padding_of"]

BANKS: Final = 32
WORD_BYTES: Final = 4
NEAR_BYTES: Final = 64
"""Bytes within which the words of a subgroup must be for a faster transaction."""
NEAR_TURNS: Final = 0.75
"""Relative time of such transactions (ArchProbe: 140 GB/s on an Adreno 640, 103 for others)."""
LEAST_CONFLICTS: Final = 2
"""Ratio of transactions from which on a fill stores in the order of the array, although each lane
then reads only a part of a sector."""
VECTOR: Final = 4
"""Elements adjacent in memory that a thread of a fill stores one after another."""


@dataclass(frozen=True)
class Access:
    """An access of a subgroup: the strides of some loops, and the steps of each lane along them."""

    moves: tuple[int, ...]
    lanes: list[tuple[int, ...]]

    def words(self, row: int, padding: int, itemsize: int) -> list[int]:
        """The word of each lane in an array with rows of some length and padding."""
        moves = [move // row * (row + padding) + move % row for move in self.moves]
        places = (sum(map(operator.mul, moves, lane)) for lane in self.lanes)
        return [place * itemsize // WORD_BYTES for place in places]


def padding_of(draft: Draft, number: int) -> int:
    """The least padding of a staged array with the fewest transactions for its fill and loads."""
    fill = fill_of(draft, number)
    loads = loads_of_array(draft, number)
    ways = [stores_of_array(draft, fill, across) for across in (False, True)]
    stores = [way for way in ways if way is not None]
    if loads is None or not stores or len(fill.src) < 3:
        return 0
    threads, subgroup = threads_of(draft.kernel), draft.limits.subgroup
    size, row = fill.src[0].src[1].dtype.itemsize, fill.src[-1].extent
    subgroups = -(-math.prod(r.extent for r in threads) // subgroup)
    filled = math.prod(r.extent for r in fill.src[1:]) / subgroup

    def turns(padding: int) -> float:
        """Transactions of a fill and of all its loads."""
        (access, times), pitch = loads, (row + padding) * size
        words = access.words(row, padding, size)
        reach = (max(words) - min(words)) * WORD_BYTES
        is_whole = pitch % NEAR_BYTES == 0 or NEAR_BYTES % pitch == 0
        is_near = reach < NEAR_BYTES and is_whole
        read = turns_of(words) * times * subgroups * (NEAR_TURNS if is_near else 1)
        along, *across = (turns_of(way.words(row, padding, size)) for way in stores)
        return read + filled * min([along, *(n for n in across if along >= LEAST_CONFLICTS * n)])

    return min(range(BANKS), key=turns)


def turns_of(words: list[int]) -> int:
    """Transactions of shared memory; in each, a bank delivers one word to all its readers."""
    parts = [set(words[first : first + BANKS]) for first in range(0, len(words), BANKS)]
    return sum(max(Counter(word % BANKS for word in part).values()) for part in parts)


def loads_of_array(draft: Draft, number: int) -> tuple[Access, int] | None:
    """The loads of an array, and the number per thread; None if their strides differ."""
    threads = threads_of(draft.kernel)
    indices = [n.src[0] for n in draft.kernel.toposort() if n.op is Op.LOAD]
    places = [index.src[1] for index in indices if is_of(index, number)]
    moves = {tuple([coefficient(place, loop) for loop in threads]) for place in places}
    steps = moves.pop() if len(moves) == 1 else (None,)
    if None in steps:
        return None
    times = math.prod(r.extent for r in places[0].ranges if r not in threads)
    lanes = steps_of_lanes([loop.extent for loop in threads], draft.limits.subgroup)
    return Access(tuple([step or 0 for step in steps]), lanes), times


def is_filled_across(draft: Draft, fill: UOp) -> bool:
    """True if neighboring threads should store to adjacent elements instead of loading such.

    Where elements adjacent in memory are stored to few banks.
    """
    ways = [stores_of_array(draft, fill, across) for across in (False, True)]
    if len(fill.src) < 3:
        return False
    size = fill.src[0].src[1].dtype.itemsize
    along, across = (turns_of(w.words(1, 0, size)) if w is not None else 0 for w in ways)
    return along >= LEAST_CONFLICTS * across > 0


def stores_of_array(draft: Draft, fill: UOp, across: bool = False) -> Access | None:
    """The first store of each thread of a fill, as `deal_out` distributes them.

    Neighboring threads load adjacent elements, or if `across`, store to adjacent ones.
    """
    loads = loads_of_elements(fill)
    loops = sorted(fill.src[1:], key=lambda r: least_stride(loads, r, draft.limits), reverse=True)
    place = fill.src[0].src[0].src[1]
    steps = [coefficient(place, loop) for loop in loops]
    if None in steps or not loops:
        return None
    by_vectors = steps[-1] != 1 and loops[-1].extent % VECTOR == 0
    along = VECTOR if by_vectors else 1
    sizes = [loop.extent for loop in loops]
    sizes[-1] //= along
    moves = [step or 0 for step in steps]
    moves[-1] *= along
    if across:
        moves, sizes = [moves[-1], *moves[:-1]], [sizes[-1], *sizes[:-1]]
    return Access(tuple(moves[::-1]), steps_of_lanes(sizes[::-1], draft.limits.subgroup))


def steps_of_lanes(sizes: list[int], subgroup: int) -> list[tuple[int, ...]]:
    """The steps of each lane of a subgroup along some loops, the fastest first."""
    every = itertools.product(*(range(n) for n in reversed(sizes)))
    return [lane[::-1] for lane in itertools.islice(every, subgroup)]


def is_of(index: UOp, number: int) -> bool:
    """True for an INDEX of the shared array with a number."""
    pointer = pointer_of(index)
    return pointer.op is Op.DEFINE_LOCAL and pointer.arg == number
