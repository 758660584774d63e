"""Factors of matrices: what they promise, compared with NumPy and torch in float64."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import TOLERANCES, Array, as_list, assert_close, compare, numbers
from tinycore._lru import Lru
from tinycore.config import Context
from tinycore.device.registry import Device
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.schedule import compiled
from tinycore.tensor import Tensor

pytestmark = pytest.mark.sample(6)

ROUNDING = {dtypes.float64: 2.0**-53, dtypes.float32: 2.0**-24}


def hilbert(rows: int, columns: int) -> Array:
    """A matrix whose singular values fall off faster than any power."""
    return 1.0 / (numpy.arange(rows)[:, None] + numpy.arange(columns) + 1.0)


def difficult(rows: int, columns: int) -> Array:
    """A batch: plain, lacking rank, zero, with zero columns, orthogonal, huge, tiny, graded."""
    plain = numbers(rows, columns)
    grades = 2.0 ** -(7.0 * numpy.arange(columns))
    return numpy.stack(
        [
            plain,
            numbers(rows, 1) @ numbers(1, columns, seed=1),
            numpy.zeros((rows, columns)),
            plain * (numpy.arange(columns) % 2),
            numpy.eye(rows, columns),
            plain * 2.0**120,
            plain * 2.0**-120,
            plain * grades,
            plain * grades[::-1],
            hilbert(rows, columns),
        ]
    )


MATRICES = {
    "4x4": difficult(4, 4),
    "5x3": difficult(5, 3),
    "3x5": difficult(3, 5),
    "1x1": numpy.array([[-3.0]]),
}
CASES = [
    ("4x4", dtypes.float32, True),
    ("5x3", dtypes.float64, True),
    ("3x5", dtypes.float64, False),
    ("1x1", dtypes.float32, False),
]
"""Shape, dtype, and whether to ask for square factors."""


def rounded(matrix: Array, dtype: DType) -> tuple[Tensor, Array]:
    """A matrix here, and what it is in float64 after rounding."""
    tensor = Tensor(matrix, dtype=dtype)
    return tensor, tensor.numpy().astype(numpy.float64)


def wide(x: Tensor) -> Array:
    """The values in float64."""
    return numpy.asarray(x.numpy().astype(numpy.float64))


def bound(x: Array, dtype: DType) -> float:
    """Bound of the error of factors for a matrix of greatest absolute value 1: a backward error.

    Householder's and Jacobi's methods are off by a small multiple of size * rounding (Higham,
    Accuracy and Stability of Numerical Algorithms, 19.4).
    """
    return float(8 * max(x.shape[-2:]) * ROUNDING[dtype])


def worst(error: Array, x: Array) -> float:
    """The greatest error of all matrices, each relative to its greatest absolute value."""
    size = abs(x).max((-2, -1), keepdims=True)
    return float((abs(error) / numpy.where(size == 0, 1, size)).max())


def assert_orthonormal(columns: Array, limit: float) -> None:
    """The columns have length 1 and stand on each other at right angles."""
    gram = columns.swapaxes(-1, -2) @ columns
    assert abs(gram - numpy.eye(columns.shape[-1])).max() <= limit


@pytest.mark.parametrize(("name", "dtype", "full"), CASES, ids=str)
def test_qr(name: str, dtype: DType, full: bool) -> None:
    x, exact = rounded(MATRICES[name], dtype)
    mode: Any = "complete" if full else "reduced"
    q, r = (wide(factor) for factor in x.qr(mode))
    theirs = numpy.linalg.qr(exact, mode)
    limit = bound(exact, dtype)

    assert (q.shape, r.shape) == (theirs.Q.shape, theirs.R.shape)
    assert (numpy.tril(r, -1) == 0).all()
    assert_orthonormal(q, limit)
    assert worst(q @ r - exact, exact) <= limit


@pytest.mark.parametrize(("name", "dtype", "full"), CASES, ids=str)
def test_svd(name: str, dtype: DType, full: bool) -> None:
    x, exact = rounded(MATRICES[name], dtype)
    u, s, vt = (wide(factor) for factor in x.svd(full))
    theirs = numpy.linalg.svd(exact, full)
    limit, k = bound(exact, dtype), min(exact.shape[-2:])

    assert (u.shape, s.shape, vt.shape) == (theirs.U.shape, theirs.S.shape, theirs.Vh.shape)
    assert (s >= 0).all()
    assert (numpy.diff(s) <= 0).all()
    assert_orthonormal(u, limit)
    assert_orthonormal(vt.swapaxes(-1, -2), limit)
    assert worst((s - theirs.S)[..., None], exact) <= limit
    assert worst(u[..., :k] * s[..., None, :] @ vt[..., :k, :] - exact, exact) <= limit


def test_signs_of_qr_are_those_of_lapack() -> None:
    x, exact = rounded(numbers(4, 3), dtypes.float64)

    for ours, theirs in zip(x.qr(), numpy.linalg.qr(exact, "complete"), strict=True):
        assert abs(ours.numpy() - theirs).max() <= 4 * bound(exact, dtypes.float64)
    assert abs(wide(Tensor.eye(3).qr()[0]) - numpy.eye(3)).max() <= bound(exact, dtypes.float32)
    zero_at_the_head = numpy.array([[0.0, 1.0], [2.0, 1.0]])
    signs = numpy.sign(numpy.linalg.qr(zero_at_the_head, "complete").R)
    assert numpy.sign(Tensor(zero_at_the_head).qr()[1].numpy()).tolist() == signs.tolist()


def test_each_step_of_qr_runs_the_same_kernels() -> None:
    q, _ = Tensor(numbers(8, 8)).realize().qr()

    assert len({item.ast for item in q.schedule()}) <= 10


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (0, 2, 2), (2, 0, 3)], ids=str)
def test_nothing_has_factors(shape: tuple[int, ...]) -> None:
    x = Tensor.ones(*shape)
    empty = numpy.ones(shape)

    assert tuple(a.shape for a in x.qr()) == tuple(
        a.shape for a in torch.linalg.qr(torch.tensor(empty), "complete")
    )
    for full in (True, False):
        assert tuple(a.shape for a in x.svd(full)) == tuple(
            a.shape for a in torch.linalg.svd(torch.tensor(empty), full)
        )
    assert x.qr()[0].tolist() == torch.linalg.qr(torch.tensor(empty), "complete")[0].tolist()


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.int32], ids=str)
def test_other_dtypes_are_computed_in_float32(dtype: DType) -> None:
    x = Tensor([[3, 1], [4, 2]], dtype=dtype)
    target = dtype if dtypes.is_float(dtype) else dtypes.float32
    q, r = x.qr()
    wide_q, _ = x.cast(dtypes.float32).qr()

    assert {a.dtype for a in (q, r, *x.svd())} == {target}
    assert q.tolist() == wide_q.cast(target).tolist()


# --- gradients


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 2)], ids=str)
def test_gradient_of_qr(shape: tuple[int, ...]) -> None:
    compare(
        lambda x: x.qr("reduced"),
        torch.linalg.qr,
        numbers(*shape),
        dtypes_used=[dtypes.float64],
    )


def test_gradient_of_qr_at_triangles_and_zeros() -> None:
    """A small change still turns Q although nothing is left to clear."""
    triangle = numpy.array([[2.0, 1.0], [0.0, 3.0]])
    compare(lambda x: x.qr(), torch.linalg.qr, triangle, dtypes_used=[dtypes.float64])
    for matrix in (numpy.zeros((2, 2)), numpy.ones((3, 2))):
        x = Tensor(matrix, dtype=dtypes.float64)
        (gradient,) = sum_of(x.qr()).gradient(x)
        assert numpy.isfinite(gradient.numpy()).all()


def sum_of(parts: tuple[Any, ...]) -> Any:
    """All elements added up, each part weighted by where it stands."""
    total = None
    for place, part in enumerate(parts):
        term = part.sum() * (place + 1.0)
        total = term if total is None else total + term
    return total


def without_signs(parts: Any) -> Any:
    """Parts that no choice of signs changes: squares, and products of pairs of columns."""
    u, s, vt = parts
    k = s.shape[-1]
    return u[..., :k] ** 2, s, vt[..., :k, :] ** 2, u[..., :k] @ vt[..., :k, :]


@pytest.mark.slow
def test_gradient_of_svd() -> None:
    compare(
        lambda x: without_signs(x.svd(full_matrices=False)),
        lambda x: without_signs(torch.linalg.svd(x, full_matrices=False)),
        numbers(3, 2),
        dtypes_used=[dtypes.float64],
    )


def test_gradient_of_singular_values_that_are_equal_or_zero() -> None:
    """A subgradient of the nuclear norm: <G, A> is the norm, and no singular value exceeds 1."""
    lacking = numbers(2, 1) @ numbers(1, 2, seed=1)
    matrices = numpy.stack([numpy.eye(2), numpy.zeros((2, 2)), lacking])
    x = Tensor(matrices, dtype=dtypes.float64)
    s = x.svd()[1]
    gradient = wide(s.sum().gradient(x)[0])
    limit = bound(matrices, dtypes.float64)

    assert abs((gradient * matrices).sum((-2, -1)) - wide(s).sum(-1)).max() <= limit
    assert numpy.linalg.norm(gradient, 2, (-2, -1)).max() <= 1 + limit


def test_second_derivative_of_svd() -> None:
    matrix = numbers(3, 2, seed=5)

    x = Tensor(matrix, dtype=dtypes.float64)
    (slope,) = sum_of(without_signs(x.svd(full_matrices=False))).gradient(x)
    (ours,) = slope.square().sum().gradient(x)
    theirs = torch.tensor(matrix, requires_grad=True)
    total = sum_of(without_signs(torch.linalg.svd(theirs, full_matrices=False)))
    (first,) = torch.autograd.grad(total, theirs, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), theirs)

    assert_close(ours, second, dtypes.float64, "second", 100)


def test_gradient_of_columns_that_belong_to_no_singular_value() -> None:
    """The projection on them is that on what is left of the space, so it changes as that does."""
    matrix = numbers(3, 1, seed=2)
    weights = numbers(3, 3, seed=3)
    x = Tensor(matrix, dtype=dtypes.float64)
    rest = x.svd()[0][:, 1:]
    theirs = torch.tensor(matrix, requires_grad=True)
    left = torch.eye(3, dtype=torch.float64) - theirs @ theirs.T / (theirs**2).sum()
    (expected,) = torch.autograd.grad((left * torch.tensor(weights)).sum(), theirs)
    (gradient,) = (rest @ rest.T * Tensor(weights, dtype=dtypes.float64)).sum().gradient(x)

    assert_close(gradient, expected, dtypes.float64, "rest")


def test_gradient_at_a_singular_value_of_one() -> None:
    x = Tensor([[0.0], [1.0]], dtype=dtypes.float64)
    u, s, v = x.svd(full_matrices=False)

    assert s.tolist() == [1.0]
    assert abs(wide((u @ v.T)[0].sum().gradient(x)[0])).tolist() == [[1.0], [0.0]]


# --- the polar factor


def iterated(x: Any, steps: int, params: tuple[float, ...]) -> Any:
    """The definition, in torch."""
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(steps):
        gram, power, total = x @ x.mT, x, torch.zeros_like(x)
        for number in params:
            total, power = total + number * power, gram @ power
        x = total
    return x


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (2, 3, 2), (1, 1)], ids=str)
def test_newton_schulz(shape: tuple[int, ...]) -> None:
    compare(
        lambda x: x.newton_schulz(2, (2, -1.5, 0.5)),
        lambda x: iterated(x, 2, (2, -1.5, 0.5)),
        numbers(*shape),
    )


def test_newton_schulz_tends_to_the_polar_factor() -> None:
    matrix = numbers(3, 3)
    u, _, vt = numpy.linalg.svd(matrix)
    result = Tensor(matrix, dtype=dtypes.float64).newton_schulz(15, (2, -1.5, 0.5))

    assert abs(result.numpy() - u @ vt).max() <= TOLERANCES[dtypes.float64][0]


def test_newton_schulz_of_nothing_and_of_zero() -> None:
    assert Tensor.ones(0, 3).newton_schulz(2, (2, -1)).shape == (0, 3)
    assert Tensor.zeros(2, 2).newton_schulz(1, (2, -1)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_mistakes_are_told_at_the_call() -> None:
    for call in (lambda x: x.qr(), lambda x: x.svd(), lambda x: x.newton_schulz(1, (2,))):
        with pytest.raises(ShapeError, match="two axes"):
            as_list(call(Tensor([1.0, 2.0])))  # type: ignore[no-untyped-call]
    with pytest.raises(ArgumentError, match="qr: mode 'r'"):
        Tensor.eye(2).qr("r")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="newton_schulz"):
        Tensor.eye(2).newton_schulz(-1, (2,))
    with pytest.raises(ArgumentError, match="newton_schulz"):
        Tensor.eye(2).newton_schulz(1, ())


def test_the_number_of_kernels_grows_with_the_columns() -> None:
    """Seven a column, and all columns after the second share their programs.

    Loops without a grid have eleven programs; a grid that fuses rows has fewer.
    """
    few, many = (Tensor(numbers(n, n)).qr() for n in (4, 8))
    scheduled = [q.schedule(r) for q, r in (few, many)]
    programs, of_many = (len({item.ast for item in items}) for items in scheduled)
    limits = Device[few[0].devices[0]].toolchain.renderer.limits

    assert programs == of_many
    assert [len(items) for items in scheduled] == [programs + 7 * 2, programs + 7 * 6]
    assert programs == 11 if limits.grid is None else programs <= 11


def test_steps_over_a_large_matrix_are_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[int] = []
    whole = compiled.compile_schedule

    def counted(canonical: Any, policy: Any, varying: Any) -> Any:
        found = whole(canonical, policy, varying)
        kernels.append(len(found.steps))
        return found

    monkeypatch.setattr(compiled, "compile_schedule", counted)
    monkeypatch.setattr(compiled, "schedules", Lru(1024))
    x = numpy.random.default_rng(0).standard_normal((24, 24)).astype("float32")

    with Context(CCACHE=0):
        u, s, vt = Tensor(x).svd()
        found = (u * s @ vt).numpy()

    assert abs(found - x).max() < 1e-5
    assert sum(kernels) < 120  # of over 600 launches
