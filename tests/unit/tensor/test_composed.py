"""Methods made of others, against torch: values, dtypes, gradients and edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, ShapeError
from tinycore.tensor import Tensor

Function = Callable[..., Any]
F = torch.nn.functional

CASES: list[tuple[str, Function, Function, tuple[tuple[int, ...], ...]]] = [
    ("amax", lambda x: x.amax(1), lambda x: x.amax(1), ((3, 4),)),
    ("amin", lambda x: x.amin((0, 1), True), lambda x: x.amin((0, 1), True), ((3, 4),)),
    ("norm", lambda x: x.norm(), lambda x: x.norm(), ((3, 4),)),
    ("norm 1", lambda x: x.norm(1, 0), lambda x: x.norm(1, 0), ((3, 4),)),
    ("norm 3", lambda x: x.norm(3, 1), lambda x: x.norm(3, 1), ((3, 4),)),
    ("norm inf", lambda x: x.norm(math.inf, 1), lambda x: x.norm(math.inf, 1), ((3, 4),)),
    ("norm -inf", lambda x: x.norm(-math.inf, 1), lambda x: x.norm(-math.inf, 1), ((3, 4),)),
    ("median", lambda x: x.median(), lambda x: x.median(), ((3, 4),)),
    ("median 1", lambda x: x.median(1)[0], lambda x: x.median(1)[0], ((3, 5),)),
    ("quantile", lambda x: x.quantile(0.3, 1), lambda x: x.quantile(0.3, 1), ((3, 5),)),
    (
        "quantiles",
        lambda x: x.quantile([0.0, 0.6, 1.0], 0, True),
        lambda x: x.quantile(torch.tensor([0.0, 0.6, 1.0], dtype=x.dtype), 0, True),
        ((3, 5),),
    ),
    ("unbind", lambda x: x.unbind(1), lambda x: x.unbind(1), ((3, 4),)),
    ("narrow", lambda x: x.narrow(1, -3, 2), lambda x: x.narrow(1, -3, 2), ((3, 4),)),
    ("tile", lambda x: x.tile(2, 1, 3), lambda x: x.tile(2, 1, 3), ((3, 4),)),
    ("tile one", lambda x: x.tile(2), lambda x: x.tile(2), ((3, 4),)),
    ("diff", lambda x: x.diff(2, axis=0), lambda x: x.diff(2, dim=0), ((5, 4),)),
    ("pixels", lambda x: x.pixel_shuffle(2), lambda x: F.pixel_shuffle(x, 2), ((2, 8, 3, 4),)),
    ("bmm", lambda x, y: x.bmm(y), torch.bmm, ((2, 3, 4), (2, 4, 5))),
    ("outer", lambda x, y: x.outer(y), torch.outer, ((3,), (4,))),
    ("kron", lambda x, y: x.kron(y), torch.kron, ((2, 3), (4, 1, 2))),
    ("cross", lambda x, y: x.cross(y, 1), lambda x, y: torch.cross(x, y, 1), ((4, 3), (4, 3))),
    ("trace", lambda x: x.trace(), torch.trace, ((3, 4),)),
    ("cdist", lambda x, y: x.cdist(y), torch.cdist, ((3, 2), (4, 2))),
    ("cdist 1", lambda x, y: x.cdist(y, 1), lambda x, y: torch.cdist(x, y, 1), ((3, 2), (4, 2))),
    ("atan2", lambda x, y: x.atan2(y), torch.atan2, ((3, 4), (4,))),
    ("hypot", lambda x, y: x.hypot(y), torch.hypot, ((3, 4), (4,))),
    ("glu", lambda x: x.glu(1), lambda x: F.glu(x, 1), ((3, 4),)),
    ("mse", lambda x, y: x.mse_loss(y), F.mse_loss, ((3, 4), (3, 4))),
    ("l1", lambda x, y: x.l1_loss(y), F.l1_loss, ((3, 4), (3, 4))),
    (
        "huber",
        lambda x, y: x.huber_loss(y, delta=0.7),
        lambda x, y: F.huber_loss(x, y, delta=0.7),
        ((3, 4), (3, 4)),
    ),
    (
        "kl_div of logs",
        lambda x, y: x.kl_div(y, "batchmean", log_target=True),
        lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True),
        ((3, 4), (3, 4)),
    ),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "shapes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_values_and_gradients(
    ours: Function, theirs: Function, shapes: tuple[tuple[int, ...], ...]
) -> None:
    compare(ours, theirs, *[numbers(*shape, seed=i) for i, shape in enumerate(shapes)])


@pytest.mark.filterwarnings("ignore:reduction")
def test_kl_div_of_probabilities_with_zeros() -> None:
    logs, target = numpy.log([[0.2, 0.3, 0.5]]), numpy.array([[0.0, 0.4, 0.6]])

    for reduction in ("mean", "sum", "none", "batchmean"):
        found: Any = Tensor(logs).kl_div(Tensor(target), reduction)
        expected = F.kl_div(torch.tensor(logs), torch.tensor(target), reduction=reduction)
        numpy.testing.assert_allclose(found.numpy(), expected, 1e-9)


POINTS = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, math.inf, -math.inf, math.nan, 1e-30, 1e30]


def test_atan2_and_hypot_of_special_values() -> None:
    ys, xs = (numpy.array(p).reshape(-1) for p in numpy.meshgrid(POINTS, POINTS))
    for name in ("atan2", "hypot"):
        found = getattr(Tensor(ys), name)(Tensor(xs)).numpy()
        expected = getattr(torch, name)(torch.tensor(ys), torch.tensor(xs)).numpy()
        numpy.testing.assert_allclose(found, expected, 1e-12, err_msg=name)
        assert (numpy.signbit(found) == numpy.signbit(expected))[~numpy.isnan(expected)].all(), name


def test_medians_and_quantiles_with_nan() -> None:
    rows = [[3.0, math.nan, 1.0, 2.0], [4.0, 3.0, 2.0, 1.0]]
    values, places = torch.tensor(rows).median(1)

    found: Any = Tensor(rows).median(1)

    assert repr(found[0].tolist()) == repr(values.tolist())
    assert found[1].tolist() == places.tolist()
    assert math.isnan(Tensor(rows).quantile(0.5, 1).tolist()[0])
    assert math.isnan(Tensor(rows).median().item())  # type: ignore[union-attr]


def test_the_gradient_of_a_distance_of_zero_is_zero() -> None:
    x = Tensor([[1.0, 2.0]], requires_grad=True)

    assert x.cdist(Tensor([[1.0, 2.0]])).sum().gradient(x)[0].tolist() == [[0.0, 0.0]]


def test_counting_and_finding() -> None:
    x = numpy.array([3, 0, 3, 5, 1])
    weights = numpy.array([0.5, 1.0, 2.0, 0.25, 4.0])

    assert Tensor(x).bincount().tolist() == numpy.bincount(x).tolist()
    assert Tensor(x).bincount(minlength=9).tolist() == numpy.bincount(x, minlength=9).tolist()
    found = Tensor(x).bincount(Tensor(weights))
    assert found.tolist() == numpy.bincount(x, weights).tolist()
    assert Tensor(x).unique().tolist() == [0, 1, 3, 5]
    for right in (False, True):
        expected = torch.searchsorted(torch.tensor([1, 3, 5]), torch.tensor(x), right=right)
        assert Tensor([1, 3, 5]).searchsorted(Tensor(x), right).tolist() == expected.tolist()


def test_rows_by_position() -> None:
    x, index = numpy.arange(12.0).reshape(3, 4), numpy.array([2, 0, 2])
    theirs, places = torch.tensor(x), torch.tensor(index)

    assert (
        Tensor(x).index_select(1, Tensor(index)).tolist() == theirs.index_select(1, places).tolist()
    )
    found = Tensor(x).index_add(0, Tensor(index), Tensor(x), alpha=2)
    assert found.tolist() == theirs.index_add(0, places, theirs, alpha=2).tolist()


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Tensor([]).median(), ShapeError, "median: no elements"),
    (lambda: Tensor([1.0]).quantile(1.5), ArgumentError, "between 0 and 1, got 1.5"),
    (lambda: Tensor([-1]).bincount(), ArgumentError, "-1 is below 0"),
    (lambda: Tensor([1.5]).bincount(), DTypeError, "bincount: the operand must be an integer"),
    (lambda: Tensor([1, 2]).narrow(0, 1, 2), ShapeError, "narrow: 2 elements from 1"),
    (lambda: Tensor([1, 2]).cross(Tensor([1, 2])), ShapeError, "not of size 3"),
    (lambda: Tensor([1.0, 2.0, 3.0]).glu(), ShapeError, "no two halves"),
    (lambda: Tensor.ones(1, 3, 2, 2).pixel_shuffle(2), ShapeError, "pixel_shuffle: factor 2"),
    (lambda: Tensor([1]).bmm(Tensor([1])), ShapeError, "bmm: needs three axes"),
]


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES)
def test_mistakes(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# --- scalars, infinities and NaN


def test_median_and_quantile_of_a_scalar_along_its_axis() -> None:
    values, places = Tensor(3.0).median(0)

    assert (values.tolist(), places.tolist()) == (3.0, 0)
    assert Tensor(3.0).quantile(0.5, -1).tolist() == 3.0
    assert Tensor(3.0).quantile([0, 1], 0, keepdim=True).shape == (2,)


def test_quantile_of_nothing_is_refused() -> None:
    with pytest.raises(ShapeError, match="no elements"):
        Tensor.zeros(0).quantile(0.5)


def test_quantile_at_an_element_does_not_see_the_next() -> None:
    assert Tensor([1.0, 2.0, math.inf]).quantile([0.0, 0.5, 1.0]).tolist() == [1.0, 2.0, math.inf]


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_puts_nan_last(right: bool) -> None:
    row, values = [1.0, 2.0, math.nan, math.nan], [math.nan, 3.0, 1.5, math.inf]

    found = Tensor(row).searchsorted(Tensor(values), right=right).tolist()

    side: Any = "right" if right else "left"
    assert found == numpy.searchsorted(row, values, side).tolist()


def test_atan2_has_gradient_0_at_the_origin() -> None:
    y, x = (Tensor([0.0, 1.0], requires_grad=True) for _ in range(2))

    y.atan2(x).sum().backward()

    assert y.grad is not None
    assert x.grad is not None
    assert y.grad.tolist() == [0.0, 0.5]
    assert x.grad.tolist() == [0.0, -0.5]


def test_cdist_of_small_unsigned_integers_does_not_wrap() -> None:
    a, b = Tensor([[1, 2]], dtype="uint8"), Tensor([[4, 6]], dtype="uint8")

    assert a.cdist(b).item() == 5.0


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
def test_norms_of_float16_do_not_overflow_before_they_are_norms(p: float) -> None:
    x = Tensor([300.0, -400.0], dtype="float16", requires_grad=True)
    wide = Tensor([300.0, -400.0], requires_grad=True)

    for found, expected in (
        (x.norm(p), wide.norm(p)),
        (x.normalize(p, dim=0), wide.normalize(p, dim=0)),
    ):
        (slope,), (steep,) = found.sum().gradient(x), expected.sum().gradient(wide)

        assert found.dtype is dtypes.float16
        numpy.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-3)
        numpy.testing.assert_allclose(slope.numpy(), steep.numpy(), rtol=2e-3, atol=1e-4)


def test_deviations_and_distances_of_float16_do_not_overflow() -> None:
    x = Tensor([[300.0, -400.0]], dtype="float16")

    assert x.std().item() == pytest.approx(495.0, rel=1e-3)
    assert x.std_mean(1)[0].item() == pytest.approx(495.0, rel=1e-3)
    assert x.matrix_norm().item() == 500.0
    assert x.cdist(x.const_like(0)).item() == 500.0
