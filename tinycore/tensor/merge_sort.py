"""Stable merge sort of integers along the last axis, on the tensor graph.

Floor 5. Each key carries its position, so all keys differ and the order is stable. Runs of a few
elements are sorted by rank (the number of elements that come before each); then every two runs are
merged, all pairs of an axis in one kernel. O(n log n) comparisons in log2(n) kernels.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import Scalar, dtypes
from tinycore.tensor import graph
from tinycore.uop.node import UOp
from tinycore.uop.op import Merge, Op

Keys = tuple[UOp, ...]

PLACE_BITS: Final = 32
"""Bits of a key that hold a place, if the others are enough for an element."""
PLACE_MASK: Final = (1 << PLACE_BITS) - 1
RANK_SORTED: Final = 16
"""Length of the runs that are sorted by counting."""
LONGEST_PIECE: Final = 256
"""Elements that are merged one after the other; pieces are merged at once."""
FEWEST_PIECES: Final = 16
"""Pieces of an axis that are preferred to longer ones."""


def first_places(keys: UOp, count: int, bits: int) -> UOp:
    """Positions of the `count` least keys of the last axis, in order, 0 < count <= its size.

    `bits` says how wide the keys are. Runs longer than `count` are never made: of two sorted runs
    the first elements are kept.
    """
    size = keys.shape[-1]
    run = min(size, RANK_SORTED)
    piece = min(LONGEST_PIECE, max(run, power_of_two(size // FEWEST_PIECES)))
    greatest = dtypes.max(dtypes.int64 if bits > PLACE_BITS else dtypes.int32)
    found = numbered(filled(keys, -(-size // piece) * piece, greatest), bits)
    found = join_runs(by_counting(in_runs(found, run)))
    longest = max(RANK_SORTED, 1 << (count - 1).bit_length())
    while run < found[0].shape[-1]:
        kept = min(2 * run, longest)
        how = Merge(run, kept, min(piece, kept))
        found = tuple([graph.merge(found[0], part, how) for part in found])
        run = kept
    return cut(found[-1].alu(Op.AND, graph.full_like(found[-1], PLACE_MASK)), count)


def numbered(keys: UOp, bits: int) -> Keys:
    """Keys with their places: in their low bits if these are free, else beside them."""
    places = graph.broadcast_to(graph.arange(keys.shape[-1], keys.dtype, keys.device), keys.shape)
    if bits > PLACE_BITS:
        return keys, places
    return (keys.alu(Op.SHL, graph.full_like(keys, PLACE_BITS)).alu(Op.OR, places),)


def power_of_two(most: int) -> int:
    """The greatest power of two that is at most `most`, or 0."""
    return 1 << most.bit_length() - 1 if most else 0


# --- shapes


def cut(x: UOp, count: int) -> UOp:
    """The first elements of the last axis."""
    return graph.shrink(x, [*[(0, size) for size in x.shape[:-1]], (0, count)])


def filled(x: UOp, size: int, value: Scalar) -> UOp:
    """The last axis made longer."""
    pairs = [(0, 0)] * (len(x.shape) - 1) + [(0, size - x.shape[-1])]
    return graph.pad_with(x, pairs, value)


def in_runs(keys: Keys, length: int) -> Keys:
    """The last axis cut into runs."""
    *outer, size = keys[0].shape
    return tuple([graph.reshape(key, (*outer, size // length, length)) for key in keys])


def join_runs(runs: Keys) -> Keys:
    """Undo `in_runs`."""
    *outer, count, length = runs[0].shape
    return tuple([graph.reshape(key, (*outer, count * length)) for key in runs])


def store_keys(keys: Keys) -> Keys:
    """The keys in memory of their own."""
    return tuple([UOp(Op.CONTIGUOUS, key.dtype, (key,)) for key in keys])


# --- order


def less(left: Keys, right: Keys) -> UOp:
    """True where a tuple of keys comes before another: the first difference decides."""
    before = left[-1] < right[-1]
    for a, b in zip(reversed(left[:-1]), reversed(right[:-1]), strict=True):
        before = (a < b) | (a.eq(b) & before)
    return before


def by_counting(runs: Keys) -> Keys:
    """Every run sorted: an element goes where as many stand as come before it."""
    last, size = len(runs[0].shape), runs[0].shape[-1]
    numbers = graph.arange(size, dtypes.int32, runs[0].device)
    here = graph.insert_axis(graph.broadcast_to(numbers, runs[0].shape), last, size)
    others = tuple([graph.insert_axis(key, last - 1, size) for key in runs])
    own = tuple([graph.insert_axis(key, last, size) for key in runs])
    (rank,) = store_keys((total(less(others, own).cast(dtypes.int32)),))
    found = graph.insert_axis(rank, last - 1, size).eq(here)
    return store_keys(tuple([total(found.where(key, graph.full_like(key, 0))) for key in others]))


def total(x: UOp) -> UOp:
    """The sum along the last axis, which goes."""
    last = len(x.shape) - 1
    return graph.drop_axes(graph.fold(x, Op.ADD, [last]), [last])
