"""Linear systems by elimination: solve, inverse, determinant, Cholesky factor.

Floor 6. Gauss-Jordan elimination with partial pivoting. Every step is the same graph: after each
one the matrix is rolled, so that the next column comes first, and a step's kernels are compiled
once, whatever the size. The residual of a nearly singular system is larger than that of Gaussian
elimination (Higham, Accuracy and Stability of Numerical Algorithms, 14.4). A matrix that has no
answer (a singular one to be inverted, one that is not positive definite) gives NaN: nothing is
computed before the result is read, so nothing can be raised. Matrices are the last two axes, all
others are a batch. Narrow floats are computed in float32.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, Self

from tinycore.dtype import dtypes, least_upper_dtype
from tinycore.errors import ArgumentTypeError, ShapeError
from tinycore.linalg.decompositions import AnyTensor, Decompositions, identity, wide_matrix
from tinycore.tensor.checks import broadcast_shapes, same_device
from tinycore.tensor.methods.linalg import Linalg
from tinycore.uop.node import UOp


class SignedLogarithm(NamedTuple, Generic[AnyTensor]):
    """A determinant as `slogdet` gives it: sign * exp(logabsdet)."""

    sign: AnyTensor
    logabsdet: AnyTensor


class Elimination(Decompositions):
    """Linear systems."""

    __slots__ = ()

    def solve(self, b: Self) -> Self:
        """The y with a @ y == b.

        a (.., n, n) and b (.., n, m) -> (.., n, m), batches broadcast; b (n,), or of the shape of
        `a` without its last axis, holds vectors: (.., n). Integers become floats. NaN where `a` is
        singular. Raises ShapeError unless `a` is square and the sizes fit.

        >>> a = Tensor([[3.0, 1.0], [1.0, 2.0]])
        >>> a.solve(Tensor([9.0, 8.0])).numpy().round(4)
        array([2., 3.], dtype=float32)
        """
        if not isinstance(b, Linalg):
            raise ArgumentTypeError(f"solve: the right side is {b!r}; Tensor(...) makes one of it")
        same_device("solve", [self.device, b.device])
        a, size = square_matrix(self, "solve"), self.shape[-1]
        target = least_upper_dtype(self._as_float().dtype, b._as_float().dtype)
        vectors = b.ndim == 1 or (b.ndim == self.ndim - 1 and b.shape == self.shape[:-1])
        right = b.unsqueeze(-1) if vectors else b
        if right.ndim < 2 or right.shape[-2] != size:
            raise ShapeError(f"solve: shapes {self.shape} and {b.shape} do not fit together")
        batch = broadcast_shapes("solve", a.shape[:-2], right.shape[:-2])
        wide = least_upper_dtype(target, dtypes.float32)
        a = a.cast(wide).expand((*batch, size, size))
        found = solved(a, right.cast(wide).expand((*batch, *right.shape[-2:]))).cast(target)
        return found.squeeze(-1) if vectors else found

    def inverse(self) -> Self:
        """The inverse of square matrices; NaN for a singular one. Raises ShapeError.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).inverse().tolist()
        [[0.5, 0.0], [0.0, 0.25]]
        """
        x = square_matrix(self, "inverse")
        found = reduce_to_identity(x, identity(x, x.shape[-1], x.shape[-1])).solution
        called = found._called(slope_of_inverse, x)
        return called.cast(self._as_float().dtype)

    def inv(self) -> Self:
        """`inverse` by the name that NumPy and torch.linalg give it.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).inv().tolist()
        [[0.5, 0.0], [0.0, 0.25]]
        """
        return self.inverse()

    def det(self) -> Self:
        """The determinant of square matrices. Raises ShapeError.

        >>> round(Tensor([[1.0, 2.0], [3.0, 4.0]]).det().item(), 4)
        -2.0
        """
        x = square_matrix(self, "det")
        found = reduce_to_identity(x, x._between(x.ndim - 1, 0, 0))
        product = found.pivots.prod(-1) * parity(found.order).cast(x.dtype)
        return product.cast(self._as_float().dtype)

    def slogdet(self) -> SignedLogarithm[Self]:
        """The sign of the determinant, and the logarithm of its magnitude. Raises ShapeError.

        Neither overflows where the determinant does. 0 and -inf of a singular matrix.

        >>> sign, logarithm = (Tensor.eye(50) * -0.001).slogdet()
        >>> sign.item(), round(logarithm.item(), 2)
        (1.0, -345.39)
        """
        x, target = square_matrix(self, "slogdet"), self._as_float().dtype
        found = reduce_to_identity(x, x._between(x.ndim - 1, 0, 0))
        sign = found.pivots.sign().prod(-1) * parity(found.order).cast(x.dtype)
        logarithm = found.pivots.abs().log().sum(-1)
        return SignedLogarithm(sign.cast(target), logarithm.cast(target))

    def logdet(self) -> Self:
        """The logarithm of the determinant; NaN where that is negative. Raises ShapeError.

        >>> round(Tensor([[2.0, 0.0], [0.0, 3.0]]).logdet().exp().item(), 4)
        6.0
        """
        sign, logarithm = self.slogdet()
        return (sign < 0).where(math.nan, logarithm)

    def cholesky(self, upper: bool = False) -> Self:
        """The lower triangle L with L @ L.T the matrix, or its transpose.

        Of symmetric positive definite matrices, whose lower (or upper) triangle alone is read; NaN
        for others. The gradient is symmetric. Raises ShapeError unless they are square.

        >>> Tensor([[4.0, 2.0], [2.0, 5.0]]).cholesky().tolist()
        [[2.0, 0.0], [1.0, 2.0]]
        """
        x = square_matrix(self, "cholesky")
        x = x.transpose(-1, -2) if upper else x
        found = factor(x)._called(slope_of_cholesky, x)
        lower = found.cast(self._as_float().dtype)
        return lower.transpose(-1, -2) if upper else lower


def square_matrix(x: AnyTensor, name: str) -> AnyTensor:
    """Matrices in at least float32. Raises ShapeError unless they are square."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name}: needs square matrices in the last two axes, got shape {x.shape}")
    return wide_matrix(x, name)


# --- gradients


def solved(a: AnyTensor, right: AnyTensor) -> AnyTensor:
    """The solution for operands of one batch, with its gradient."""
    value = reduce_to_identity(a, right).solution
    return value._called(slopes_of_solve, a, right)


def slopes_of_solve(g: UOp, call: UOp) -> list[Elimination]:
    """With y = inverse(a) @ b: db = inverse(a).T @ g and da = -db @ y.T."""
    slope, y, a = (Elimination._from_node(n) for n in (g, call, call.src[1]))
    right = solved(a.transpose(-1, -2), slope)
    return [-right @ y.transpose(-1, -2), right]


def slope_of_inverse(g: UOp, call: UOp) -> list[Elimination]:
    """With y the inverse: -y.T @ g @ y.T."""
    slope, y = (Elimination._from_node(n) for n in (g, call))
    turned = y.transpose(-1, -2)
    return [-turned @ slope @ turned]


def slope_of_cholesky(g: UOp, call: UOp) -> list[Elimination]:
    """The symmetric part of inverse(L).T @ phi(L.T @ g) @ inverse(L).

    phi keeps the lower triangle and half of the diagonal (Murray, Differentiation of the Cholesky
    decomposition, 2016).
    """
    slope, lower = (Elimination._from_node(n) for n in (g, call))
    upper, size = lower.transpose(-1, -2), lower.shape[-1]
    middle = (upper @ slope.tril()).tril()
    middle = identity(lower, size, size).cast(dtypes.bool).where(middle / 2, middle)
    left = solved(upper, middle)
    found = solved(upper, left.transpose(-1, -2))
    return [(found + found.transpose(-1, -2)) / 2]


# --- steps


class Reduced(NamedTuple, Generic[AnyTensor]):
    """Result of reducing a matrix to the identity."""

    pivots: AnyTensor
    """(.., n): the divisor of each column; one is 0 when the matrix is singular."""
    order: AnyTensor
    """(.., n): the row in which each pivot stood."""
    solution: AnyTensor
    """(.., n, m): the matrix's inverse times the right side; NaN when it is singular."""


def reduce_to_identity(x: AnyTensor, right: AnyTensor) -> Reduced[AnyTensor]:
    """Reduce (.., n, n) to the identity, doing the same to a right side (.., n, m).

    In each step the row with the greatest element of the first column, among those not yet used,
    is divided by it, and subtracted from all other rows.
    """
    size, batch = x.shape[-1], x.shape[:-2]
    if not x.numel():
        empty = x.reshape((*batch, size * size))._between(len(batch), 0, 0).expand((*batch, size))
        return Reduced(empty, empty.cast(dtypes.default_int), right)
    table, rows = x.cat(right, dim=-1), x._positions(x.ndim - 2).squeeze(-1)
    used = x.const_like(False, dtypes.bool).any(-1)
    pivots, order = [], []
    for _ in range(size):
        column = table._between(table.ndim - 1, 0, 1)
        place = used.where(-1.0, column.squeeze(-1).detach().abs()).argmax(-1, keepdim=True)
        chosen = rows.eq(place)
        row = picked(table, chosen)
        pivot = row._between(row.ndim - 1, 0, 1)
        row = row / pivot.eq(0).where(1.0, pivot)
        table = chosen.unsqueeze(-1).where(row, table - column * row).roll(-1, -1).contiguous()
        used = (used | chosen).contiguous()
        pivots.append(pivot.squeeze(-1))
        order.append(place)
    found, places = pivots[0].cat(*pivots[1:], dim=-1), order[0].cat(*order[1:], dim=-1)
    wanted = table._between(table.ndim - 1, 0, right.shape[-1])
    solution = wanted.gather(-2, places.unsqueeze(-1).expand(wanted.shape))
    singular = found.eq(0).any(-1).unsqueeze(-1).unsqueeze(-1)
    return Reduced(found, places, singular.where(math.nan, solution))


def picked(table: AnyTensor, chosen: AnyTensor) -> AnyTensor:
    """The one row of (.., n, m) for which (.., n) holds, as (.., 1, m)."""
    return chosen.unsqueeze(-1).where(table, 0.0).sum(-2, keepdim=True)


def parity(order: AnyTensor) -> AnyTensor:
    """1 for an even permutation along the last axis, -1 for an odd one."""
    place = order._positions(order.ndim - 1)
    inversions = (order.unsqueeze(-1) > order.unsqueeze(-2)) & (place.unsqueeze(-1) < place)
    return 1 - inversions.cast(dtypes.int32).sum((-2, -1)) % 2 * 2


def factor(x: AnyTensor) -> AnyTensor:
    """The lower triangle L with L @ L.T equal to a symmetric positive definite (.., n, n).

    Reads the lower triangle only. NaN where the matrix is not positive definite.
    """
    size = x.shape[-1]
    if not x.numel():
        return x
    rest, ahead = x, x._positions(x.ndim - 2) >= 0
    columns = []
    for _ in range(size):
        first = rest._between(rest.ndim - 1, 0, 1)
        pivot = first._between(rest.ndim - 2, 0, 1)
        column = ahead.where(first / pivot.sqrt(), 0.0)
        columns.append(column.contiguous())
        rest = (rest - column * column.transpose(-1, -2)).roll((-1, -1), (-2, -1)).contiguous()
        below = ahead._positions(ahead.ndim - 2) > 0
        ahead = (ahead & below).roll(-1, -2).contiguous()
    rolled = columns[0].cat(*columns[1:], dim=-1)
    turned = (x._positions(x.ndim - 2) - x._positions(x.ndim - 1)) % size
    return rolled.gather(-2, turned.expand(x.shape))
