"""Linear systems, eigenvalues and norms of matrices as methods, against torch in float64."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import tinycore
from tests.unit.tensor.helpers import Array, compare, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ArgumentTypeError, ShapeError, UnknownNameError
from tinycore.tensor import Tensor

pytestmark = pytest.mark.sample(3)

Function = Callable[..., Any]
linalg = torch.linalg


def invertible(*shape: int) -> Array:
    """Matrices with a strong diagonal whose rows are exchanged."""
    size = shape[-1]
    return numbers(*shape) + 3.0 * size * numpy.eye(size)[::-1]


def positive(*shape: int) -> Array:
    """Symmetric positive definite matrices."""
    x = numbers(*shape)
    return x @ x.swapaxes(-1, -2) + numpy.eye(shape[-1])


def symmetric(*shape: int) -> Array:
    """Symmetric matrices with eigenvalues of both signs."""
    x = numbers(*shape)
    return x + x.swapaxes(-1, -2)


def upper_part(x: Any) -> Any:
    return x.cholesky(upper=True) if isinstance(x, Tensor) else linalg.cholesky(x).mT


CASES: list[tuple[str, Function, Function, tuple[Array, ...]]] = [
    ("solve", Tensor.solve, linalg.solve, (invertible(3, 3), numbers(3, 2))),
    ("solve a vector", Tensor.solve, linalg.solve, (invertible(3, 3), numbers(3))),
    ("solve vectors", Tensor.solve, linalg.solve, (invertible(2, 3, 3), numbers(2, 3))),
    ("solve broadcast", Tensor.solve, linalg.solve, (invertible(3, 3), numbers(2, 3, 1))),
    ("solve 1", Tensor.solve, linalg.solve, (invertible(1, 1), numbers(1, 1))),
    ("inverse", Tensor.inverse, torch.inverse, (invertible(2, 3, 3),)),
    ("inv", Tensor.inv, linalg.inv, (invertible(4, 4),)),
    ("det", Tensor.det, torch.det, (invertible(2, 3, 3),)),
    ("det 1", Tensor.det, torch.det, (numbers(1, 1),)),
    ("slogdet", lambda x: x.slogdet()[1], lambda x: x.slogdet()[1], (invertible(2, 3, 3),)),
    ("logdet", Tensor.logdet, torch.logdet, (positive(3, 3),)),
    ("cholesky", Tensor.cholesky, linalg.cholesky, (positive(2, 3, 3),)),
    ("cholesky upper", upper_part, upper_part, (positive(3, 3),)),
    ("eigvalsh", Tensor.eigvalsh, linalg.eigvalsh, (symmetric(3, 3),)),
    ("svdvals", Tensor.svdvals, linalg.svdvals, (numbers(3, 2),)),
    ("pinv", Tensor.pinv, linalg.pinv, (numbers(3, 2),)),
    (
        "power",
        lambda x: x.matrix_power(5),
        lambda x: linalg.matrix_power(x, 5),
        (numbers(2, 3, 3),),
    ),
    (
        "power -2",
        lambda x: x.matrix_power(-2),
        lambda x: linalg.matrix_power(x, -2),
        (invertible(3, 3),),
    ),
    *[
        (
            f"norm {order}",
            lambda x, order=order: x.matrix_norm(order, keepdim=True),
            lambda x, order=order: linalg.matrix_norm(x, order, keepdim=True),
            (numbers(2, 3, 2),),
        )
        for order in ("fro", 1, -1, math.inf, -math.inf, 2, -2, "nuc")
    ],
    ("norm fro", lambda x: x.norm("fro"), lambda x: x.norm("fro"), (numbers(3, 2),)),
    ("norm nuc", lambda x: x.norm("nuc"), lambda x: x.norm("nuc"), (numbers(3, 2),)),
]


@pytest.mark.sample(36)
@pytest.mark.parametrize(
    ("ours", "theirs", "operands"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_values_and_gradients_are_those_of_torch(
    ours: Function, theirs: Function, operands: tuple[Array, ...]
) -> None:
    compare(ours, theirs, *operands, dtypes_used=[dtypes.float64])


def test_eigenvectors_diagonalize_a_symmetric_matrix() -> None:
    x = symmetric(2, 3, 3)
    values, vectors = Tensor(x, dtype=dtypes.float64).eigh()

    numpy.testing.assert_allclose(values.numpy(), numpy.linalg.eigvalsh(x), atol=1e-12)
    rebuilt = (vectors * values.unsqueeze(-2) @ vectors.mT).numpy()
    numpy.testing.assert_allclose(rebuilt, x, atol=1e-12)


def test_second_derivatives_of_a_solution_are_those_of_torch() -> None:
    a, b = invertible(3, 3), numbers(3)

    def twice(x: Any, y: Any, gradient: Function) -> Any:
        (first,) = gradient((x.solve(y) if isinstance(x, Tensor) else linalg.solve(x, y)).sum(), x)
        return gradient((first * first).sum(), x)[0]

    ours = Tensor(a, dtype=dtypes.float64, requires_grad=True)
    theirs = torch.tensor(a, requires_grad=True)
    found = twice(ours, Tensor(b, dtype=dtypes.float64), lambda y, x: y.gradient(x))
    wanted = twice(
        theirs,
        torch.tensor(b),
        lambda y, x: torch.autograd.grad(y, x, create_graph=True),
    )
    numpy.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-9, atol=1e-15)


def test_second_derivatives_of_a_cholesky_factor_are_those_of_torch() -> None:
    a = positive(3, 3)
    ours = Tensor(a, dtype=dtypes.float64, requires_grad=True)
    theirs = torch.tensor(a, requires_grad=True)

    (first,) = ours.cholesky().square().sum().gradient(ours)
    (second,) = ours.cholesky().exp().sum().gradient(ours)[0].square().sum().gradient(ours)
    (wanted,) = torch.autograd.grad(linalg.cholesky(theirs).exp().sum(), theirs, create_graph=True)
    (wanted,) = torch.autograd.grad(wanted.square().sum(), theirs)

    numpy.testing.assert_allclose(first.numpy(), numpy.eye(3), atol=1e-12)  # the trace's
    numpy.testing.assert_allclose(second.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-12)


def test_the_gradient_of_a_determinant_of_a_singular_matrix_is_its_adjugate() -> None:
    x = Tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True)

    assert x.det().item() == 0.0
    assert x.det().gradient(x)[0].tolist() == [[4.0, -2.0], [-2.0, 1.0]]


def test_what_has_no_answer_is_nan() -> None:
    singular = Tensor([[1.0, 2.0], [2.0, 4.0]])

    assert numpy.isnan(singular.inv().numpy()).all()
    assert numpy.isnan(singular.solve(Tensor([1.0, 1.0])).numpy()).all()
    assert numpy.isnan(Tensor([[1.0, 2.0], [2.0, 1.0]]).cholesky().numpy()).any()
    assert math.isnan(Tensor([[0.0, 1.0], [1.0, 0.0]]).logdet().item())
    assert [x.item() for x in singular.slogdet()] == [0.0, -math.inf]


@pytest.mark.slow
def test_rank_counts_singular_values_above_rounding() -> None:
    x = Tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])

    assert (x.matrix_rank().item(), Tensor.eye(3).matrix_rank().item()) == (1, 3)
    assert Tensor([[4.0, 0.0], [0.0, 1.0]]).matrix_rank(rtol=0.5).item() == 1
    assert x.matrix_rank().dtype is dtypes.int32


def test_integers_and_narrow_floats_are_computed_in_float32() -> None:
    whole = Tensor([[2, 0], [0, 4]])
    half = Tensor([[2.0, 0.0], [0.0, 4.0]], dtype=dtypes.float16)

    assert (whole.inv().dtype, whole.det().dtype) == (dtypes.float32, dtypes.float32)
    assert whole.solve(Tensor([2, 4])).tolist() == [1.0, 1.0]
    assert (half.inv().dtype, half.det().dtype) == (dtypes.float16, dtypes.float16)
    assert half.solve(Tensor([2.0, 4.0])).dtype is dtypes.float32
    assert whole.matrix_power(3).tolist() == [[8, 0], [0, 64]]


def test_matrices_without_elements() -> None:
    empty = Tensor.zeros(2, 0, 0)

    assert empty.inv().shape == empty.cholesky().shape == (2, 0, 0)
    assert empty.det().tolist() == [1.0, 1.0]
    assert empty.solve(Tensor.zeros(2, 0, 3)).shape == (2, 0, 3)


Untyped: Any = Tensor
"""The class without its annotations, to be called wrongly."""


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: Untyped.ones(2, 3).inv(), ShapeError, "inverse: needs square .*(2, 3)"),
        (lambda: Untyped.ones(3).det(), ShapeError, "det: needs square"),
        (lambda: Untyped.ones(2, 3).cholesky(), ShapeError, "cholesky: needs square"),
        (lambda: Untyped.ones(2, 3).matrix_power(2), ShapeError, "matrix_power: needs square"),
        (lambda: Untyped.eye(2).matrix_power(0.5), ArgumentTypeError, "0.5"),
        (lambda: Untyped.eye(2).solve(Tensor.ones(3)), ShapeError, "do not fit"),
        (lambda: Untyped.eye(2).solve(3.0), ArgumentTypeError, "3.0"),
        (lambda: Untyped.eye(2).matrix_norm(3), ArgumentError, "ord 3"),
        (lambda: Untyped.ones(2).matrix_norm(), ShapeError, "two axes"),
        (lambda: Untyped.ones(2).norm("two"), ArgumentError, "'two'"),
        (lambda: Untyped.eye(2).linalg, UnknownNameError, r"a.solve\(b\)"),
        (lambda: Untyped.linalg, UnknownNameError, r"a.solve\(b\)"),
        (lambda: Untyped.eye(2).lstsq(Untyped.ones(2)), UnknownNameError, "pinv"),
    ],
)
def test_what_does_not_fit_is_told(
    wrong: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text.replace("(2, 3)", r"\(2, 3\)")):
        wrong()


def test_the_library_has_its_methods_as_functions() -> None:
    a, b = Tensor([[3.0, 1.0], [1.0, 2.0]]), Tensor([9.0, 8.0])

    assert tinycore.linalg.solve(a, b).numpy().round(4).tolist() == [2, 3]
    for name in tinycore.linalg.METHODS:
        assert getattr(tinycore.linalg, name) is getattr(Tensor, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "door",
    [
        "import tinycore.linalg",
        "import tinycore.tensor.core",
        "from tinycore import TinyJit",
        "import pickle, tinycore.tensor.autograd.grad",
    ],
)
def test_tensors_have_the_librarys_methods_by_whatever_door_a_program_comes_in(door: str) -> None:
    script = f"{door}\nfrom tinycore.tensor.tensor import Tensor\nprint(Tensor.svd.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout == "svd\n"
