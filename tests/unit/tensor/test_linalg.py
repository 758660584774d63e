"""Products, einsum and losses against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, integers, numbers
from tinycore import nn
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tinycore.tensor import Tensor

F = torch.nn.functional
Function = Callable[..., Any]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 3)),
        ((2, 0), (0, 3)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    compare(lambda x, y: x @ y, None, numbers(*a), numbers(*b, seed=1))


def test_a_reflected_product_has_the_tensor_on_the_right() -> None:
    class Scaled(Tensor):
        def __rmatmul__(self, x: Any) -> Any:
            return super().__rmatmul__(x) * 2

    x, y = numbers(2, 3), numbers(3, 2, seed=1)
    right: Any = Scaled(y)

    numpy.testing.assert_allclose((Tensor(x) @ right).numpy(), x @ y * 2, rtol=1e-5)


def test_matmul_of_integers_and_bools() -> None:
    compare(lambda x, y: x @ y, None, integers(3, 4), integers(4, 2), gradient=False)
    assert (Tensor([[True, False]]) @ Tensor([[False], [True]])).tolist() == [[False]]


def test_products_of_halves_are_summed_in_float32() -> None:
    a = Tensor([[0.1] * 2000], dtype=dtypes.float16)

    assert (a @ a.T).dtype is dtypes.float16
    assert abs((a @ a.T).item() - 20) < 0.02
    assert a.dot(a.T, dtype=dtypes.float32).dtype is dtypes.float32


def test_matmul_mistakes_are_told_at_the_call() -> None:
    with pytest.raises(
        ShapeError, match=r"dot: the inner sizes differ \(3 and 4\) in shapes \(2, 3\) and \(4, 5\)"
    ):
        Tensor.zeros(2, 3) @ Tensor.zeros(4, 5)
    with pytest.raises(ShapeError, match="dot"):
        Tensor(1.0) @ Tensor.zeros(2)
    with pytest.raises(ShapeError, match="broadcast"):
        Tensor.zeros(2, 1, 3) @ Tensor.zeros(3, 3, 1)


def test_linear() -> None:
    compare(
        lambda x, w, b: x.linear(w, b),
        lambda x, w, b: x @ w + b,
        numbers(5, 3),
        numbers(3, 2),
        numbers(2),
    )


@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("...ij,jk->...ik", [(2, 2, 3), (3, 4)]),
        ("i,i,i->i", [(3,), (3,), (3,)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ba,b->", [(2, 3), (2,)]),
    ],
)
def test_einsum(formula: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]

    compare(lambda *x: Tensor.einsum(formula, *x), lambda *x: torch.einsum(formula, *x), *inputs)


def test_einsum_mistakes_are_told_at_the_call() -> None:
    x = Tensor.zeros(2, 3)

    with pytest.raises(ArgumentError, match="einsum"):
        Tensor.einsum("ij,jk->ik", x)
    with pytest.raises(ShapeError, match="'j'"):
        Tensor.einsum("ij,jk->ik", x, x)
    with pytest.raises(ArgumentError, match="einsum"):
        Tensor.einsum("ij->ik", x)


# --- losses

LABELS = numpy.array([0, 2, 1, 2])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy(reduction: Any, smoothing: float) -> None:
    options: Any = {"reduction": reduction, "label_smoothing": smoothing}

    compare(
        lambda x: x.cross_entropy(Tensor(LABELS), **options),
        lambda x: F.cross_entropy(x, torch.tensor(LABELS), **options),
        numbers(4, 3),
    )
    compare(
        lambda x: x.sparse_categorical_crossentropy(Tensor(LABELS), **options),
        lambda x: F.cross_entropy(x, torch.tensor(LABELS), **options),
        numbers(4, 3),
    )


def test_cross_entropy_of_images_and_probabilities() -> None:
    labels = integers(2, 4, low=0, high=3).astype(numpy.int64)
    shares = numpy.random.default_rng(0).dirichlet([1, 1, 1], 4)

    compare(
        lambda x: x.cross_entropy(Tensor(labels)),
        lambda x: F.cross_entropy(x, torch.tensor(labels)),
        numbers(2, 3, 4),
    )
    compare(
        lambda x: x.cross_entropy(Tensor(shares, dtype=x.dtype)),
        lambda x: F.cross_entropy(x, torch.tensor(shares)),
        numbers(4, 3),
    )


def test_ignored_labels_do_not_count() -> None:
    labels = numpy.array([0, -1, 1, -1])

    compare(
        lambda x: x.sparse_categorical_crossentropy(Tensor(labels)),
        lambda x: F.cross_entropy(x, torch.tensor(labels), ignore_index=-1),
        numbers(4, 3),
    )


def test_nll_loss() -> None:
    weight = numpy.array([0.2, 0.5, 0.3])

    compare(
        lambda x: x.nll_loss(Tensor(LABELS), Tensor(weight, dtype=x.dtype), ignore_index=1),
        lambda x: F.nll_loss(x, torch.tensor(LABELS), torch.tensor(weight), ignore_index=1),
        numbers(4, 3),
    )
    compare(
        lambda x: x.nll_loss(Tensor(LABELS)),
        lambda x: F.nll_loss(x, torch.tensor(LABELS)),
        numbers(4, 3),
    )


def test_binary_crossentropy() -> None:
    target = numpy.array([0.0, 1.0, 0.3, 1.0])

    compare(
        lambda x: x.binary_crossentropy(Tensor(target, dtype=x.dtype)),
        lambda x: F.binary_cross_entropy(x, torch.tensor(target)),
        numbers(4, low=0.1, high=0.9),
    )
    compare(
        lambda x: x.binary_crossentropy_logits(Tensor(target, dtype=x.dtype)),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.tensor(target)),
        numbers(4, low=-40, high=40),
    )


def test_loss_mistakes_are_told_at_the_call() -> None:
    x = Tensor.zeros(4, 3)

    with pytest.raises(ShapeError, match="cross_entropy"):
        x.cross_entropy(Tensor([0, 1]))
    with pytest.raises(DTypeError, match="label"):
        x.sparse_categorical_crossentropy(Tensor([0.0] * 4))
    with pytest.raises(ArgumentError, match="reduction"):
        x.cross_entropy(Tensor([0] * 4), reduction="average")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="label_smoothing"):
        x.cross_entropy(Tensor([0] * 4), label_smoothing=2)


def test_sequential() -> None:
    assert Tensor([1.0]).sequential([lambda x: x + 1, Tensor.exp2]).tolist() == [4.0]


def test_a_list_of_layers_and_functions_needs_no_annotation() -> None:
    """For mypy too, to which it is a `list[object]`."""
    layers = [nn.Linear(2, 3), Tensor.relu, lambda x: x * 2]

    assert Tensor.ones(1, 2).sequential(layers).shape == (1, 3)


@pytest.mark.parametrize("wrong", [None, 1, "relu"])
def test_what_is_no_function_is_told_with_its_place(wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"sequential: ll\[1\] is .* must be a function"):
        Tensor([1.0]).sequential([Tensor.relu, wrong])
