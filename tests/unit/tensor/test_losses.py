"""Losses against torch: values, derivatives, reductions, and the forms of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.grid import FULL
from tests.unit.tensor.helpers import compare, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, ShapeError
from tinycore.tensor import Tensor

F = torch.nn.functional
Function = Callable[..., Any]
REDUCTIONS = ["mean", "sum", "none"]


@pytest.fixture(autouse=True)
def reduced_grid(request: pytest.FixtureRequest, target: str) -> None:
    """Elsewhere than on `FULL` run the means only: losses are graphs of operations tested there."""
    if target != FULL and "mean" not in request.node.name:
        pytest.skip("the whole grid runs on one target")


def labels(*shape: int, classes: int = 5, seed: int = 7) -> Any:
    return numpy.random.default_rng(seed).integers(0, classes, shape)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_crossentropy(reduction: Any) -> None:
    probabilities, targets = numbers(3, 4, low=0.02, high=0.98), numbers(3, 4, low=0, high=1)

    compare(
        lambda p, y: p.binary_crossentropy(y, reduction),
        lambda p, y: F.binary_cross_entropy(p, y, reduction=reduction),
        probabilities,
        targets,
        gradient=False,
    )
    compare(
        lambda p: p.binary_crossentropy(Tensor(targets, dtype=p.dtype), reduction),
        lambda p: F.binary_cross_entropy(p, torch.tensor(targets), reduction=reduction),
        probabilities,
    )


def test_the_logarithms_of_binary_crossentropy_stop_at_minus_100() -> None:
    p, y = numpy.array([0.0, 1.0, 0.0, 1.0]), numpy.array([1.0, 0.0, 0.0, 1.0])

    result = Tensor(p).binary_crossentropy(Tensor(y), "none")

    assert result.tolist() == [100.0, 100.0, 0.0, 0.0]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_crossentropy_of_logits(reduction: Any, weighted: bool) -> None:
    scores, targets = numbers(3, 4, low=-30, high=30), numbers(3, 4, low=0, high=1)
    weight = numbers(4, low=0.5, high=3)

    compare(
        lambda x: x.binary_crossentropy_logits(
            Tensor(targets, dtype=x.dtype),
            reduction,
            pos_weight=Tensor(weight, dtype=x.dtype) if weighted else None,
        ),
        lambda x: F.binary_cross_entropy_with_logits(
            x,
            torch.tensor(targets),
            reduction=reduction,
            pos_weight=torch.tensor(weight) if weighted else None,
        ),
        scores,
    )


def test_binary_crossentropy_of_large_logits_is_finite() -> None:
    x = Tensor([1e4, -1e4, 1e4, -1e4])

    loss = x.binary_crossentropy_logits(Tensor([1.0, 0.0, 0.0, 1.0]), "none")

    assert loss.tolist() == [0.0, 0.0, 1e4, 1e4]


SCORES = [((6, 5), (6,)), ((2, 5, 3), (2, 3)), ((2, 5, 3, 2), (2, 3, 2)), ((5,), ())]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("shape", "places"), SCORES, ids=str)
def test_cross_entropy(
    shape: tuple[int, ...], places: tuple[int, ...], smoothing: float, reduction: Any
) -> None:
    y = labels(*places)

    compare(
        lambda x: x.cross_entropy(Tensor(y), reduction, smoothing),
        lambda x: F.cross_entropy(
            x, torch.tensor(y), reduction=reduction, label_smoothing=smoothing
        ),
        numbers(*shape, low=-5, high=5),
        dtypes_used=[dtypes.float64],
        gradient=reduction == "mean",
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 3)], ids=str)
def test_cross_entropy_with_probabilities(shape: tuple[int, ...], reduction: Any) -> None:
    soft = numbers(*shape, low=0, high=1)
    soft = soft / soft.sum(1, keepdims=True)

    compare(
        lambda x: x.cross_entropy(Tensor(soft, dtype=x.dtype), reduction, 0.2),
        lambda x: F.cross_entropy(x, torch.tensor(soft), reduction=reduction, label_smoothing=0.2),
        numbers(*shape),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ignored", [-1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_sparse_categorical_crossentropy(reduction: Any, ignored: int, smoothing: float) -> None:
    """torch has the same under another name; a smoothed mean counts labels there as here."""
    y = labels(3, 4)
    y[1, 1] = ignored

    compare(
        lambda x: x.sparse_categorical_crossentropy(Tensor(y), ignored, smoothing, reduction),
        lambda x: F.cross_entropy(
            x.movedim(-1, 1),
            torch.tensor(y),
            ignore_index=ignored,
            reduction=reduction,
            label_smoothing=smoothing,
        ),
        numbers(3, 4, 5),
        dtypes_used=[dtypes.float64],
        gradient=reduction == "mean",
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ignored", [None, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "places"), [SCORES[0], SCORES[1]], ids=str)
def test_nll_loss(
    shape: tuple[int, ...], places: tuple[int, ...], weighted: bool, ignored: Any, reduction: Any
) -> None:
    y, weight = labels(*places), numbers(5, low=0.5, high=2)

    compare(
        lambda x: x.log_softmax(1).nll_loss(
            Tensor(y), Tensor(weight, dtype=x.dtype) if weighted else None, ignored, reduction
        ),
        lambda x: F.nll_loss(
            x.log_softmax(1),
            torch.tensor(y),
            torch.tensor(weight) if weighted else None,
            ignore_index=-100 if ignored is None else ignored,
            reduction=reduction,
        ),
        numbers(*shape),
        dtypes_used=[dtypes.float64],
        gradient=reduction == "none",
    )


def test_losses_where_all_labels_are_ignored() -> None:
    scores, y = Tensor.zeros(3, 5), Tensor([1, 1, 1])

    assert numpy.isnan(scores.nll_loss(y, ignore_index=1).item())
    assert numpy.isnan(scores.sparse_categorical_crossentropy(y, ignore_index=1).item())
    assert scores.nll_loss(y, ignore_index=1, reduction="sum").item() == 0.0


def test_cross_entropy_of_far_apart_scores() -> None:
    x = Tensor([[1e4, -1e4, 0.0]])

    assert x.cross_entropy(Tensor([0])).item() == 0.0
    assert x.cross_entropy(Tensor([1])).item() == 2e4


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=["half", "bfloat16"])
def test_losses_of_narrow_floats(dtype: Any) -> None:
    y = labels(40, classes=30)

    compare(
        lambda x: x.cross_entropy(Tensor(y)),
        lambda x: F.cross_entropy(x, torch.tensor(y)),
        numbers(40, 30),
        dtypes_used=[dtype],
    )


def test_losses_of_no_elements() -> None:
    assert (
        Tensor.zeros(0, 5).cross_entropy(Tensor.zeros(0, dtype=dtypes.int32), "sum").item() == 0.0
    )
    assert Tensor.zeros(0).binary_crossentropy(Tensor.zeros(0), "none").shape == (0,)


MISTAKES: list[tuple[str, Any, Function]] = [
    ("reduction 'max'", ArgumentError, lambda x, y: x.cross_entropy(y, reduction="max")),
    ("label_smoothing", ArgumentError, lambda x, y: x.cross_entropy(y, label_smoothing=1.5)),
    ("label", DTypeError, lambda x, y: x.cross_entropy(y.float())),
    ("label", DTypeError, lambda x, y: x.nll_loss(y.float())),
    (r"labels of shape \(4,\)", ShapeError, lambda x, y: x.nll_loss(y[:4])),
    (r"\(4,\)", ShapeError, lambda x, y: x.sparse_categorical_crossentropy(y[:4])),
]


@pytest.mark.parametrize(("text", "error", "call"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_told_at_the_call(text: str, error: Any, call: Function) -> None:
    with pytest.raises(error, match=text):
        call(Tensor.zeros(6, 5), Tensor([0, 1, 2, 3, 4, 0]))


@pytest.mark.parametrize("heads", [(1, 2, 2), (3, 2, 2), (2, 0, 0), (2, 1, 2)])
def test_heads_that_cannot_be_shared_are_told(heads: tuple[int, int, int]) -> None:
    q, k, v = (Tensor.ones(n, 2, 4) for n in heads)

    with pytest.raises(ShapeError, match="divide those of queries"):
        q.scaled_dot_product_attention(k, v, enable_gqa=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_ignored_labels_do_not_count(ignored: int, smoothing: float, reduction: Any) -> None:
    scores, labels = numbers(6, 4), numpy.array([0, 1, ignored, 3, ignored, 2])
    theirs = torch.tensor(scores, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        theirs,
        torch.tensor(labels),
        ignore_index=ignored,
        label_smoothing=smoothing,
        reduction=reduction,
    )
    total: Any = expected.sum()
    total.backward()
    slope: Any = theirs.grad

    ours = Tensor(scores, dtype="float64")
    loss = ours.cross_entropy(Tensor(labels), reduction, smoothing, ignored)
    (gradient,) = loss.sum().gradient(ours)

    numpy.testing.assert_allclose(loss.numpy(), expected.detach().numpy(), 1e-9)
    numpy.testing.assert_allclose(gradient.numpy(), slope, 1e-9, 1e-12)


def test_a_label_of_minus_100_does_not_count_by_default() -> None:
    logs = Tensor([[-1.0, -2.0], [-3.0, -4.0]])
    labels = Tensor([1, -100])

    assert logs.nll_loss(labels).item() == 2.0
    assert logs.cross_entropy(labels).item() == logs[:1].cross_entropy(labels[:1]).item()


# --- scores and probabilities at the edge


def test_cross_entropy_of_a_class_without_a_chance_is_that_of_the_others() -> None:
    scores, y = [[0.0, -numpy.inf, 1.0]], [2]
    x = Tensor(scores, requires_grad=True)
    p = torch.tensor(scores, requires_grad=True)

    x.cross_entropy(Tensor(y)).backward()
    F.cross_entropy(p, torch.tensor(y)).backward()  # type: ignore[no-untyped-call]

    assert x.cross_entropy(Tensor(y)).item() == pytest.approx(0.3132617)
    assert x.grad is not None
    assert p.grad is not None
    assert x.grad.numpy() == pytest.approx(p.grad.numpy())


def test_cross_entropy_of_one_ignored_label_is_the_mean_of_nothing() -> None:
    assert Tensor([1.0, 2.0]).cross_entropy(Tensor(-100)).isnan().item()


def test_cross_entropy_without_classes_is_0() -> None:
    assert Tensor.zeros(2, 0).cross_entropy(Tensor.zeros(2, 0), label_smoothing=0.1).item() == 0


def test_nll_loss_ignores_a_label_without_a_chance() -> None:
    logs = Tensor([[0.0, -numpy.inf], [-1.0, -2.0]])

    assert logs.nll_loss(Tensor([1, 0]), ignore_index=1).item() == 1.0
    assert logs.nll_loss(Tensor([1, 0]), ignore_index=1, reduction="none").tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_binary_crossentropy_has_finite_gradients_at_0_and_1(dtype: str) -> None:
    p, y = [0.0, 0.0, 1.0, 1.0, 0.25], [0.0, 1.0, 0.0, 1.0, 0.5]
    x, truth = (Tensor(row, dtype=dtype, requires_grad=True) for row in (p, y))
    peer = torch.tensor(p, dtype=getattr(torch, dtype), requires_grad=True)

    x.binary_crossentropy(truth, "sum").backward()
    loss = F.binary_cross_entropy(peer, torch.tensor(y).to(peer.dtype), reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]

    assert x.grad is not None
    assert truth.grad is not None
    assert peer.grad is not None
    assert x.grad.numpy() == pytest.approx(peer.grad.numpy(), rel=1e-6)
    assert truth.grad.numpy() == pytest.approx(
        numpy.array([100.0, 100.0, -100.0, -100.0, numpy.log(3)]), rel=1e-6
    )


def test_binary_crossentropy_in_half_precision_has_gradient_0_where_it_is_sure_and_right() -> None:
    x = Tensor([0.0, 1.0], dtype="float16", requires_grad=True)

    x.binary_crossentropy(Tensor([0.0, 1.0], dtype="float16")).backward()

    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32"])
def test_binary_crossentropy_takes_labels_that_are_no_floats(dtype: str) -> None:
    p, y = Tensor([0.5, 0.25]), Tensor([1, 0]).cast(dtype)

    found = p.binary_crossentropy(y, "none")

    assert found.numpy() == pytest.approx(numpy.array([0.6931472, 0.2876821]))


@pytest.mark.parametrize("loss", [Tensor.mse_loss, Tensor.l1_loss, Tensor.huber_loss])
def test_distances_of_small_unsigned_integers_do_not_wrap(loss: Callable[..., Tensor]) -> None:
    x, y = Tensor([3], dtype="uint8"), Tensor([5], dtype="uint8")

    assert loss(x, y).item() == loss(Tensor([3.0]), Tensor([5.0])).item()


def test_mean_losses_of_float16_do_not_overflow_as_sums() -> None:
    scores = Tensor([[0.0, 600.0]], dtype="float16").expand(128, 2)
    y = Tensor.zeros(128, dtype="int32")

    assert scores.cross_entropy(y).item() == 600.0
    assert scores.sparse_categorical_crossentropy(y).item() == 600.0
    assert scores.log_softmax(1).nll_loss(y).item() == 600.0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_weighs_classes_as_in_torch(reduction: Any, smoothing: float) -> None:
    generator = numpy.random.default_rng(0)
    scores = generator.normal(size=(6, 3, 2)).astype("float32")
    labels = generator.integers(0, 3, (6, 2))
    labels[0] = -100
    shares = generator.dirichlet([1.0] * 3, (6, 2)).astype("float32").transpose(0, 2, 1).copy()
    weight = numpy.array([0.5, 2.0, 1.0], "float32")
    for target in (labels, shares):
        x, peer = Tensor(scores, requires_grad=True), torch.tensor(scores, requires_grad=True)
        loss = x.cross_entropy(Tensor(target), reduction, smoothing, weight=Tensor(weight))
        expected = torch.nn.functional.cross_entropy(
            peer,
            torch.tensor(target),
            torch.tensor(weight),
            reduction=reduction,
            label_smoothing=smoothing,
        )
        expected.sum().backward()  # type: ignore[no-untyped-call]
        assert peer.grad is not None
        (slope,) = loss.sum().gradient(x)
        numpy.testing.assert_allclose(loss.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
        numpy.testing.assert_allclose(slope.numpy(), peer.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_weights_of_cross_entropy_are_one_of_each_class() -> None:
    with pytest.raises(ShapeError, match=r"weight has shape \(2,\), not \(3,\), one a class"):
        Tensor([[1.0, 2.0, 3.0]]).cross_entropy(Tensor([1]), weight=Tensor([1.0, 2.0]))
