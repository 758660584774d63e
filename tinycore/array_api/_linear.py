"""Products of arrays, which are both in the namespace and in its linear algebra extension.

Floor 6. Integers keep their common dtype and wrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinycore.array_api._promotion import array, promote_operands
from tinycore.errors import ArgumentError
from tinycore.tensor import Tensor
from tinycore.tensor.checks import resolve_axis, same_size

__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product: (.., m, k) and (.., k, n) -> (.., m, n).

    A vector stands for a row on the left, a column on the right. Raises ShapeError for arrays with
    no axes, and when the inner sizes differ.
    """
    left, right = promote_operands("matmul", "numeric", array("matmul", x1), array("matmul", x2))
    return left.dot(right)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes exchanged. Raises ShapeError below two axes."""
    return array("matrix_transpose", x).mT


def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """The product summed over pairs of axes: the last of `x1` with the first of `x2`, or those
    listed. Raises ShapeError when their sizes differ.
    """
    left, right = promote_operands(
        "tensordot", "numeric", array("tensordot", x1), array("tensordot", x2)
    )
    if isinstance(axes, int):
        axes = (range(left.ndim - axes, left.ndim), range(axes))
    first, second = (
        [resolve_axis("tensordot", a, x.ndim) for a in listed]
        for x, listed in zip((left, right), axes, strict=True)
    )
    same_size("tensordot", "the numbers of axes", len(first), len(second), x1.shape, x2.shape)
    for a, b in zip(first, second, strict=True):
        same_size("tensordot", "summed axes", x1.shape[a], x2.shape[b], x1.shape, x2.shape)
    rows = [a for a in range(left.ndim) if a not in first]
    columns = [a for a in range(right.ndim) if a not in second]
    shape = [*[left.shape[a] for a in rows], *[right.shape[a] for a in columns]]
    inner = math.prod(left.shape[a] for a in first)
    height, width = (
        math.prod(x.shape[a] for a in kept) for x, kept in ((left, rows), (right, columns))
    )
    product = left.permute([*rows, *first]).reshape((height, inner))
    return product.dot(right.permute([*second, *columns]).reshape((inner, width))).reshape(shape)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sum of products along an axis, counted from the end; the others are broadcast.

    Raises ArgumentError for an axis that is not, ShapeError when its sizes differ.
    """
    left, right = promote_operands("vecdot", "numeric", array("vecdot", x1), array("vecdot", x2))
    from_the_end("vecdot", axis, x1, x2)
    same_size("vecdot", "summed axes", x1.shape[axis], x2.shape[axis], x1.shape, x2.shape)
    return (left * right).sum(axis).cast(left.dtype)


def from_the_end(name: str, axis: int, *operands: Tensor) -> None:
    """Raises ArgumentError unless an axis is counted from the end, and each operand has it."""
    least = -min(x.ndim for x in operands)
    if not least <= axis < 0:
        listed = " and ".join(str(x.shape) for x in operands)
        raise ArgumentError(f"{name}: axis {axis} is outside [{least}, -1] of shapes {listed}")
