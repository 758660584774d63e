"""Movement: reshape, permute, expand, shrink, flip, repeat.

Floor 5. Axes may be negative. A shape or order may be given as one tuple or as separate arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from tinycore.errors import ArgumentError, IndexRangeError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import (
    Ints,
    int_arguments,
    repeats_to,
    resolve_axes,
    resolve_axis,
    spread,
)
from tinycore.tensor.core import Core
from tinycore.tensor.signatures import renamed
from tinycore.uop.size import quotient, same_number


class Movement(Core):
    """Shape and order of the elements."""

    __slots__ = ()

    # --- shape

    def reshape(self, *shape: Ints | None) -> Self:
        """The elements in row-major order under another shape; -1 is inferred, None keeps a size.

        Raises ShapeError when the number of elements differs, or -1 stands beside a 0 and could be
        anything.

        >>> x = Tensor.arange(6)
        >>> x.reshape(2, -1).tolist()
        [[0, 1, 2], [3, 4, 5]]
        >>> x.reshape(2, 3).reshape(None, 3, 1).shape
        (2, 3, 1)
        """
        given = list(spread(shape))
        kept = [self.shape[i] if n is None and i < self.ndim else n for i, n in enumerate(given)]
        sizes = list(int_arguments("reshape", kept))
        if sizes.count(-1) == 1:
            known = [n for n in sizes if n != -1]
            if math.prod(known):
                sizes[sizes.index(-1)] = quotient(self.shape, known)
        count, total = math.prod(sizes), self.numel()
        if any(n < 0 for n in sizes) or not same_number(count, total):
            raise ShapeError(
                f"reshape: shape {self.shape} has {total} elements, which do not fill {given}"
            )
        node = self.uop
        if count != total:  # equal for the numbers of now: so many elements as they make
            node = graph.shrink(graph.reshape(node, (total,)), [(0, count)])
        return self._as_view(graph.reshape(node, tuple(sizes)))

    view = renamed(reshape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The axes from `start_dim` to `end_dim` inclusive merged into one.

        Raises ArgumentError when the first comes after the last.

        >>> Tensor.zeros(2, 3, 4).flatten(1).shape
        (2, 12)
        """
        start = resolve_axis("flatten", start_dim, self.ndim)
        end = resolve_axis("flatten", end_dim, self.ndim)
        if start > end:
            raise ArgumentError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
        merged = math.prod(self.shape[start : end + 1])
        return self.reshape((*self.shape[:start], merged, *self.shape[end + 1 :]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """One axis split into several; -1 is inferred. Raises ShapeError unless they fill it.

        >>> Tensor.zeros(2, 6).unflatten(1, (3, -1)).shape
        (2, 3, 2)
        """
        axis = self._axis_with_size("unflatten", dim)
        inner = list(int_arguments("unflatten", sizes))
        size, known = self.shape[axis], math.prod(n for n in inner if n != -1)
        if inner.count(-1) == 1 and known:
            inner[inner.index(-1)] = size // known
        if min(inner, default=0) < 0 or math.prod(inner) != size:
            raise ShapeError(
                f"unflatten: sizes {tuple(sizes)} do not fill axis {axis} of shape {self.shape}"
            )
        return self.reshape((*self.shape[:axis], *inner, *self.shape[axis + 1 :]))

    def squeeze(self, dim: Ints | None = None) -> Self:
        """Axes of size 1 removed: all of them, or those of `dim` that have size 1.

        >>> x = Tensor.zeros(1, 3, 1)
        >>> x.squeeze().shape, x.squeeze(0).shape, x.squeeze(1).shape
        ((3,), (3, 1), (1, 3, 1))
        """
        shape = self.uop.shape
        axes = resolve_axes("squeeze", dim, len(shape))
        left = tuple([n for a, n in enumerate(shape) if n != 1 or a not in axes])
        return self._as_view(graph.reshape(self.uop, left))

    def unsqueeze(self, dim: int) -> Self:
        """A new axis of size 1 at position `dim`.

        >>> Tensor([1, 2, 3]).unsqueeze(1).tolist()
        [[1], [2], [3]]
        """
        shape = self.uop.shape
        axis = resolve_axis("unsqueeze", dim, len(shape), extra=1)
        return self._as_view(graph.reshape(self.uop, (*shape[:axis], 1, *shape[axis:])))

    def expand(self, *shape: Ints | None) -> Self:
        """Axes of size 1 repeated, and new ones in front; -1 or None keeps a size. No copy.

        Raises ShapeError when an axis has neither size 1 nor the size asked for, also for a new
        axis with nothing to keep.

        >>> Tensor([[1], [2]]).expand(-1, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        >>> Tensor([1, 2]).expand(2, 2).tolist()
        [[1, 2], [1, 2]]
        """
        given = spread(shape)
        aligned = (1,) * (len(given) - self.ndim) + self.shape
        if len(aligned) != len(given):
            raise ShapeError(f"expand: shape {self.shape} has more axes than {given}")
        if any(n in (-1, None) for n in given[: len(given) - self.ndim]):
            raise ShapeError(f"expand: a new axis in front of {self.shape} has no size in {given}")
        kept = [old if new in (-1, None) else new for old, new in zip(aligned, given, strict=True)]
        target = int_arguments("expand", kept)
        if any(new < 0 for new in target) or not repeats_to(aligned, target):
            raise ShapeError(f"expand: shape {self.shape} cannot be repeated to {target}")
        return self._as_view(graph.broadcast_to(self.uop, target))

    # --- order

    def permute(self, *order: Ints) -> Self:
        """Axes reordered: result axis i is axis order[i].

        Raises ShapeError unless a permutation.

        >>> x = Tensor.arange(6).reshape(1, 2, 3)
        >>> x.permute(2, 0, 1).tolist()
        [[[0, 3]], [[1, 4]], [[2, 5]]]
        """
        axes = [
            resolve_axis("permute", a, self.ndim) for a in int_arguments("permute", spread(order))
        ]
        if sorted(axes) != list(range(self.ndim)):
            raise ShapeError(
                f"permute: {tuple(axes)} is no permutation of the {self.ndim} axes of {self.shape}"
            )
        return self._as_view(graph.permute(self.uop, axes))

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two axes exchanged.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).transpose().tolist()
        [[1, 4], [2, 5], [3, 6]]
        >>> Tensor.zeros(2, 3, 4).transpose(0, -1).shape
        (4, 3, 2)
        """
        first, second = (resolve_axis("transpose", d, self.ndim) for d in (dim0, dim1))
        order = list(range(self.ndim))
        if order:
            order[first], order[second] = order[second], order[first]
        return self._as_view(graph.permute(self.uop, order))

    @property
    def T(self) -> Self:  # noqa: N802  the name NumPy's and torch's users know
        """The matrix transposed; for any other number of axes, their order reversed.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).T.tolist()
        [[1, 4], [2, 5], [3, 6]]
        """
        return self._as_view(graph.permute(self.uop, list(reversed(range(self.ndim)))))

    def movedim(self, source: Ints, destination: Ints) -> Self:
        """Axes moved to other places; the others keep their order.

        Raises ArgumentError unless both name equally many axes, none twice.

        >>> Tensor.zeros(2, 3, 4).movedim(0, -1).shape
        (3, 4, 2)
        """
        starts, places = (axes_in_order("movedim", v, self.ndim) for v in (source, destination))
        if len(starts) != len(places):
            raise ArgumentError(f"movedim: {source} and {destination} are not equally many axes")
        order = [axis for axis in range(self.ndim) if axis not in starts]
        for place, start in sorted(zip(places, starts, strict=True)):
            order.insert(place, start)
        return self._as_view(graph.permute(self.uop, order))

    def flip(self, *axis: Ints) -> Self:
        """The given axes reversed. Raises ArgumentError for one that is given twice.

        >>> x = Tensor([[1, 2], [3, 4]])
        >>> x.flip(0).tolist(), x.flip(0, 1).tolist()
        ([[3, 4], [1, 2]], [[4, 3], [2, 1]])
        """
        axes = axes_in_order("flip", spread(axis), self.ndim)
        return self._as_view(graph.flip(self.uop, axes))

    def _axis_with_size(self, name: str, dim: int) -> int:
        """A nonnegative axis. Raises IndexRangeError also for a tensor with no axes."""
        if not self.ndim:
            raise IndexRangeError(f"{name}: axis {dim} of a tensor with no axes")
        return resolve_axis(name, dim, self.ndim)

    # --- boxes

    def _between(self, axis: int, start: int, stop: int) -> Self:
        """The elements from start to stop of one axis."""
        pairs = [(0, n) for n in self.shape]
        pairs[axis] = (start, stop)
        return self._as_view(graph.shrink(self.uop, pairs))

    def shrink(self, arg: Sequence[tuple[int, int] | None]) -> Self:
        """A box: (start, stop) for each axis, None for all of it.

        Raises ShapeError outside the tensor.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink((None, (1, 3))).tolist()
        [[2, 3], [5, 6]]
        """
        if len(arg) != self.ndim:
            raise ShapeError(f"shrink: {len(arg)} ranges for the {self.ndim} axes of {self.shape}")
        pairs = [(0, n) if pair is None else pair for pair, n in zip(arg, self.shape, strict=True)]
        if any(not 0 <= a <= b <= n for (a, b), n in zip(pairs, self.shape, strict=True)):
            raise ShapeError(f"shrink: {tuple(pairs)} reaches outside shape {self.shape}")
        return self._as_view(graph.shrink(self.uop, pairs))

    def shrink_to(self, *shape: Ints | None) -> Self:
        """The first elements of each axis; None keeps a size.

        Raises ShapeError for more elements than there are.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink_to(1, None).tolist()
        [[1, 2, 3]]
        """
        return self.shrink(
            [None if n is None else (0, n) for n in optional_sizes("shrink_to", shape)]
        )

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Windows of `size` elements every `step` along an axis; the last axis runs inside them.

        Raises ShapeError when none fits, or for a step below 1. Windows of size 0 fit behind the
        last element as well.

        >>> Tensor.arange(5).unfold(0, 3, 2).tolist()
        [[0, 1, 2], [2, 3, 4]]
        """
        axis = self._axis_with_size("unfold", dim)
        if size == 0 and step > 0:
            count = self.shape[axis] // step + 1
            shape = (*self.shape[:axis], count, *self.shape[axis + 1 :], 0)
            return self._from_node(graph.full(shape, self.dtype, 0, self.device))
        if not 0 < size <= self.shape[axis] or step < 1:
            raise ShapeError(
                f"unfold: windows of {size} every {step} do not fit axis {axis} of shape "
                f"{self.shape}"
            )
        return self._as_view(graph.windows(self.uop, axis, size, step))

    def repeat(self, *repeats: Ints) -> Self:
        """The tensor repeated along each axis; axes are aligned at the end.

        Raises ShapeError for fewer counts than axes, or a negative one.

        >>> Tensor([1, 2]).repeat(2, 2).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
        """
        counts = int_arguments("repeat", spread(repeats))
        shape = (1,) * (len(counts) - self.ndim) + self.shape
        if len(shape) != len(counts) or min(counts, default=1) < 0:
            raise ShapeError(f"repeat: {counts} for the {self.ndim} axes of shape {self.shape}")
        wide = self.reshape([n for size in shape for n in (1, size)])
        wide = wide.expand(
            [n for size, count in zip(shape, counts, strict=True) for n in (count, size)]
        )
        wide = wide.reshape([size * count for size, count in zip(shape, counts, strict=True)])
        return self._from_node(graph.value(wide.uop))

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """Each element repeated consecutively along an axis; without `dim` in the flattened tensor.

        Raises ArgumentError for a negative number.

        >>> x = Tensor([[1, 2], [3, 4]])
        >>> x.repeat_interleave(2).tolist(), x.repeat_interleave(2, 0).tolist()
        ([1, 1, 2, 2, 3, 3, 4, 4], [[1, 2], [1, 2], [3, 4], [3, 4]])
        """
        if repeats < 0:
            raise ArgumentError(f"repeat_interleave: {repeats} is less than no repetition")
        if dim is None:
            return (
                self.flatten().repeat_interleave(repeats, 0)
                if self.ndim
                else self.reshape(1).repeat(repeats)
            )
        axis = resolve_axis("repeat_interleave", dim, self.ndim)
        shape = self.shape
        wide = self.unsqueeze(axis + 1).expand((*shape[: axis + 1], repeats, *shape[axis + 1 :]))
        wide = wide.reshape((*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))
        return self._from_node(graph.value(wide.uop))

    def meshgrid(self, *args: Self, indexing: str = "ij") -> tuple[Self, ...]:
        """Coordinate grids of flat tensors; indexing "xy" exchanges the first two axes.

        Raises ArgumentError for another word.

        >>> rows, columns = Tensor([1, 2]).meshgrid(Tensor([3, 4, 5]))
        >>> rows.tolist(), columns.tolist()
        ([[1, 1, 1], [2, 2, 2]], [[3, 4, 5], [3, 4, 5]])
        """
        if indexing not in ("ij", "xy"):
            raise ArgumentError(f"meshgrid: indexing {indexing!r} is neither 'ij' nor 'xy'")
        basis = [t.reshape(-1) for t in (self, *args)]
        swapped = indexing == "xy" and len(basis) > 1
        order = [1, 0, *range(2, len(basis))] if swapped else list(range(len(basis)))
        shape = [basis[i].shape[0] for i in order]
        grids = []
        for number, tensor in enumerate(basis):
            place = [1] * len(basis)
            place[order.index(number)] = tensor.shape[0]
            grids.append(tensor.reshape(place).expand(shape))
        return tuple(grids)

    # --- diagonals

    def diag(self, diagonal: int = 0) -> Self:
        """The square matrix with this vector on a diagonal, or that diagonal of this matrix.

        `diagonal` counts upwards from the main one. Raises ShapeError for other numbers of axes.

        >>> Tensor([1, 2]).diag().tolist(), Tensor([1, 2]).diag(1).tolist()
        ([[1, 0], [0, 2]], [[0, 1, 0], [0, 0, 2], [0, 0, 0]])
        >>> Tensor([[1, 2], [3, 4]]).diag().tolist()
        [1, 4]
        """
        if self.ndim == 2:
            return self.diagonal(diagonal)
        if self.ndim != 1:
            raise ShapeError(f"diag: needs a vector or a matrix, got shape {self.shape}")
        size = self.shape[0]
        wide = self._from_node(graph.pad(self.unsqueeze(1).uop, [(0, 0), (0, size)]))
        square = wide.reshape(-1)._between(0, 0, size * size).reshape(size, size)
        above, below = max(0, diagonal), max(0, -diagonal)
        return self._from_node(graph.pad(square.uop, [(below, above), (above, below)]))

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The elements [.., i, .., i + offset, ..] of two axes, as a new last axis.

        Raises ArgumentError unless there are two different axes.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x.diagonal().tolist(), x.diagonal(1).tolist(), x.diagonal(-1).tolist()
        ([1, 5], [2, 6], [4])
        """
        first, second = (resolve_axis("diagonal", d, self.ndim) for d in (dim1, dim2))
        if first == second or self.ndim < 2:
            raise ArgumentError(f"diagonal: needs two different axes of shape {self.shape}")
        order = [a for a in range(self.ndim) if a not in (first, second)]
        x = self.permute([*order, first, second])
        rows, columns = x.shape[-2:]
        top, left = max(0, -offset), max(0, offset)
        size = max(0, min(rows - top, columns - left))
        x = x._between(x.ndim - 2, min(top, rows), min(top, rows) + size)
        x = x._between(x.ndim - 1, min(left, columns), min(left, columns) + size)
        flat = x.reshape((*x.shape[:-2], size * size))
        return flat._as_view(graph.take_every(flat.uop, flat.ndim - 1, size + 1))


def axes_in_order(name: str, axes: object, rank: int) -> list[int]:
    """Nonnegative axes as they were given. Raises ArgumentError for a repeated one."""
    found = [resolve_axis(name, a, rank) for a in int_arguments(name, spread((axes,)))]
    if len(set(found)) != len(found):
        raise ArgumentError(f"{name}: an axis is repeated in {axes}")
    return [a for a in found if rank]


def optional_sizes(name: str, shape: tuple[object, ...]) -> list[int | None]:
    """Sizes of which some may be None."""
    return [None if n is None else int_arguments(name, [n])[0] for n in spread(shape)]
