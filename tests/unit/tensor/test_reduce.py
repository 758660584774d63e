"""Folding and running operations against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, integers, numbers
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError, IndexRangeError, ShapeError
from tinycore.tensor import Tensor

Function = Callable[..., Any]
AXES = [None, 0, 1, -1, (0, 2), (0, 1, 2)]


def over(name: str, axis: Any, keepdim: bool) -> Function:
    """torch's function of the same name over axes, where None means all."""
    names = {"max": "amax", "min": "amin"}

    def theirs(x: torch.Tensor) -> Any:
        dim = tuple(range(x.ndim)) if axis is None else axis
        return getattr(x, names.get(name, name))(dim, keepdim=keepdim)

    return theirs


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "logsumexp", "var", "std"])
def test_reduce(name: str, axis: Any) -> None:
    compare(lambda x: getattr(x, name)(axis), over(name, axis, False), numbers(2, 3, 4))
    compare(
        lambda x: getattr(x, name)(axis, keepdim=True),
        over(name, axis, True),
        numbers(2, 3, 4),
        gradient=False,
    )


def test_prod() -> None:
    compare(lambda x: x.prod(), lambda x: x.prod(), numbers(5))
    compare(lambda x: x.prod(1), lambda x: x.prod(1), numbers(2, 3, 4))
    compare(lambda x: x.prod((0, 2)), lambda x: x.prod(2).prod(0), numbers(2, 3, 4))


def test_prod_gradient_with_zeros() -> None:
    for zeros in ([0], [0, 2]):
        x = numbers(4)
        x[zeros] = 0

        compare(lambda t: t.prod(), lambda t: t.prod(), x)


def test_equal_extremes_share_the_gradient() -> None:
    x = numpy.array([1.0, 3.0, 3.0, 0.0])

    compare(lambda t: t.max(), lambda t: t.amax(), x)
    compare(lambda t: t.minimum(t.flip(0)), lambda t: torch.minimum(t, t.flip(0)), x)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (dtypes.bool, dtypes.int32),
        (dtypes.int8, dtypes.int32),
        (dtypes.uint8, dtypes.uint32),
        (dtypes.int64, dtypes.int64),
        (dtypes.float16, dtypes.float16),
        (dtypes.float64, dtypes.float64),
    ],
)
def test_dtype_of_a_sum(dtype: DType, expected: DType) -> None:
    assert Tensor([1, 1], dtype=dtype).sum().dtype is expected


def test_sums_of_halves_are_rounded_once() -> None:
    x = Tensor([0.1] * 4000, dtype=dtypes.float16)

    assert abs(x.sum().item() - 400) < 0.5
    assert x.sum(dtype=dtypes.float32).dtype is dtypes.float32


def test_no_elements() -> None:
    x = Tensor.zeros(0, 3)

    assert x.sum().item() == 0
    assert x.sum(0).tolist() == [0.0] * 3
    assert x.sum(1).shape == (0,)
    assert x.prod(0).tolist() == [1.0] * 3
    assert math.isnan(x.mean().item())
    assert (x.any().item(), x.all().item()) == (False, True)
    with pytest.raises(ShapeError, match="max: no elements"):
        x.max(0)


def test_any_and_all() -> None:
    x = Tensor([[0, 1], [2, 3]])

    assert x.any(1).tolist() == [True, True]
    assert x.all(1).tolist() == [False, True]
    assert x.all().item() is False


def test_var_with_correction() -> None:
    compare(lambda x: x.var(1, correction=0), lambda x: x.var(1, correction=0), numbers(3, 4))
    compare(lambda x: list(x.std_mean(1)), lambda x: list(torch.std_mean(x, 1)), numbers(3, 4))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_argmax(name: str, axis: int | None) -> None:
    compare(
        lambda x: getattr(x, name)(axis),
        lambda x: getattr(x, name)(axis),
        numbers(5, 6),
        gradient=False,
    )


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16], ids=lambda d: d.name)
def test_an_extreme_is_found_among_values_computed_with_it(dtype: DType) -> None:
    x = Tensor([[0.3671875, 0.875, 1.25, 0.5]], dtype=dtype)
    sixth = x / 6

    assert sixth.argmax(1).tolist() == [2]
    assert sixth.cummax(1)[1].tolist() == [[0, 1, 2, 2]]
    (gradient,) = sixth.max(1).sum().gradient(x)
    assert [g != 0 for g in gradient.tolist()[0]] == [False, False, True, False]


def test_argmax_takes_the_first_of_equals_and_nan() -> None:
    assert Tensor([1, 3, 3]).argmax().item() == 1
    assert Tensor([1.0, math.nan, 3.0]).argmax().item() == 1
    assert Tensor([2, 1, 1]).argmin(0, keepdim=True).tolist() == [1]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name: str, axis: int) -> None:
    compare(
        lambda x: getattr(x, name)(axis),
        lambda x: getattr(x, name)(axis),
        numbers(4, 6, low=-30, high=30),
    )


def test_softmax_of_large_numbers() -> None:
    x = Tensor([1000.0, 1001.0, -math.inf])

    numpy.testing.assert_allclose(x.softmax().numpy(), [0.26894143, 0.7310586, 0.0], rtol=1e-5)
    assert x.logsumexp().item() == pytest.approx(1001.3133, rel=1e-6)
    assert Tensor([-math.inf, -math.inf]).logsumexp().item() == -math.inf


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_normalize(p: float) -> None:
    compare(
        lambda x: x.normalize(p),
        lambda x: torch.nn.functional.normalize(x, p),
        numbers(3, 4),
        scale=4,
    )


@pytest.mark.parametrize("size", [1, 5, 64, 65, 300])
def test_cumsum(size: int) -> None:
    compare(lambda x: x.cumsum(1), lambda x: x.cumsum(1), numbers(2, size), scale=10)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum_along_axes(axis: int) -> None:
    compare(lambda x: x.cumsum(axis), lambda x: x.cumsum(axis), numbers(3, 4, 2))


def test_long_cumsum_of_integers_is_exact() -> None:
    x = integers(5000)

    assert (Tensor(x).cumsum().numpy() == x.cumsum()).all()


def test_cumprod() -> None:
    compare(lambda x: x.cumprod(0), lambda x: x.cumprod(0), numbers(7, 2))
    compare(
        lambda x: x.cumprod(0),
        lambda x: x.cumprod(0),
        numbers(70, low=0.9, high=1.1),
        gradient=False,
    )


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("size", [1, 6, 100])
def test_cummax(name: str, size: int) -> None:
    x = integers(size).astype(numpy.float64)

    compare(
        lambda t: list(getattr(t, name)(0)), lambda t: list(getattr(t, name)(0)), x, gradient=False
    )


def test_logcumsumexp() -> None:
    compare(
        lambda x: x.logcumsumexp(1), lambda x: x.logcumsumexp(1), numbers(3, 6, low=-50, high=50)
    )


def test_mistakes_are_told_at_the_call() -> None:
    x = Tensor.zeros(2, 3)

    with pytest.raises(IndexRangeError, match="sum: axis 2"):
        x.sum(2)
    with pytest.raises(ArgumentError, match="repeated"):
        x.sum((0, -2))


def test_reduce_of_a_scalar() -> None:
    x = Tensor(3.0)

    assert x.sum().item() == x.max(-1).item() == x.mean(0).item() == x.cumsum(0).item() == 3.0
    assert x.argmax().item() == 0


def test_the_deviation_of_equal_numbers_has_a_derivative_of_zero() -> None:
    compare(lambda x: x.std(1), None, numpy.array([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]]))
    compare(lambda x: x.std(1, correction=0), None, numpy.full((2, 3), 0.5))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_normalized_zeros_have_a_gradient(p: int) -> None:
    compare(
        lambda x: (x * Tensor([[0.0], [1.0]], dtype=x.dtype)).normalize(p, 1, eps=0.5),
        lambda x: torch.nn.functional.normalize(
            x * torch.tensor([[0.0], [1.0]]).double(), p, 1, eps=0.5
        ),
        numbers(2, 3),
    )
