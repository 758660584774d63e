"""Reading and writing by index against NumPy, gather and scatter against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, IndexRangeError, ShapeError
from tinycore.tensor import Tensor

Function = Callable[..., Any]
X = numpy.arange(60).reshape(3, 4, 5).astype(numpy.int32)

BASIC: list[Any] = [
    0,
    -1,
    (1, 2),
    (1, 2, 3),
    slice(1, 3),
    slice(None, None, -1),
    slice(None, None, 2),
    slice(-1, None, -2),
    (slice(None), slice(3, 0, -2)),
    (slice(None), slice(10, 20)),
    (slice(2, 1), 0),
    ...,
    (..., 0),
    (0, ...),
    (..., slice(1, 4, 2)),
    None,
    (None, 0, None),
    (slice(None), None, 1),
    (..., None),
    (),
]
ADVANCED: list[Any] = [
    [0, 2],
    [-1, 0, 0],
    ([0, 1], [1, 2]),
    ([0, 1], slice(None), [1, 2]),
    (slice(None), [0, 3]),
    (slice(None), [0, 3], [1, 4]),
    ([[0], [2]], [1, 2]),
    (0, [1, 2]),
    (0, slice(None), [0, 1]),
    ([0, 1], slice(None), 1),
    (0, None, [0, 1]),
    ([0, 1], 1),
    (slice(None), 1, [0, 2]),
    ([0, 1], None, [1, 2]),
    (..., [0, 4]),
    (slice(0, 2), [[0, 1], [2, 3]], slice(None, None, 2)),
    (None, [0, 1]),
    (slice(1, None), [1, 2], None, [1, 2]),
]


def listed(index: Any) -> Any:
    """The index with lists as NumPy arrays, which NumPy wants inside tuples."""
    if isinstance(index, tuple):
        return tuple([numpy.array(i) if isinstance(i, list) else i for i in index])
    return numpy.array(index) if isinstance(index, list) else index


def peer(index: Any) -> Any:
    """The same numbers in torch, which takes ints first; in NumPy where torch has no such slice."""
    return torch.tensor(X) if index in ADVANCED else X.copy()


@pytest.mark.parametrize("index", BASIC + ADVANCED, ids=repr)
def test_read(index: Any) -> None:
    result, expected = Tensor(X)[index], peer(index)[listed(index)]

    assert result.shape == tuple(expected.shape)
    assert result.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "index",
    [0, slice(None, None, 2), slice(None, None, -1), [0, 2, 2], ([0, 1, 0], [1, 2, 1])],
    ids=repr,
)
def test_read_gradient(index: Any) -> None:
    compare(
        lambda x: x[index],
        lambda x: x.flip(0) if index == slice(None, None, -1) else x[index],
        numbers(3, 4),
    )


def test_read_by_tensor() -> None:
    index = Tensor([[0, -1], [1, 1]], dtype=dtypes.int64)

    assert (Tensor(X)[index].numpy() == X[[[0, -1], [1, 1]]]).all()


def test_index_out_of_range_in_a_tensor_reads_zero() -> None:
    assert Tensor([1, 2, 3])[Tensor([0, 3, -4])].tolist() == [1, 0, 0]
    assert Tensor([[1, 2], [3, 4]])[Tensor([0, 2]), Tensor([1, 0])].tolist() == [2, 0]


def test_read_by_mask() -> None:
    mask = X % 3 == 0

    assert (Tensor(X)[Tensor(mask)].numpy() == X[mask]).all()
    assert (Tensor(X)[:, Tensor(mask[0])].numpy() == X[:, mask[0]]).all()
    assert (Tensor(X)[numpy.array([True, False, True])].numpy() == X[[True, False, True]]).all()


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (3, IndexRangeError, r"3 is outside axis 0 of shape \(3, 4, 5\)"),
        ((0, -5), IndexRangeError, "-5 is outside axis 1"),
        ((0, 0, 0, 0), IndexRangeError, "4 entries for the 3 axes"),
        ((..., ...), IndexRangeError, "ellipsis"),
        ("a", ArgumentError, "'a'"),
        ([0.5], DTypeError, "float64"),
    ],
)
def test_bad_indices_are_told_at_the_call(index: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Tensor(X)[index]


@pytest.mark.parametrize("index", BASIC + ADVANCED, ids=repr)
def test_write(index: Any) -> None:
    expected, ours = peer(index), Tensor(X)
    shape = tuple(expected[listed(index)].shape)
    value = -numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape).astype(numpy.int32)

    expected[listed(index)] = torch.tensor(value) if index in ADVANCED else value
    ours[index] = Tensor(value) if value.size else 0

    assert ours.tolist() == expected.tolist()


def test_write_broadcasts_numbers_and_lists() -> None:
    x = Tensor.zeros(2, 3, dtype=dtypes.int32)

    x[0] = 7
    x[:, 1:] = [1, 2]

    assert x.tolist() == [[7, 1, 2], [0, 1, 2]]


def test_the_last_of_repeated_writes_wins() -> None:
    x = Tensor([0, 0, 0])

    x[[1, 1, 2]] = Tensor([5, 6, 7])

    assert x.tolist() == [0, 6, 7]


@pytest.mark.parametrize("index", [..., 1, [2, 0]], ids=str)
@pytest.mark.parametrize("kind", [Tensor.realize, Tensor.clone, lambda x: x.realize() + 0])
def test_numbers_of_another_device_are_written(kind: Function, index: Any) -> None:
    expected = numpy.zeros(3, numpy.float32)
    x = kind(Tensor(expected))
    device = x.device
    expected[index] = 7

    other = "PYTHON:1" if device == "PYTHON" else "PYTHON"
    x[index] = Tensor.full((), 7.0, device=other, buffer=False)

    assert x.device == device
    assert x.tolist() == expected.tolist()


def test_write_by_mask() -> None:
    x = Tensor([1, -2, 3, -4])

    x[x < 0] = 0

    assert x.tolist() == [1, 0, 3, 0]


def test_write_from_itself() -> None:
    x = Tensor([1, 2, 3, 4])

    x[1:] = x[:-1]

    assert x.tolist() == [1, 1, 2, 3]


def test_write_keeps_the_dtype_and_leaves_others_alone() -> None:
    x = Tensor([1, 2, 3])
    y = x + 0

    x[0] = 2.9

    assert x.dtype is dtypes.int32
    assert (x.tolist(), y.tolist()) == ([2, 2, 3], [1, 2, 3])


def test_write_that_does_not_fit_is_told_at_the_call() -> None:
    with pytest.raises(ShapeError, match=r"setitem.*\(2,\).*\(3,\)"):
        Tensor([1, 2, 3])[:] = Tensor([1, 2])


def test_write_has_a_gradient() -> None:
    value, base = Tensor([5.0, 6.0]), Tensor([1.0, 2.0, 3.0])
    x = base * 1

    x[1:] = value * 2
    gradients = (x * Tensor([1.0, 10.0, 100.0])).sum().gradient(value, base)

    assert [g.tolist() for g in gradients] == [[20.0, 200.0], [1.0, 0.0, 0.0]]


# --- along an axis

INDEX = numpy.array([[0, 2, 1], [1, 1, 0]])


def test_gather() -> None:
    compare(
        lambda x: x.gather(0, Tensor(INDEX)),
        lambda x: x.gather(0, torch.tensor(INDEX)),
        numbers(3, 3),
    )
    compare(
        lambda x: x.gather(1, Tensor(INDEX)),
        lambda x: x.gather(1, torch.tensor(INDEX)),
        numbers(4, 3),
    )


def test_gather_of_integers_and_bools() -> None:
    assert Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [-1]])).tolist() == [[2], [4]]
    assert Tensor([True, False]).gather(0, Tensor([1, 0, 0])).tolist() == [False, True, True]


@pytest.mark.parametrize("dim", [0, 1])
def test_scatter(dim: int) -> None:
    index = numpy.array([[0, 2, 1], [1, 0, 2]])

    compare(
        lambda x, y: x.scatter(dim, Tensor(index), y),
        lambda x, y: x.scatter(dim, torch.tensor(index), y),
        numbers(4, 5),
        numbers(2, 3),
    )


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: Any, include_self: bool) -> None:
    compare(
        lambda x, y: x.scatter_reduce(0, Tensor(INDEX), y, reduce, include_self),
        lambda x, y: x.scatter_reduce(0, torch.tensor(INDEX), y, reduce, include_self=include_self),
        numbers(4, 5),
        numbers(2, 3),
        gradient=False,
    )


def test_scatter_add_of_a_number() -> None:
    assert Tensor([1, 1, 1]).scatter(0, Tensor([0, 0, 2]), 5, reduce="add").tolist() == [11, 1, 6]


def test_index_that_does_not_run_beside_is_told_at_the_call() -> None:
    with pytest.raises(ShapeError, match="gather"):
        Tensor.zeros(2, 3).gather(0, Tensor([[0] * 4]))
    with pytest.raises(DTypeError, match="gather"):
        Tensor.zeros(2).gather(0, Tensor([0.0]))


def test_one_hot() -> None:
    assert Tensor([0, 2]).one_hot(3).tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(DTypeError, match="one_hot"):
        Tensor([0.0]).one_hot(3)
