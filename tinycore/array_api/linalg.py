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
from tinycore.array_api._promotion import array, together
from tinycore.array_api._solving import factor, parity, reduced, square
from tinycore.array_api.creation import eye
from tinycore.array_api.data_types import finfo
from tinycore.array_api.searching import count_nonzero
from tinycore.dtype import DType
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import Tensor
from tinycore.tensor.checks import broadcast_shapes, resolve_axes

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

Axes = int | tuple[int, ...] | None


class SignedLogarithm(NamedTuple):
    """What `slogdet` finds."""

    sign: Tensor
    logabsdet: Tensor


class Orthogonal(NamedTuple):
    """What `qr` finds: Q @ R is the matrix."""

    Q: Tensor
    R: Tensor


class Singular(NamedTuple):
    """What `svd` finds: U * S @ Vh is the matrix."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigen(NamedTuple):
    """What `eigh` finds: eigenvector i is column i."""

    eigenvalues: Tensor
    eigenvectors: Tensor


# --- products


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three along an axis, counted from the end.

    Raises ArgumentError for an axis that is not, ShapeError for another size.
    """
    left, right = together("cross", "numeric", array("cross", x1), array("cross", x2))
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
    left, right = together("outer", "numeric", array("outer", x1), array("outer", x2))
    if left.ndim != 1 or right.ndim != 1:
        raise ShapeError(f"outer: needs vectors, got shapes {left.shape} and {right.shape}")
    return left.unsqueeze(1) * right


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The matrix multiplied n times by itself; its inverse for n < 0. Raises ShapeError."""
    size = square("matrix_power", array("matrix_power", x, "numeric"))
    base = inv(x) if n < 0 else x
    result = eye(size, dtype=x.dtype, device=x.device).expand(x.shape)
    for bit in f"{abs(n):b}" if n else "":
        result = result.dot(result)
        result = result.dot(base) if bit == "1" else result
    return result


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
    left, right = together("solve", "floating-point", array("solve", x1), array("solve", x2))
    size, vector = square("solve", left), right.ndim == 1
    right = right.unsqueeze(-1) if vector else right
    if right.ndim < 2 or right.shape[-2] != size:
        raise ShapeError(f"solve: shapes {x1.shape} and {x2.shape} do not fit together")
    batch = broadcast_shapes("solve", left.shape[:-2], right.shape[:-2])
    right = right.expand((*batch, *right.shape[-2:]))
    found = reduced(left.expand((*batch, size, size)), right).solution
    return found.squeeze(-1) if vector else found


def inv(x: Tensor, /) -> Tensor:
    """The inverse of square matrices. Raises ShapeError."""
    size = square("inv", array("inv", x, "floating-point"))
    return reduced(x, eye(size, dtype=x.dtype, device=x.device).expand(x.shape)).solution


def det(x: Tensor, /) -> Tensor:
    """The determinant of square matrices. Raises ShapeError."""
    square("det", array("det", x, "floating-point"))
    found = reduced(x, x._between(x.ndim - 1, 0, 0))
    return found.pivots.prod(-1) * parity(found.order).cast(x.dtype)


def slogdet(x: Tensor, /) -> SignedLogarithm:
    """The sign of the determinant, and the logarithm of its magnitude. Raises ShapeError."""
    square("slogdet", array("slogdet", x, "floating-point"))
    found = reduced(x, x._between(x.ndim - 1, 0, 0))
    sign = found.pivots.sign().prod(-1) * parity(found.order).cast(x.dtype)
    return SignedLogarithm(sign, found.pivots.abs().log().sum(-1))


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangle L with L @ L.T == x for symmetric positive definite matrices, or its transpose.

    Raises ShapeError unless they are square.
    """
    square("cholesky", array("cholesky", x, "floating-point"))
    lower = factor(x.transpose(-1, -2) if upper else x)
    return lower.transpose(-1, -2) if upper else lower


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
    return svd(x, full_matrices=False).S


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """How many singular values are greater than `rtol` times the greatest.

    `rtol` is by default the dtype's epsilon times the greater side. Raises ShapeError below two
    axes.
    """
    values = svdvals(x)
    return count_nonzero(values > least_value(x, values, rtol), axis=-1)


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The pseudo-inverse: singular values up to `rtol` times the greatest count as 0.

    `rtol` is by default the dtype's epsilon times the greater side. Raises ShapeError below two
    axes.
    """
    u, values, vh = svd(x, full_matrices=False)
    kept = values > least_value(x, values, rtol)
    inverse = kept.where(kept.where(values, 1.0).reciprocal(), 0.0)
    return (vh.mT * inverse.unsqueeze(-2)).dot(u.mT)


def least_value(x: Tensor, values: Tensor, rtol: float | Tensor | None) -> Tensor:
    """The singular value up to which others count as 0, of each matrix, as (.., 1)."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * finfo(x.dtype).eps
    relative = rtol.unsqueeze(-1) if isinstance(rtol, Tensor) else rtol
    return values._between(values.ndim - 1, 0, min(1, values.shape[-1])) * relative


def eigh(x: Tensor, /) -> Eigen:
    """The eigenvalues of symmetric matrices, ascending, and orthonormal eigenvectors as columns.

    Moved by its norm the matrix has no negative eigenvalue, so that its singular vectors are the
    eigenvectors. Accurate to rounding of the greatest eigenvalue. Raises ShapeError unless square.
    """
    size = square("eigh", array("eigh", x, "floating-point"))
    shift = matrix_norm(x.detach(), keepdims=True)
    found = svd(x + eye(size, dtype=x.dtype, device=x.device) * shift)
    return Eigen((found.S - shift.squeeze(-1)).flip(-1), found.U.flip(-1))


def eigvalsh(x: Tensor, /) -> Tensor:
    """The eigenvalues of symmetric matrices, ascending. Raises ShapeError unless square."""
    return eigh(x).eigenvalues


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
    size = x.abs()
    if ord == math.inf:
        return size.max(axes, keepdims) if x.numel() else size.sum(axes, keepdims)
    if ord == -math.inf:
        return size.min(axes, keepdims)
    if ord == 0:
        return x.ne(0).sum(axes, keepdims).cast(x.dtype)
    if ord == 1:
        return size.sum(axes, keepdims)
    if ord == 2:
        return x.square().sum(axes, keepdims).sqrt()
    return size.pow(float(ord)).sum(axes, keepdims).pow(1 / ord)


def matrix_norm(
    x: Tensor,
    /,
    *,
    keepdims: bool = False,
    ord: float | Literal["fro", "nuc"] | None = "fro",  # noqa: A002
) -> Tensor:
    """The norm of matrices, of which `ord` says which one.

    "fro" is of all elements; 1 and -1 are by columns, inf and -inf by rows; 2, -2 and "nuc" the
    greatest, the least and the sum of singular values. Raises ArgumentError for another.
    """
    if array("matrix_norm", x, "floating-point").ndim < 2:
        raise ShapeError(f"matrix_norm: needs two axes, got shape {x.shape}")
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in (1, -1, math.inf, -math.inf):
        found = x.abs().sum(-2 if ord in (1, -1) else -1, keepdim=True)
    elif ord in (2, -2, "nuc"):
        found = svdvals(x).unsqueeze(-1)
    else:
        raise ArgumentError(
            f"matrix_norm: ord {ord!r} is none of fro, nuc, 1, -1, 2, -2, inf, -inf"
        )
    if ord == "nuc":
        return found.sum((-2, -1), keepdims)
    return found.max((-2, -1), keepdims) if float(ord) > 0 else found.min((-2, -1), keepdims)
