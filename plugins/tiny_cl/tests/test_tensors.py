"""Tensor programs on CL: in brief what `TENSOR_TESTS=CL pytest tests/unit/tensor` proves at length.

Drivers take a third of a second and more for a kernel, so each kind of kernel has one test.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest

from tiny_cl._lib import create, ffi, library
from tiny_testing.kernels import Array
from tinycore import Context, Device, GlobalCounters, Tensor, TinyJit, dtypes
from tinycore.device import Buffer
from tinycore.nn import Linear
from tinycore.nn.optim import SGD
from tinycore.nn.state import get_parameters


@pytest.fixture(autouse=True)
def on_the_device(driver: None) -> Iterator[None]:
    """Tensors that name no device are on the first one."""
    with Context(DEV="CL"):
        yield


def numbers(*shape: int, seed: int = 0) -> Array:
    return numpy.random.default_rng(seed).standard_normal(shape).astype("f")


def close(found: Tensor, expected: Array, tolerance: float = 1e-4) -> None:
    assert found.device == "CL"
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def test_a_ragged_shape_is_computed_once_each() -> None:
    a, b = numbers(37, 1, 29), numbers(11, 1, seed=1)

    close(Tensor(a) * Tensor(b) + Tensor(a).exp(), a * b + numpy.exp(a))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_shared_by_a_group_and_sums_of_one_thread(axis: int | None) -> None:
    a = numbers(300, 70)

    close(Tensor(a).sum(axis), a.sum(axis), 1e-3)


def test_softmax_has_two_sums_over_one_loop() -> None:
    a = numbers(3, 1000)
    powers = numpy.exp(a - a.max(-1, keepdims=True))

    close(Tensor(a).softmax(), powers / powers.sum(-1, keepdims=True))


@pytest.mark.parametrize("size", [7, 64])
def test_matmul_with_and_without_lanes(size: int) -> None:
    a, b = numbers(size, 33), numbers(33, size, seed=1)

    close(Tensor(a) @ Tensor(b), a @ b)


def test_convolution_and_its_gradients() -> None:
    image, weight = numbers(2, 3, 8, 8), numbers(4, 3, 3, 3, seed=1)
    on = {}
    for device in ("CL", "PYTHON"):
        x, w = (Tensor(a, device=device, requires_grad=True) for a in (image, weight))
        x.conv2d(w, padding=1).square().sum().backward()
        assert x.grad is not None
        assert w.grad is not None
        on[device] = (x.grad.numpy(), w.grad.numpy())

    for found, expected in zip(on["CL"], on["PYTHON"], strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_rows_are_picked_and_written_in_place() -> None:
    table, rows = numbers(20, 5), [3, 0, 3, 19]
    x = Tensor(table).realize()
    close(x[Tensor(rows)], table[rows])

    x[2:9:3] = -1.0
    table[2:9:3] = -1
    close(x + 0, table)


def test_an_update_in_place_happens_once() -> None:
    weight = Tensor(numbers(1021)).realize()
    before = weight.numpy().copy()
    for _ in range(3):
        weight.assign(weight * 0.5 + 1).realize()

    close(weight, ((before * 0.5 + 1) * 0.5 + 1) * 0.5 + 1)


def test_a_view_that_starts_anywhere_is_read() -> None:
    whole = Tensor(numpy.arange(100, dtype="i")).realize()

    assert (whole[3:50] * 2).tolist() == list(range(6, 100, 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint64", "bool"])
def test_every_width_is_stored_and_summed(dtype: str) -> None:
    x = Tensor([1, 0, 1, 1, 0]).cast(dtype).realize()

    assert x.sum().item() == 3
    assert x.tolist() == [1, 0, 1, 1, 0]


@pytest.mark.slow
def test_a_captured_step_trains() -> None:
    layer = Linear(8, 1)
    optimizer = SGD(get_parameters(layer), lr=0.05)
    x, y = Tensor(numbers(16, 8)).realize(), Tensor(numbers(16, 1, seed=1)).realize()

    @TinyJit
    @Tensor.train()
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean().backward()
        return loss.realize(*optimizer.schedule_step())

    losses = [step().item() for _ in range(6)]
    assert losses == sorted(losses, reverse=True)


def test_tensors_go_to_other_devices_and_back() -> None:
    a = numbers(50)
    there = Tensor(a, device="PYTHON").to("CL") + 1

    close(there, a + 1)
    numpy.testing.assert_allclose((there.to("PYTHON") * 2).numpy(), (a + 1) * 2, rtol=1e-6)


def test_numpy_shows_the_memory_where_it_is_shared() -> None:
    if not Device["CL"].has("host_memory"):
        pytest.skip("the device has memory of its own")
    buffer = Buffer.from_cpu("CL", numbers(64))
    seen = buffer.to_cpu()
    seen[5] = 7.0

    assert buffer.numpy()[5] == 7.0


def test_a_blob_is_a_cl_mem() -> None:
    runtime = Device["CL"].runtime
    context = ffi.cast("cl_context", runtime.context_address)  # type: ignore[attr-defined]
    made = create("clCreateBuffer", context, 1, 16, ffi.NULL)
    x = Tensor.from_blob(int(ffi.cast("uintptr_t", made)), (4,), dtype=dtypes.int32, device="CL")
    x.assign(Tensor([1, 2, 3, 4], dtype=dtypes.int32)).realize()

    again = Tensor.from_blob(int(ffi.cast("uintptr_t", made)), (4,), dtype=dtypes.int32)
    assert (again * 2).tolist() == [2, 4, 6, 8]
    library().clReleaseMemObject(made)


def test_launches_are_timed_by_the_device() -> None:
    GlobalCounters.reset()
    with Context(DEBUG=2):
        (Tensor(numbers(1000)).realize() + 3).realize()

    assert 0 < GlobalCounters.time_sum_s < 60
