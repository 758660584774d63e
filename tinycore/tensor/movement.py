"""Rearranging elements: shapes, order, padding, joining. No arithmetic, no copying.

Floor 5. Axes may be negative. A shape or order may be given as one tuple or as separate arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from tinycore.dtype import Scalar, dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import (
    int_arguments,
    resolve_axis,
    same_device,
    spread,
)
from tinycore.tensor.core import Core
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import Shape

Ints = int | Sequence[int]
PadMode = str


class Movement(Core):
    """Shape and order of the elements."""

    __slots__ = ()

    # --- shape

    def reshape(self, *shape: Ints | None) -> Self:
        """The elements in row-major order under another shape; -1 is inferred, None keeps a size.

        Raises ShapeError when the number of elements differs.
        """
        given = list(spread(shape))
        kept = [self.shape[i] if n is None and i < self.ndim else n for i, n in enumerate(given)]
        sizes = list(int_arguments("reshape", kept))
        if sizes.count(-1) == 1:
            known = math.prod(n for n in sizes if n != -1)
            sizes[sizes.index(-1)] = self.numel() // known if known else 0
        if any(n < 0 for n in sizes) or math.prod(sizes) != self.numel():
            raise ShapeError(
                f"reshape: shape {self.shape} has {self.numel()} elements, which do not fill "
                f"{given}"
            )
        return self.from_uop(graph.reshape(self.uop, tuple(sizes)))

    def view(self, *shape: Ints | None) -> Self:
        """`reshape` by the name torch gives it."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The axes from `start_dim` to `end_dim` inclusive merged into one."""
        start = resolve_axis("flatten", start_dim, self.ndim)
        end = resolve_axis("flatten", end_dim, self.ndim)
        merged = math.prod(self.shape[start : end + 1])
        return self.reshape((*self.shape[:start], merged, *self.shape[end + 1 :]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """One axis split into several; -1 is inferred."""
        axis = resolve_axis("unflatten", dim, self.ndim)
        inner = list(sizes)
        if inner.count(-1) == 1:
            known = math.prod(n for n in inner if n != -1)
            inner[inner.index(-1)] = self.shape[axis] // known if known else 0
        return self.reshape((*self.shape[:axis], *inner, *self.shape[axis + 1 :]))

    def squeeze(self, dim: int | None = None) -> Self:
        """Axes of size 1 removed: all of them, or `dim` if it has size 1."""
        if dim is None:
            return self.reshape(tuple([n for n in self.shape if n != 1]))
        axis = resolve_axis("squeeze", dim, self.ndim)
        if not self.ndim or self.shape[axis] != 1:
            return self
        return self.reshape((*self.shape[:axis], *self.shape[axis + 1 :]))

    def unsqueeze(self, dim: int) -> Self:
        """A new axis of size 1 at position `dim`."""
        axis = resolve_axis("unsqueeze", dim, self.ndim, extra=1)
        return self.reshape((*self.shape[:axis], 1, *self.shape[axis:]))

    def expand(self, *shape: Ints | None) -> Self:
        """Axes of size 1 repeated, and new ones in front; -1 or None keeps a size. No copy.

        Raises ShapeError when an axis has neither size 1 nor the size asked for.
        """
        given = spread(shape)
        aligned = (1,) * (len(given) - self.ndim) + self.shape
        if len(aligned) != len(given):
            raise ShapeError(f"expand: shape {self.shape} has more axes than {given}")
        kept = [old if new in (-1, None) else new for old, new in zip(aligned, given, strict=True)]
        target = int_arguments("expand", kept)
        if any(old not in (1, new) or new < 0 for old, new in zip(aligned, target, strict=True)):
            raise ShapeError(f"expand: shape {self.shape} cannot be repeated to {target}")
        return self.from_uop(graph.broadcast_to(self.uop, target))

    # --- order

    def permute(self, *order: Ints) -> Self:
        """Axes reordered: result axis i is axis order[i].

        Raises ShapeError unless a permutation.
        """
        axes = [
            resolve_axis("permute", a, self.ndim) for a in int_arguments("permute", spread(order))
        ]
        if sorted(axes) != list(range(self.ndim)):
            raise ShapeError(
                f"permute: {tuple(axes)} is no permutation of the {self.ndim} axes of {self.shape}"
            )
        return self.from_uop(graph.permute(self.uop, axes))

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two axes exchanged."""
        first, second = (resolve_axis("transpose", d, self.ndim) for d in (dim0, dim1))
        order = list(range(self.ndim))
        if order:
            order[first], order[second] = order[second], order[first]
        return self.from_uop(graph.permute(self.uop, order))

    @property
    def T(self) -> Self:  # noqa: N802  the name NumPy's and torch's users know
        """The matrix transposed; for any other number of axes, their order reversed."""
        return self.from_uop(graph.permute(self.uop, list(reversed(range(self.ndim)))))

    def movedim(self, source: int, destination: int) -> Self:
        """One axis moved to another place; the others keep their order."""
        start = resolve_axis("movedim", source, self.ndim)
        order = [axis for axis in range(self.ndim) if axis != start]
        order.insert(resolve_axis("movedim", destination, self.ndim), start)
        return self.from_uop(graph.permute(self.uop, order))

    def flip(self, *axis: Ints) -> Self:
        """The given axes reversed."""
        axes = [resolve_axis("flip", a, self.ndim) for a in int_arguments("flip", spread(axis))]
        if len(set(axes)) != len(axes):
            raise ArgumentError(f"flip: an axis is repeated in {tuple(axes)}")
        return self.from_uop(graph.flip(self.uop, axes))

    def roll(self, shifts: Ints, dims: Ints | None = None) -> Self:
        """Elements moved along axes, those pushed out coming in again.

        Without `dims`, over the flat tensor.
        """
        if dims is None:
            flat = self.flatten().roll(shifts, 0) if self.ndim else self
            return flat.reshape(self.shape)
        pairs = zip(*(int_arguments("roll", spread((v,))) for v in (shifts, dims)), strict=True)
        result = self
        for shift, dim in pairs:
            axis = resolve_axis("roll", dim, self.ndim)
            if size := self.shape[axis]:
                cut = -shift % size
                result = result.between(axis, cut, size).cat(result.between(axis, 0, cut), dim=axis)
        return result

    # --- boxes

    def between(self, axis: int, start: int, stop: int) -> Self:
        """The elements from start to stop of one axis."""
        pairs = [(0, n) for n in self.shape]
        pairs[axis] = (start, stop)
        return self.from_uop(graph.shrink(self.uop, pairs))

    def shrink(self, arg: Sequence[tuple[int, int] | None]) -> Self:
        """A box: (start, stop) for each axis, None for all of it.

        Raises ShapeError outside the tensor.
        """
        if len(arg) != self.ndim:
            raise ShapeError(f"shrink: {len(arg)} ranges for the {self.ndim} axes of {self.shape}")
        pairs = [(0, n) if pair is None else pair for pair, n in zip(arg, self.shape, strict=True)]
        if any(not 0 <= a <= b <= n for (a, b), n in zip(pairs, self.shape, strict=True)):
            raise ShapeError(f"shrink: {tuple(pairs)} reaches outside shape {self.shape}")
        return self.from_uop(graph.shrink(self.uop, pairs))

    def shrink_to(self, *shape: Ints | None) -> Self:
        """The first elements of each axis; None keeps a size."""
        return self.shrink(
            [None if n is None else (0, n) for n in optional_sizes("shrink_to", shape)]
        )

    def pad_to(self, *shape: Ints | None, value: Scalar = 0) -> Self:
        """Padded at the end of each axis up to a size; None keeps a size."""
        sizes = optional_sizes("pad_to", shape)
        if len(sizes) != self.ndim or any(
            n is not None and n < old for n, old in zip(sizes, self.shape, strict=True)
        ):
            raise ShapeError(f"pad_to: shape {self.shape} cannot grow to {tuple(sizes)}")
        return self.pad_constant(
            [(0, 0 if n is None else n - old) for n, old in zip(sizes, self.shape, strict=True)],
            value,
        )

    def pad(
        self,
        padding: Sequence[int] | Sequence[tuple[int, int] | None],
        mode: PadMode = "constant",
        value: Scalar = 0.0,
    ) -> Self:
        """Elements added around; a negative amount takes elements away.

        `padding` is one (before, after) or None per axis, or as in torch flat, the last axis first.
        `mode` is constant (filled with `value`), reflect, replicate or circular.
        Raises ShapeError when there are more pairs than axes, or a mode needs more than there is.
        """
        pairs = padding_pairs("pad", padding, self.shape)
        if mode == "constant":
            return self.pad_constant(pairs, value)
        if mode not in ("reflect", "replicate", "circular"):
            raise ArgumentError(
                f"pad: mode {mode!r} is none of constant, reflect, replicate, circular"
            )
        result = self
        for axis, (before, after) in enumerate(pairs):
            result = result.pad_axis(axis, before, after, mode)
        return result

    def pad_constant(self, pairs: Sequence[tuple[int, int]], value: Scalar) -> Self:
        """`value` around; a float around integers makes them floats."""
        cut = [(max(0, -a), n - max(0, -b)) for (a, b), n in zip(pairs, self.shape, strict=True)]
        inner = self.shrink(cut)
        outer = [(max(0, a), max(0, b)) for a, b in pairs]
        node = inner.uop
        if isinstance(value, float) and value != int_or_none(value):
            node = (
                node.cast(least_upper_dtype(node.dtype, dtypes.default_float))
                if node.dtype.kind != "float"
                else node
            )
        return self.from_uop(graph.pad_with(node, outer, value))

    def pad_axis(self, axis: int, before: int, after: int, mode: PadMode) -> Self:
        """One axis padded from its own elements."""
        size = self.shape[axis]
        inner = self.between(axis, max(0, -before), size - max(0, -after))
        before, after, size = max(0, before), max(0, after), inner.shape[axis]
        most = {
            "reflect": size - 1,
            "circular": size,
            "replicate": max(before, after) if size else 0,
        }[mode]
        if max(before, after) > most:
            raise ShapeError(
                f"pad: mode {mode} cannot add {(before, after)} to axis {axis} of shape "
                f"{self.shape}"
            )
        if mode == "reflect":
            head = inner.between(axis, 1, before + 1).flip(axis)
            tail = inner.between(axis, size - 1 - after, size - 1).flip(axis)
        elif mode == "circular":
            head, tail = inner.between(axis, size - before, size), inner.between(axis, 0, after)
        else:
            shape = inner.shape
            head = (
                inner.between(axis, 0, 1).expand((*shape[:axis], before, *shape[axis + 1 :]))
                if before
                else inner.between(axis, 0, 0)
            )
            tail = (
                inner.between(axis, size - 1, size).expand(
                    (*shape[:axis], after, *shape[axis + 1 :])
                )
                if after
                else inner.between(axis, 0, 0)
            )
        return head.cat(inner, tail, dim=axis)

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Windows of `size` elements every `step` along an axis; the last axis runs inside them."""
        axis = resolve_axis("unfold", dim, self.ndim)
        if not 0 < size <= self.shape[axis] or step < 1:
            raise ShapeError(
                f"unfold: windows of {size} every {step} do not fit axis {axis} of shape "
                f"{self.shape}"
            )
        return self.from_uop(graph.windows(self.uop, axis, size, step))

    # --- joining and cutting

    def cat(self, *args: Self, dim: int = 0) -> Self:
        """Tensors joined along one axis, in their common dtype.

        Raises ShapeError unless all other axes agree.
        """
        tensors = [self, *args]
        axis = resolve_axis("cat", dim, self.ndim)
        check_joined("cat", [t.shape for t in tensors], axis)
        same_device("cat", [t.device for t in tensors])
        dtype = least_upper_dtype(*[t.dtype for t in tensors])
        nodes = [t.uop.cast(dtype) for t in tensors if t.shape[axis]]
        return self.from_uop(joined(nodes, axis)) if nodes else self.cast(dtype)

    def stack(self, *args: Self, dim: int = 0) -> Self:
        """Tensors of one shape joined along a new axis. Raises ShapeError when shapes differ."""
        for other in args:
            if other.shape != self.shape:
                raise ShapeError(f"stack: shapes {self.shape} and {other.shape} differ")
        axis = resolve_axis("stack", dim, self.ndim, extra=1)
        return self.unsqueeze(axis).cat(*[t.unsqueeze(axis) for t in args], dim=axis)

    def split(self, sizes: Ints, dim: int = 0) -> tuple[Self, ...]:
        """Pieces along one axis: of one size (the last may be smaller), or of the sizes listed."""
        axis = resolve_axis("split", dim, self.ndim)
        length = self.shape[axis]
        if isinstance(sizes, int):
            if sizes <= 0:
                raise ArgumentError(f"split: the size of a piece must be positive, got {sizes}")
            sizes = [min(sizes, length - start) for start in range(0, max(length, 1), sizes)]
        if sum(sizes) != length:
            raise ShapeError(
                f"split: sizes {list(sizes)} do not add up to axis {axis} of shape {self.shape}"
            )
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return tuple([self.between(axis, a, a + n) for a, n in zip(starts, sizes, strict=True)])

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """At most `chunks` pieces of equal size along one axis (the last may be smaller)."""
        if chunks <= 0:
            raise ArgumentError(f"chunk: the number of pieces must be positive, got {chunks}")
        length = self.shape[resolve_axis("chunk", dim, self.ndim)]
        if not length:
            return [self] * chunks
        return list(self.split(-(-length // chunks), dim))

    def repeat(self, *repeats: Ints) -> Self:
        """The tensor beside itself, so often along each axis; axes are aligned at the end."""
        counts = int_arguments("repeat", spread(repeats))
        shape = (1,) * (len(counts) - self.ndim) + self.shape
        if len(shape) != len(counts) or min(counts, default=1) < 0:
            raise ShapeError(f"repeat: {counts} for the {self.ndim} axes of shape {self.shape}")
        wide = self.reshape([n for size in shape for n in (1, size)])
        wide = wide.expand(
            [n for size, count in zip(shape, counts, strict=True) for n in (count, size)]
        )
        return wide.reshape([size * count for size, count in zip(shape, counts, strict=True)])

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """Each element so often in a row along an axis; without `dim` over the flat tensor."""
        if dim is None:
            return (
                self.flatten().repeat_interleave(repeats, 0)
                if self.ndim
                else self.reshape(1).repeat(repeats)
            )
        axis = resolve_axis("repeat_interleave", dim, self.ndim)
        shape = self.shape
        wide = self.unsqueeze(axis + 1).expand((*shape[: axis + 1], repeats, *shape[axis + 1 :]))
        return wide.reshape((*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))

    def meshgrid(self, *args: Self, indexing: str = "ij") -> tuple[Self, ...]:
        """Coordinate grids of flat tensors; indexing "xy" exchanges the first two axes."""
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

    def diag(self) -> Self:
        """The square matrix with this vector on its diagonal. Raises ShapeError for more axes."""
        if self.ndim != 1:
            raise ShapeError(f"diag: needs one axis, got shape {self.shape}")
        size = self.shape[0]
        wide = graph.pad(self.unsqueeze(1).uop, [(0, 0), (0, size)])
        return self.from_uop(wide).flatten().between(0, 0, size * size).reshape(size, size)

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The elements [.., i, .., i + offset, ..] of two axes, as a new last axis."""
        first, second = (resolve_axis("diagonal", d, self.ndim) for d in (dim1, dim2))
        if first == second or self.ndim < 2:
            raise ArgumentError(f"diagonal: needs two different axes of shape {self.shape}")
        order = [a for a in range(self.ndim) if a not in (first, second)]
        x = self.permute([*order, first, second])
        rows, columns = x.shape[-2:]
        top, left = max(0, -offset), max(0, offset)
        size = max(0, min(rows - top, columns - left))
        x = x.between(x.ndim - 2, min(top, rows), min(top, rows) + size)
        x = x.between(x.ndim - 1, min(left, columns), min(left, columns) + size)
        flat = x.reshape((*x.shape[:-2], size * size))
        wide = self.from_uop(graph.pad(flat.uop, [(0, 0)] * (flat.ndim - 1) + [(0, size)]))
        wide = wide.reshape((*x.shape[:-2], size, size + 1))
        return wide.between(x.ndim - 1, 0, 1).squeeze(-1)


def int_or_none(value: float) -> int | None:
    """The integer a float equals, if any."""
    return int(value) if math.isfinite(value) and value == int(value) else None


def optional_sizes(name: str, shape: tuple[object, ...]) -> list[int | None]:
    """Sizes of which some may be None."""
    return [None if n is None else int_arguments(name, [n])[0] for n in spread(shape)]


def padding_pairs(
    name: str, padding: Sequence[int] | Sequence[tuple[int, int] | None], shape: Shape
) -> list[tuple[int, int]]:
    """(before, after) for every axis, from either spelling. Raises ShapeError for a wrong count."""
    rank = len(shape)
    if all(isinstance(p, int) for p in padding):
        flat = int_arguments(name, padding)
        if len(flat) % 2 or len(flat) > 2 * rank:
            raise ShapeError(f"{name}: {len(flat)} amounts for the {rank} axes of shape {shape}")
        pairs = list(zip(flat[::2], flat[1::2], strict=True))[::-1]
        return [(0, 0)] * (rank - len(pairs)) + pairs
    if len(padding) != rank:
        raise ShapeError(f"{name}: {len(padding)} pairs for the {rank} axes of shape {shape}")
    found = [
        (0, 0) if p is None else int_arguments(name, p) for p in padding if not isinstance(p, int)
    ]
    return [(before, after) for before, after in found]


def check_joined(name: str, shapes: Sequence[Shape], axis: int) -> None:
    """Raises ShapeError unless the shapes agree on all axes but one."""
    first = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(first) or any(
            a != b for i, (a, b) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"{name}: shapes {listed} differ on more than axis {axis}")


def joined(nodes: Sequence[UOp], axis: int) -> UOp:
    """Nodes side by side: each is padded to the whole, and the whole is their sum."""
    total = sum(n.shape[axis] for n in nodes)
    parts, start = [], 0
    for node in nodes:
        size = node.shape[axis]
        pairs = [(0, 0)] * len(node.shape)
        pairs[axis] = (start, total - start - size)
        parts.append(graph.pad(node, pairs))
        start += size
    op = Op.OR if nodes[0].dtype is dtypes.bool else Op.ADD
    while len(parts) > 1:  # a balanced tree keeps the graph shallow
        paired = [a.alu(op, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = paired + parts[len(paired) * 2 :]
    return parts[0]
