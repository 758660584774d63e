"""Matrix decompositions: QR, singular values, polar factor.

Floor 6. Every step works on whole matrices whose rows and columns move on by one place, so that the
pivot is always the first element and all steps launch the same few kernels, compiled once. Their
number grows with the number of columns and not with the number of elements. Narrow floats are
computed in float32. A matrix is the last two axes, those before count matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Self, TypeVar

from tinycore._deferred import deferred, numpy
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor.methods.linalg import Linalg

captured: Final = deferred("tinycore.tensor.capture.jit:TinyJit")
SWEEPS: Final = {dtypes.float32: 3, dtypes.float64: 6}
"""Sweeps of rotations until columns are orthogonal, besides log2 of how many there are.

Measured on random, graded, clustered, rank-deficient, Hilbert, Kahan and Vandermonde matrices of up
to 64 columns: until no two columns are further from orthogonal than rounding, with one to spare.
"""


class Decompositions(Linalg):
    """Factors of matrices."""

    __slots__ = ()

    def qr(self, mode: Literal["complete", "reduced"] = "complete") -> tuple[Self, Self]:
        """Q with orthonormal columns and R, zero below its diagonal, with Q @ R the matrix.

        (.., m, n) -> (.., m, m) and (.., m, n); "reduced" gives (.., m, k) and (.., k, n) with
        k = min(m, n). Householder's reflections (Golub and Van Loan, Matrix Computations, 5.2),
        with signs as in LAPACK. Integers become floats. Raises ShapeError below two axes,
        ArgumentError for another mode.

        >>> x = Tensor([[3.0, 1.0], [4.0, 2.0]])
        >>> q, r = x.qr()
        >>> (q @ r).numpy().round(4), r.numpy().round(4)
        (array([[3., 1.],
               [4., 2.]], dtype=float32), array([[-5. , -2.2],
               [ 0. ,  0.4]], dtype=float32))
        """
        if mode not in ("complete", "reduced"):
            raise ArgumentError(f"qr: mode {mode!r} is none of 'complete', 'reduced'")
        x = wide_matrix(self, "qr")
        target = self._as_float().dtype
        m, n = x.shape[-2:]
        kept = m if mode == "complete" else min(m, n)
        if 0 in x.shape:
            return identity(x, m, kept).cast(target), x[..., :kept, :].cast(target)
        size = magnitude(x)
        q, r = triangular(x / size, kept)
        return q.cast(target), (r * size).cast(target)

    def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
        """U, S and V transposed, with U * S @ Vt the matrix; S is descending and not negative.

        (.., m, n) -> (.., m, m), (.., k), (.., n, n) with k = min(m, n), or without `full_matrices`
        (.., m, k), (.., k), (.., k, n). One-sided rotations by Jacobi (Hestenes 1958) in the order
        of Brent and Luk (1985), on the triangle of a QR decomposition (Drmac and Veselic 2008).
        Accurate to rounding of the greatest singular value. Columns of U and V are unique only up
        to sign, and for equal singular values up to rotation: there the gradient of U and V is that
        of one choice. First and second derivatives are right; columns of U and V that belong to no
        singular value have a first one only. Raises ShapeError below two axes.

        >>> u, s, vt = Tensor([[2.0, 1.0], [1.0, 2.0]]).svd()
        >>> s.numpy().round(4), (u * s @ vt).numpy().round(4)
        (array([3., 1.], dtype=float32), array([[2., 1.],
               [1., 2.]], dtype=float32))
        """
        x = wide_matrix(self, "svd")
        target = self._as_float().dtype
        if x.shape[-2] < x.shape[-1]:
            v, s, ut = x.transpose(-1, -2).svd(full_matrices)
            u, vt = ut.transpose(-1, -2), v.transpose(-1, -2)
        else:
            u, s, v = tall_factors(x, full_matrices)
            vt = v.transpose(-1, -2)
        return u.cast(target), s.cast(target), vt.cast(target)

    def newton_schulz(self, steps: int, params: tuple[float, ...], eps: float = 1e-7) -> Self:
        """An odd polynomial applied `steps` times to the matrix divided by its Frobenius norm.

        One step is p0*X + p1*(X Xt)X + p2*(X Xt)**2 X + ...; with (2, -1.5, 0.5) singular values
        tend to 1, and the result to the orthogonal polar factor (Higham, Functions of Matrices, 8).
        `eps` is added to the norm. Raises ShapeError below two axes, ArgumentError for a negative
        number of steps or no params.

        >>> x = Tensor([[3.0, -4.0], [4.0, 3.0]])
        >>> x.newton_schulz(8, (2.0, -1.5, 0.5)).numpy().round(4)
        array([[ 0.6, -0.8],
               [ 0.8,  0.6]], dtype=float32)
        """
        if steps < 0 or not params:
            raise ArgumentError(
                f"newton_schulz: needs steps >= 0 and params, got {steps} and {params}"
            )
        x = wide_matrix(self, "newton_schulz")
        tall = x.shape[-2] > x.shape[-1]
        x = x.transpose(-1, -2) if tall else x
        x = x / (x.square().sum((-2, -1), keepdim=True).sqrt() + eps)
        for _ in range(steps):
            gram = x @ x.transpose(-1, -2)
            total = x * params[-1]
            for number in reversed(params[:-1]):  # Horner's rule
                total = gram @ total + x * number
            x = total
        return (x.transpose(-1, -2) if tall else x).cast(self._as_float().dtype)


AnyTensor = TypeVar("AnyTensor", bound=Decompositions)
Factors = tuple[AnyTensor, AnyTensor, AnyTensor]

# --- pieces


def wide_matrix(x: AnyTensor, name: str) -> AnyTensor:
    """Matrices in at least float32. Raises ShapeError below two axes."""
    if x.ndim < 2:
        raise ShapeError(f"{name}: a matrix has two axes, got shape {x.shape}")
    x = x._as_float()
    return x if x.dtype is dtypes.float64 else x.cast(dtypes.float32)


def identity(x: AnyTensor, rows: int, columns: int) -> AnyTensor:
    """Ones on the diagonal, one such matrix for each matrix of `x`."""
    one = x.eye(rows, columns, device=x.device, dtype=x.dtype)
    return one.expand((*x.shape[:-2], rows, columns))


def magnitude(x: AnyTensor) -> AnyTensor:
    """The greatest absolute value of each matrix, 1 for a zero matrix; a constant to gradients."""
    greatest = x.detach().abs().max((-2, -1), keepdim=True)
    return greatest.eq(0).where(1.0, greatest).contiguous()


# --- QR


MOST_STEPS_AT_ONCE: Final = 15


def replayed(step: Callable[..., Any], steps: int) -> Callable[..., Any]:
    """A step, captured where it is repeated often: its graph is made and scheduled twice then."""
    return captured(step, guards=False) if steps > MOST_STEPS_AT_ONCE else step


def triangular(x: AnyTensor, kept: int, is_constant: bool = False) -> tuple[AnyTensor, AnyTensor]:
    """The first columns of Q and rows of R; of a constant to gradients with steps replayed."""
    m = x.shape[-2]
    count = min(m - 1, x.shape[-1])
    reflect, follow = (replayed(s, count * is_constant) for s in (reflected, reflected_back))
    work, vectors = x.contiguous(), []
    for step in range(count):
        unfinished = numpy.zeros((m, 1), bool)
        unfinished[1 : m - step] = True  # memory, no formula: so kernels are the same at every step
        work, u = reflect(work, type(x)(unfinished, x.device))
        vectors.append(u)
    q = identity(x, m, kept).roll(-count, -2).contiguous()
    for u in reversed(vectors):
        q = follow(q, u)
    r = work.roll((count, count), (-1, -2))
    return q, r[..., :kept, :].triu()


def reflected(x: AnyTensor, unfinished: AnyTensor) -> tuple[AnyTensor, AnyTensor]:
    """The matrix after a reflection, and its vector u: I - u @ u.T is one.

    Row and column k stand first at step k, and are cleared in the rows below that are unfinished. A
    vector with a negative first element says that the row is negated besides: a column that is zero
    below the diagonal is left as it is.
    """
    head, column = x[..., :1, :1], x[..., :1] * unfinished
    squares = head.square() + column.square().sum(-2, keepdim=True)
    norm = squares.eq(0).where(1.0, squares).sqrt()
    reach = squares.eq(0).where(0.0, head + (head < 0).where(-norm, norm))
    product = reach * (reach - head)
    factor = product.eq(0).where(1.0, product).rsqrt()
    negative = (reach < 0).ne(reach.eq(head * 2))
    u = is_first(x).where(reach, column) * negative.where(-factor, factor)
    u = u.contiguous()
    along = (u * x).sum(-2, keepdim=True).contiguous()
    return signed(u, x - u * along).roll((-1, -1), (-1, -2)).contiguous(), u


def is_first(x: AnyTensor) -> AnyTensor:
    """True for the first row."""
    return x._positions(x.ndim - 2).eq(0)


def signed(u: AnyTensor, x: AnyTensor) -> AnyTensor:
    """The first row negated where the vector of a reflection says so."""
    return (is_first(x) & (u[..., :1, :] < 0)).where(-x, x)


def reflected_back(q: AnyTensor, u: AnyTensor) -> AnyTensor:
    """The product with one more reflection."""
    q = signed(u, q.roll(1, -2))
    return (q - u * (u * q).sum(-2, keepdim=True)).contiguous()


# --- singular values


def tall_factors(x: AnyTensor, full: bool) -> Factors[AnyTensor]:
    """U, S, V of matrices with no fewer rows than columns."""
    m, n = x.shape[-2:]
    if 0 in x.shape:
        u, v = identity(x, m, m if full else n), identity(x, n, n)
        return u, x.const_like(0)[..., 0, :] if m else x.sum(-2), v
    u, s, v = factors_without_gradient(x.detach(), full)
    first, s, v = followed(x, u[..., :n], s, v)
    if m == n or not full:
        return first, s, v
    rest = u[..., n:]
    turned = (first - first.detach()).transpose(-1, -2) @ rest
    return first.cat(rest - first.detach() @ turned, dim=-1), s, v


def factors_without_gradient(x: AnyTensor, full: bool) -> Factors[AnyTensor]:
    """U, S, V by rotating the rows of R, where Q @ R is the matrix with its columns sorted."""
    n = x.shape[-1]
    size = magnitude(x)
    order = descending(x / size)
    q, r = triangular((x / size) @ order, x.shape[-2] if full else n, is_constant=True)
    found = orthogonalized(r[..., :n, :].cat(identity(x, n, n), dim=-1), n).transpose(-1, -2)
    columns, turn = found[..., :n, :], found[..., n:, :]
    again = descending(columns)
    columns, turn = (columns @ again).contiguous(), turn @ again
    s = columns.square().sum(-2).sqrt() * size[..., 0]
    basis, diagonal = triangular(columns, n, is_constant=True)
    negative = diagonal.diagonal(0, -2, -1).unsqueeze(-2) < 0
    v = order @ negative.where(-basis, basis)
    u = (q[..., :n] @ turn).contiguous()
    return (u.cat(q[..., n:], dim=-1) if full else u), s.contiguous(), v.contiguous()


def descending(x: AnyTensor) -> AnyTensor:
    """The permutation matrix P for which the columns of x @ P have descending norms."""
    order = x.square().sum(-2).argsort(-1, descending=True)
    return order._hot(x.shape[-1]).transpose(-1, -2).cast(x.dtype).contiguous()


def orthogonalized(x: AnyTensor, width: int) -> AnyTensor:
    """Rows rotated in pairs until their first `width` columns are orthogonal, in another order."""
    size = x.shape[-2]
    if size == 1:
        return x
    odd = size | 1
    rounds = (SWEEPS[x.dtype] + (size - 1).bit_length() - 1) * odd
    turn = replayed(lambda x: rotated(x, width), rounds)
    x = x.pad_to((*x.shape[:-2], odd, x.shape[-1]))
    for _ in range(rounds):
        x = turn(x)
    # A step of Newton and Schulz undoes what rounding did to the lengths of rows in many rotations.
    basis = x[..., width:]
    gram = (basis @ basis.transpose(-1, -2)).contiguous()
    x = ((identity(x, odd, odd) * 1.5 - gram / 2) @ x).contiguous()
    for _ in range(odd):  # by angles so small that nothing drifts again
        x = turn(x)
    return x[..., :size, :]


def rotated(x: AnyTensor, width: int) -> AnyTensor:
    """A round of rotations: row i meets row -i modulo the odd number of rows, then all move by one.

    In as many rounds as there are rows each meets every other once.
    """
    half, back = x.shape[-2] // 2, x.flip(-2)
    first = tangents(x[..., 1 : half + 1, :width], back[..., :half, :width]).contiguous()
    tangent = first.pad((0, 0, 0, half + 1)) - first.flip(-2).pad((0, 0, half, 1))
    cosine = (tangent.square() + 1).rsqrt()
    return (cosine * (x.roll(-1, -2) - tangent * back)).contiguous()


def tangents(x: AnyTensor, partner: AnyTensor) -> AnyTensor:
    """Tangents of the angles of Jacobi rotations, by which each row turns toward its partner.

    The smaller of two angles that make them orthogonal (Rutishauser 1966).
    """
    difference = ((partner - x) * (partner + x)).sum(-1, keepdim=True)
    double = (x * partner).sum(-1, keepdim=True) * 2
    reach = difference.abs() + (difference.square() + double.square()).sqrt()
    divisor = reach.eq(0).where(1.0, reach)
    return double / (difference < 0).where(-divisor, divisor)


def followed(x: AnyTensor, u: AnyTensor, s: AnyTensor, v: AnyTensor) -> Factors[AnyTensor]:
    """The same factors, with gradients to the matrix.

    A step of Ogita and Aishima (Iterative refinement for singular value decomposition, 2020) leads
    from the factors of a matrix to those of one nearby, with an error that is quadratic in the
    distance. Here that is zero, and the derivative of the step is that of the factors; with two
    steps, of which the second starts from the result of the first, second derivatives are too.
    """
    for _ in range(2):
        u, s, v = step_toward(x, u, s, v)
    return u, s, v


def change(x: AnyTensor) -> AnyTensor:
    """Zero, with the derivative of the tensor."""
    return x - x.detach()


def step_toward(x: AnyTensor, u: AnyTensor, s: AnyTensor, v: AnyTensor) -> Factors[AnyTensor]:
    """One step of refinement whose corrections have the value zero."""
    n = x.shape[-1]
    one = identity(x, n, n)
    ut, vt = u.transpose(-1, -2), v.transpose(-1, -2)
    image = x @ v
    seen = ut @ image
    t, r, q = change(seen), change(one - ut @ u), change(one - vt @ v)
    diagonal = one.cast(dtypes.bool)
    values = s.detach() + diagonal.where(t + (r + q) * (s.unsqueeze(-1) / 2), 0.0).sum(-1)
    row, column = values.unsqueeze(-1), values.unsqueeze(-2)
    off = diagonal.where(0.0, t)
    a, b = off + column * r, off.transpose(-1, -2) + column * q
    gap = (column - row) * (column + row)
    share = gap.eq(0).where(0.0, 1 / gap.eq(0).where(1.0, gap))
    f = diagonal.where(r / 2, (a * column + b * row) * share)
    g = diagonal.where(q / 2, (a * row + b * column) * share)
    outside = change(image - u @ (seen + r @ seen))
    inverse = column.eq(0).where(0.0, 1 / column.eq(0).where(1.0, column))
    return u + u @ f + outside * inverse, values, v + v @ g
