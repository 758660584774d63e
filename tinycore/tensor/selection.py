"""Picking and placing by index tensors along an axis, triangles, one-hot.

Floor 5. `gather` and `scatter` follow torch: `index` runs beside the tensor and names positions
along one axis.
"""

from __future__ import annotations

from typing import Final, Literal, Self

from tinycore.dtype import DTypeLike, Scalar, dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import integer_dtype, resolve_axis
from tinycore.tensor.indexing import Indexing
from tinycore.uop.op import Op, neutral_element

Reduction = Literal["sum", "prod", "mean", "amax", "amin"]

FOLDS: Final[dict[Reduction, Op]] = {
    "sum": Op.ADD,
    "prod": Op.MUL,
    "mean": Op.ADD,
    "amax": Op.MAX,
    "amin": Op.MIN,
}
"""The op each reduction of `scatter_reduce` folds by."""


class Selection(Indexing):
    """Index tensors along an axis."""

    __slots__ = ()

    # --- triangles

    def tril(self, diagonal: int = 0) -> Self:
        """The last two axes with zeros above a diagonal."""
        return self.upper_part(diagonal + 1).where(self.const_like(0), self)

    def triu(self, diagonal: int = 0) -> Self:
        """The last two axes with zeros below a diagonal."""
        return self.upper_part(diagonal).where(self, self.const_like(0))

    def upper_part(self, diagonal: int) -> Self:
        """Whether an element of the last two axes is on or above a diagonal.

        Raises ShapeError below two axes.
        """
        if self.ndim < 2:
            raise ShapeError(f"tril, triu: need two axes, got shape {self.shape}")
        rows, columns = (
            self.from_uop(graph.arange(n, dtypes.int32, self.device)) for n in self.shape[-2:]
        )
        return columns - rows.unsqueeze(1) >= diagonal

    # --- one-hot

    def one_hot(self, num_classes: int, dtype: DTypeLike | None = None) -> Self:
        """1 at the position an integer names along a new last axis, 0 elsewhere.

        Raises DTypeError for floats.
        """
        integer_dtype("one_hot", self.dtype)
        return self.hot(num_classes).cast(dtypes.default_int if dtype is None else dtype)

    def hot(self, num_classes: int) -> Self:
        """`one_hot` as bools."""
        numbers = self.from_uop(graph.arange(num_classes, dtypes.default_int, self.device))
        return self.unsqueeze(-1).eq(numbers)

    # --- gather and scatter

    def gather(self, dim: int, index: Self) -> Self:
        """out[i, j] = a[index[i, j], j] for dim 0, likewise for others.

        0 where an index is out of range. Raises ShapeError when `index` has other axes, or is
        larger than the tensor outside `dim`.
        """
        axis, index = self.beside("gather", dim, index)
        x = self.from_uop(graph.shrink(self.uop, box_of(self, index, axis)))
        last = x.movedim(axis, -1).unsqueeze(-2)
        hot = index.movedim(axis, -1).hot(self.shape[axis])
        picked = hot.where(last, 0)
        folded = picked.max(-1) if self.dtype is dtypes.bool else picked.sum(-1, dtype=self.dtype)
        return folded.movedim(-1, axis)

    def beside(self, name: str, dim: int, index: Self) -> tuple[int, Self]:
        """The axis, and the index tensor with negative positions counted from the end."""
        integer_dtype(name, index.dtype, "index")
        axis = resolve_axis(name, dim, self.ndim)
        fits = all(
            n <= m
            for a, (n, m) in enumerate(zip(index.shape, self.shape, strict=False))
            if a != axis
        )
        if index.ndim != self.ndim or not fits:
            raise ShapeError(
                f"{name}: an index of shape {index.shape} does not run beside shape {self.shape} "
                f"along axis {axis}"
            )
        index = index.from_uop(graph.on_device(index.uop, self.device))
        if dtypes.is_unsigned(index.dtype):
            return axis, index
        return axis, (index < 0).where(index + self.shape[axis], index)

    def scatter(
        self,
        dim: int,
        index: Self,
        src: Self | Scalar,
        reduce: Literal["multiply", "add"] | None = None,
    ) -> Self:
        """This tensor with src[i, j] written to [index[i, j], j] for dim 0.

        Or added, or multiplied, to what is there. Where an index repeats, the last one wins. Raises
        ShapeError as `gather` does.
        """
        if reduce not in (None, "add", "multiply"):
            raise ArgumentError(f"scatter: reduce {reduce!r} is none of None, 'add', 'multiply'")
        if reduce is not None:
            source = src if isinstance(src, Selection) else index.const_like(src, self.dtype)
            return self.scatter_reduce(dim, index, source, "sum" if reduce == "add" else "prod")
        axis, hot, values = self.aligned("scatter", dim, index, src)
        order = self.from_uop(graph.arange(hot.shape[-1], dtypes.default_int, self.device)) + 1
        last = hot.where(order, 0).max(-1, keepdim=True)
        winner = hot & order.eq(last)
        zero = values.const_like(0)
        picked = winner.where(values, zero)
        new = picked.max(-1) if self.dtype is dtypes.bool else picked.sum(-1, dtype=self.dtype)
        return self.in_place(
            axis, (last.squeeze(-1) > 0).where(new, self.movedim(axis, -1).trimmed(new)), new
        )

    def scatter_reduce(
        self, dim: int, index: Self, src: Self, reduce: Reduction, include_self: bool = True
    ) -> Self:
        """This tensor with every src[i, j] folded into [index[i, j], j] for dim 0.

        What was there counts unless `include_self` is false.
        """
        if reduce not in FOLDS:
            raise ArgumentError(f"scatter_reduce: reduce {reduce!r} is none of {', '.join(FOLDS)}")
        axis, hot, values = self.aligned("scatter_reduce", dim, index, src)
        neutral = neutral_element(FOLDS[reduce], self.dtype)
        filled = hot.where(values, values.const_like(neutral))
        old = self.movedim(axis, -1).trimmed(filled.squeeze_last())
        hit, count = hot.any(-1), hot.sum(-1)
        base = old if include_self else hit.where(old.const_like(neutral), old)
        if reduce in ("sum", "mean"):
            new = base + filled.sum(-1, dtype=self.dtype)
            if reduce == "mean":
                total = count + 1 if include_self else hit.where(count, 1)
                new = new.div(
                    total, rounding_mode=None if dtypes.is_float(self.dtype) else "floor"
                ).cast(self.dtype)
        elif reduce == "prod":
            new = base * filled.prod(-1, dtype=self.dtype)
        else:
            new = base.maximum(filled.max(-1)) if reduce == "amax" else base.minimum(filled.min(-1))
        return self.in_place(axis, new, new)

    def squeeze_last(self) -> Self:
        """The first element of the last axis, without the axis: for its shape."""
        return self.between(self.ndim - 1, 0, 1).squeeze(-1)

    def aligned(
        self, name: str, dim: int, index: Self, src: Self | Scalar
    ) -> tuple[int, Self, Self]:
        """(axis, which source s goes to target t, the sources) with last axes [.., t, s]."""
        axis, index = self.beside(name, dim, index)
        source = src if isinstance(src, Selection) else index.const_like(src, self.dtype)
        if source.dtype is not self.dtype:
            source = source.cast(self.dtype)
        if source.ndim != index.ndim or any(
            n < m for n, m in zip(source.shape, index.shape, strict=True)
        ):
            raise ShapeError(
                f"{name}: a source of shape {source.shape} does not cover the index of shape "
                f"{index.shape}"
            )
        source = source.shrink([(0, n) for n in index.shape])
        numbers = self.from_uop(graph.arange(self.shape[axis], index.dtype, self.device)).unsqueeze(
            -1
        )
        hot = index.movedim(axis, -1).unsqueeze(-2).eq(numbers)
        return axis, hot, source.movedim(axis, -1).unsqueeze(-2)

    def trimmed(self, like: Self) -> Self:
        """The corner of this tensor with the shape of another."""
        return self.shrink([(0, n) for n in like.shape])

    def in_place(self, axis: int, corner: Self, like: Self) -> Self:
        """This tensor with a corner replaced, whose axis `axis` comes last."""
        moved = self.movedim(axis, -1)
        if corner.shape == moved.shape:
            return corner.movedim(-1, axis)
        pairs = [(0, n - m) for n, m in zip(moved.shape, like.shape, strict=True)]
        inside = corner.from_uop(graph.pad(graph.full_like(corner.uop, True, dtypes.bool), pairs))
        return inside.where(corner.from_uop(graph.pad(corner.uop, pairs)), moved).movedim(-1, axis)


def box_of(x: Selection, index: Selection, axis: int) -> list[tuple[int, int]]:
    """The part of `x` that an index can reach: all of its axis, the index's size of the others."""
    return [
        (0, n if a == axis else m)
        for a, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))
    ]
