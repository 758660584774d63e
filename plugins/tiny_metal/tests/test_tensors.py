"""Tensor programs on the GPUs of mocked Macs: an M1, an M3, and a discrete one without bfloat.

In brief what `TENSOR_TESTS=METAL pytest tests/unit/tensor` proves at length. clang runs the
kernels, and every access, its alignment, every barrier and every race is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import pytest

from tinycore import Device, Tensor, TinyJit, Variable, dtypes
from tinycore.dtype import DType
from tinycore.errors import TinycoreError
from tinycore.nn import Linear
from tinycore.nn.optim import SGD
from tinycore.nn.state import get_parameters
from tinycore.testing.kernels import Array

if TYPE_CHECKING:
    from mock_metal.metal import Mac

pytestmark = pytest.mark.usefixtures("simulated")


def numbers(*shape: int, seed: int = 0) -> Array:
    return numpy.random.default_rng(seed).standard_normal(shape).astype("f")


def close(found: Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    assert found.device == "METAL"
    scale = float(numpy.abs(expected).max())
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance * scale)


def test_elements() -> None:
    a, b = numbers(37, 1, 29), numbers(11, 1, seed=1)
    close(Tensor(a) * Tensor(b) + Tensor(a).exp(), a * b + numpy.exp(a))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums(axis: int | None) -> None:
    a = numbers(300, 70)
    close(Tensor(a).sum(axis), a.sum(axis, dtype="d"))


def test_softmax() -> None:
    a = numbers(3, 1000)
    powers = numpy.exp(a - a.max(-1, keepdims=True))
    close(Tensor(a).softmax(), powers / powers.sum(-1, keepdims=True))


@pytest.mark.parametrize("sizes", [(7, 33, 7), (64, 64, 64), (65, 50, 130)])
def test_products_of_matrices(sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    a, b = numbers(rows, inner), numbers(inner, columns, seed=1)
    close(Tensor(a) @ Tensor(b), a.astype("d") @ b)


@pytest.mark.parametrize(("dtype", "tolerance"), [(dtypes.half, 2e-3), (dtypes.bfloat16, 2e-2)])
def test_products_of_other_types(dtype: DType, tolerance: float) -> None:
    a, b = numbers(33, 40), numbers(40, 64, seed=1)
    found = Tensor(a).cast(dtype) @ Tensor(b).cast(dtype)
    close(found.cast(dtypes.float32), a.astype("d") @ b, tolerance)


def test_half_and_bfloat_become_each_other() -> None:
    x = Tensor([1.5, 3.140625, -2.0], dtype="float16").contiguous()
    assert x.cast(dtypes.bfloat16).cast(dtypes.half).tolist() == [1.5, 3.140625, -2.0]


@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.bfloat16, dtypes.int8, dtypes.bool])
def test_vectors_of_narrow_types(dtype: DType) -> None:
    a = numpy.random.default_rng(2).integers(0, 2, (64, 64))
    found = (Tensor(a).cast(dtype).contiguous().T.contiguous() + Tensor(a).cast(dtype)).realize()
    expected = (a.T + a) > 0 if dtype is dtypes.bool else a.T + a
    assert (found.cast(dtypes.int32).numpy() == expected).all()


@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.bfloat16, dtypes.int8, dtypes.uint8])
def test_more_lanes_than_the_language_has(dtype: DType) -> None:
    """Sixteen bytes are eight halves or sixteen bytes, which are moved at once."""
    a = numpy.arange(4096) % 100
    x = Tensor(a).cast(dtype).realize()
    assert ((x + 1) * 1).cast(dtypes.int32).tolist() == (a + 1).tolist()
    assert (x + 1).realize().cast(dtypes.int32).tolist() == (a + 1).tolist()


def test_a_convolution() -> None:
    torch = pytest.importorskip("torch")
    image, weight = numbers(2, 4, 9, 8), numbers(8, 4, 3, 3, seed=1)
    found = Tensor(image).conv2d(Tensor(weight), padding=1, stride=2)
    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (image, weight)), None, 2, 1)
    close(found, expected.numpy())


def test_integers() -> None:
    a = numpy.array([5, -7, 2**31 - 1, -(2**31), 9], "i")
    b = numpy.array([2, 2, 1, -1, 0], "i")
    assert (Tensor(a) + 1).tolist() == [6, -6, -(2**31), -(2**31) + 1, 10]
    assert Tensor(a).idiv(Tensor(b)).tolist() == [2, -4, 2**31 - 1, -(2**31), 0]
    assert (Tensor([1, 2]) << Tensor([33, 1])).tolist() == [2, 4]
    assert (Tensor([200, 100], dtype="uint8").contiguous() >> 1).tolist() == [100, 50]
    assert (Tensor([2**40, -1], dtype="int64") * 3).tolist() == [3 * 2**40, -3]


def test_floats_that_fit_no_integer() -> None:
    x = Tensor([1e20, float("nan"), -3.7, float("inf")])
    assert x.cast(dtypes.int32).tolist() == [-(2**31), -(2**31), -3, -(2**31)]
    assert x.cast(dtypes.half).cast(dtypes.int16).tolist()[2] == -3


def test_infinities_and_nan() -> None:
    x = Tensor([1.0, -1.0, 0.0]) / 0
    assert x.tolist()[:2] == [float("inf"), float("-inf")]
    assert (x != x).tolist() == [False, False, True]
    assert numpy.isnan(
        Tensor([1.0, float("nan")]).maximum(Tensor([float("nan"), 2.0])).numpy()
    ).all()


def test_float64_is_refused_by_name() -> None:
    with pytest.raises(TinycoreError, match="float64"):
        (Tensor.ones(4, dtype="float64").contiguous() + 1).realize()


def test_more_tensors_than_a_kernel_has_buffers() -> None:
    parts = [numbers(8, seed=i) for i in range(40)]
    total = Tensor(parts[0])
    for part in parts[1:]:
        total = total + Tensor(part)
    close(total, sum(parts), 1e-4)


def test_views_that_start_anywhere() -> None:
    a = numbers(1030)
    base = Tensor(a).realize()
    for start in (0, 1, 2, 4):
        close(base[start : start + 1024].contiguous() * 2, a[start : start + 1024] * 2)


def test_a_captured_step_with_a_variable(simulated: Mac) -> None:
    a = numbers(10, 32)
    step = TinyJit(lambda x, n: (x[:n].sum(0) * 2 + 1).contiguous().exp().realize())
    before = simulated.world.sent["executeCommandsInBuffer:withRange:"]
    for size in (3, 4, 5, 9, 2):
        n = Variable("n", 1, 10).bind(size)
        close(step(Tensor(a).realize(), n), numpy.exp(a[:size].sum(0) * 2 + 1), 1e-4)
    assert simulated.world.sent["executeCommandsInBuffer:withRange:"] >= before


def test_two_gpus() -> None:
    a = numbers(64, 8)
    there = Tensor(a).to("METAL:1") * 2
    close(there.to("METAL") + 1, a * 2 + 1)
    close(Tensor(a).shard(("METAL", "METAL:1"), 0).exp().sum(0).to("METAL"), numpy.exp(a).sum(0))


def test_memory_of_somebody_else() -> None:
    a = numbers(300)
    runtime = Device["METAL"].runtime
    handle = runtime.allocator.alloc(a.nbytes)
    runtime.allocator.write(handle, a.data.cast("B"))
    tensor = Tensor.from_blob(runtime.address(handle), (300,), device="METAL", dtype="float32")
    close(tensor[7:] * 2, a[7:] * 2)


def test_memory_is_shown_without_a_copy_where_it_is_shared() -> None:
    x = (Tensor.ones(5).contiguous() * 3).realize()
    if "host_memory" not in Device["METAL"].runtime.capabilities:
        with pytest.raises(ValueError, match="a copy is needed"):
            numpy.array(x, copy=False)
        return
    numpy.array(x, copy=False)[2] = 7
    assert (x + 1).tolist() == [4, 4, 8, 4, 4]


@pytest.mark.slow
def test_a_training_step() -> None:
    x, y = numbers(32, 16), numbers(32, 4, seed=1)
    layer = Linear(16, 4)
    optimizer = SGD(get_parameters(layer), lr=0.05)
    losses = []
    with Tensor.train():
        for _ in range(3):
            optimizer.zero_grad()
            loss = ((layer(Tensor(x)) - Tensor(y)) ** 2).mean().backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
