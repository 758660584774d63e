"""Cases of functions of matrices: products, and the linear algebra extension."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy

from tests.unit.array_api.comparing import DTYPES, Case, drawn, make

PRODUCTS: Final[dict[str, tuple[Case, ...]]] = {
    "matmul": (
        lambda xp: xp.matmul(drawn(xp, 3, 4), drawn(xp, 4, 2)),
        lambda xp: [xp.matmul(drawn(xp, 3, dtype=d), drawn(xp, 3, dtype=d)) for d in DTYPES[1:]],
        lambda xp: xp.matmul(drawn(xp, 2, 1, 3, 4), drawn(xp, 5, 4, 2)),
        lambda xp: [xp.matmul(drawn(xp, 3), drawn(xp, 3, 2)), drawn(xp, 2, 3) @ drawn(xp, 3)],
        lambda xp: xp.matmul(xp.zeros((2, 0)), xp.zeros((0, 3))),
    ),
    "matrix_transpose": (
        lambda xp: xp.matrix_transpose(drawn(xp, 2, 3, 4)),
        lambda xp: drawn(xp, 2, 3, dtype="int8").mT,
    ),
    "tensordot": (
        lambda xp: xp.tensordot(drawn(xp, 2, 3, 4), drawn(xp, 3, 4, 5)),
        lambda xp: xp.tensordot(drawn(xp, 2, 3), drawn(xp, 3, 2), axes=([0, -1], [1, 0])),
        lambda xp: xp.tensordot(drawn(xp, 2, dtype="int8"), drawn(xp, 3, dtype="int16"), axes=0),
        lambda xp: xp.tensordot(drawn(xp, 2, 3), drawn(xp, 3, 4), axes=1),
    ),
    "vecdot": (
        lambda xp: xp.vecdot(drawn(xp, 2, 3), drawn(xp, 3)),
        lambda xp: xp.vecdot(drawn(xp, 3, 2), drawn(xp, 3, 2), axis=-2),
        lambda xp: xp.vecdot(drawn(xp, 4, dtype="int8"), drawn(xp, 4, dtype="int8")),
    ),
}


def invertible(xp: Any, *shape: int, seed: int = 0) -> Any:
    """Matrices with a strong diagonal, signs and order mixed."""
    size = shape[-1]
    rows = numpy.random.default_rng([seed, *shape]).permutation(size)
    signs = numpy.where(numpy.arange(size) % 3 == 1, -3.0 * size, 3.0 * size)
    return drawn(xp, *shape, seed=seed) + make(
        xp, (numpy.eye(size)[rows] * signs).tolist(), "float64"
    )


def positive(xp: Any, *shape: int) -> Any:
    """Symmetric positive definite matrices."""
    x = drawn(xp, *shape)
    return xp.matmul(x, xp.matrix_transpose(x)) + xp.eye(shape[-1])


def whole(xp: Any, x: Any, **how: Any) -> Any:
    """Result of `svd`, but for what is not unique: signs of columns."""
    u, s, vh = xp.linalg.svd(x, **how)
    size = s.shape[-1]
    products = (xp.matmul(xp.matrix_transpose(u), u), xp.matmul(vh, xp.matrix_transpose(vh)))
    return s, xp.matmul(u[..., :size] * s[..., None, :], vh[..., :size, :]), *products


def symmetric(xp: Any, *shape: int) -> Any:
    """Symmetric matrices with eigenvalues of both signs."""
    x = drawn(xp, *shape)
    return x + xp.matrix_transpose(x)


def apart(xp: Any, x: Any) -> Any:
    """Result of `eigh`, but for signs of eigenvectors."""
    values, vectors = xp.linalg.eigh(x)
    turned = xp.matrix_transpose(vectors)
    return values, xp.matmul(vectors * values[..., None, :], turned), xp.matmul(turned, vectors)


LINEAR: Final[dict[str, tuple[Case, ...]]] = {
    "linalg.cholesky": (
        lambda xp: xp.linalg.cholesky(positive(xp, 3, 3)),
        lambda xp: xp.linalg.cholesky(positive(xp, 2, 4, 4), upper=True),
        lambda xp: xp.linalg.cholesky(xp.zeros((2, 0, 0))),
    ),
    "linalg.cross": (
        lambda xp: xp.linalg.cross(drawn(xp, 2, 3), drawn(xp, 2, 3, seed=1)),
        lambda xp: xp.linalg.cross(drawn(xp, 3, 2), drawn(xp, 3, 1, seed=1), axis=-2),
        lambda xp: xp.linalg.cross(drawn(xp, 3, dtype="int8"), drawn(xp, 2, 3, dtype="int16")),
    ),
    "linalg.det": (
        lambda xp: xp.linalg.det(invertible(xp, 3, 3)),
        lambda xp: xp.linalg.det(invertible(xp, 2, 5, 5)),
        lambda xp: xp.linalg.det(xp.asarray([[1.0, 2.0], [2.0, 4.0]])),
        lambda xp: xp.linalg.det(xp.zeros((2, 0, 0))),
    ),
    "linalg.diagonal": (
        lambda xp: xp.linalg.diagonal(drawn(xp, 2, 3, 4)),
        lambda xp: [xp.linalg.diagonal(drawn(xp, 3, 4), offset=k) for k in (-3, -1, 2)],
    ),
    "linalg.eigh": (
        lambda xp: apart(xp, symmetric(xp, 3, 3)),
        lambda xp: apart(xp, xp.asarray([[[-2.0, 0.0], [0.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]])),
    ),
    "linalg.eigvalsh": (lambda xp: xp.linalg.eigvalsh(symmetric(xp, 2, 2, 2)),),
    "linalg.inv": (
        lambda xp: xp.linalg.inv(invertible(xp, 3, 3)),
        lambda xp: xp.linalg.inv(invertible(xp, 2, 4, 4)),
        lambda xp: xp.linalg.inv(xp.zeros((0, 0))),
    ),
    "linalg.matmul": PRODUCTS["matmul"][:1],
    "linalg.matrix_transpose": PRODUCTS["matrix_transpose"][:1],
    "linalg.tensordot": PRODUCTS["tensordot"][:1],
    "linalg.vecdot": PRODUCTS["vecdot"][:1],
    "linalg.matrix_norm": (
        lambda xp: xp.linalg.matrix_norm(drawn(xp, 2, 3, 4)),
        lambda xp: [
            xp.linalg.matrix_norm(drawn(xp, 2, 3, 4), ord=p, keepdims=True)
            for p in ("fro", 1, -1, math.inf, -math.inf)
        ],
        lambda xp: xp.linalg.matrix_norm(drawn(xp, 2, 3, 2), ord=2),
        lambda xp: xp.linalg.matrix_norm(drawn(xp, 3, 2), ord="nuc", keepdims=True),
    ),
    "linalg.matrix_power": (
        lambda xp: xp.linalg.matrix_power(drawn(xp, 3, 3), 3),
        lambda xp: [xp.linalg.matrix_power(invertible(xp, 2, 3, 3), n) for n in (-2, -1, 0, 1, 6)],
    ),
    "linalg.matrix_rank": (
        lambda xp: xp.linalg.matrix_rank(xp.asarray([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])),
        lambda xp: xp.linalg.matrix_rank(drawn(xp, 2, 3, 2), rtol=xp.asarray([0.0, 0.9])),
    ),
    "linalg.outer": (
        lambda xp: xp.linalg.outer(drawn(xp, 3), drawn(xp, 2)),
        lambda xp: xp.linalg.outer(drawn(xp, 3, dtype="int8"), drawn(xp, 2, dtype="uint8")),
    ),
    "linalg.pinv": (
        lambda xp: xp.linalg.pinv(xp.asarray([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])),
        lambda xp: xp.linalg.pinv(drawn(xp, 2, 3, 2), rtol=0.9),
    ),
    "linalg.qr": (
        lambda xp: xp.linalg.qr(drawn(xp, 3, 2)),
        lambda xp: xp.linalg.qr(drawn(xp, 2, 3, 3), mode="complete"),
        lambda xp: xp.linalg.qr(drawn(xp, 2, 3)),
    ),
    "linalg.slogdet": (
        lambda xp: xp.linalg.slogdet(invertible(xp, 3, 3)),
        lambda xp: xp.linalg.slogdet(invertible(xp, 2, 4, 4)),
        lambda xp: xp.linalg.slogdet(xp.zeros((2, 2))),
    ),
    "linalg.solve": (
        lambda xp: xp.linalg.solve(invertible(xp, 3, 3), drawn(xp, 3, 2)),
        lambda xp: xp.linalg.solve(invertible(xp, 2, 4, 4), drawn(xp, 4)),
        lambda xp: xp.linalg.solve(invertible(xp, 3, 3), drawn(xp, 2, 3, 1)),
        lambda xp: xp.linalg.solve(xp.zeros((0, 0)), xp.zeros((0, 2))),
    ),
    "linalg.svd": (
        lambda xp: whole(xp, drawn(xp, 3, 2)),
        lambda xp: whole(xp, drawn(xp, 2, 2, 3), full_matrices=False),
    ),
    "linalg.svdvals": (lambda xp: xp.linalg.svdvals(drawn(xp, 2, 3, 2)),),
    "linalg.trace": (
        lambda xp: xp.linalg.trace(drawn(xp, 2, 3, 4)),
        lambda xp: [xp.linalg.trace(drawn(xp, 3, 4, dtype="int8"), offset=k) for k in (-1, 2)],
        lambda xp: xp.linalg.trace(drawn(xp, 3, 3, dtype="int8"), dtype=xp.float32),
    ),
    "linalg.vector_norm": (
        lambda xp: xp.linalg.vector_norm(drawn(xp, 3, 4)),
        lambda xp: [
            xp.linalg.vector_norm(drawn(xp, 2, 3, 4), axis=(0, 2), ord=p, keepdims=True)
            for p in (2, 1, 0, math.inf, -math.inf, 3, 0.5)
        ],
        lambda xp: xp.linalg.vector_norm(drawn(xp, 2, 3, dtype="float32"), axis=-1),
    ),
}
