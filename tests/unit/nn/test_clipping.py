"""Gradients are clipped as torch clips them, also inside a captured step."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import TOLERANCES, numbers
from tinycore import Context, Tensor, TinyJit, dtypes
from tinycore.errors import ArgumentError
from tinycore.nn.optim import SGD, clip_grad_norm_, clip_grad_value_

GRADIENTS = [numbers(3, 4), numbers(5, seed=1), numbers(2, 1, 2, seed=2)]


def pairs(dtype: Any) -> tuple[list[Tensor], list[torch.Tensor]]:
    ours, theirs = [], []
    for array in GRADIENTS:
        param = Tensor.zeros(array.shape, dtype=dtype)
        param.grad = Tensor(array, dtype=dtype)
        ours.append(param)
        theirs.append(torch.zeros(array.shape, dtype=torch.float64))
        theirs[-1].grad = torch.tensor(array)
    return ours, theirs


def assert_clipped(ours: list[Tensor], theirs: list[torch.Tensor], dtype: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.dtype is dtype
        numpy.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), *TOLERANCES[dtype])


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float32, dtypes.float16], ids=str)
@pytest.mark.parametrize("kind", [2.0, 1.0, 3.5, math.inf])
def test_the_norm_is_that_of_torch(kind: float, dtype: Any) -> None:
    for limit in (0.25, 100.0):  # clipped, and left alone
        ours, theirs = pairs(dtype)

        total = clip_grad_norm_(ours, limit, kind)

        expected = torch.nn.utils.clip_grad_norm_(theirs, limit, kind)
        assert total.item() == pytest.approx(float(expected), TOLERANCES[dtype][0])
        assert_clipped(ours, theirs, dtype)


def test_a_norm_beyond_float16_is_computed_in_float32() -> None:
    param = Tensor.zeros(3, dtype=dtypes.float16)
    param.grad = Tensor([3000.0, 4000.0, 0.0]).half()

    assert clip_grad_norm_(param, 1.0).item() == 5000.0
    assert param.grad.numpy() == pytest.approx([0.6, 0.8, 0.0], 1e-3)


def test_gradients_of_zero_stay() -> None:
    param = Tensor([1.0, 2.0])
    param.grad = Tensor.zeros(2)

    assert clip_grad_norm_(param, 1.0).item() == 0
    assert param.grad.tolist() == [0, 0]


def test_what_is_not_finite_stays_so() -> None:
    param, other = Tensor([1.0]), Tensor([1.0])
    param.grad, other.grad = Tensor([math.nan]), Tensor([2.0])

    assert math.isnan(clip_grad_norm_([param, other], 1.0).item())
    assert math.isnan(other.grad.item())


def test_tensors_without_gradients_are_left_out() -> None:
    param, other = Tensor([1.0]), Tensor([1.0])
    param.grad = Tensor([4.0])

    assert clip_grad_norm_([param, other, param], 2.0).item() == 4
    assert param.grad.item() == pytest.approx(2.0, 1e-6)
    assert other.grad is None
    assert clip_grad_norm_([other], 2.0).item() == 0


@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float16], ids=str)
def test_the_value_is_that_of_torch(dtype: Any) -> None:
    ours, theirs = pairs(dtype)

    clip_grad_value_(ours, 0.75)

    torch.nn.utils.clip_grad_value_(theirs, 0.75)
    assert_clipped(ours, theirs, dtype)


@pytest.mark.slow
def test_captured_steps_clip_each_time_anew() -> None:
    param = Tensor([3.0, -4.0])
    truth = torch.tensor([3.0, -4.0], dtype=torch.float64, requires_grad=True)
    optimizer, theirs = SGD([param], lr=0.5), torch.optim.SGD([truth], lr=0.5)

    @TinyJit
    @Context(TRAINING=1)
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        (param * x).square().sum().backward()
        clip_grad_value_(optimizer.params, 5.0)
        norm = clip_grad_norm_(optimizer.params, 2.0)
        return norm.realize(*optimizer.schedule_step())

    for seed in range(5):
        x = numbers(2, seed=seed)
        norm = step(Tensor(x, dtype="float32"))
        theirs.zero_grad()
        torch.autograd.backward((truth * torch.tensor(x)).square().sum())
        torch.nn.utils.clip_grad_value_([truth], 5.0)
        expected = torch.nn.utils.clip_grad_norm_([truth], 2.0)
        theirs.step()
        assert norm.item() == pytest.approx(float(expected), 1e-4)

    numpy.testing.assert_allclose(param.numpy(), truth.detach().numpy(), 1e-4, 1e-5)


# --- what is refused


def test_limits_out_of_range() -> None:
    with pytest.raises(ArgumentError, match=r"max_norm cannot be negative, got -1\.0"):
        clip_grad_norm_([], -1.0)
    with pytest.raises(ArgumentError, match="norm_type must be positive, got 0"):
        clip_grad_norm_([], 1.0, 0)
    with pytest.raises(ArgumentError, match="clip_value cannot be negative, got nan"):
        clip_grad_value_([], math.nan)
