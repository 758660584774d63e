"""Tensor programs on cards that the executor plays, by nvrtc's PTX and by our own.

In brief what `TENSOR_TESTS=CUDA pytest tests/unit/tensor` proves at length on a card. The executor
checks every access, its alignment, every barrier, and that no two threads of a block race.
"""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
from emulation.faults import IllegalAddress
from standin import Driver

from tinycore import Device, Tensor, TinyJit, Variable, dtypes
from tinycore.dtype import DType
from tinycore.errors import DeviceError
from tinycore.nn import Linear
from tinycore.nn.optim import SGD
from tinycore.nn.state import get_parameters
from tinycore.plugin import register, unregister
from tinycore.testing.kernels import Array

pytestmark = pytest.mark.usefixtures("simulated")


def numbers(*shape: int, seed: int = 0) -> Array:
    return numpy.random.default_rng(seed).standard_normal(shape).astype("f")


def close(found: Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    assert found.device == "CUDA"
    scale = float(numpy.abs(expected).max())
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance * scale)


def test_a_ragged_shape_is_computed_once_each() -> None:
    a, b = numbers(37, 1, 29), numbers(11, 1, seed=1)

    close(Tensor(a) * Tensor(b) + Tensor(a).exp(), a * b + numpy.exp(a))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_shared_by_a_block_and_sums_of_one_thread(axis: int | None) -> None:
    a = numbers(300, 70)

    close(Tensor(a).sum(axis), a.sum(axis, dtype="d"))


def test_softmax_has_two_sums_over_one_loop() -> None:
    a = numbers(3, 1000)
    powers = numpy.exp(a - a.max(-1, keepdims=True))

    close(Tensor(a).softmax(), powers / powers.sum(-1, keepdims=True))


@pytest.mark.parametrize("sizes", [(7, 33, 7), (64, 64, 64), (65, 50, 130), (128, 96, 256)])
def test_matmul_with_and_without_whole_tiles(sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    a, b = numbers(rows, inner), numbers(inner, columns, seed=1)

    close(Tensor(a) @ Tensor(b), a.astype("d") @ b)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(dtypes.half, 2e-3), (dtypes.bfloat16, 2e-2), (dtypes.float64, 1e-13)]
)
def test_matmul_of_other_types(dtype: DType, tolerance: float) -> None:
    a, b = numbers(64, 40), numbers(40, 64, seed=1)

    found = Tensor(a).cast(dtype) @ Tensor(b).cast(dtype)

    close(found.cast(dtypes.float64), a.astype("d") @ b, tolerance)


def test_convolution_with_padding_and_stride() -> None:
    torch = pytest.importorskip("torch")
    image, weight = numbers(2, 8, 13, 11), numbers(16, 8, 3, 3, seed=1)

    found = Tensor(image).conv2d(Tensor(weight), padding=1, stride=2)

    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (image, weight)), None, 2, 1)
    close(found, expected.numpy())


def test_integers_wrap_and_quotients_by_zero_are_zero() -> None:
    a = numpy.array([5, -7, 2**31 - 1, -(2**31), 9], "i")
    b = numpy.array([2, 2, 1, -1, 0], "i")
    quotients = Tensor(a).idiv(Tensor(b))

    assert (Tensor(a) + 1).tolist() == [6, -6, -(2**31), -(2**31) + 1, 10]
    assert quotients.tolist() == [2, -4, 2**31 - 1, -(2**31), 0]


def test_greatest_keeps_nan() -> None:
    a, b = numpy.array([1, numpy.nan, 3], "f"), numpy.array([numpy.nan, 2, 1], "f")

    assert numpy.isnan(Tensor(a).maximum(Tensor(b)).numpy()).tolist() == [True, True, False]


def test_views_that_start_anywhere() -> None:
    a = numbers(4100)
    base = Tensor(a).realize()

    for start in (0, 1, 2, 4):
        close(base[start : start + 4096].contiguous() * 2, a[start : start + 4096] * 2)


def test_memory_of_somebody_else_at_any_element() -> None:
    a = numbers(300)
    allocator = Device["CUDA"].runtime.allocator
    address = allocator.alloc(a.nbytes)
    allocator.write(address, a.data.cast("B"))
    step = TinyJit(lambda x: ((x * 2).contiguous() + x.sum()).realize())

    for start in (0, 0, 4, 1, 2, 0):
        tensor = Tensor.from_blob(address + 4 * start, (256,), device="CUDA", dtype=dtypes.float32)
        part = a[start : start + 256]
        close(step(tensor), part * 2 + part.sum())


def test_a_captured_step_is_a_graph(simulated: Driver) -> None:
    step = TinyJit(lambda x: ((x + 1).contiguous().sum(0).contiguous() + x).realize())
    for seed in range(4):
        a = numbers(16, 16, seed=seed)
        close(step(Tensor(a)), (a + 1).sum(0) + a)

    assert simulated.calls["cuGraphLaunch"] >= 1


def test_variables_are_given_at_launch() -> None:
    a = numbers(10, 32)
    step = TinyJit(lambda x, n: x[:n].sum(0).realize())
    for size in (3, 4, 5, 9):
        n = Variable("n", 1, 10).bind(size)
        close(step(Tensor(a).realize(), n), a[:size].sum(0))


def test_a_training_step() -> None:
    x, y = numbers(32, 16), numbers(32, 4, seed=1)
    layer = Linear(16, 4)
    optimizer = SGD(get_parameters(layer), lr=0.05)
    losses = []
    with Tensor.train():
        for _ in range(4):
            optimizer.zero_grad()
            loss = ((layer(Tensor(x)) - Tensor(y)) ** 2).mean().backward()
            optimizer.step()
            losses.append(loss.item())

    assert losses == sorted(losses, reverse=True)


def test_tensors_on_two_cards() -> None:
    a = numbers(8, 8)
    there = Tensor(a).to("CUDA:1") * 2

    assert there.device == "CUDA:1"
    close(there.to("CUDA") + 1, a * 2 + 1)


def test_a_kernel_that_reads_outside_is_found(simulated: Driver) -> None:
    allocator = Device["CUDA"].runtime.allocator
    address = allocator.alloc(64)
    tensor = Tensor.from_blob(address, (1 << 12,), device="CUDA", dtype=dtypes.float32)

    with pytest.raises(IllegalAddress, match="read of"):
        (tensor + 1).realize()


def test_such_a_kernel_loses_the_context_on_a_card() -> None:
    from simulated import Simulated, backend_of  # noqa: PLC0415

    register(replace(backend_of(Simulated(loses_context=True)), name="LOSING"))
    try:
        address = Device["LOSING"].runtime.allocator.alloc(64)
        tensor = Tensor.from_blob(address, (1 << 12,), device="LOSING", dtype=dtypes.float32)
        with pytest.raises(DeviceError, match=r"ILLEGAL_ADDRESS .* last waited for: elementwise_"):
            (tensor + 1).numpy()
    finally:
        unregister("LOSING")
