"""Tensors over several devices compute what one device computes, forward and backward.

Most run on the interpreter: hundreds of small kernels are cheaper to interpret than to compile.
"""

from __future__ import annotations

import copy
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.unit.tensor.helpers import numbers
from tinycore import Context, GlobalCounters, Tensor, TinyJit, dtypes, nn
from tinycore.dtype import DType
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    IndexRangeError,
    ShapeError,
    TinycoreError,
    UnknownDevice,
)

CLOSE = {"rtol": 2e-5, "atol": 2e-5}
"""Sums of some hundred float32 in another order."""

Function = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def target() -> Iterator[None]:
    """Not on every target: what is tested is above them."""
    with Context(DEV="PYTHON"):
        yield


def group(count: int, name: str = "PYTHON") -> tuple[str, ...]:
    """The first devices of one kind."""
    return tuple(f"{name}:{number}" for number in range(count))


def elsewhere(x: Tensor) -> str:
    """Another device of the same kind."""
    return x.devices[0].partition(":")[0] + ":5"


def index_of(x: Tensor, *values: int) -> Tensor:
    """Integers where a tensor is."""
    return Tensor(list(values), dtype=dtypes.int32).shard(x.devices)


OPS: dict[str, Function] = {
    "arithmetic": lambda x, y: (x * y - x / (y * y + 1)).exp() + 2,
    "where": lambda x, y: (x < y).where(x, y * 2),
    "maximum": lambda x, y: x.maximum(y).relu(),
    "broadcast": lambda x, y: x + y[0] + y[:, 0:1],
    "cast": lambda x, y: (x.cast(dtypes.float64) + y).cast(dtypes.float32),
    "constant": lambda x, y: x + Tensor.arange(12).float() * y,
    "sum": lambda x, y: (x * y).sum(),
    "sum of axis 0": lambda x, y: (x * y).sum(0),
    "sum of axis 1": lambda x, y: (x * y).sum(1),
    "product": lambda x, y: (x + y * 0).prod(0),
    "greatest": lambda x, y: (x + y).max(1) + x.max(0),
    "least": lambda x, y: x.min() + y.min(0),
    "mean and variance": lambda x, y: (x - y.mean(0)) / (x.var(0) + 1).sqrt(),
    "softmax": lambda x, y: x.softmax(0) + y.log_softmax(1),
    "matmul": lambda x, y: x @ y,
    "matmul transposed": lambda x, y: x.T @ y + x @ y.T,
    "permute": lambda x, y: x.T + y,
    "flatten": lambda x, y: x.flatten() * y.flatten(),
    "split of axes": lambda x, y: (x.reshape(4, 3, 12) * y.reshape(4, 3, 12)).sum(1),
    "merge of axes": lambda x, y: (x.reshape(12, 3, 4).permute(1, 0, 2).reshape(36, 4)).exp(),
    "reshape across": lambda x, y: x.reshape(9, 16) + y.reshape(9, 16),
    "expand": lambda x, y: x.unsqueeze(1).expand(12, 5, 12) * y.unsqueeze(1),
    "pad": lambda x, y: x.pad(((1, 2), (0, 3))) * y.pad(((0, 3), (2, 1))),
    "pad one side": lambda x, y: x.pad(((0, 0), (1, 0))) + y.pad(((0, 0), (0, 1))),
    "slice": lambda x, y: x[2:7, 1:] * y[3:8, :-1],
    "one row": lambda x, y: x[5] * y[:, 7],
    "steps": lambda x, y: x[::2] + y[1::2],
    "flip": lambda x, y: x.flip(0) * y + y.flip(1) * x,
    "cat": lambda x, y: x.cat(y, dim=0).sum(1) + x.cat(y, dim=1).sum(0),
    "stack": lambda x, y: x.stack(y, dim=1).exp(),
    "split": lambda x, y: x.split([5, 7])[1] * y.chunk(2)[0][0],
    "cumulative sum": lambda x, y: x.cumsum(0) + y.cumsum(1),
    "triangle": lambda x, y: x.tril() + y.triu(),
    "diagonal": lambda x, y: x.diagonal() * y.diagonal(),
    "rows by index": lambda x, y: x[index_of(x, 1, 0, 7, 1)] * y[0],
    "columns by index": lambda x, y: x[:, index_of(x, 11, 0, 7, 1)] * y[:, 0:1],
    "gather": lambda x, y: x.gather(0, index_of(x, *[5, 3, 2] * 4).reshape(1, 12)) * y,
    "gather along 1": lambda x, y: x.gather(1, index_of(x, *[5, 3, 2] * 4).reshape(12, 1)) * y,
    "scatter": lambda x, y: x.scatter(0, index_of(x, *range(12)).reshape(1, 12), y),
    "scatter add": lambda x, y: x.scatter_reduce(
        0, index_of(x, *[4] * 12).reshape(1, 12).expand(12, 12), y, "sum"
    ),
    "scatter along 1": lambda x, y: x.scatter_reduce(
        1, index_of(x, *[1, 7, 11] * 4).reshape(1, 12).expand(12, 12), y, "sum"
    ),
    "sort": lambda x, y: x.sort(0)[0] + y.sort(1)[0],
    "pooling": lambda x, y: x.reshape(12, 1, 3, 4).max_pool2d(2).sum() + y.sum(),
    "convolution": lambda x, y: x.reshape(12, 1, 3, 4).conv2d(
        y.flatten()[:36].reshape(4, 1, 3, 3), padding=1
    ),
    "layer norm": lambda x, y: x.layernorm() * y,
    "einsum": lambda x, y: Tensor.einsum("ij,kj->ik", x, y),
    "detach": lambda x, y: x.detach() * y + x.contiguous() * y.contiguous_backward(),
    "elsewhere": lambda x, y: (x * 2).to(elsewhere(x)) + y.to(elsewhere(x)) * 3,
    "elsewhere and back": lambda x, y: x.to(elsewhere(x)).exp().to(y.device) * y,
    "other layout": lambda x, y: x.shard(x.devices, 1).exp() * y.shard(x.devices, 0),
}
"""Functions of two tensors of shape (12, 12)."""


def both(function: Function, x: Tensor, y: Tensor) -> list[Any]:
    """The value of a function, and the gradients of its weighted sum."""
    value = function(x, y)
    weights = Tensor(numbers(*value.shape, low=0.5, high=1.5), dtype=dtypes.float32)
    loss = (value * weights.shard_like(value.detach())).sum()
    results = [value, *loss.gradient(x, y)]
    Tensor.realize(*results)
    return [t.numpy() for t in results]


def inputs() -> tuple[Tensor, Tensor]:
    x, y = numbers(12, 12, seed=1), numbers(12, 12, seed=2)
    return Tensor(x, dtype=dtypes.float32), Tensor(y, dtype=dtypes.float32)


truths: dict[str, list[Any]] = {}


def truth(name: str) -> list[Any]:
    """What one device computes."""
    if name not in truths:
        truths[name] = both(OPS[name], *inputs())
    return truths[name]


LAYOUTS = [(2, 0, 0), (4, 1, 0), (3, None, 1), (2, 1, 1), (4, 0, 0), (2, 0, None), (3, 1, 1)]
"""How many devices, and the axes along which the two operands lie on them."""

ALL = os.environ.get("MULTI_TESTS") == "all"
CASES = [
    (name, *layout)
    for place, name in enumerate(OPS)
    for number, layout in enumerate(LAYOUTS)
    if ALL or (number - 3 * place) % len(LAYOUTS) < 1 + place % 2
]
"""Every op in one layout or two; MULTI_TESTS=all for every op in all of them."""


@pytest.mark.parametrize(("name", "count", "first", "second"), CASES)
def test_op_equals_one_device(name: str, count: int, first: int | None, second: int | None) -> None:
    x, y = inputs()

    found = both(OPS[name], x.shard(group(count), first), y.shard(group(count), second))

    for ours, theirs in zip(found, truth(name), strict=True):
        numpy.testing.assert_allclose(ours, theirs, **CLOSE)


@pytest.mark.parametrize("name", ["arithmetic", "softmax", "matmul", "rows by index"])
def test_op_on_compiled_devices(name: str) -> None:
    with Context(DEV="CPU"):
        x, y = inputs()
        found = both(OPS[name], x.shard(group(2, "CPU"), 0), y.shard(group(2, "CPU"), 0))

    for ours, theirs in zip(found, truth(name), strict=True):
        numpy.testing.assert_allclose(ours, theirs, **CLOSE)


def test_devices_of_different_kinds() -> None:
    x, y = inputs()

    found = both(OPS["matmul"], x.shard(("CPU", "PYTHON"), 0), y.shard(("CPU", "PYTHON")))

    for ours, theirs in zip(found, truth("matmul"), strict=True):
        numpy.testing.assert_allclose(ours, theirs, **CLOSE)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "dtype", [dtypes.float16, dtypes.bfloat16, dtypes.int8, dtypes.uint8, dtypes.bool]
)
def test_every_kind_of_number(dtype: DType, axis: int) -> None:
    x = Tensor(numpy.arange(24).reshape(4, 6) % 5).cast(dtype)
    y = x.shard(group(2), axis)

    for ours, right in (
        (y.sum(axis), x.sum(axis)),
        (y.max(), x.max()),
        (y[index_of(y, 1, 3, 2)], x[index_of(x, 1, 3, 2)]),
        (y.cat(y, dim=axis), x.cat(x, dim=axis)),
    ):
        assert ours.dtype is right.dtype
        assert ours.tolist() == right.tolist()


# --- what lies where


A = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)


def test_facts_are_those_of_the_whole() -> None:
    x = Tensor(A).shard(group(2), 1)

    assert x.shape == (4, 6)
    assert x.device == "PYTHON,PYTHON:1"
    assert x.devices == ("PYTHON", "PYTHON:1")
    assert x.sharded_axis == 1
    assert Tensor(A).shard(group(2)).sharded_axis is None
    assert Tensor(A).sharded_axis is None
    assert x.shard(group(2), -1) is x
    assert (x + 1).sharded_axis == x.T.T.sharded_axis == x.sum(0).sharded_axis + 1 == 1  # type: ignore[operator]


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("devices", [group(2), ("PYTHON:2", "PYTHON:3"), group(1), ("PYTHON:3",)])
def test_layout_can_be_changed(devices: tuple[str, ...], axis: int | None) -> None:
    for first in (0, 1, None):
        x = Tensor(A).shard(group(2), first).shard(devices, axis)

        assert x.sharded_axis == (axis if len(devices) > 1 else None)
        assert x.tolist() == A.tolist()


def test_name_of_a_group_is_a_device() -> None:
    x = Tensor(A).shard(group(2), 0)
    made = Tensor(A, device=x.device)
    zeros = Tensor.zeros(4, 6, device=x.device)

    assert (made + zeros + x).tolist() == (A * 2).tolist()
    assert zeros.assign(x).realize().tolist() == A.tolist()
    assert Tensor(A).to("PYTHON:1,PYTHON:0").devices == ("PYTHON:1", "PYTHON")


def test_tensors_like_a_sharded_one_lie_like_it() -> None:
    x = Tensor(A).shard(group(2), 1)

    for like in (x.zeros_like(), x.full_like(3), x.empty_like(), x.clone(), copy.deepcopy(x)):
        assert like.sharded_axis == 1
    assert (x + x.full_like(3)).tolist() == (A + 3).tolist()
    assert Tensor(A).shard_like(x).sharded_axis == 1
    assert x.shard_like(Tensor(A)).device == "PYTHON"
    assert pickle.loads(pickle.dumps(x)).tolist() == A.tolist()


def test_constant_lies_in_parts_when_asked() -> None:
    x = Tensor.full((4, 6), 2.0, buffer=False).shard(group(2), 0)

    assert x.sharded_axis == 0
    assert x.assign(x + 1).realize().tolist() == (A * 0 + 3).tolist()
    assert Tensor(5.0).shard(group(2)).item() == 5.0


def test_random_numbers_are_those_of_one_device() -> None:
    def drawn(device: str) -> Any:
        Tensor.manual_seed(3)
        return Tensor.rand(4, 6, device=device)

    found = drawn("PYTHON,PYTHON:1")

    assert found.tolist() == drawn("PYTHON").tolist()
    assert found.to("PYTHON").tolist() == found.to("PYTHON:1").tolist()
    with Context(TRAINING=1):
        assert Tensor(A).shard(group(2), 0).dropout(0.5).sharded_axis == 0


def test_state_is_saved_whole_and_loaded_in_parts(tmp_path: Path) -> None:
    layer, other = nn.Linear(6, 4), nn.Linear(6, 4)
    for target in (layer, other):
        target.weight.shard_(group(2), 0)
    nn.state.safe_save(nn.state.get_state_dict(layer), str(tmp_path / "layer"))

    nn.state.load_state_dict(other, nn.state.safe_load(str(tmp_path / "layer")), verbose=False)

    assert other.weight.sharded_axis == 0
    assert other.weight.tolist() == layer.weight.tolist()


# --- writing


@pytest.mark.parametrize("axis", [0, 1, None])
def test_parts_are_memory_of_their_own(axis: int | None) -> None:
    x = Tensor(A).realize()
    y, z = x.shard(group(2), axis), x.shard(group(2), axis)
    Tensor.realize(y, z)

    y.assign(y * 0).realize()

    assert x.tolist() == z.tolist() == A.tolist()
    there = z.to("PYTHON:1").realize()
    there.assign(there * 0).realize()
    assert z.tolist() == A.tolist()


@pytest.mark.parametrize("axis", [0, 1, None])
def test_parts_of_a_tensor_are_written(axis: int | None) -> None:
    x, right = Tensor(A).shard(group(2), axis).realize(), A.copy()

    x[1], right[1] = 7, 7
    x[:, 2], right[:, 2] = Tensor([1.0, 2.0, 3.0, 4.0], device=x.device), [1, 2, 3, 4]
    x[2:4, 1:3] += 1
    right[2:4, 1:3] += 1
    x[index_of(x, 0, 3)], right[[0, 3]] = 5, 5
    flat = x.reshape(24)
    flat[3:9], right.reshape(-1)[3:9] = 0, 0

    assert flat.tolist() == right.reshape(-1).tolist()
    assert x.tolist() == right.tolist()
    assert x.sharded_axis == axis


VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda t: t.T,
    "rows": lambda t: t[1:3],
    "reshaped": lambda t: t.reshape(6, 4),
}


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", VIEWS)
def test_views_show_what_is_written(name: str, axis: int | None) -> None:
    view, right = VIEWS[name], A.copy()
    x = Tensor(A).shard(group(2), axis).realize()
    shown = view(x).realize()

    x.assign(x * 2 + 1)
    right = right * 2 + 1
    assert shown.tolist() == view(right).tolist()
    shown.assign(shown + 3).realize()
    view(right)[...] += 3
    assert x.tolist() == right.tolist()
    before = shown * 2
    x.assign(x - 1).realize()
    assert before.tolist() == (view(right) * 2).tolist()
    assert shown.tolist() == view(right - 1).tolist()
    assert x.sharded_axis == axis


def test_assignment_exchanges_parts() -> None:
    x = Tensor(A.reshape(-1)).shard(group(2), 0).realize()

    x.assign(x.flip(0)).realize()

    assert x.tolist() == A.reshape(-1)[::-1].tolist()


def test_what_was_cut_into_kernels_is_not_computed_again() -> None:
    x = Tensor(A).shard(group(2), 0)
    total = (x + 1).sum(0).kernelize()
    x.realize()
    launched = GlobalCounters.kernel_count

    assert (total * 2).tolist() == ((A + 1).sum(0) * 2).tolist()
    assert total.tolist() == (A + 1).sum(0).tolist()
    again = GlobalCounters.kernel_count
    assert total.realize().tolist() == (A + 1).sum(0).tolist()
    assert launched < again == GlobalCounters.kernel_count


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


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ring_adds_what_all_to_all_adds(count: int) -> None:
    x = Tensor(numbers(12, 10), dtype=dtypes.float32)

    def total(ring: int) -> Tensor:
        with Context(RING=ring):
            return x.shard(group(count), 0).sum(0).realize()

    numpy.testing.assert_allclose(total(2).numpy(), total(0).numpy(), **CLOSE)
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


def on_one(model: Model, x: Tensor, y: Tensor, devices: tuple[str, ...]) -> Placed:
    """As it is."""
    return x, y


PLACES = {"one": on_one, "data": data_parallel, "tensor": tensor_parallel}


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


def trained_on_one() -> list[Any]:
    """The losses and weights that one device finds."""
    if "training" not in truths:
        truths["training"] = trained("one", ())[0]
    return truths["training"]


TRAININGS = [
    ("data", 2, "CPU", True),
    ("data", 4, "PYTHON", True),
    ("tensor", 2, "PYTHON", True),
    ("tensor", 4, "PYTHON", False),
]


@pytest.mark.parametrize(("place", "count", "name", "jitted"), TRAININGS)
def test_training_equals_one_device(place: str, count: int, name: str, jitted: bool) -> None:
    with Context(DEV=name):
        found, optimizer = trained(place, group(count, name), jitted)

    for ours, right in zip(found, trained_on_one(), strict=True):
        numpy.testing.assert_allclose(ours, right, **CLOSE)
    axes = [0, 0, 1, None] if place == "tensor" else [None] * 4
    assert [t.sharded_axis for t in optimizer.params] == axes
    assert [t.sharded_axis for t in optimizer.m] == axes


def test_ring_trains_to_the_same() -> None:
    with Context(RING=2):
        found, _ = trained("data", group(3))

    for ours, right in zip(found, trained_on_one(), strict=True):
        numpy.testing.assert_allclose(ours, right, **CLOSE)


def test_captured_step_draws_the_same_on_every_device() -> None:
    draw = TinyJit(lambda x: (x + Tensor.rand(4, 6, device=x.device)).realize())

    found = [draw(Tensor(A).shard(group(2))) for _ in range(4)]

    assert len({str(t.tolist()) for t in found}) == 4
    for t in found:
        assert t.to("PYTHON").tolist() == t.to("PYTHON:1").tolist()


# --- mistakes


MISTAKES: dict[str, tuple[Callable[[Tensor], object], type[TinycoreError], str]] = {
    "uneven": (
        lambda x: x.shard(group(3), 0),
        ShapeError,
        "4 elements, which is no multiple of the 3 devices PYTHON, PYTHON:1, PYTHON:2. Pad it to 6",
    ),
    "no axis": (lambda x: x.sum().shard(group(2), 0), ShapeError, "has no axis to cut"),
    "axis": (lambda x: x.shard(group(2), 2), IndexRangeError, "axis 2 is outside [-2, 1]"),
    "twice": (lambda x: x.shard(("PYTHON", "python:0")), DeviceError, "names a device twice"),
    "none": (lambda x: x.shard(()), ArgumentError, "needs at least one device, got ()"),
    "unknown": (lambda x: x.shard(("PYTHON", "NOPE")), UnknownDevice, "'NOPE'"),
    "no name": (lambda x: x.shard(3), ArgumentTypeError, "devices is 3 of type int"),  # type: ignore[arg-type]
    "mixed": (
        lambda x: x.shard(group(2), 0) + x,
        DeviceError,
        "operands are on PYTHON,PYTHON:1 and PYTHON; move one of them with .shard(devices)",
    ),
    "other group": (
        lambda x: x.shard(group(2), 0) @ x.shard(group(3)),
        DeviceError,
        "operands are on PYTHON,PYTHON:1 and PYTHON,PYTHON:1,PYTHON:2; move one of them",
    ),
    "assigned": (lambda x: x.shard(group(2), 0).assign(x), DeviceError, "assign: operands are on"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_told(name: str) -> None:
    act, error, text = MISTAKES[name]

    with pytest.raises(error, match=re.escape(text)):
        act(Tensor(A))
