"""Gather, scatter and masks: selection by index tensors, triangles, one-hot.

Floor 5. `gather` and `scatter` follow torch: `index` runs beside the tensor and names positions
along one axis.
"""

from __future__ import annotations

from typing import Final, Literal, Self

from tinycore.dtype import DTypeLike, Scalar, dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import counter_dtype, integer_dtype, same_device
from tinycore.tensor.methods.indexing import Indexing
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


BOOL_FOLDS: Final = {Op.ADD: Op.MAX, Op.MUL: Op.MIN, Op.MAX: Op.MAX, Op.MIN: Op.MIN}
"""Reductions of bools: a sum is or, a product is and."""


class Selection(Indexing):
    """Index tensors along an axis."""

    __slots__ = ()

    # --- triangles

    def tril(self, diagonal: int = 0) -> Self:
        """The last two axes with zeros above a diagonal. Raises ShapeError below two axes.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).tril().tolist()
        [[1, 0, 0], [4, 5, 0]]
        >>> Tensor([[1, 2, 3], [4, 5, 6]]).tril(1).tolist()
        [[1, 2, 0], [4, 5, 6]]
        """
        return self._upper_part(diagonal + 1).where(self.const_like(0), self)

    def triu(self, diagonal: int = 0) -> Self:
        """The last two axes with zeros below a diagonal. Raises ShapeError below two axes.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).triu().tolist()
        [[1, 2, 3], [0, 5, 6]]
        """
        return self._upper_part(diagonal).where(self, self.const_like(0))

    def _upper_part(self, diagonal: int) -> Self:
        """True where an element of the last two axes is on or above a diagonal.

        Raises ShapeError below two axes.
        """
        if self.ndim < 2:
            raise ShapeError(f"tril, triu: need two axes, got shape {self.shape}")
        rows, columns = (
            self._from_node(graph.arange(n, dtypes.int32, self.device)) for n in self.shape[-2:]
        )
        return columns - rows.unsqueeze(1) >= diagonal

    # --- one-hot

    def one_hot(self, num_classes: int, dtype: DTypeLike | None = None) -> Self:
        """1 at the position an integer names along a new last axis, 0 elsewhere.

        Zeros for an integer that names none. Raises DTypeError for floats.

        >>> Tensor([2, 0]).one_hot(3).tolist()
        [[0, 0, 1], [1, 0, 0]]
        """
        integer_dtype("one_hot", self.dtype)
        if num_classes < 0:
            raise ArgumentError(f"one_hot: the number of classes is negative: {num_classes}")
        return self._hot(num_classes).cast(dtypes.default_int if dtype is None else dtype)

    def _hot(self, num_classes: int) -> Self:
        """`one_hot` as bools."""
        numbers = self._from_node(
            graph.arange(num_classes, counter_dtype(num_classes), self.device)
        )
        return self.unsqueeze(-1).eq(numbers)

    # --- gather and scatter

    def gather(self, dim: int, index: Self) -> Self:
        """out[i, j] = a[index[i, j], j] for dim 0, likewise for others.

        0 where an index is out of range. Raises ShapeError when `index` has other axes, or is
        larger than the tensor outside `dim`.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x.gather(1, Tensor([[2, 0], [1, -1]])).tolist()
        [[3, 1], [5, 6]]
        """
        axis, index = self._beside("gather", dim, index)
        return self._from_node(graph.take(self.uop, index.uop, axis))

    def _beside(self, name: str, dim: int, index: Self) -> tuple[int, Self]:
        """The axis, and the index tensor with negative positions counted from the end."""
        integer_dtype(name, index.dtype, "index")
        axis = self._axis_with_size(name, dim)
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
        index = index._from_node(graph.on_device(index.uop, self.device))
        same_device(name, [self.device, index.device])
        if dtypes.is_unsigned(index.dtype):
            return axis, index
        if index.dtype.itemsize < 4:  # in which the size of the axis need not fit
            index = index.cast(dtypes.int32)
        return axis, (index < 0).where(index + self.shape[axis], index)

    def scatter(
        self,
        dim: int,
        index: Self,
        src: Self | Scalar,
        reduce: Literal["multiply", "add"] | None = None,
    ) -> Self:
        """This tensor with src[i, j] written to [index[i, j], j] for dim 0.

        With `reduce` added to the old element, or multiplied with it. If an index repeats, the last
        one wins; if it is out of range, nothing is written. Raises ShapeError as `gather` does, and
        when `src` does not cover the index; ArgumentError for another `reduce`.

        >>> zeros, index = Tensor.zeros(1, 4, dtype="int32"), Tensor([[3, 0]])
        >>> zeros.scatter(1, index, Tensor([[7, 8]])).tolist(), zeros.scatter(1, index, 5).tolist()
        ([[8, 0, 0, 7]], [[5, 0, 0, 5]])
        >>> Tensor([[1, 2]]).scatter(1, Tensor([[1, 1]]), Tensor([[10, 20]]), reduce="add").tolist()
        [[1, 32]]
        """
        if reduce not in (None, "add", "multiply"):
            raise ArgumentError(f"scatter: reduce {reduce!r} is none of None, 'add', 'multiply'")
        if reduce is not None:
            source = src if isinstance(src, Selection) else index.const_like(src, self.dtype)
            return self.scatter_reduce(dim, index, source, "sum" if reduce == "add" else "prod")
        axis, index, source = self._aligned("scatter", dim, index, src)
        return self._folded_in(axis, index, source, None)

    def scatter_reduce(
        self, dim: int, index: Self, src: Self, reduce: Reduction, include_self: bool = True
    ) -> Self:
        """This tensor with every src[i, j] folded into [index[i, j], j] for dim 0.

        The old element takes part unless `include_self` is false. Raises as `scatter` does.

        >>> x, index, new = Tensor([1, 2]), Tensor([0, 0, 1]), Tensor([5, 9, 0])
        >>> x.scatter_reduce(0, index, new, "amax").tolist()
        [9, 2]
        >>> x.scatter_reduce(0, index, new, "sum", include_self=False).tolist()
        [14, 0]
        """
        if reduce not in FOLDS:
            raise ArgumentError(f"scatter_reduce: reduce {reduce!r} is none of {', '.join(FOLDS)}")
        axis, index, source = self._aligned("scatter_reduce", dim, index, src)
        op, start = FOLDS[reduce], self
        if self.dtype is dtypes.bool:
            op = BOOL_FOLDS[op]
        if not include_self:
            neutral = source.const_like(neutral_element(op, self.dtype))
            start = self._folded_in(axis, index, neutral, None)
        result = start._folded_in(axis, index, source, op)
        if reduce != "mean" or self.dtype is dtypes.bool:
            return result
        counts = self.const_like(int(include_self), counter_dtype(index.numel()))
        counts = counts._folded_in(axis, index, source.const_like(1, counts.dtype), Op.ADD)
        rounding: Literal["floor"] | None = None if dtypes.is_float(self.dtype) else "floor"
        return result.div(counts.maximum(1), rounding_mode=rounding).cast(self.dtype)

    def _folded_in(self, axis: int, index: Self, source: Self, op: Op | None) -> Self:
        """This tensor after SCATTER to the corner that the index covers."""
        corner = graph.shrink(self.uop, box_of(self, index, axis))
        changed = graph.scatter(corner, index.uop, source.uop, op, axis)
        return self._from_node(graph.value(graph.insert(self.uop, corner, changed)))

    def _aligned(
        self, name: str, dim: int, index: Self, src: Self | Scalar
    ) -> tuple[int, Self, Self]:
        """(axis, index, sources), the last two of one shape. Raises ShapeError."""
        axis, index = self._beside(name, dim, index)
        source = src if isinstance(src, Selection) else index.const_like(src, self.dtype)
        if source.ndim != index.ndim or any(
            n < m for n, m in zip(source.shape, index.shape, strict=True)
        ):
            raise ShapeError(
                f"{name}: a source of shape {source.shape} does not cover the index of shape "
                f"{index.shape}"
            )
        return axis, index, source.cast(self.dtype).shrink([(0, n) for n in index.shape])


def box_of(x: Selection, index: Selection, axis: int) -> list[tuple[int, int]]:
    """The box of `x` that an index can reach: all of its axis, the index's size of the others."""
    return [
        (0, n if a == axis else m)
        for a, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))
    ]
