"""Tensors over several devices compute what one device computes, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from tests.unit.tensor.helpers import numbers
from tinycore import Context, GlobalCounters, Tensor, TinyJit, dtypes, nn
from tinycore.errors import ArgumentError, DeviceError, GradientError, ShapeError, UnsupportedError

CLOSE = {"rtol": 2e-5, "atol": 2e-5}
"""Sums of some hundred float32 in another order."""

Function = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def target() -> Iterator[None]:
    """On the default CPU: the tests name their devices themselves."""
    with Context(DEV="CPU"):
        yield


def group(count: int, name: str = "CPU") -> tuple[str, ...]:
    """The first devices of one kind."""
    return tuple(f"{name}:{number}" for number in range(count))


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
    "convolution": lambda x, y: x.reshape(12, 1, 3, 4).conv2d(y.flatten()[:36].reshape(4, 1, 3, 3), padding=1),
    "layer norm": lambda x, y: x.layernorm() * y,
    "einsum": lambda x, y: Tensor.einsum("ij,kj->ik", x, y),
    "detach": lambda x, y: x.detach() * y + x.contiguous() * y.contiguous_backward(),
    "elsewhere": lambda x, y: (x * 2).to("CPU:5") + y.to("CPU:5") * 3,
    "elsewhere and back": lambda x, y: x.to("CPU:5").exp().to(y.device) * y,
    "other layout": lambda x, y: x.shard(x.devices, 1).exp() * y.shard(x.devices, 0),
}
"""Functions of two tensors of shape (12, 12)."""


def both(function: Function, x: Tensor, y: Tensor) -> list[Any]:
    """The value of a function, and the gradients of its weighted sum."""
    value = function(x, y)
    weights = Tensor(numbers(*value.shape, low=0.5, high=1.5), dtype=dtypes.float32)
    loss = (value * weights.shard_like(value.detach())).sum()
    return [t.numpy() for t in (value, *loss.gradient(x, y))]


def inputs() -> tuple[Tensor, Tensor]:
    x, y = numbers(12, 12, seed=1), numbers(12, 12, seed=2)
    return Tensor(x, dtype=dtypes.float32), Tensor(y, dtype=dtypes.float32)


truths: dict[str, list[Any]] = {}


def truth(name: str) -> list[Any]:
    """What one device computes."""
    if name not in truths:
        truths[name] = both(OPS[name], *inputs())
    return truths[name]


LAYOUTS = [(2, 0, 0), (2, 1, 1), (2, 0, None), (3, None, 1), (4, 1, 0), (4, 0, 0), (3, 1, 1)]


@pytest.mark.parametrize(("count", "first", "second"), LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_op_equals_one_device(
    name: str, count: int, first: int | None, second: int | None
) -> None:
    x, y = inputs()

    found = both(OPS[name], x.shard(group(count), first), y.shard(group(count), second))

    for ours, right in zip(found, truth(name), strict=True):
        numpy.testing.assert_allclose(ours, right, **CLOSE)
