"""Padding, joining and cutting.

Floor 5. Tensors are joined in their common dtype: each is padded to the whole, and the whole is
their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

from tinycore.dtype import Scalar, dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import int_arguments, resolve_axis, same_device, spread
from tinycore.tensor.movement import Movement, optional_sizes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import Shape

Ints = int | Sequence[int]
PadMode = Literal["constant", "reflect", "replicate", "circular"]


class Joining(Movement):
    """Making tensors larger, and cutting them up."""

    __slots__ = ()

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


def int_or_none(value: float) -> int | None:
    """The integer a float equals, if any."""
    return int(value) if math.isfinite(value) and value == int(value) else None


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
