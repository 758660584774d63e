"""Sorting along an axis, and what depends on data: `masked_select`, `nonzero`.

Floor 5. Elements become integers in the same order, which a stable merge sort puts in order; -0.0
is equal to 0, and NaN is greater than any number. Each key carries its position, so all keys
differ. Runs of a few elements are sorted by rank (the number of elements that come before each);
then every two runs are merged, all pairs of an axis in one kernel: O(n log n) comparisons in
log2(n) kernels. Values are taken from the places found, and their gradients go back there.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Final, Self

from tinycore._deferred import numpy
from tinycore.dtype import Scalar, dtypes
from tinycore.errors import ArgumentError
from tinycore.tensor import graph
from tinycore.tensor.checks import bool_dtype, counter_dtype, resolve_axis
from tinycore.tensor.methods.selection import Selection
from tinycore.uop.node import UOp
from tinycore.uop.op import Merge, Op

# --- merge sort on the tensor graph

Keys = tuple[UOp, ...]

PLACE_BITS: Final = 32
"""Bits of a key that hold a place, if the others are enough for an element."""
PLACE_MASK: Final = (1 << PLACE_BITS) - 1
RANK_SORTED: Final = 16
"""Length of the runs that are sorted by counting."""
LONGEST_PIECE: Final = 256
"""Elements that are merged sequentially; pieces are merged in parallel."""
FEWEST_PIECES: Final = 16
"""Pieces of an axis that are preferred to longer ones."""
MOST_PASSES: Final = 6
"""Elements up to which each is found by a pass over all others, as members of one fused kernel."""


def first_places(keys: UOp, count: int, bits: int) -> UOp:
    """Positions of the `count` least keys of the last axis, in order, 0 < count <= its size.

    `bits` says how wide the keys are. Runs longer than `count` are never made: of two sorted runs
    the first elements are kept.
    """
    size = keys.shape[-1]
    if count <= MOST_PASSES and size > RANK_SORTED and bits <= PLACE_BITS:
        (distinct,) = numbered(keys, bits)
        best = by_passes(distinct, count)
        return best.alu(Op.AND, graph.full_like(best, PLACE_MASK))
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
    """Keys with their positions: in their low bits if these are free, else as a second key."""
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
    """The last axis padded."""
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
    """The keys in new memory."""
    return tuple([key.alu(Op.CONTIGUOUS) for key in keys])


# --- order


def less(left: Keys, right: Keys) -> UOp:
    """True where a tuple of keys comes before another: the first difference decides."""
    before = left[-1] < right[-1]
    for a, b in zip(reversed(left[:-1]), reversed(right[:-1]), strict=True):
        before = (a < b) | (a.eq(b) & before)
    return before


def by_counting(runs: Keys) -> Keys:
    """Every run sorted by rank: the number of elements that come before each."""
    last, size = len(runs[0].shape), runs[0].shape[-1]
    numbers = graph.arange(size, dtypes.int32, runs[0].device)
    here = graph.insert_axis(graph.broadcast_to(numbers, runs[0].shape), last, size)
    others = tuple([graph.insert_axis(key, last - 1, size) for key in runs])
    own = tuple([graph.insert_axis(key, last, size) for key in runs])
    (rank,) = store_keys((total(less(others, own).cast(dtypes.int32)),))
    found = graph.insert_axis(rank, last - 1, size).eq(here)
    return store_keys(tuple([total(found.where(key, graph.full_like(key, 0))) for key in others]))


def by_passes(keys: UOp, count: int) -> UOp:
    """The least of distinct keys, in order: each is the minimum of those after the one before."""
    (keys,) = store_keys((keys,))
    last, greatest = len(keys.shape) - 1, graph.full_like(keys, dtypes.max(keys.dtype))
    found = [graph.fold(keys, Op.MIN, [last])]
    while len(found) < count:
        after = graph.broadcast_to(found[-1], keys.shape) < keys
        found.append(graph.fold(after.where(keys, greatest), Op.MIN, [last]))
    around = [(0, 0)] * last
    placed = [
        graph.pad_with(key, [*around, (place, count - 1 - place)], 0)
        for place, key in enumerate(found)
    ]
    return functools.reduce(operator.add, placed)


def total(x: UOp) -> UOp:
    """The sum along the last axis, which is dropped."""
    last = len(x.shape) - 1
    return graph.drop_axes(graph.fold(x, Op.ADD, [last]), [last])


# --- methods


class Sorting(Selection):
    """Order, and elements by condition."""

    __slots__ = ()

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """The elements of an axis in order, and where each was; equal ones keep their order.

        >>> values, places = Tensor([3, 1, 2]).sort()
        >>> values.tolist(), places.tolist()
        ([1, 2, 3], [1, 2, 0])
        """
        axis = resolve_axis("sort", dim, self.ndim)
        return self._best(axis, self.shape[axis] if self.ndim else 1, descending)

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """Indices that sort an axis.

        >>> x = Tensor([3, 1, 2])
        >>> x.argsort().tolist(), x.argsort(descending=True).tolist()
        ([1, 2, 0], [0, 2, 1])
        """
        axis = resolve_axis("argsort", dim, self.ndim)
        return self._best_places(axis, self.shape[axis] if self.ndim else 1, descending)

    def topk(
        self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
    ) -> tuple[Self, Self]:
        """The k greatest (or least) elements of an axis in order, and where each was.

        Raises ArgumentError when the axis has fewer. They are in order also without `sorted_`.

        >>> values, places = Tensor([3, 1, 4, 2]).topk(2)
        >>> values.tolist(), places.tolist()
        ([4, 3], [2, 0])
        """
        axis = resolve_axis("topk", dim, self.ndim)
        if not 0 <= k <= (self.shape[axis] if self.ndim else 1):
            raise ArgumentError(f"topk: {k} elements of axis {axis} of shape {self.shape}")
        return self._best(axis, k, descending=largest)

    def _best(self, axis: int, count: int, descending: bool) -> tuple[Self, Self]:
        """The elements that come first in order, and where they were."""
        places = self._best_places(axis, count, descending)
        if not self.ndim:
            return self, places
        return self._from_node(graph.take(self.uop, places.uop, axis)), places

    def _best_places(self, axis: int, count: int, descending: bool) -> Self:
        """Indices of the first `count` elements of the sorted order of an axis."""
        if not self.ndim:
            return self.const_like(0, dtypes.default_int)
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        if 0 in shape:
            return self._from_node(
                graph.full(shape, counter_dtype(self.shape[axis]), 0, self.device)
            )
        keys = self.detach().movedim(axis, -1)._ordered_integers()
        if descending:
            keys = keys.bitwise_not()
        kind = counter_dtype(self.shape[axis])
        found = first_places(keys.uop, count, self.dtype.itemsize * 8)
        return self._from_node(found).cast(kind).movedim(-1, axis).contiguous()

    def _ordered_integers(self) -> Self:
        """int64 numbers in the order of the elements, of as many bits as these."""
        if self.dtype is dtypes.uint64:
            return self.bitcast(dtypes.int64) ^ int(dtypes.min(dtypes.int64))
        if self.dtype is dtypes.uint32:
            return self.cast(dtypes.int64) + int(dtypes.min(dtypes.int32))
        if not dtypes.is_float(self.dtype):
            return self.cast(dtypes.int64)
        wide = self if self.dtype is dtypes.float64 else self.cast(dtypes.float32)
        signed = dtypes.int64 if self.dtype is dtypes.float64 else dtypes.int32
        bits = wide.eq(0).where(0.0, wide).bitcast(signed)
        magnitude = int(dtypes.max(signed))
        ordered = (bits < 0).where(bits ^ magnitude, bits)
        return wide.isnan().where(magnitude, ordered).cast(dtypes.int64)

    # --- shapes that depend on data

    def nonzero(self, size: int | None = None, fill_value: Scalar = 0) -> Self:
        """The positions of all nonzero elements, one row each. Computes the tensor, unless `size`
        is given.

        With `size` that many rows: further ones are cut off, missing ones filled. Raises
        ArgumentError for a negative `size`.

        >>> Tensor([[0, 7], [5, 0]]).nonzero().tolist()
        [[0, 1], [1, 0]]
        >>> Tensor([0, 7]).nonzero(size=2, fill_value=-1).tolist()
        [[1], [-1]]
        """
        check_rows("nonzero", size)
        kind = counter_dtype(*self.shape)
        if size is None:
            found = numpy.argwhere(self._host_array())
            return type(self)(found, device=self.device).cast(kind)
        places, is_found = self.ne(0)._places_of_true(size)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(self.ndim)]
        columns = [
            (places // max(stride, 1)) % max(extent, 1)
            for stride, extent in zip(strides, self.shape, strict=True)
        ]
        if not columns:
            return type(self).zeros(size, 0, dtype=kind, device=self.device)
        rows = columns[0].stack(*columns[1:], dim=1)
        return is_found.reshape(-1, 1).where(rows, int(fill_value)).cast(kind)

    def masked_select(self, mask: Self, size: int | None = None, fill_value: Scalar = 0) -> Self:
        """The elements where a mask, broadcast, holds, in one row. Computes the mask, unless `size`
        is given.

        With `size` that many: further ones are cut off, missing ones filled. Raises ArgumentError
        for a negative `size`, DTypeError for a mask that is not bool.

        >>> x = Tensor([1, 2, 3])
        >>> x.masked_select(x > 1).tolist(), x.masked_select(x > 1, size=3).tolist()
        ([2, 3], [2, 3, 0])
        """
        bool_dtype("masked_select", mask.dtype, "mask")
        check_rows("masked_select", size)
        x, where = self._broadcasted("masked_select", mask, promote=False)
        if size is None:
            (found,) = numpy.nonzero(where._host_array().reshape(-1))
            places = type(self)(found, device=self.device).cast(counter_dtype(x.numel()))
        else:
            places, is_found = where._places_of_true(size)
        picked = self._from_node(graph.gather(x.reshape(-1).uop, places.uop))
        return picked if size is None else is_found.where(picked, fill_value).cast(self.dtype)

    def _places_of_true(self, size: int) -> tuple[Self, Self]:
        """Places of the first `size` true elements, in order of rows, and which of them exist.

        The number of true elements before one is its row in the result. The others have a row that
        is out of range, which a scatter leaves out.
        """
        count = self.numel()
        kind = counter_dtype(count, size)
        numbers = type(self).arange(count, dtype=kind, device=self.device)
        flat = self.reshape(-1)
        rows = flat.where(flat.cast(kind).cumsum(0) - 1, size).cast(kind)
        missing = type(self).full((size,), count, dtype=kind, device=self.device)
        places = missing.scatter(0, rows, numbers)
        return places, places.ne(count)


def check_rows(name: str, size: int | None) -> None:
    """Raises ArgumentError for a negative number of rows."""
    if size is not None and size < 0:
        raise ArgumentError(f"{name}: a number of rows is not negative, got size {size}")
