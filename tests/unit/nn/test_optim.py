"""Every optimizer walks as torch's does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tinycore import Context, Tensor, dtypes
from tinycore.errors import ArgumentError, GradientError
from tinycore.nn.optim import SGD, Adam, AdamW, Optimizer, OptimizerGroup
from tinycore.nn.state import get_state_dict

DRAWN = numpy.random.default_rng(7)
WEIGHT = DRAWN.standard_normal((4, 3)).astype(numpy.float32)
BIAS = DRAWN.standard_normal(3).astype(numpy.float32)
INPUTS = DRAWN.standard_normal((5, 6, 4)).astype(numpy.float32)


def walked(make: Callable[[list[Tensor]], Optimizer]) -> list[Any]:
    params = [Tensor(WEIGHT), Tensor(BIAS)]
    optimizer = make(params)
    with Context(TRAINING=1):
        for x in INPUTS:
            optimizer.zero_grad()
            (Tensor(x) @ params[0] + params[1]).square().mean().backward()
            optimizer.step()
    return [param.numpy() for param in params]


def walked_by_torch(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> list[Any]:
    params = [torch.tensor(array, requires_grad=True) for array in (WEIGHT, BIAS)]
    optimizer = make(params)
    for x in INPUTS:
        optimizer.zero_grad()
        loss = (torch.tensor(x) @ params[0] + params[1]).square().mean()
        torch.autograd.backward(loss)  # `loss.backward` has no types
        optimizer.step()
    return [param.detach().numpy() for param in params]


PAIRS: dict[str, tuple[Any, Any]] = {
    "sgd": (lambda p: SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        lambda p: SGD(p, 0.1, 0.9, 0.01),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda p: SGD(p, 0.1, 0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True),
    ),
    "classic": (
        lambda p: SGD(p, 0.1, 0.9, classic=True),  # the same while the rate stays the same
        lambda p: torch.optim.SGD(p, 0.1, 0.9),
    ),
    "adam": (lambda p: Adam(p, 0.05), lambda p: torch.optim.Adam(p, 0.05)),
    "adamw": (
        lambda p: AdamW(p, 0.05, 0.8, 0.95, 1e-6, 0.1),
        lambda p: torch.optim.AdamW(p, 0.05, (0.8, 0.95), 1e-6, 0.1),
    ),
    "group": (
        lambda p: OptimizerGroup(Adam(p[:1], 0.05), SGD(p[1:], 0.1)),
        lambda p: TorchGroup(torch.optim.Adam(p[:1], 0.05), torch.optim.SGD(p[1:], 0.1)),
    ),
}


class TorchGroup:
    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


@pytest.mark.parametrize("name", PAIRS)
def test_five_steps_end_where_torch_ends(name: str) -> None:
    ours, theirs = PAIRS[name]

    for found, expected in zip(walked(ours), walked_by_torch(theirs), strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def trained_once(optimizer: Optimizer, *params: Tensor) -> None:
    with Context(TRAINING=1):
        sum((param.square().sum() for param in params), Tensor(0.0)).backward()
        optimizer.step()


def test_the_learning_rate_can_be_assigned() -> None:
    param = Tensor([1.0])
    optimizer = SGD([param], lr=100.0)

    optimizer.lr.assign([0.25])
    trained_once(optimizer, param)

    assert param.tolist() == [0.5]


def test_half_precision_parameters_keep_their_dtype_and_float32_state() -> None:
    param = Tensor([1.0, 2.0]).half()
    optimizer = Adam([param], lr=0.5)

    trained_once(optimizer, param)

    assert param.dtype is dtypes.float16
    assert optimizer.m[0].dtype is dtypes.float32
    assert param.tolist() == [0.5, 1.5]


def test_a_tensor_given_twice_is_stepped_once() -> None:
    param = Tensor([1.0])
    optimizer = SGD([param, param], lr=0.25)

    trained_once(optimizer, param)

    assert param.tolist() == [0.5]


def test_what_is_no_parameter_is_kept_beside() -> None:
    param, statistic = Tensor([1.0]), Tensor([2.0]).is_param_(False)

    optimizer = SGD([param, statistic])

    assert optimizer.params == [param]
    assert optimizer.buffers == [statistic]


def test_schedule_step_returns_what_to_realize() -> None:
    param, statistic = Tensor([1.0]), Tensor([2.0]).is_param_(False)
    optimizer = Adam([param, statistic])
    with Context(TRAINING=1):
        param.square().sum().backward()
        returned = {id(tensor) for tensor in optimizer.schedule_step()}

    state = [optimizer.b1_t, optimizer.b2_t, *optimizer.m, *optimizer.v]
    assert returned == {id(tensor) for tensor in [param, statistic, *state]}


def test_zero_grad_forgets() -> None:
    param = Tensor([1.0])
    param.square().sum().backward()

    SGD([param]).zero_grad()

    assert param.grad is None


def test_a_group_shows_its_members() -> None:
    first, second = SGD([Tensor([1.0])]), Adam([Tensor([2.0])])

    group = OptimizerGroup(first, second)

    assert group[1] is second
    assert group.params == [*first.params, *second.params]


def test_state_has_names() -> None:
    names = set(get_state_dict(Adam([Tensor([1.0])])))

    assert names == {"params.0", "lr", "b1_t", "b2_t", "m.0", "v.0"}


# --- what is refused


def test_nothing_to_optimize() -> None:
    with pytest.raises(ArgumentError, match="at least one parameter"):
        SGD([])
    with pytest.raises(ArgumentError, match="at least one parameter"):
        SGD([Tensor([1.0]).is_param_(False)])


def test_a_step_outside_training() -> None:
    with Context(TRAINING=0), pytest.raises(GradientError, match=r"with Context\(TRAINING=1\):"):
        SGD([Tensor([1.0])]).step()


def test_a_step_without_a_gradient() -> None:
    with (
        Context(TRAINING=1),
        pytest.raises(GradientError, match=r"parameter 0 of 1, of shape \(2,\)"),
    ):
        SGD([Tensor([1.0, 2.0])]).step()


def test_inputs_get_no_gradient_once_an_optimizer_says_what_is_trained() -> None:
    x, weight = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    SGD([weight], lr=0.1)
    (x * weight).sum().backward()

    assert x.grad is None
    assert weight.grad is not None
