"""Symmetric eigenvalues, rank, pseudo-inverse, matrix norms and powers.

Floor 5. Matrices are the last two axes, all others are a batch.
"""

from __future__ import annotations

import math
from typing import Generic, Literal, NamedTuple, Self

from tinycore.dtype import dtypes, float_layout
from tinycore.errors import ArgumentError, ArgumentTypeError, ShapeError
from tinycore.tensor.decompositions import AnyTensor, identity
from tinycore.tensor.elimination import Elimination
from tinycore.tensor.functions import in_wide_float

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
        x, target = self._square("eigh"), self._as_float().dtype
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
        self._square("matrix_power")
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
            total = self.square().sum((-2, -1), keepdim)
            return total.eq(0).where(0.0, total.eq(0).where(1.0, total).sqrt())
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


def negligible(x: AnyTensor, values: AnyTensor, rtol: float | AnyTensor | None) -> AnyTensor:
    """The threshold below which singular values count as 0, of each matrix, as (.., 1)."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * 2.0 ** -float_layout(values.dtype).mantissa_bits
    relative = rtol.unsqueeze(-1) if isinstance(rtol, Elimination) else rtol
    return values._between(values.ndim - 1, 0, min(1, values.shape[-1])) * relative
