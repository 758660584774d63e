"""Sorting and selection by condition against torch and NumPy."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, integers, numbers
from tinycore.errors import ArgumentError
from tinycore.tensor import Tensor


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 37])
def test_sort(size: int, descending: bool) -> None:
    compare(
        lambda x: x.sort(0, descending)[0], lambda x: x.sort(0, descending)[0], numbers(size, 2)
    )


@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order(descending: bool) -> None:
    x = integers(40, low=0, high=4)

    compare(
        lambda t: list(t.sort(0, descending)),
        lambda t: list(torch.sort(t, stable=True, descending=descending)),
        x,
        gradient=False,
    )


def test_nan_is_greater_than_any_number() -> None:
    x = Tensor([math.nan, math.inf, -1.0, math.nan, 2.0])

    assert x.argsort().tolist() == [2, 4, 1, 0, 3]
    assert x.argsort(descending=True).tolist() == [0, 3, 1, 4, 2]


def test_topk() -> None:
    compare(lambda x: x.topk(3)[0], lambda x: x.topk(3)[0], numbers(4, 7))
    assert Tensor([5, 9, 7]).topk(2)[1].tolist() == [1, 2]
    assert Tensor([5, 9, 7]).topk(1, largest=False)[0].tolist() == [5]
    with pytest.raises(ArgumentError, match="topk"):
        Tensor([1]).topk(2)


def test_nonzero() -> None:
    x = integers(4, 5, low=-1, high=2)

    assert (Tensor(x).nonzero().numpy() == numpy.argwhere(x)).all()
    assert Tensor([0, 3, 4]).nonzero(size=3).tolist() == [[1], [2], [0]]
    assert Tensor([0, 0]).nonzero().shape == (0, 1)


def test_masked_select() -> None:
    compare(lambda x: x.masked_select(x > 0), lambda x: x.masked_select(x > 0), numbers(4, 5))
    assert Tensor([1, 2, 3]).masked_select(Tensor([True, False, True]), size=3).tolist() == [
        1,
        3,
        0,
    ]
    assert Tensor([1, 2, 3]).masked_select(Tensor([True, False, True]), size=1).tolist() == [1]
