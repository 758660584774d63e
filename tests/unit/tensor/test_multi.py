"""Tensors over several devices compute what one device computes, forward and backward.

Most run on the interpreter: hundreds of small kernels are cheaper to interpret than to compile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from tests.unit.tensor.helpers import numbers
from tests.unit.tensor.spread import assert_close, elsewhere, group, index_of, mesh
from tinycore import Context, Tensor, TinyJit, Variable, dtypes
from tinycore.dtype import DType
from tinycore.uop.shape import Axis

Function = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def target() -> Iterator[None]:
    """Not on every target: what is tested is above them."""
    with Context(DEV="PYTHON"):
        yield


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
    "other layout": lambda x, y: x.shard(x.device, 1).exp() * y.shard(x.device, 0),
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
    """Result of one device."""
    if name not in truths:
        truths[name] = both(OPS[name], *inputs())
    return truths[name]


LAYOUTS = [(2, 0, 0), (4, 1, 0), (3, None, 1), (2, 1, 1), (4, 0, 0), (2, 0, None), (3, 1, 1)]
"""Numbers of devices, and the axes along which the two operands lie on them."""

ALL = os.environ.get("MULTI_TESTS") == "all"
CASES = [
    (name, *layout)
    for place, name in enumerate(OPS)
    for number, layout in enumerate(LAYOUTS)
    if ALL or (number - 3 * place) % len(LAYOUTS) < 1 + place % 2
]
"""Every op in one layout or two; MULTI_TESTS=all for every op in all of them."""


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "count", "first", "second"), CASES)
def test_op_equals_one_device(name: str, count: int, first: int | None, second: int | None) -> None:
    x, y = inputs()

    found = both(OPS[name], x.shard(group(count), first), y.shard(group(count), second))

    assert_close(found, truth(name))


MESHES = [
    ((2, 2), (0, None), (None, 1)),
    ((2, 3), (0, 0), (1, 0)),
    ((3, 2), (None, 0), (None, None)),
    ((2, 2), (1, 0), (0, 1)),
    ((2, 2), (1, 1), (None, 1)),
]
"""Rows and columns of devices, and the axes along which the two operands lie on them."""

MESH_CASES = [
    (name, *MESHES[number % len(MESHES)])
    for place, name in enumerate(OPS)
    for number in (range(len(MESHES)) if ALL else (place,))
]


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "sides", "first", "second"), MESH_CASES)
def test_op_on_a_mesh(name: str, sides: tuple[int, int], first: Axis, second: Axis) -> None:
    x, y = inputs()

    found = both(OPS[name], x.shard(mesh(*sides), first), y.shard(mesh(*sides), second))

    assert_close(found, truth(name))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["arithmetic", "softmax", "matmul", "rows by index"])
@pytest.mark.device("CPU")
def test_op_on_compiled_devices(name: str) -> None:
    with Context(DEV="CPU"):
        x, y = inputs()
        found = both(OPS[name], x.shard(group(2, "CPU"), 0), y.shard(group(2, "CPU"), 0))

    assert_close(found, truth(name))


@pytest.mark.device("CPU")
def test_devices_of_different_kinds() -> None:
    x, y = inputs()

    found = both(OPS["matmul"], x.shard(("CPU", "PYTHON"), 0), y.shard(("CPU", "PYTHON")))

    assert_close(found, truth("matmul"))


@pytest.mark.sample(6)
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


@pytest.mark.sample(4)
@pytest.mark.parametrize("axis", [0, 1, 2, 3, None])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_sharded_tensors(axis: int | None, causal: bool) -> None:
    content = numpy.random.default_rng(0).random((2, 2, 4, 4), numpy.float32)

    def attended(place: Callable[[Tensor], Tensor]) -> list[Any]:
        x = place(Tensor(content)).requires_grad_()
        found = x.scaled_dot_product_attention(x, x, is_causal=causal)
        return [found.numpy(), found.square().sum().gradient(x)[0].numpy()]

    assert_close(attended(lambda x: x.shard(group(2), axis)), attended(lambda x: x))


@pytest.mark.parametrize("axis", [None, 0])
def test_what_is_read_again_has_its_own_shape(axis: int | None) -> None:
    """The memory that is kept of a value that was read may be that of another shape."""
    x = Tensor(numbers(4, 3)).shard(group(2), axis)
    total, flat = x.sum(0), (x * 2).reshape(12)

    for _ in range(2):
        assert total.numpy().shape == total.shape == (3,)
        assert flat.numpy().shape == flat.shape == (12,)
        assert flat.reshape(3, 4).numpy().shape == (3, 4)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_bound_size_is_a_number_on_each_device(axis: int | None) -> None:
    array, length = numbers(6, 4), Variable("length", 1, 6)

    @TinyJit
    def step(x: Tensor, n: Any) -> list[Tensor]:
        return [x * n, x[:n].mean(0), (x < n).sum(1)]

    for n in (3, 3, 5):
        found = step(Tensor(array).shard(group(2), axis).realize(), length.bind(n))
        expected = [array * n, array[:n].mean(0), (array < n).sum(1)]
        assert_close([x.numpy() for x in found], expected)
