"""Gradients and training over several devices: what one device finds, with RING or without."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy
import pluggy
import pytest

from tests.unit.tensor.helpers import numbers
from tests.unit.tensor.spread import A, assert_close, group, mesh
from tinycore import Context, Tensor, TinyJit, dtypes, nn
from tinycore.device.hooks import hooks
from tinycore.errors import GradientError
from tinycore.uop.op import Op

listen = pluggy.HookimplMarker("tinycore")
pytestmark = pytest.mark.sample(3)


@pytest.fixture(autouse=True)
def target() -> Iterator[None]:
    """Not on every target: what is tested is above them."""
    with Context(DEV="PYTHON"):
        yield


# --- differentiating


def test_gradients_go_where_the_tensor_is() -> None:
    x, w = Tensor(A, requires_grad=True), Tensor(A.T.copy(), requires_grad=True)
    part = Tensor(A.T.copy(), requires_grad=True).shard_(group(2), 0)

    loss = (x.shard(group(2), 0) @ w.shard(group(2))).square().sum() + (part * part).sum()
    loss.backward()

    gradient = 2 * (A @ A.T)
    for tensor, right in ((x, gradient @ A), (w, A.T @ gradient), (part, 2 * A.T)):
        assert tensor.grad is not None
        assert tensor.grad.device == tensor.device
        assert tensor.grad.sharded_axis == tensor.sharded_axis
        numpy.testing.assert_allclose(tensor.grad.numpy(), right)
    part.shard_(("PYTHON:2", "PYTHON:3"), 1)
    assert part.grad is not None
    assert part.grad.devices == part.devices == ("PYTHON:2", "PYTHON:3")


def test_graph_of_a_computed_number_is_gone() -> None:
    total = Tensor(A).shard(group(2), 0).sum().realize()

    with pytest.raises(GradientError, match="its graph is gone"):
        total.backward()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ring_adds_what_all_to_all_adds(count: int) -> None:
    x = Tensor(numbers(12, 10), dtype=dtypes.float32)

    def total(ring: int) -> Tensor:
        with Context(RING=ring):
            return x.shard(group(count), 0).sum(0).realize()

    assert_close([total(2).numpy()], [total(0).numpy()])
    parts = [total(2).to(device).tolist() for device in group(count)]
    assert parts == parts[:1] * count  # the same bits everywhere


# --- training


class Model:
    """Two layers with weights from a seed."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4)
        for seed, tensor in enumerate(nn.state.get_parameters(self)):
            tensor.assign(Tensor(numbers(*tensor.shape, low=-0.4, high=0.4, seed=seed)).float())

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


Placed = tuple[Tensor, Tensor]


def data_parallel(model: Model, x: Tensor, y: Tensor, devices: tuple[str, ...]) -> Placed:
    """Weights on each, the batch in parts."""
    for tensor in nn.state.get_parameters(model):
        tensor.shard_(devices)
    return x.shard(devices, 0), y.shard(devices, 0)


def tensor_parallel(model: Model, x: Tensor, y: Tensor, devices: tuple[str, ...]) -> Placed:
    """Outputs of the first layer and inputs of the second in parts, the batch on each."""
    model.first.weight.shard_(devices, 0)
    model.second.weight.shard_(devices, 1)
    for bias, axis in ((model.first.bias, 0), (model.second.bias, None)):
        assert bias is not None
        bias.shard_(devices, axis)
    return x.shard(devices), y.shard(devices)


def mesh_parallel(model: Model, x: Tensor, y: Tensor, devices: tuple[str, ...]) -> Placed:
    """Tensor parallel in each of two rows of devices, and the batch in parts over the rows."""
    across = mesh(2, len(devices) // 2, devices[0].partition(":")[0])
    axes = {"first.weight": 0, "first.bias": 0, "second.weight": 1, "second.bias": None}
    for name, tensor in nn.state.get_state_dict(model).items():
        tensor.shard_(across, (None, axes[name]))
    return x.shard(across, (0, None)), y.shard(across, (0, None))


def on_one(model: Model, x: Tensor, y: Tensor, devices: tuple[str, ...]) -> Placed:
    """As it is."""
    return x, y


PLACES = {"one": on_one, "data": data_parallel, "tensor": tensor_parallel, "mesh": mesh_parallel}


def trained(place: str, devices: tuple[str, ...], jitted: bool = False) -> tuple[list[Any], Any]:
    """The losses and weights of some steps of Adam, and the optimizer."""
    model = Model()
    x = Tensor(numbers(12, 8, seed=7), dtype=dtypes.float32)
    x, y = PLACES[place](model, x, Tensor([0, 1, 2, 3] * 3), devices)
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=0.05)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    run = TinyJit(step) if jitted else step
    with Context(TRAINING=1):
        losses = [run(x, y).numpy() for _ in range(4)]
    return [*losses, *[t.numpy() for t in nn.state.get_parameters(model)]], optimizer


@cache
def trained_on_one() -> list[Any]:
    """The losses and weights that one device finds."""
    return trained("one", ())[0]


TRAININGS = [
    pytest.param("data", 2, "CPU", True, marks=pytest.mark.device("CPU")),
    ("data", 4, "PYTHON", True),
    ("tensor", 2, "PYTHON", True),
    ("tensor", 4, "PYTHON", False),
    ("mesh", 4, "PYTHON", True),
    ("mesh", 8, "PYTHON", False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "count", "name", "jitted"), TRAININGS)
def test_training_equals_one_device(place: str, count: int, name: str, jitted: bool) -> None:
    with Context(DEV=name):
        found, optimizer = trained(place, group(count, name), jitted)

    assert_close(found, trained_on_one())
    members = [None] * 4 if place == "data" else [0, 0, 1, None]
    axes = [(None, axis) for axis in members] if place == "mesh" else members
    assert [t.sharded_axis for t in optimizer.params] == axes
    assert [t.sharded_axis for t in optimizer.m] == axes


@pytest.mark.slow
def test_ring_trains_to_the_same() -> None:
    with Context(RING=2):
        found, _ = trained("data", group(3))

    assert_close(found, trained_on_one())


def test_captured_step_draws_the_same_on_every_device() -> None:
    draw = TinyJit(lambda x: (x + Tensor.rand(4, 6, device=x.device)).realize())

    found = [draw(Tensor(A).shard(group(2))) for _ in range(4)]

    assert len({str(t.tolist()) for t in found}) == 4
    for t in found:
        assert t.to("PYTHON").tolist() == t.to("PYTHON:1").tolist()


# --- what a step sends


def gathered(layer: Any, devices: tuple[str, ...]) -> Any:
    """A layer whose weights are whole on every device."""
    found = copy.copy(layer)
    found.weight = layer.weight.shard(devices).contiguous()
    return found


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("count", [2, 4])
def test_zero_sends_what_theory_says(stage: int, count: int) -> None:
    """(n - 1) / n of the parameters in a reduce-scatter, and as much in an all-gather."""
    devices, sent = group(count), Counter[str]()

    class Observer:
        @listen
        def tinycore_schedule_created(self, schedule: Any) -> None:
            for item in schedule:
                if item.ast.op is Op.COPY:
                    sent[item.bufs[1].device] += item.bufs[1].nbytes

    def trained(devices: tuple[str, ...]) -> list[float]:
        layers = [nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)]
        weights = nn.state.get_parameters(layers)
        for seed, weight in enumerate(weights):
            weight.assign(Tensor(numbers(*weight.shape, low=-0.4, high=0.4, seed=seed)).float())
            weight.shard_(devices, 0 if stage == 3 else None).realize()
        optimizer, losses = nn.optim.AdamW(weights, lr=0.01), []
        for state in [*optimizer.m, *optimizer.v] if stage < 3 else ():
            state.shard_(devices, 0).realize()
        for step in range(3):
            x = Tensor(numbers(8, 8, seed=step)).float().shard(devices, 0).realize()
            first, second = [gathered(each, devices) for each in layers]
            loss = (second(first(x).relu()) - x).square().mean().backward()
            for weight in weights if stage == 2 else ():
                assert weight.grad is not None
                weight.grad.shard_(devices, 0)
            sent.clear()
            with Tensor.train():
                optimizer.step()
            losses.append(loss.item())
        return losses

    one, observer = trained(("PYTHON",)), Observer()
    hooks.register(observer)
    try:
        numpy.testing.assert_allclose(trained(devices), one, rtol=1e-5)
    finally:
        hooks.unregister(observer)
    theory = 2 * (count - 1) / count * 2 * 8 * 16 * 4
    assert len(sent) == count
    for total in sent.values():
        assert theory <= total <= theory + count * 8  # and the loss


def test_gradient_of_a_gradient_to_one_that_was_copied() -> None:
    x, z = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    given = z.to("PYTHON:1")

    (first,) = x.to("PYTHON:1").gradient(x, gradient=given)
    (found,) = first.square().sum().gradient(given)

    assert found.tolist() == [6.0, 8.0]
