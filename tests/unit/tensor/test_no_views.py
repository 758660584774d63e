"""Operations that give a view of their operand and those that do not, as in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tinycore.tensor import Tensor

NUMBERS = [[[[1.0, 2.0], [3.0, 4.0]]]]

VALUES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "max_pool2d": (lambda x: x.max_pool2d(1), lambda x: torch.nn.functional.max_pool2d(x, 1)),
    "avg_pool2d": (lambda x: x.avg_pool2d(1), lambda x: torch.nn.functional.avg_pool2d(x, 1)),
    "sum": (lambda x: x.sum(0), lambda x: x.sum(0)),
    "max": (lambda x: x.max(0), lambda x: x.amax(0)),
    "prod": (lambda x: x.prod(0), lambda x: x.prod(0)),
    "mean": (lambda x: x.mean((0, 1)), lambda x: x.mean((0, 1))),
    "no padding": (lambda x: x.pad((0, 0)), lambda x: torch.nn.functional.pad(x, (0, 0))),
    "padding": (lambda x: x.pad((1, 0)), lambda x: torch.nn.functional.pad(x, (1, 0))),
    "cat": (Tensor.cat, lambda x: torch.cat([x])),
    "cat of two": (lambda x: x.cat(x), lambda x: torch.cat([x, x])),
    "stack": (Tensor.stack, lambda x: torch.stack([x])),
    "roll by nothing": (lambda x: x.roll(0, 0), lambda x: x.roll(0, 0)),
    "roll": (lambda x: x.roll(1, 3), lambda x: x.roll(1, 3)),
    "repeat": (lambda x: x.repeat(1, 2, 1, 1), lambda x: x.repeat(1, 2, 1, 1)),
    "repeat once": (lambda x: x.repeat(1, 1, 1, 1), lambda x: x.repeat(1, 1, 1, 1)),
    "interleave": (
        lambda x: x.repeat_interleave(2, 0),
        lambda x: x.repeat_interleave(2, 0),
    ),
    "cumsum": (lambda x: x.cumsum(0), lambda x: x.cumsum(0)),
    "pow": (lambda x: x**1, lambda x: x**1),
    "clone": (lambda x: x.clone(), lambda x: x.clone()),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: x.transpose(2, 3),
    "part": lambda x: x[0, :, 1:],
    "reshape": lambda x: x.reshape(4),
    "detach": lambda x: x.detach(),
    "expand": lambda x: x.expand(3, 1, 2, 2),
}


@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_a_value_keeps_what_it_was_made_of(name: str, realized: bool) -> None:
    ours, theirs = VALUES[name]
    x, expected = Tensor(NUMBERS), theirs(torch.tensor(NUMBERS))
    y = ours(x.realize() if realized else x)
    if realized:
        y.realize()
    x[:] = 9.0

    assert y.tolist() == expected.tolist()
    assert (x == 9.0).all().item()


@pytest.mark.parametrize("name", VALUES)
def test_writing_to_a_value_leaves_its_operand(name: str) -> None:
    x = Tensor(NUMBERS).realize()
    y = VALUES[name][0](x)
    y[:] = 9.0

    assert (y == 9.0).all().item()
    assert x.tolist() == NUMBERS


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_what_is_written(name: str) -> None:
    x, other = Tensor(NUMBERS).realize(), torch.tensor(NUMBERS)
    y, expected = VIEWS[name](x), VIEWS[name](other)
    x[:] = 9.0
    other[:] = 9.0

    assert y.tolist() == expected.tolist()


@pytest.mark.parametrize("name", VALUES)
def test_values_pass_gradients_on(name: str) -> None:
    x, other = Tensor(NUMBERS).realize(), torch.tensor(NUMBERS, requires_grad=True)
    ours, theirs = VALUES[name]
    (found,) = (ours(x) * 3.0).sum().gradient(x)
    (theirs(other) * 3.0).sum().backward()

    assert found.tolist() == other.grad.tolist()  # type: ignore[union-attr]


def test_a_write_finds_its_place_when_a_part_was_computed_alone() -> None:
    x, row, weight = Tensor([[-2.0], [-1.0]]), Tensor([0.5]), Tensor([[2.0], [3.0]])
    y = x.exp()
    y[0, ...] = row
    first, second = (y * weight).sum().gradient(x, row)
    second.realize()

    assert second.tolist() == [2.0]
    numpy.testing.assert_allclose(first.numpy(), [[0.0], [3.0 * math.exp(-1.0)]], rtol=1e-6)


def test_what_was_written_to_is_no_view_of_the_value() -> None:
    x, y = Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0], [5.0, 6.0]]) * 2
    y[...] = x
    x[:, :1].assign(Tensor([[9.0]]))

    assert y.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert x.tolist() == [[9.0, 2.0]]


def test_what_was_written_to_is_computed_for_itself() -> None:
    x, weight = Tensor([1.0]), Tensor([0.5])
    y = x * 0.25 + 1.75
    z = y * 0.5
    z[:] = y
    z.expand((3,)).contiguous().realize()
    (gradient,) = (y * weight).sum().gradient(x)

    assert gradient.tolist() == [0.125]


def test_a_constant_that_was_written_to_keeps_the_value() -> None:
    x, y = Tensor([0.25]), Tensor.zeros(3).sum(0, keepdim=True).expand(4).clone()
    y[...] = x
    x.assign(Tensor([7.0]))

    assert y.tolist() == [0.25] * 4
    assert x.tolist() == [7.0]
