"""Sorting along an axis, and what depends on data: `masked_select`, `nonzero`.

Floor 5. Sorting is a network of compare-and-exchange steps, each one kernel: half the square of
log2 n of them. It is stable, NaN counts as greater than any number, and gradients go where the
elements went.
"""

from __future__ import annotations

from typing import Self, TypeVar

import numpy

from tinycore.dtype import Scalar, dtypes
from tinycore.errors import ArgumentError
from tinycore.tensor import graph
from tinycore.tensor.checks import resolve_axis
from tinycore.tensor.selection import Selection


class Sorting(Selection):
    """Order, and elements by condition."""

    __slots__ = ()

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """The elements of an axis in order, and where each was; equal ones keep their order."""
        axis = resolve_axis("sort", dim, self.ndim)
        if not self.ndim or self.shape[axis] <= 1:
            return self, self.const_like(0, dtypes.default_int)
        moved = self.movedim(axis, -1)
        size = moved.shape[-1]
        whole = 1 << (size - 1).bit_length()
        pairs = [(0, 0)] * (moved.ndim - 1) + [(0, whole - size)]
        values = self.from_uop(graph.pad(moved.uop, pairs))
        places = self.from_uop(graph.arange(whole, dtypes.default_int, self.device))
        places = places.expand(values.shape)
        block = 2
        while block <= whole:
            values, places = exchanged(values, places, block, size, descending, mirrored=True)
            half = block // 2
            while half > 1:
                values, places = exchanged(values, places, half, size, descending, mirrored=False)
                half //= 2
            block *= 2
        last = self.ndim - 1
        return (
            values.between(last, 0, size).movedim(-1, axis),
            places.between(last, 0, size).movedim(-1, axis),
        )

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """Where the elements of an axis stand in order."""
        return self.sort(dim, descending)[1]

    def topk(
        self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
    ) -> tuple[Self, Self]:
        """The k greatest (or least) elements of an axis in order, and where each was.

        Raises ArgumentError when the axis has fewer.
        """
        axis = resolve_axis("topk", dim, self.ndim)
        if not 0 <= k <= (self.shape[axis] if self.ndim else 1):
            raise ArgumentError(f"topk: {k} elements of axis {axis} of shape {self.shape}")
        values, places = self.sort(axis, descending=largest)
        if not self.ndim:
            return values, places
        return values.between(axis, 0, k), places.between(axis, 0, k)

    # --- shapes that depend on data

    def nonzero(self, size: int | None = None, fill_value: Scalar = 0) -> Self:
        """The positions of all nonzero elements, one row each. Computes the tensor.

        With `size` that many rows: further ones are cut off, missing ones filled.
        """
        found = numpy.argwhere(self.host_array())
        return self.sized(found, size, fill_value).cast(dtypes.default_int)

    def masked_select(self, mask: Self, size: int | None = None, fill_value: Scalar = 0) -> Self:
        """The elements where a mask, broadcast, holds, in one row. Computes the mask.

        With `size` that many: further ones are cut off, missing ones filled.
        """
        x, where = self.broadcasted("masked_select", mask, promote=False)
        (found,) = numpy.nonzero(where.host_array().reshape(-1))
        places = self.sized(found, size, -1).cast(dtypes.default_int)
        picked = self.from_uop(graph.gather(x.reshape(-1).uop, places.uop))
        return picked if size is None else (places < 0).where(fill_value, picked).cast(self.dtype)

    def sized(
        self,
        found: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.int64]],
        size: int | None,
        fill_value: Scalar,
    ) -> Self:
        """Rows found on the host as a tensor with exactly `size` rows, if that is given."""
        if size is not None:
            missing = max(0, size - len(found))
            pairs = [(0, missing)] + [(0, 0)] * (found.ndim - 1)
            found = numpy.pad(found[:size], pairs, constant_values=int(fill_value))
        return type(self)(found, device=self.device)


AnyTensor = TypeVar("AnyTensor", bound=Sorting)


def exchanged(
    values: AnyTensor, places: AnyTensor, block: int, size: int, descending: bool, mirrored: bool
) -> tuple[AnyTensor, AnyTensor]:
    """One step of the network: in every block both halves are compared, and exchanged if need be.

    Element i of the first half meets element i of the second, or its mirror image there.
    """
    shape = values.shape
    a, b = halves(values, block, mirrored)
    i, j = halves(places, block, mirrored)
    swap = comes_after(a, i, b, j, size, descending)
    new_values = rejoined(swap.where(b, a), swap.where(a, b), mirrored).reshape(shape)
    new_places = rejoined(swap.where(j, i), swap.where(i, j), mirrored).reshape(shape)
    return new_values.contiguous().contiguous_backward(), new_places.contiguous()


def halves(x: AnyTensor, block: int, mirrored: bool) -> tuple[AnyTensor, AnyTensor]:
    """The first and the second half of every block of the last axis."""
    cut = x.reshape((*x.shape[:-1], x.shape[-1] // block, 2, block // 2))
    first, second = (cut.between(cut.ndim - 2, n, n + 1) for n in (0, 1))
    return first, second.flip(-1) if mirrored else second


def rejoined(first: AnyTensor, second: AnyTensor, mirrored: bool) -> AnyTensor:
    """Undo `halves`, but for the shape."""
    return first.cat(second.flip(-1) if mirrored else second, dim=-2)


def comes_after(
    a: AnyTensor, i: AnyTensor, b: AnyTensor, j: AnyTensor, size: int, descending: bool
) -> AnyTensor:
    """Whether `a` from place i belongs after `b` from place j; what fills the axis comes last."""
    after, equal = (a < b) if descending else (a > b), a.eq(b)
    if dtypes.is_float(a.dtype):
        one, other = (b.isnan(), a.isnan()) if descending else (a.isnan(), b.isnan())
        after, equal = after | (one & ~other), equal | (one & other)
    in_order = after | (equal & (i > j))
    extra, beside = i >= size, j >= size
    return (extra & ~beside) | (extra.eq(beside) & in_order)
