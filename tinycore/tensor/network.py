"""Sorting integers along the last axis by a network of comparisons, on the tensor graph.

Floor 5. Keys are tuples of int64 arrays, compared as tuples are. Runs of a few elements are put in
order by counting how many come before each, longer ones by merging as in K. E. Batcher, "Sorting
networks and their applications" (1968): some half the square of log2 n steps. Which elements meet
depends on their positions only. Between steps keys have the shape (.., runs, length of a run).
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

Keys = tuple[UOp, ...]

COUNTED: Final = 32
"""Length of the runs that are sorted by counting."""
STEPS_TOGETHER: Final = 2
"""Merging steps that are computed in one go: each further one doubles the reads."""


def first_sorted(keys: Keys, count: int) -> Keys:
    """The `count` least keys of the last axis in ascending order, 0 < count <= its size.

    Runs longer than `count` are never made: of two sorted runs the lesser half is kept.
    """
    size = keys[0].shape[-1]
    whole = size if size <= COUNTED else 1 << (size - 1).bit_length()
    longest = min(whole, max(COUNTED, 1 << (count - 1).bit_length()))
    run = min(whole, COUNTED)
    runs = by_counting(in_runs(tuple([filled(key, whole) for key in keys]), run))
    while run < longest:
        run *= 2
        runs = merged(in_runs(joined(runs), run), run // 2, mirrored=True)
    while runs[0].shape[-2] > 1:
        runs = merged(lesser_halves(runs), run // 2, mirrored=False)
    return tuple([cut(key, count) for key in joined(runs)])


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


def lesser_halves(runs: Keys) -> Keys:
    """Of every two sorted runs the lesser half, in the order in which `merged` sorts it."""
    *outer, count, length = runs[0].shape
    pairs = [graph.reshape(key, (*outer, count // 2, 2, length)) for key in runs]
    axis = len(outer) + 1
    first, second = (
        tuple([graph.drop_axes(part(key, axis, n), [axis]) for key in pairs]) for n in (0, 1)
    )
    second = tuple([graph.flip(key, [axis]) for key in second])
    chosen = less(first, second)
    return tuple([chosen.where(a, b) for a, b in zip(first, second, strict=True)])


def part(x: UOp, axis: int, index: int) -> UOp:
    """One element of an axis, which stays with size 1."""
    box = [(0, size) for size in x.shape]
    box[axis] = (index, index + 1)
    return graph.shrink(x, box)


def merged(runs: Keys, distance: int, mirrored: bool) -> Keys:
    """Every run sorted, whose halves are sorted (`mirrored`), or that `lesser_halves` left."""
    step = 0
    while distance:
        runs = exchanged(runs, distance, mirrored and not step)
        distance, step = distance // 2, step + 1
        if step % STEPS_TOGETHER == 0 or not distance:
            runs = stored(runs)
    return runs


def exchanged(runs: Keys, distance: int, mirrored: bool) -> Keys:
    """Elements compared with those at a distance (or with their mirror image), the lesser first."""
    *outer, count, length = runs[0].shape
    shape = (*outer, count, length // (2 * distance), 2, distance)
    axis = len(shape) - 2
    own = tuple([graph.reshape(key, shape) for key in runs])
    partners = tuple([graph.flip(key, [axis, axis + 1] if mirrored else [axis]) for key in own])
    numbers = graph.arange(2, dtypes.int32, runs[0].device)
    sides = graph.expand(graph.reshape(numbers, (1,) * axis + (2, 1)), shape)
    is_first = sides.eq(graph.full_like(sides, 0))
    keep = less(own, partners).eq(is_first)
    return tuple(
        [graph.reshape(keep.where(a, b), runs[0].shape) for a, b in zip(own, partners, strict=True)]
    )
