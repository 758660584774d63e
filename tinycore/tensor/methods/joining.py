"""Padding, concatenation and splitting.

Floor 5. Tensors are joined in their common dtype: each is padded to the size of the result, and
each element is selected from the tensor that covers it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

from tinycore.dtype import Scalar, dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import Ints, int_arguments, resolve_axis, same_device, spread
from tinycore.tensor.graph import Pair
from tinycore.tensor.methods.movement import Movement, optional_sizes
from tinycore.uop.node import UOp
from tinycore.uop.shape import Shape
from tinycore.uop.size import Size, known_number, positive_part, same_number

PadMode = Literal["constant", "reflect", "replicate", "circular"]


class Joining(Movement):
    """Concatenation and splitting of tensors, padding and repetition."""

    __slots__ = ()

    def roll(self, shifts: Ints, dims: Ints | None = None) -> Self:
        """Elements moved along axes; those moved past the end reappear at the beginning.

        Without `dims`, over the flat tensor. Raises ArgumentError unless both name equally many.

        >>> Tensor([1, 2, 3, 4]).roll(1).tolist()
        [4, 1, 2, 3]
        >>> Tensor([[1, 2], [3, 4]]).roll((1, 1), (0, 1)).tolist()
        [[4, 3], [2, 1]]
        """
        if dims is None:
            return self.reshape(-1).roll(shifts, 0).reshape(self.shape)
        moves, axes = (int_arguments("roll", spread((v,))) for v in (shifts, dims))
        if len(moves) != len(axes):
            raise ArgumentError(f"roll: shifts {moves} and dims {axes} are not equally many")
        result = self
        for shift, dim in zip(moves, axes, strict=True):
            axis = resolve_axis("roll", dim, self.ndim)
            if size := (self.shape or (0,))[axis]:
                cut = -shift % size
                result = result._between(axis, cut, size).cat(
                    result._between(axis, 0, cut), dim=axis
                )
        return self._from_node(graph.value(result.uop))

    def pad_to(self, *shape: Ints | None, value: Scalar = 0) -> Self:
        """The tensor padded at the end of each axis to a size; None keeps the size.

        Raises ShapeError for a size below the one it has.

        >>> Tensor([[1, 2]]).pad_to(2, 3, value=9).tolist()
        [[1, 2, 9], [9, 9, 9]]
        """
        sizes = optional_sizes("pad_to", shape)
        if len(sizes) != self.ndim or any(
            n is not None and n < old for n, old in zip(sizes, self.shape, strict=True)
        ):
            raise ShapeError(f"pad_to: shape {self.shape} cannot grow to {tuple(sizes)}")
        return self._pad_constant(
            [(0, 0 if n is None else n - old) for n, old in zip(sizes, self.shape, strict=True)],
            value,
        )

    def pad(
        self,
        padding: Sequence[int] | Sequence[tuple[int, int] | None],
        mode: PadMode = "constant",
        value: Scalar = 0.0,
    ) -> Self:
        """Elements added at the ends of axes; a negative amount removes elements.

        `padding` is one (before, after) or None per axis, or as in torch flat, the last axis first.
        `mode` is constant (filled with `value`), reflect, replicate or circular. Reflect and
        replicate look at the whole axis, circular at what a negative amount leaves of it.
        Raises ShapeError when there are more pairs than axes, or a mode needs more than there is,
        ArgumentError for another mode.

        >>> x = Tensor([[1, 2, 3]])
        >>> x.pad((1, 2)).tolist(), x.pad(((0, 1), None), value=9).tolist()
        ([[0, 1, 2, 3, 0, 0]], [[1, 2, 3], [9, 9, 9]])
        >>> x.pad((2, 1), "reflect").tolist(), x.pad((2, 1), "circular").tolist()
        ([[3, 2, 1, 2, 3, 2]], [[2, 3, 1, 2, 3, 1]])
        >>> x.pad((2, 0), "replicate").tolist(), x.pad((-1, 0)).tolist()
        ([[1, 1, 1, 2, 3]], [[2, 3]])
        """
        pairs = padding_pairs("pad", padding, self.shape)
        if mode == "constant":
            return self._pad_constant(pairs, value)
        if mode not in ("reflect", "replicate", "circular"):
            raise ArgumentError(
                f"pad: mode {mode!r} is none of constant, reflect, replicate, circular"
            )
        cuts = [(min(0, a), min(0, b)) for a, b in pairs]
        result = self._cropped(cuts) if mode == "circular" else self
        for axis, (before, after) in enumerate(pairs):
            result = result._extended(axis, max(0, before), max(0, after), mode)
        return result if mode == "circular" else result._cropped(cuts)

    def _pad_constant(self, pairs: Sequence[Pair], value: Scalar) -> Self:
        """`value` around; a float around integers makes them floats."""
        outer = [(positive_part(a), positive_part(b)) for a, b in pairs]
        inner = [(a - c, b - d) for (a, b), (c, d) in zip(pairs, outer, strict=True)]
        node = self._cropped(inner).uop
        if isinstance(value, float) and value != int_or_none(value):
            node = (
                node.cast(least_upper_dtype(node.dtype, dtypes.default_float))
                if node.dtype.kind != "float"
                else node
            )
        return self._from_node(graph.value(graph.pad_with(node, outer, value)))

    def _cropped(self, pairs: Sequence[Pair]) -> Self:
        """Elements cut off at both ends of each axis, by the negative amounts."""
        if any(n + a + b < 0 for n, (a, b) in zip(self.shape, pairs, strict=True)):
            raise ShapeError(f"pad: {tuple(pairs)} takes away more than shape {self.shape} has")
        return self.shrink([(-a, n + b) for n, (a, b) in zip(self.shape, pairs, strict=True)])

    def _extended(self, axis: int, before: int, after: int, mode: PadMode) -> Self:
        """One axis extended by its own elements. Raises ShapeError when it has too few."""
        size = self.shape[axis]
        most = {"reflect": size - 1, "circular": size, "replicate": max(before, after)}[mode]
        if max(before, after) > (most if size else 0):
            raise ShapeError(
                f"pad: mode {mode} cannot add {(before, after)} to axis {axis} of shape "
                f"{self.shape}"
            )
        if mode == "reflect":
            start, stop = min(size, 1), max(0, size - 1)
            head = self._between(axis, start, start + before).flip(axis)
            tail = self._between(axis, stop - after, stop).flip(axis)
        elif mode == "circular":
            head, tail = self._between(axis, size - before, size), self._between(axis, 0, after)
        else:
            ends = [
                self._between(axis, 0, min(size, 1)),
                self._between(axis, max(0, size - 1), size),
            ]
            head, tail = (
                end.expand((*self.shape[:axis], count, *self.shape[axis + 1 :]))
                for end, count in zip(ends, (before, after), strict=True)
            )
        return head.cat(self, tail, dim=axis)

    # --- joining and cutting

    def cat(self, *args: Self, dim: int = 0) -> Self:
        """Tensors joined along one axis, in their common dtype: one by one, or a list of them.

        Raises ShapeError unless all other axes agree.

        >>> x = Tensor([[1, 2]])
        >>> x.cat(Tensor([[3, 4]])).tolist(), x.cat(Tensor([[0.5]]), dim=1).tolist()
        ([[1, 2], [3, 4]], [[1.0, 2.0, 0.5]])
        """
        tensors = [self, *args]
        axis = resolve_axis("cat", dim, self.ndim)
        if not self.ndim:
            raise ShapeError("cat: a tensor of shape () has no axis to join along; stack it")
        check_joined("cat", [t.shape for t in tensors], axis)
        same_device("cat", [t.device for t in tensors])
        dtype = least_upper_dtype(*[t.dtype for t in tensors])
        nodes = [t._in_sizes_of(self, axis).uop.cast(dtype) for t in tensors if t.shape[axis]]
        return self._from_node(graph.value(concatenate(nodes, axis))) if nodes else self.cast(dtype)

    def _in_sizes_of(self, first: Self, axis: int) -> Self:
        """This tensor, in the sizes of `first` on all axes but one; they have the same numbers."""
        shape = (*first.shape[:axis], self.shape[axis], *first.shape[axis + 1 :])
        return self if self.shape == shape else self._from_node(graph.broadcast_to(self.uop, shape))

    def stack(self, *args: Self, dim: int = 0) -> Self:
        """Tensors of one shape joined along a new axis: one by one, or a list of them.

        Raises ShapeError when shapes differ.

        >>> Tensor([1, 2]).stack(Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        >>> Tensor.stack(Tensor([1, 2]), Tensor([3, 4]), dim=1).tolist()
        [[1, 3], [2, 4]]
        """
        for other in args:
            if other.ndim != self.ndim or not all(map(same_number, self.shape, other.shape)):
                raise ShapeError(f"stack: shapes {self.shape} and {other.shape} differ")
        axis = resolve_axis("stack", dim, self.ndim, extra=1)
        return self.unsqueeze(axis).cat(*[t.unsqueeze(axis) for t in args], dim=axis)

    def split(self, sizes: Ints, dim: int = 0) -> tuple[Self, ...]:
        """Pieces along one axis: of one size (the last may be smaller), or of the sizes listed.

        Raises ArgumentError unless the one size is positive, ShapeError unless those listed add up.

        >>> x = Tensor.arange(5)
        >>> [part.tolist() for part in x.split(2)], [part.tolist() for part in x.split([1, 4])]
        ([[0, 1], [2, 3], [4]], [[0], [1, 2, 3, 4]])
        """
        axis = self._axis_with_size("split", dim)
        length = self.shape[axis]
        if isinstance(sizes, (int, Size)):
            if sizes <= 0:
                raise ArgumentError(f"split: the size of a piece must be positive, got {sizes}")
            before = known_number(-(-max(length, 1) // sizes)) - 1
            sizes = [*[sizes] * before, length - before * sizes]
        sizes = int_arguments("split", sizes)
        if not same_number(sum(sizes), length) or min(sizes, default=0) < 0:
            raise ShapeError(
                f"split: sizes {list(sizes)} do not add up to axis {axis} of shape {self.shape}"
            )
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return tuple([self._between(axis, a, a + n) for a, n in zip(starts, sizes, strict=True)])

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """At most `chunks` pieces of equal size along one axis (the last may be smaller).

        Raises ArgumentError unless that is positive.

        >>> [part.tolist() for part in Tensor.arange(5).chunk(2)]
        [[0, 1, 2], [3, 4]]
        """
        if chunks <= 0:
            raise ArgumentError(f"chunk: the number of pieces must be positive, got {chunks}")
        length = self.shape[self._axis_with_size("chunk", dim)]
        if same_number(length, 0):
            return [self] * chunks
        return list(self.split(-(-length // chunks), dim))


def int_or_none(value: float) -> int | None:
    """The integer a float equals, if any."""
    return int(value) if math.isfinite(value) and value == int(value) else None


def padding_pairs(
    name: str, padding: Sequence[int] | Sequence[Pair | None], shape: Shape
) -> list[Pair]:
    """(before, after) for every axis, from either spelling. Raises ShapeError for a wrong count."""
    rank = len(shape)
    if all(isinstance(p, (int, Size)) for p in padding):
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
            not same_number(a, b)
            for i, (a, b) in enumerate(zip(first, shape, strict=True))
            if i != axis
        ):
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"{name}: shapes {listed} differ on more than axis {axis}")


def concatenate(nodes: Sequence[UOp], axis: int) -> UOp:
    """Nodes side by side: each is padded to the whole, and each place selects its node.

    Not their sum: that would turn -0.0 into 0.0.
    """
    total = sum(n.shape[axis] for n in nodes)
    parts: list[tuple[int, UOp]] = []
    stop = 0
    for node in nodes:
        start, stop = stop, stop + node.shape[axis]
        parts.append((stop, graph.pad(node, along(node, axis, (start, total - stop)))))
    while len(parts) > 1:  # a balanced tree keeps the graph shallow
        paired = [
            (last, before(first_stop, total, left, axis).where(left, right))
            for (first_stop, left), (last, right) in zip(parts[::2], parts[1::2], strict=False)
        ]
        parts = paired + parts[len(paired) * 2 :]
    return parts[0][1]


def before(stop: int, total: int, like: UOp, axis: int) -> UOp:
    """Mask of the elements of `like` before `stop` along an axis of size `total`."""
    shape = tuple([stop if a == axis else n for a, n in enumerate(like.shape)])
    inside = graph.full(shape, dtypes.bool, True, like.device)
    return graph.pad(inside, along(like, axis, (0, total - stop)))


def along(x: UOp, axis: int, pair: Pair) -> list[Pair]:
    """A pair for one axis, (0, 0) for all others."""
    return [pair if a == axis else (0, 0) for a in range(len(x.shape))]
