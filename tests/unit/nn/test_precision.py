"""Half precision trains: weights stay in float32, the scale adapts, overflows change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import numbers
from tinycore import Context, Tensor, TinyJit, dtypes, nn
from tinycore.errors import ArgumentError, DTypeError, GradientError
from tinycore.nn.optim import SGD, Adam, GradScaler, OptimizerGroup, clip_grad_norm_, compute_in
from tinycore.nn.state import get_parameters, get_state_dict, load_state_dict


def model() -> Any:
    """Two layers that learn to tell the signs of a product, started alike each time."""
    Tensor.manual_seed(4)
    net = {"in": nn.Linear(2, 16), "norm": nn.LayerNorm(16), "out": nn.Linear(16, 1)}
    load_state_dict(net, get_state_dict(net), verbose=False)
    return net


def scores(net: Any, x: Tensor) -> Tensor:
    result: Tensor = net["out"](net["norm"](net["in"](x)).relu())
    return result


X = numbers(64, 2, seed=3).astype(numpy.float32)
Y = (X[:, :1] * X[:, 1:] > 0).astype(numpy.float32)


def trained(dtype: Any, steps: int = 30) -> tuple[list[float], list[str]]:
    """The losses of captured steps in a dtype, and what the weights were kept in."""
    net, scaler = model(), GradScaler(growth_interval=5)
    optimizer = Adam(get_parameters(net), lr=0.03)
    x, y = Tensor(X), Tensor(Y)

    @TinyJit
    @Context(TRAINING=1)
    def step() -> Tensor:
        optimizer.zero_grad()
        with compute_in(net, dtype):
            found = scores(net, x.cast(dtype))
        assert found.dtype is dtype
        loss = found.float().binary_crossentropy_logits(y)
        scaler.scale(loss).backward()
        clip_grad_norm_(scaler.unscale_(optimizer), 1.0)
        return loss.realize(*scaler.schedule_step(optimizer), *scaler.schedule_update())

    losses = [step().item() for _ in range(steps)]
    assert not math.isinf(scaler.factor.item())
    return losses, [param.dtype.name for param in optimizer.params]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_half_precision_ends_close_to_float32(dtype: Any) -> None:
    precise, _ = trained(dtypes.float32)
    losses, kept = trained(dtype)

    assert set(kept) == {"float32"}
    assert losses[0] == pytest.approx(precise[0], 0.01)
    # the scale grows until a step overflows and is left out, so that they are a step or two apart
    assert losses[-1] == pytest.approx(precise[-1], abs=0.02)
    assert losses[-1] < losses[0] / 4


# --- the scale


def stepped(param: Tensor, scaler: GradScaler, optimizer: SGD) -> Callable[[Tensor], None]:
    """A captured step whose gradient is what it is given."""

    @TinyJit
    @Context(TRAINING=1)
    def step(gradient: Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale((param * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def test_an_overflow_changes_nothing_but_the_scale() -> None:
    param = Tensor([1.0, 2.0])
    optimizer, scaler = Adam([param], lr=0.5), GradScaler(8.0)
    step = stepped(param, scaler, optimizer)  # type: ignore[arg-type]
    step(Tensor([1.0, 1.0]))
    state = {"params": [param], "optimizer": optimizer}
    before = {name: tensor.tolist() for name, tensor in get_state_dict(state).items()}

    for bad, scale in ((math.inf, 4.0), (math.nan, 2.0), (-math.inf, 1.0)):
        step(Tensor([1.0, bad]))

        assert scaler.factor.item() == scale
        after = {name: tensor.tolist() for name, tensor in get_state_dict(state).items()}
        assert after == before

    step(Tensor([1.0, 1.0]))
    assert param.tolist() != before["params.0"]


def test_the_scale_follows_that_of_torch() -> None:
    options = {"growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3}
    drawn = numpy.random.default_rng(2).uniform(size=24)
    gradients = numpy.where(drawn < 0.2, numpy.inf, drawn).astype(numpy.float32)
    param, truth = Tensor([1.0]), torch.tensor([1.0], requires_grad=True)
    optimizer, scaler = SGD([param], lr=0.5), GradScaler(64.0, **options)  # type: ignore[arg-type]
    their_optimizer = torch.optim.SGD([truth], lr=0.5)
    theirs = torch.amp.GradScaler("cpu", 64.0, **options)  # type: ignore[arg-type]
    step = stepped(param, scaler, optimizer)

    for gradient in gradients:
        step(Tensor(numpy.array([gradient])))
        their_optimizer.zero_grad()
        torch.autograd.backward(theirs.scale((truth * float(gradient)).sum()))
        theirs.step(their_optimizer)
        theirs.update()
        assert scaler.factor.item() == theirs.get_scale()

    assert param.item() == pytest.approx(truth.detach().item(), 1e-6)


def test_the_scale_does_not_grow_to_infinity() -> None:
    param = Tensor([1.0])
    scaler = GradScaler(2.0**127, growth_interval=1)
    step = stepped(param, scaler, SGD([param], lr=0.0))

    for _ in range(3):
        step(Tensor([0.0]))

    assert scaler.factor.item() == 2.0**127


def test_small_gradients_survive_in_float16() -> None:
    """1e-9 is nothing in float16, and 65536 times it is something."""
    param, tiny = Tensor([1.0]), Tensor([1e-9])
    optimizer, scaler = SGD([param], lr=1.0), GradScaler()

    with compute_in([param], "float16"):
        half = param * 1.0
    scaler.scale((half.float() * tiny).sum()).backward()
    scaler.unscale_(optimizer)

    assert param.grad is not None
    assert param.grad.item() == pytest.approx(1e-9, 1e-3)


def test_one_overflow_among_several_optimizers_stops_only_its_own() -> None:
    sound, broken = Tensor([1.0]), Tensor([1.0])
    first, second, scaler = SGD([sound], lr=0.5), SGD([broken], lr=0.5), GradScaler(4.0)
    with Context(TRAINING=1):
        scaler.scale((sound + broken * math.inf).sum()).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()

    assert [sound.item(), broken.item()] == [0.5, 1.0]
    assert scaler.factor.item() == 2.0


def test_an_overflow_stops_a_whole_group() -> None:
    sound, broken = Tensor([1.0]), Tensor([1.0])
    group, scaler = OptimizerGroup(SGD([sound], lr=0.5), Adam([broken])), GradScaler(4.0)
    with Context(TRAINING=1):
        scaler.scale((sound + broken * math.inf).sum()).backward()
        scaler.step(group)

    assert [sound.item(), broken.item()] == [1.0, 1.0]


def test_state_is_the_scale_and_the_count() -> None:
    assert set(get_state_dict(GradScaler())) == {"factor", "successes"}


# --- master weights


def test_inside_the_block_parameters_are_halves_and_after_it_what_they_were() -> None:
    net = nn.BatchNorm(2)
    assert net.weight is not None
    node = net.weight.realize().uop

    with compute_in(net, "bfloat16"):
        assert net.weight.dtype is dtypes.bfloat16
        assert net.running_mean.dtype is dtypes.float32  # no parameter

    assert net.weight.uop is node


def test_an_error_inside_the_block_does_not_leave_halves_behind() -> None:
    net = nn.Linear(2, 2)

    with pytest.raises(ZeroDivisionError), compute_in(net, "float16"):
        raise ZeroDivisionError

    assert net.weight.dtype is dtypes.float32


def test_what_is_computed_inside_the_block_does_not_lose_the_parameters() -> None:
    net = nn.Linear(2, 2, bias=False)  # its weights were not computed yet
    with compute_in(net, "float16"):
        half = net(Tensor([[1.0, 0.0]]).half()).numpy()

    numpy.testing.assert_allclose(net(Tensor([[1.0, 0.0]])).numpy(), half, 1e-3)


def test_a_tensor_met_twice_is_cast_once() -> None:
    shared = Tensor([1.0])

    with compute_in([shared, shared], "float16"):
        pass

    assert shared.dtype is dtypes.float32


# --- what is refused


@pytest.mark.parametrize(
    "options",
    [
        {"init_scale": 0.0},
        {"init_scale": math.inf},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ArgumentError, match=f"{name} is out of range, got {value}"):
        GradScaler(**options)


def test_steps_out_of_order() -> None:
    param = Tensor([1.0])
    optimizer, scaler = SGD([param]), GradScaler()
    with pytest.raises(GradientError, match="no gradients were unscaled; call `step` before"):
        scaler.update()
    with pytest.raises(GradientError, match="no parameter has a gradient"):
        scaler.unscale_(optimizer)
    param.sum().backward()
    scaler.unscale_(optimizer)
    with pytest.raises(GradientError, match="unscaled since the last update"):
        scaler.unscale_(optimizer)


def test_integers_to_compute_in() -> None:
    with (
        pytest.raises(DTypeError, match=r"parameters are floats, not dtypes\.int32"),
        compute_in(nn.Linear(1, 1), "int32"),
    ):
        pass


@pytest.mark.parametrize("updates", [True, False])
def test_a_step_that_fails_leaves_gradients_scaled_for_the_next_try(
    monkeypatch: pytest.MonkeyPatch, updates: bool
) -> None:
    weight, scaler = Tensor([1.0, 2.0], requires_grad=True).realize(), GradScaler(8.0)
    optimizer = SGD([weight], lr=0.25)
    with Tensor.train():
        scaler.scale((weight * Tensor([1.0, 2.0])).sum()).backward()
        with monkeypatch.context() as patch:
            patch.setattr(SGD, "_updates", interrupted)
            with pytest.raises(KeyboardInterrupt):
                scaler.step(optimizer)
        assert weight.grad is not None
        assert weight.grad.tolist() == [8.0, 16.0]
        scaler.step(optimizer)
        assert weight.tolist() == [0.75, 1.5]
        optimizer.zero_grad()
        scaler.scale((weight * Tensor([1.0, 2.0])).sum()).backward()
        if updates:
            scaler.update()
            scaler.step(optimizer)
            assert weight.tolist() == [0.5, 1.0]
        else:
            with pytest.raises(GradientError, match=r"stepped since the last update"):
                scaler.step(optimizer)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
