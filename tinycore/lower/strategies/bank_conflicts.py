"""Bank conflicts: padding of the rows of a staged array for fewest turns of shared memory.

Floor 3'. Tiles of a convolution are few columns of several rows of an image, and what lies along a
sum is stored across rows. How far apart rows begin decides in which banks the words lie that
neighboring threads ask for.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Final

from tinycore.lower.draft import Draft
from tinycore.lower.loops import threads_of
from tinycore.lower.packing import fill_of, loads_of_elements
from tinycore.lower.steps.split import MASKED
from tinycore.render.base import Limits, pointer_of
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

BANKS: Final = 32
WORD_BYTES: Final = 4
NEAR_BYTES: Final = 64
"""Bytes in which all that a subgroup reads may lie to be read faster."""
NEAR_TURNS: Final = 0.75
"""The time of such turns (ArchProbe measured 140 GB/s of an Adreno 640, and 103 of others)."""
LEAST_CONFLICTS: Final = 2
"""Turns of a store for each without conflicts from which on it is done in the order of the array,
in which each lane reads a part of a sector of the cache."""
VECTOR: Final = 4
"""Steps of a fill that a thread stores one after the other, where memory has them side by side."""


@dataclass(frozen=True)
class Access:
    """An access of a subgroup: the steps of its lanes along some loops, and what each moves."""

    moves: tuple[int, ...]
    lanes: list[tuple[int, ...]]

    def words(self, row: int, padding: int, itemsize: int) -> list[int]:
        """The word of each lane in an array of rows of a length and of some padding."""
        moves = [move // row * (row + padding) + move % row for move in self.moves]
        places = (sum(map(operator.mul, moves, lane)) for lane in self.lanes)
        return [place * itemsize // WORD_BYTES for place in places]


def padding_of(draft: Draft, number: int) -> int:
    """The least padding of rows of a staged array with which its fill and its loads take fewest
    turns of shared memory."""
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
        """Turns of a fill and of all loads of it."""
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
    """Turns of shared memory, in each of which a bank gives one word to all that ask for it."""
    parts = [set(words[first : first + BANKS]) for first in range(0, len(words), BANKS)]
    return sum(max(Counter(word % BANKS for word in part).values()) for part in parts)


def loads_of_array(draft: Draft, number: int) -> tuple[Access, int] | None:
    """The loads of an array, and how many a thread does; None if they do not move alike."""
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
    """True if neighboring threads should fill neighbors in an array, not read neighbors in memory:
    where textures are read, and what lies side by side in memory is stored to a few banks."""
    ways = [stores_of_array(draft, fill, across) for across in (False, True)]
    if not draft.limits.texture_rate or len(fill.src) < 3:
        return False
    size = fill.src[0].src[1].dtype.itemsize
    along, across = (turns_of(w.words(1, 0, size)) if w is not None else 0 for w in ways)
    return along >= LEAST_CONFLICTS * across > 0


def stores_of_array(draft: Draft, fill: UOp, across: bool = False) -> Access | None:
    """The first store of each thread that fills an array, as `deal_out` deals them out: threads
    side by side have neighbors of memory, or `across` these in turn."""
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


def least_stride(loads: list[UOp], counter: UOp, limits: Limits) -> int:
    """Least stride of a loop among loads; a huge one if unknown.

    On cards that of steps inside of the array, where those past its end read the last.
    """
    places = [n.src[1] for n in loads]
    if limits.units:
        places = [without_ends(place) for place in places]
    moves = [coefficient(place, counter) for place in places]
    return min((abs(m) for m in moves if m), default=1 << 62)


def without_ends(place: UOp) -> UOp:
    """An index as if no step passed the end of a loop."""
    cuts = {n: n.src[0] for n in place.toposort() if n.op is Op.MIN and n.arg == MASKED}
    return rewrite(place.substitute(cuts), simplify, name="simplify a place") if cuts else place
