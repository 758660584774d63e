"""Symmetric eigenvalues, rank, pseudo-inverse, powers of matrices, norms.

Floor 6. Matrices are the last two axes, all others are a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, Literal, NamedTuple, Self

from tinycore.dtype import dtypes, float_layout
from tinycore.errors import ArgumentError, ArgumentTypeError, ShapeError
from tinycore.linalg.decompositions import AnyTensor, identity
from tinycore.linalg.elimination import Elimination, square_matrix
from tinycore.tensor.methods.functions import in_wide_float
from tinycore.tensor.methods.linalg import Linalg

Axes = int | Sequence[int] | None
MatrixNorm = float | Literal["fro", "nuc"] | None


class Eigen(NamedTuple, Generic[AnyTensor]):
    """Eigenvalues, and the eigenvector of each as the column of the same number."""

    eigenvalues: AnyTensor
    eigenvectors: AnyTensor


class Spectral(Elimination):
    """Eigenvalues and singular values of matrices."""

    __slots__ = ()

    def eigh(self) -> Eigen[Self]:
        """Ascending eigenvalues of symmetric matrices, and orthonormal eigenvectors as columns.

        Shifted by its norm the matrix has no negative eigenvalue, so that its singular vectors are
        the eigenvectors. Accurate to rounding of the greatest eigenvalue. Nothing checks that the
        matrix is symmetric. Raises ShapeError unless it is square.

        >>> values, vectors = Tensor([[2.0, 1.0], [1.0, 2.0]]).eigh()
        >>> values.numpy().round(4), (vectors * values @ vectors.mT).numpy().round(4)
        (array([1., 3.], dtype=float32), array([[2., 1.],
               [1., 2.]], dtype=float32))
        """
        x, target = square_matrix(self, "eigh"), self._as_float().dtype
        shift = x.detach().square().sum((-2, -1), keepdim=True).sqrt()
        u, s, _ = (x + identity(x, x.shape[-1], x.shape[-1]) * shift).svd()
        return Eigen((s - shift.squeeze(-1)).flip(-1).cast(target), u.flip(-1).cast(target))

    def eigvalsh(self) -> Self:
        """The eigenvalues of symmetric matrices, ascending. Raises ShapeError unless square.

        >>> Tensor([[2.0, 1.0], [1.0, 2.0]]).eigvalsh().numpy().round(4)
        array([1., 3.], dtype=float32)
        """
        return self.eigh().eigenvalues

    def svdvals(self) -> Self:
        """The singular values of matrices, descending. Raises ShapeError below two axes.

        >>> Tensor([[0.0, 2.0], [1.0, 0.0]]).svdvals().numpy().round(4)
        array([2., 1.], dtype=float32)
        """
        return self.svd(full_matrices=False)[1]

    def matrix_rank(self, rtol: float | Self | None = None) -> Self:
        """Rank: the number of singular values greater than `rtol` times the greatest.

        `rtol` is by default the dtype's epsilon times the greater side. Raises ShapeError below two
        axes.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]).matrix_rank().item()
        1
        """
        values = self.svdvals()
        kept = values > negligible(self, values, rtol)
        return kept.sum(-1, dtype=dtypes.default_int)

    def pinv(self, rtol: float | Self | None = None) -> Self:
        """The pseudo-inverse: singular values up to `rtol` times the greatest count as 0.

        (.., m, n) -> (.., n, m). `rtol` is by default the dtype's epsilon times the greater side.
        Raises ShapeError below two axes.

        >>> Tensor([[2.0, 0.0], [0.0, 0.0]]).pinv().numpy().round(4)
        array([[0.5, 0. ],
               [0. , 0. ]], dtype=float32)
        """
        u, values, vh = self.svd(full_matrices=False)
        kept = values > negligible(self, values, rtol)
        inverse = kept.where(kept.where(values, 1.0).reciprocal(), 0.0)
        return (vh.transpose(-1, -2) * inverse.unsqueeze(-2)) @ u.transpose(-1, -2)

    def matrix_power(self, n: int) -> Self:
        """The matrix multiplied n times by itself; its inverse for n < 0. Raises ShapeError.

        >>> Tensor([[1, 1], [0, 1]]).matrix_power(5).tolist()
        [[1, 5], [0, 1]]
        """
        square_matrix(self, "matrix_power")
        if isinstance(n, bool) or not isinstance(n, int):
            raise ArgumentTypeError(f"matrix_power: the power is an int, got {n!r}")
        base = self.inverse() if n < 0 else self
        result = identity(base, self.shape[-1], self.shape[-1])
        for bit in f"{abs(n):b}" if n else "":
            result = result @ result
            result = result @ base if bit == "1" else result
        return result

    @in_wide_float
    def matrix_norm(self, ord: MatrixNorm = "fro", keepdim: bool = False) -> Self:  # noqa: A002
        """The norm of matrices that `ord` selects.

        "fro" is of all elements; 1 and -1 are by columns, inf and -inf by rows; 2, -2 and "nuc" the
        greatest, the least and the sum of singular values. Raises ArgumentError for another.

        >>> x = Tensor([[1.0, -2.0], [3.0, 4.0]])
        >>> x.matrix_norm(1).item(), x.matrix_norm(float("inf")).item()
        (6.0, 7.0)
        """
        if self.ndim < 2:
            raise ShapeError(f"matrix_norm: needs two axes, got shape {self.shape}")
        if ord in ("fro", None):
            return self.norm(2.0, (-2, -1), keepdim)
        if ord in (1, -1, math.inf, -math.inf):
            found = self.abs().sum(-2 if ord in (1, -1) else -1, keepdim=True)
        elif ord in (2, -2, "nuc"):
            found = self.svdvals().unsqueeze(-1)
        else:
            raise ArgumentError(
                f"matrix_norm: ord {ord!r} is none of fro, nuc, 1, -1, 2, -2, inf, -inf"
            )
        if ord == "nuc":
            return found.sum((-2, -1), keepdim)
        return found.max((-2, -1), keepdim) if float(ord) > 0 else found.min((-2, -1), keepdim)

    @in_wide_float
    def norm(
        self, p: float | Literal["fro", "nuc"] = 2.0, axis: Axes = None, keepdim: bool = False
    ) -> Self:
        """(sum of |a|**p)**(1/p): of p inf the greatest |a|, of -inf the least, of 0 how many
        are not 0. "fro" is 2, "nuc" the sum of the singular values of matrices (`matrix_norm`). The
        gradient at 0 is 0. Raises ArgumentError for another p.

        >>> Tensor([3.0, 4.0]).norm().item(), Tensor([3.0, -4.0]).norm(1).item()
        (5.0, 7.0)
        """
        if p == "nuc" and axis is None:
            return self.matrix_norm("nuc", keepdim)
        p = 2.0 if p == "fro" else p
        if isinstance(p, str):
            raise ArgumentError(f"norm: p is a number, 'fro' or 'nuc' (of all axes), got {p!r}")
        x = self._as_float() if p == 2 else self._as_float().abs()
        if math.isinf(p):
            return x.max(axis, keepdim) if p > 0 else x.min(axis, keepdim)
        if p == 0:
            return x.ne(0).cast(x.dtype).sum(axis, keepdim)
        if p == 1:
            return x.sum(axis, keepdim)
        total = (x.square() if p == 2 else x.pow(p)).sum(axis, keepdim)
        if p < 0:
            return total.pow(1 / p)
        zero = total.eq(0)  # where a root has no derivative
        rest = zero.where(1.0, total)
        return zero.where(0.0, rest.sqrt() if p == 2 else rest.pow(1 / p))

    @in_wide_float
    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """Vectors divided by their p-norm along an axis, which counts as at least `eps`.

        >>> Tensor([[3.0, 4.0]]).normalize().numpy().round(4)
        array([[0.6, 0.8]], dtype=float32)
        """
        return self / self.norm(p, dim, keepdim=True).clamp(min_=eps)

    def cdist(self, x: Self, p: float = 2.0) -> Self:
        """The p-norm of every row (.., n, d) less every row (.., m, d), as (.., n, m).

        >>> Tensor([[0.0, 0.0]]).cdist(Tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]
        """
        return (self._as_float().unsqueeze(-2) - x.unsqueeze(-3)).norm(p, -1)


def negligible(x: AnyTensor, values: AnyTensor, rtol: float | AnyTensor | None) -> AnyTensor:
    """The threshold below which singular values count as 0, of each matrix, as (.., 1)."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * 2.0 ** -float_layout(values.dtype).mantissa_bits
    relative = rtol.unsqueeze(-1) if isinstance(rtol, Linalg) else rtol
    return values._between(values.ndim - 1, 0, min(1, values.shape[-1])) * relative
