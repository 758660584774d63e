"""Sorting integers along the last axis by merging, on the tensor graph.

Floor 5. Keys are int64 numbers, or those with others that go along. Runs of a few elements are put
in order by counting how many come before each; from then on every two runs are merged into one,
all of an axis in a kernel. It takes n log2(n) steps, and keeps the order of equal keys.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.uop.node import UOp
from tinycore.uop.op import Merge, Op

Keys = tuple[UOp, ...]

COUNTED: Final = 32
"""Length of the runs that are sorted by counting."""
LONGEST_PIECE: Final = 256
"""Elements that are merged one after the other; pieces are merged at once."""
FEWEST_PIECES: Final = 16
"""Pieces of an axis that are preferred to longer ones."""


def first_sorted(keys: Keys, count: int) -> Keys:
    """The `count` least keys of the last axis in ascending order, 0 < count <= its size.

    Runs longer than `count` are never made: of two sorted runs the first elements are kept.
    """
    size = keys[0].shape[-1]
    if size <= COUNTED:
        return tuple([cut(key, count) for key in joined(by_counting(in_runs(keys, size)))])
    piece = min(LONGEST_PIECE, max(COUNTED, power_of_two(size // FEWEST_PIECES)))
    whole = -(-size // piece) * piece
    longest = max(COUNTED, 1 << (count - 1).bit_length())
    keys = joined(by_counting(in_runs(tuple([filled(key, whole) for key in keys]), COUNTED)))
    run = COUNTED
    while run < keys[0].shape[-1]:
        kept = min(2 * run, longest)
        how = Merge(run, kept, min(piece, kept))
        keys = tuple([graph.merge(keys[0], key, how) for key in keys])
        run = kept
    return tuple([cut(key, count) for key in keys])


def power_of_two(most: int) -> int:
    """The greatest power of two that is at most `most`, or 0."""
    return 1 << most.bit_length() - 1 if most else 0


# --- shapes


def cut(x: UOp, count: int) -> UOp:
    """The first elements of the last axis."""
    return graph.shrink(x, [*[(0, size) for size in x.shape[:-1]], (0, count)])


def filled(x: UOp, size: int) -> UOp:
    """The last axis made longer by what comes after everything else."""
    pairs = [(0, 0)] * (len(x.shape) - 1) + [(0, size - x.shape[-1])]
    return graph.pad_with(x, pairs, dtypes.max(dtypes.int64))


def in_runs(keys: Keys, length: int) -> Keys:
    """The last axis cut into runs."""
    *outer, size = keys[0].shape
    return tuple([graph.reshape(key, (*outer, size // length, length)) for key in keys])


def joined(runs: Keys) -> Keys:
    """Undo `in_runs`."""
    *outer, count, length = runs[0].shape
    return tuple([graph.reshape(key, (*outer, count * length)) for key in runs])


def stored(keys: Keys) -> Keys:
    """The keys in memory of their own."""
    return tuple([UOp(Op.CONTIGUOUS, key.dtype, (key,)) for key in keys])


# --- order


def less(left: Keys, right: Keys) -> UOp:
    """Whether a tuple of keys comes before another: the first difference decides."""
    before = left[-1] < right[-1]
    for a, b in zip(reversed(left[:-1]), reversed(right[:-1]), strict=True):
        before = (a < b) | (a.eq(b) & before)
    return before


def by_counting(runs: Keys) -> Keys:
    """Every run sorted: an element goes where as many stand as come before it."""
    last, size = len(runs[0].shape), runs[0].shape[-1]
    places = graph.broadcast_to(graph.arange(size, dtypes.int64, runs[0].device), runs[0].shape)
    here = graph.insert_axis(places, last, size)
    others = tuple([graph.insert_axis(key, last - 1, size) for key in (*runs, places)])
    own = (*[graph.insert_axis(key, last, size) for key in runs], here)
    (rank,) = stored((total(less(others, own).cast(dtypes.int64)),))
    found = graph.insert_axis(rank, last - 1, size).eq(here)
    return stored(tuple([total(found.where(key, graph.full_like(key, 0))) for key in others[:-1]]))


def total(x: UOp) -> UOp:
    """The sum along the last axis, which goes."""
    last = len(x.shape) - 1
    return graph.drop_axes(graph.fold(x, Op.ADD, [last]), [last])
