"""The linear algebra extension: `tinycore.array_api.linalg`.

Floor 6. Matrices are the last two axes, all others are a batch. A matrix that has no answer (a
singular one to be inverted, one that is not positive definite) gives NaN: nothing is computed
before the result is read, so nothing can be raised.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from tinycore.array_api import statistical
from tinycore.array_api._linear import from_the_end, matmul, matrix_transpose, tensordot, vecdot
from tinycore.array_api._promotion import array, promote_operands
from tinycore.dtype import DType
from tinycore.errors import ShapeError
from tinycore.linalg.elimination import SignedLogarithm
from tinycore.linalg.spectral import Eigen, MatrixNorm
from tinycore.tensor import Tensor
from tinycore.tensor.checks import resolve_axes

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

Axes = int | tuple[int, ...] | None


class Orthogonal(NamedTuple):
    """Result of `qr`: Q @ R is the matrix."""

    Q: Tensor
    R: Tensor


class Singular(NamedTuple):
    """Result of `svd`: U * S @ Vh is the matrix."""

    U: Tensor
    S: Tensor
    Vh: Tensor


# --- products


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three along an axis, counted from the end.

    Raises ArgumentError for an axis that is not, ShapeError for another size.
    """
    left, right = promote_operands("cross", "numeric", array("cross", x1), array("cross", x2))
    from_the_end("cross", axis, x1, x2)
    if (x1.shape[axis], x2.shape[axis]) != (3, 3):
        raise ShapeError(f"cross: axis {axis} of shapes {x1.shape} and {x2.shape} must have size 3")
    left, right = left._broadcasted("cross", right)
    turned = [x.roll(shift, axis) for x, shift in ((left, -1), (right, 1), (left, 1), (right, -1))]
    return turned[0] * turned[1] - turned[2] * turned[3]


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The product of every element of one vector with every element of another.

    Raises ShapeError unless both have one axis.
    """
    left, right = promote_operands("outer", "numeric", array("outer", x1), array("outer", x2))
    if left.ndim != 1 or right.ndim != 1:
        raise ShapeError(f"outer: needs vectors, got shapes {left.shape} and {right.shape}")
    return left.unsqueeze(1) * right


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The matrix multiplied n times by itself; its inverse for n < 0. Raises ShapeError."""
    return array("matrix_power", x, "floating-point" if n < 0 else "numeric").matrix_power(n)


# --- diagonals


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The elements [.., i, i + offset] as the last axis. Raises ShapeError below two axes."""
    if array("diagonal", x).ndim < 2:
        raise ShapeError(f"diagonal: needs two axes, got shape {x.shape}")
    return x.diagonal(offset, -2, -1)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """The sum of a diagonal, in `dtype` if that is given."""
    return statistical.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


# --- equations


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The y with x1 @ y == x2, where `x2` is a vector or a batch of matrices.

    Raises ShapeError unless `x1` is square and the sizes fit.
    """
    left, right = promote_operands(
        "solve", "floating-point", array("solve", x1), array("solve", x2)
    )
    if right.ndim > 1 and right.ndim < left.ndim:  # Tensor.solve might take it for vectors
        right = right.reshape((*[1] * (left.ndim - right.ndim), *right.shape))
    return left.solve(right)


def inv(x: Tensor, /) -> Tensor:
    """The inverse of square matrices. Raises ShapeError."""
    return array("inv", x, "floating-point").inv()


def det(x: Tensor, /) -> Tensor:
    """The determinant of square matrices. Raises ShapeError."""
    return array("det", x, "floating-point").det()


def slogdet(x: Tensor, /) -> SignedLogarithm[Tensor]:
    """The sign of the determinant, and the logarithm of its magnitude. Raises ShapeError."""
    return array("slogdet", x, "floating-point").slogdet()


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangle L with L @ L.T == x for symmetric positive definite matrices, or its transpose.

    Raises ShapeError unless they are square.
    """
    return array("cholesky", x, "floating-point").cholesky(upper)


# --- factors


def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> Orthogonal:
    """Q with orthonormal columns and an upper triangle R with Q @ R == x.

    (.., m, n) -> (.., m, k) and (.., k, n) with k = min(m, n); k = m if `mode` is "complete".
    Raises ShapeError below two axes, ArgumentError for another mode.
    """
    return Orthogonal(*array("qr", x, "floating-point").qr(mode))


def svd(x: Tensor, /, *, full_matrices: bool = True) -> Singular:
    """Orthonormal U and Vh, and descending S >= 0, with U * S @ Vh == x.

    (.., m, n) -> (.., m, m), (.., k), (.., n, n) with k = min(m, n); without `full_matrices` as
    many columns of U and rows of Vh. Raises ShapeError below two axes.
    """
    return Singular(*array("svd", x, "floating-point").svd(full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    """The singular values of matrices, descending. Raises ShapeError below two axes."""
    return array("svdvals", x, "floating-point").svdvals()


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Rank: the number of singular values greater than `rtol` times the greatest.

    `rtol` is by default the dtype's epsilon times the greater side. Raises ShapeError below two
    axes.
    """
    return array("matrix_rank", x, "floating-point").matrix_rank(rtol)


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The pseudo-inverse: singular values up to `rtol` times the greatest count as 0.

    `rtol` is by default the dtype's epsilon times the greater side. Raises ShapeError below two
    axes.
    """
    return array("pinv", x, "floating-point").pinv(rtol)


def eigh(x: Tensor, /) -> Eigen[Tensor]:
    """The eigenvalues of symmetric matrices, ascending, and orthonormal eigenvectors as columns.

    Raises ShapeError unless square.
    """
    return array("eigh", x, "floating-point").eigh()


def eigvalsh(x: Tensor, /) -> Tensor:
    """The eigenvalues of symmetric matrices, ascending. Raises ShapeError unless square."""
    return array("eigvalsh", x, "floating-point").eigvalsh()


# --- norms


def vector_norm(
    x: Tensor,
    /,
    *,
    axis: Axes = None,
    keepdims: bool = False,
    ord: float = 2,  # noqa: A002
) -> Tensor:
    """The p-norm over axes for p = `ord`: inf and -inf give extremes, 0 counts what is nonzero."""
    axes = resolve_axes("vector_norm", axis, array("vector_norm", x, "floating-point").ndim)
    if ord == math.inf and not x.numel():
        return x.sum(axes, keepdims)
    return x.norm(float(ord), axes, keepdims)


def matrix_norm(
    x: Tensor,
    /,
    *,
    keepdims: bool = False,
    ord: MatrixNorm = "fro",  # noqa: A002
) -> Tensor:
    """The norm of matrices, of which `ord` says which one.

    "fro" is of all elements; 1 and -1 are by columns, inf and -inf by rows; 2, -2 and "nuc" the
    greatest, the least and the sum of singular values. Raises ArgumentError for another.
    """
    return array("matrix_norm", x, "floating-point").matrix_norm(ord, keepdims)
