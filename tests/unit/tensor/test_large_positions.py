"""Positions, counts and labels that the default integer does not hold are int64."""

from __future__ import annotations

import numpy
import pytest

from tinycore import Context
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError
from tinycore.tensor import Tensor

SIZE = 300
LAST = SIZE - 1


@pytest.fixture(autouse=True)
def short_default() -> object:
    with Context(DEFAULT_INT="int8"):
        yield


def ramp() -> Tensor:
    return Tensor(numpy.arange(SIZE, dtype=numpy.float32))


def test_arguments_of_extremes() -> None:
    assert ramp().argmax().item() == LAST
    assert (-ramp()).argmin(0).item() == LAST
    assert ramp().cummax(0)[1][-1].item() == LAST
    assert ramp()[:100].argmax().dtype is dtypes.int8


def test_sorting() -> None:
    order = ramp().argsort(descending=True)

    assert order.tolist() == [*range(LAST, -1, -1)]
    assert ramp().sort(descending=True)[1][0].item() == LAST
    assert ramp().topk(2)[1].tolist() == [LAST, LAST - 1]


def test_positions_by_condition() -> None:
    x = ramp()

    assert (x >= 298).nonzero().tolist() == [[298], [299]]
    assert x.masked_select(x >= 298).tolist() == [298.0, 299.0]
    assert x[x >= 298].tolist() == [298.0, 299.0]


def test_classes() -> None:
    labels = Tensor([LAST], dtype="int64")
    scores = (Tensor(numpy.arange(SIZE)) == LAST).where(100.0, 0.0).reshape(1, SIZE)

    assert labels.one_hot(SIZE)[0].argmax().item() == LAST
    assert scores.sparse_categorical_crossentropy(labels).item() == pytest.approx(0.0)
    assert scores.cross_entropy(labels).item() == pytest.approx(0.0)


def test_windows() -> None:
    image = ramp().reshape(1, 1, 15, 20)

    values, places = image.max_pool2d((15, 20), return_indices=True)

    assert places.item() == LAST
    assert values.max_unpool2d(places, (15, 20), output_size=(15, 20)).sum().item() == LAST
    assert image.interpolate((15, 600), "nearest")[0, 0, 0, -1].item() == 19.0


def test_counts() -> None:
    ones, zero = Tensor.ones(1, SIZE), Tensor.zeros(1, 1)
    index = Tensor.zeros(1, SIZE, dtype="int32")

    assert zero.scatter_reduce(1, index, ones, "mean", include_self=False).item() == 1.0
    assert ones.__array_namespace__().count_nonzero(ones).item() == SIZE


def test_numbers_beyond_the_default_integer() -> None:
    assert Tensor([1, 300]).dtype is Tensor(300).dtype is dtypes.int64
    assert Tensor([1, 300]).tolist() == [1, 300]
    assert Tensor.arange(SIZE).dtype is Tensor.arange(1, 400, 50).dtype is dtypes.int64
    assert Tensor.arange(SIZE)[-1].item() == LAST
    assert Tensor.full((1,), 300).tolist() == [300]
    assert (Tensor([True]) + 300).tolist() == [301]
    assert Tensor([1, 2]).dtype is dtypes.int8


def test_numbers_beyond_int32() -> None:
    with Context(DEFAULT_INT="int32"):
        assert Tensor([1, 2**31]).tolist() == [1, 2**31]
        assert Tensor(-(2**40)).item() == -(2**40)
        assert Tensor.arange(2**31, 2**31 + 2).tolist() == [2**31, 2**31 + 1]
        assert Tensor([2**32 + 1], dtype="int64").one_hot(2**33)[0, 2**32 : 2**32 + 3].tolist() == [
            *(0, 1, 0)
        ]
        with pytest.raises(ArgumentError, match=r"9223372036854775808 does not fit dtypes\.int64"):
            Tensor([2**63])
