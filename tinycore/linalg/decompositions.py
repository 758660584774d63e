"""Matrix decompositions: QR, singular values, polar factor.

Floor 6. Every step works on whole matrices whose rows and columns move on by one place, so that the
pivot is always the first element and all steps launch the same few kernels, compiled once. Their
number grows with the number of columns and not with the number of elements. Narrow floats are
computed in float32. A matrix is the last two axes, those before count matrices.
"""

from __future__ import annotations

from typing import Final, Literal, Self, TypeVar

from tinycore._deferred import numpy
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor.methods.linalg import Linalg

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
        reflected, vectors = reduced_to_triangle(x / size)
        r = reflected[..., :kept, :].triu() * size
        return product_of_reflections(vectors, x, kept).cast(target), r.cast(target)

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


def advanced(x: AnyTensor, axis: int, places: int) -> AnyTensor:
    """An axis rotated to the left by some places."""
    size = x.shape[axis]
    start = places % size
    if not start:
        return x
    repeats = [2 if a == axis % x.ndim else 1 for a in range(x.ndim)]
    return x.repeat(repeats)._between(axis % x.ndim, start, start + size)


def places(x: AnyTensor, size: int) -> AnyTensor:
    """0 .. size - 1 as a column."""
    return x.arange(size, dtype=dtypes.int32, device=x.device).unsqueeze(-1)


# --- QR


def reduced_to_triangle(x: AnyTensor) -> tuple[AnyTensor, list[AnyTensor]]:
    """The matrix after all reflections, and the vector of each: I - u @ u.T is one.

    Row and column k stand first at step k. A vector with a negative first element says that the
    row is negated besides: a column that is zero below the diagonal is left as it is.
    """
    m, n = x.shape[-2:]
    rows, vectors = places(x, m), []
    work = x.contiguous()
    for step in range(min(m - 1, n)):
        column = work[..., :1] * below_pivot(x, m, step)
        u = reflection(rows, work[..., :1, :1], column).contiguous()
        along = (u * work).sum(-2, keepdim=True).contiguous()
        moved = signed(rows, u, work - u * along)
        work = advanced(advanced(moved, -1, 1), -2, 1).contiguous()
        vectors.append(u)
    done = len(vectors)
    return advanced(advanced(work, -1, -done), -2, -done), vectors


def below_pivot(x: AnyTensor, height: int, step: int) -> AnyTensor:
    """1 for rows below the pivot that are not finished, else 0; as memory, not as a formula.

    Kernels that read it are the same at every step.
    """
    wide = numpy.float64 if x.dtype is dtypes.float64 else numpy.float32
    array = numpy.zeros((height, 1), wide)
    array[1 : height - step] = 1
    return type(x)(array, x.device)


def reflection(rows: AnyTensor, head: AnyTensor, column: AnyTensor) -> AnyTensor:
    """The vector u for which I - u @ u.T clears a column below its head; 0 for a zero column."""
    squares = head.square() + column.square().sum(-2, keepdim=True)
    norm = squares.eq(0).where(1.0, squares).sqrt()
    reach = squares.eq(0).where(0.0, head + (head < 0).where(-norm, norm))
    product = reach * (reach - head)
    factor = product.eq(0).where(1.0, product).rsqrt()
    negative = (reach < 0).ne(reach.eq(head * 2))
    return rows.eq(0).where(reach, column) * negative.where(-factor, factor)


def signed(rows: AnyTensor, u: AnyTensor, x: AnyTensor) -> AnyTensor:
    """The first row negated where the vector of a reflection says so."""
    return (rows.eq(0) & (u[..., :1, :] < 0)).where(-x, x)


def product_of_reflections(vectors: list[AnyTensor], like: AnyTensor, columns: int) -> AnyTensor:
    """The first columns of the product of all reflections, the last one applied first."""
    m = like.shape[-2]
    rows = places(like, m)
    q = advanced(identity(like, m, columns), -2, len(vectors))
    for u in reversed(vectors):
        q = signed(rows, u, advanced(q.contiguous(), -2, -1))
        q = q - u * (u * q).sum(-2, keepdim=True)
    return q


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
    q, r = ((x / size) @ order).contiguous().qr("complete" if full else "reduced")
    lower = r[..., :n, :].transpose(-1, -2)
    rotated = orthogonalized(lower.cat(identity(x, n, n), dim=-2), n)
    columns, turn = rotated[..., :n, :], rotated[..., n:, :]
    again = descending(columns)
    columns, turn = (columns @ again).contiguous(), turn @ again
    s = columns.square().sum(-2).sqrt() * size[..., 0]
    basis, diagonal = columns.qr()
    negative = diagonal.diagonal(0, -2, -1).unsqueeze(-2) < 0
    v = order @ negative.where(-basis, basis)
    u = (q[..., :n] @ turn).contiguous()
    return (u.cat(q[..., n:], dim=-1) if full else u), s.contiguous(), v.contiguous()


def descending(x: AnyTensor) -> AnyTensor:
    """The permutation matrix P for which the columns of x @ P have descending norms."""
    order = x.square().sum(-2).argsort(-1, descending=True)
    return order._hot(x.shape[-1]).transpose(-1, -2).cast(x.dtype).contiguous()


def orthogonalized(x: AnyTensor, height: int) -> AnyTensor:
    """Columns rotated in pairs until their first `height` rows are orthogonal.

    Column i meets column -i modulo an odd number of columns, and all move on by one: in as many
    rounds as there are columns each met every other once.
    """
    size = x.shape[-1]
    if size == 1:
        return x
    odd = size | 1
    sweeps = SWEEPS[x.dtype] + (size - 1).bit_length()
    x = x.pad_to((*x.shape[:-1], odd))
    for sweep in range(sweeps):
        if sweep == sweeps - 1:  # its angles are so small that nothing drifts again
            x = straightened(x, height)
        for _ in range(odd):
            partner = opposite(x)
            tangent = tangents(x[..., :height, :], partner[..., :height, :]).contiguous()
            cosine = (tangent.square() + 1).rsqrt()
            x = advanced(cosine * (x - tangent * partner), -1, 1).contiguous()
    return x[..., :size]


def straightened(x: AnyTensor, height: int) -> AnyTensor:
    """The columns after a step of Newton and Schulz that makes all rows from `height` orthogonal.

    Undoes what rounding did to the lengths of columns in many rotations.
    """
    turn = x[..., height:, :]
    gram = (turn.transpose(-1, -2) @ turn).contiguous()
    return (x @ (identity(x, x.shape[-1], x.shape[-1]) * 1.5 - gram / 2)).contiguous()


def opposite(x: AnyTensor) -> AnyTensor:
    """Column -i modulo the number of columns."""
    return advanced(x.flip(-1), -1, -1)


def tangents(x: AnyTensor, partner: AnyTensor) -> AnyTensor:
    """Tangents of the angles of Jacobi rotations, by which each column turns toward its partner.

    The smaller of two angles that make them orthogonal (Rutishauser 1966); the column that is its
    own partner stays.
    """
    size = x.shape[-1]
    number = x.arange(size, dtype=dtypes.int32, device=x.device)
    difference = ((partner - x) * (partner + x)).sum(-2, keepdim=True).contiguous()
    double = number.eq(0).where(0.0, (x * partner).sum(-2, keepdim=True) * 2)
    reach = difference.abs() + (difference.square() + double.square()).sqrt()
    backward = (difference < 0) | (difference.eq(0) & (number > size // 2))
    divisor = reach.eq(0).where(1.0, reach)
    return double / backward.where(-divisor, divisor)


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
