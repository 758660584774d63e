"""Elimination: what solving, inverses, determinants and Cholesky's factor are computed by.

Floor 6. Matrices are the last two axes; all others are a batch. Every step is the same graph: after
each one the matrix is rolled, so that the next column comes first. A step's kernels are therefore
compiled once, whatever the size. Gradients flow through the steps.

Gauss and Jordan's method with partial pivoting; its errors are those of elimination, but for the
residual of nearly singular systems (Higham, Accuracy and Stability of Numerical Algorithms, 14.4).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tinycore.array_api.searching import take_along_axis
from tinycore.dtype import dtypes
from tinycore.errors import ShapeError
from tinycore.tensor import Tensor


class Reduced(NamedTuple):
    """What reducing a matrix to the identity finds."""

    pivots: Tensor
    """(.., n): what each column was divided by; one is 0 when the matrix is singular."""
    order: Tensor
    """(.., n): the row in which each pivot stood."""
    solution: Tensor
    """(.., n, m): the matrix's inverse times the right side; NaN when it is singular."""


def square(name: str, x: Tensor) -> int:
    """The size of a square matrix. Raises ShapeError for another shape."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name}: needs square matrices in the last two axes, got {x.shape}")
    return x.shape[-1]


def reduced(x: Tensor, right: Tensor) -> Reduced:
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
    solution = take_along_axis(table, places.unsqueeze(-1), axis=-2)
    solution = solution._between(solution.ndim - 1, 0, right.shape[-1])
    singular = found.eq(0).any(-1).unsqueeze(-1).unsqueeze(-1)
    return Reduced(found, places, singular.where(math.nan, solution))


def picked(table: Tensor, chosen: Tensor) -> Tensor:
    """The one row of (.., n, m) for which (.., n) holds, as (.., 1, m)."""
    return chosen.unsqueeze(-1).where(table, 0.0).sum(-2, keepdim=True)


def parity(order: Tensor) -> Tensor:
    """1 for an even permutation along the last axis, -1 for an odd one."""
    place = order._positions(order.ndim - 1)
    inversions = (order.unsqueeze(-1) > order.unsqueeze(-2)) & (place.unsqueeze(-1) < place)
    return 1 - inversions.cast(dtypes.int32).sum((-2, -1)) % 2 * 2


def factor(x: Tensor) -> Tensor:
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
    return take_along_axis(rolled, turned, axis=-2)
