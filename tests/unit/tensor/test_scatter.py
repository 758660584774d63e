"""Writing parts of a tensor: what is written, what it costs, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, numbers
from tinycore import GlobalCounters, TinyJit
from tinycore.dtype import dtypes
from tinycore.tensor import Tensor

INDEX = numpy.array([[0, 2, 2, 0], [2, 2, 0, 0], [2, 0, 2, 0]], numpy.int64)
"""Rows beside (5, 4) along axis 0: several meet, two stay empty."""


def operations(tensor: Tensor) -> int:
    """Arithmetic that computing a tensor takes."""
    GlobalCounters.reset()
    tensor.realize()
    return GlobalCounters.global_ops


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("include_self", [True, False])
def test_folding_where_rows_meet(reduce: Any, include_self: bool) -> None:
    compare(
        lambda x, y: x.scatter_reduce(0, Tensor(INDEX), y, reduce, include_self),
        lambda x, y: x.scatter_reduce(0, torch.tensor(INDEX), y, reduce, include_self=include_self),
        numbers(5, 4),
        numbers(3, 4, seed=1),
    )


def test_a_product_with_zeros_has_the_gradient_of_the_others() -> None:
    x, y = numbers(5, 4), numbers(3, 4, seed=1)
    x[0, 0] = x[2, 1] = y[0, 1] = y[1, 2] = y[2, 3] = y[1, 3] = 0

    compare(
        lambda x, y: x.scatter_reduce(0, Tensor(INDEX), y, "prod"),
        lambda x, y: x.scatter_reduce(0, torch.tensor(INDEX), y, "prod"),
        x,
        y,
    )


def test_a_factor_beside_zeros_has_no_gradient() -> None:
    x, y = Tensor([2.0, 3.0], requires_grad=True), Tensor([0.0], requires_grad=True)
    x.scatter_reduce(0, Tensor([0]), y, "prod").sum().backward()

    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [0.0, 1.0]
    assert y.grad.tolist() == [2.0]


def test_an_extreme_is_shared_by_those_that_reach_it() -> None:
    x, y = numpy.ones((5, 4)), numpy.ones((3, 4))

    compare(
        lambda x, y: x.scatter_reduce(0, Tensor(INDEX), y, "amax"),
        lambda x, y: x.scatter_reduce(0, torch.tensor(INDEX), y, "amax"),
        x,
        y,
    )


def test_an_index_out_of_range_writes_nothing() -> None:
    x = Tensor([1.0, 2.0, 3.0])

    assert x.scatter(0, Tensor([7, -9, 1]), 5.0).tolist() == [1, 5, 3]


def test_the_last_of_several_rows_at_one_place_wins() -> None:
    x = Tensor.zeros(3).contiguous().realize()

    x[[1, 1, 2, 1]] = Tensor([1.0, 2.0, 3.0, 4.0])

    assert x.tolist() == [0, 4, 3]


def test_a_read_copy_writes_back_what_was_there_before() -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    doubled = numpy.array([1.0, 2, 3, 4])

    x[[0, 0, 3]] = x[[0, 0, 3]] * 2
    doubled[[0, 0, 3]] = doubled[[0, 0, 3]] * 2

    assert x.tolist() == doubled.tolist()


@pytest.mark.parametrize("shift", [1, -1])
def test_a_slice_moved_over_itself(shift: int) -> None:
    numbers_ = numpy.arange(9.0)
    x = Tensor(numbers_, dtype=dtypes.float32).realize()
    to, source = (slice(1, None), slice(None, -1)) if shift > 0 else (slice(-1), slice(1, None))

    x[to] = x[source]
    numbers_[to] = numbers_[source].copy()

    assert x.tolist() == numbers_.tolist()


def test_writing_a_slice_costs_the_slice(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no kernels to count")
    x = Tensor.zeros(64, 64).contiguous().realize()
    row = Tensor(numbers(64), dtype=dtypes.float32).realize()

    GlobalCounters.reset()
    x[5] = row * 2
    x.realize()

    assert GlobalCounters.global_mem <= 4 * 64 * 3
    assert GlobalCounters.kernel_count == 1
    assert x[4].tolist() == [0] * 64
    numpy.testing.assert_array_equal(x[5].numpy(), row.numpy() * 2)


def test_writing_rows_by_index_costs_the_rows() -> None:
    x = Tensor.zeros(256, 8).contiguous().realize()
    rows = Tensor(numbers(3, 8), dtype=dtypes.float32).realize()

    GlobalCounters.reset()
    x[Tensor([7, 200, 3])] = rows
    x.realize()

    assert GlobalCounters.global_mem < 256 * 8 * 4
    numpy.testing.assert_array_equal(x[200].numpy(), rows[1].numpy())


def test_the_gradient_of_rows_costs_the_rows() -> None:
    table = Tensor(numbers(128, 4), dtype=dtypes.float32).realize()
    index = Tensor(numpy.arange(64) % 32).realize()

    (gradient,) = table[index].sum().gradient(table)

    assert operations(gradient) < 4 * 128 * 4
    assert gradient.numpy()[:32].tolist() == [[2.0] * 4] * 32


def test_gradients_through_what_was_written() -> None:
    def ours(x: Tensor, row: Tensor, places: Tensor) -> Tensor:
        y = x * 2
        y[1] = row
        y[[0, 3]] = places
        return y * y

    def theirs(x: torch.Tensor, row: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[1] = row
        y[[0, 3]] = places
        return y * y

    compare(ours, theirs, numbers(4, 3), numbers(3, seed=1), numbers(2, 3, seed=2))


def test_second_derivative_through_a_sum_of_rows() -> None:
    x = numbers(4, 3)
    index = numpy.array([0, 2, 2])
    ours = Tensor(x, dtype=dtypes.float64)
    truth = torch.tensor(x, requires_grad=True)

    (first,) = (ours[Tensor(index)] ** 3).sum().gradient(ours)
    (second,) = (first * first).sum().gradient(ours)
    (right,) = torch.autograd.grad((truth[index] ** 3).sum(), truth, create_graph=True)
    (right,) = torch.autograd.grad((right * right).sum(), truth)

    numpy.testing.assert_allclose(second.numpy(), right.numpy(), 1e-9)


def test_a_cache_that_grows_row_by_row_in_a_captured_step(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    cache = Tensor.zeros(6, 2).contiguous().realize()

    @TinyJit
    def write(row: Tensor, place: Tensor) -> Tensor:
        cache[place] = row
        return cache.sum(0).realize()

    expected = numpy.zeros((6, 2))
    for step in range(6):
        expected[step] = step + 1
        row = Tensor([[step + 1.0, step + 1.0]]).realize()
        total = write(row, Tensor([step]).realize())
        assert total.tolist() == expected.sum(0).tolist()
    assert cache.tolist() == expected.tolist()


def test_bools_are_folded_as_logic() -> None:
    x = Tensor([True, False, False])
    index = Tensor([0, 1, 1])

    assert x.scatter_reduce(0, index, Tensor([False, False, True]), "sum").tolist() == [
        True,
        True,
        False,
    ]
    assert x.scatter_reduce(0, index, Tensor([True, True, False]), "prod").tolist() == [
        True,
        False,
        False,
    ]
