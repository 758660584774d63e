"""Bank conflicts: by which elements the threads of a group fill a staged array.

Tiles of a convolution are few columns of several rows of an image, and elements along a sum are
stored across rows: neighboring threads that load adjacent elements may store to one bank.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from typing import Final

from tinycore.tiling import Draft, least_stride, loads_of_elements
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp

__all__ = ["NEAR_BYTES", "NEAR_TURNS", "is_filled_across"]

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


def is_filled_across(draft: Draft, fill: UOp) -> bool:
    """True if neighboring threads should store to adjacent elements instead of loading such.

    Where elements adjacent in memory are stored to few banks.
    """
    if len(fill.src) < 3:
        return False
    along, across = (turns_of_stores(draft, fill, by) for by in (False, True))
    return along >= LEAST_CONFLICTS * across > 0


def turns_of_stores(draft: Draft, fill: UOp, across: bool) -> int:
    """Transactions of the first store of each thread of a fill, as `deal_out` distributes them; 0
    if its places are unknown.

    Neighboring threads load adjacent elements, or if `across`, store to adjacent ones.
    """
    loads = loads_of_elements(fill)
    loops = sorted(fill.src[1:], key=lambda r: least_stride(loads, r, draft.limits), reverse=True)
    place = fill.src[0].src[0].src[1]
    steps = [coefficient(place, loop) for loop in loops]
    if None in steps:
        return 0
    by_vectors = steps[-1] != 1 and loops[-1].extent % VECTOR == 0
    along = VECTOR if by_vectors else 1
    sizes = [loop.extent for loop in loops]
    sizes[-1] //= along
    moves = [step or 0 for step in steps]
    moves[-1] *= along
    if across:
        moves, sizes = [moves[-1], *moves[:-1]], [sizes[-1], *sizes[:-1]]
    lanes = itertools.islice(itertools.product(*map(range, sizes)), draft.limits.subgroup)
    size = fill.src[0].src[1].dtype.itemsize
    return turns_of([sum(map(operator.mul, moves, lane)) * size // WORD_BYTES for lane in lanes])


def turns_of(words: list[int]) -> int:
    """Transactions of shared memory; in each, a bank delivers one word to all its readers."""
    parts = [set(words[first : first + BANKS]) for first in range(0, len(words), BANKS)]
    return sum(max(Counter(word % BANKS for word in part).values()) for part in parts)
