"""Tensor programs in machine code of Mesa's compiler, interpreted on the stand-in of KGSL."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from adreno.kgsl import Kgsl
from simulated_qcom import backend_of, execute

from tiny_qcom.ir3 import library_path
from tinycore import Context, Tensor, TinyJit, Variable, dtypes
from tinycore.dtype import DType
from tinycore.errors import CompilerUnavailable, UnsupportedError
from tinycore.nn import Linear
from tinycore.nn.optim import SGD
from tinycore.nn.state import get_parameters
from tinycore.plugin import register, unregister
from tinycore.testing.kernels import Array

try:
    library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def driver() -> Iterator[Kgsl]:
    """A stand-in, whose device is QCOM."""
    made = Kgsl(execute)
    register(backend_of(made))
    yield made
    unregister("QCOM")
    assert not made.faults


@pytest.fixture(autouse=True)
def on_the_device(driver: Kgsl) -> Iterator[None]:
    with Context(DEV="QCOM:IR3"):
        yield


def numbers(*shape: int, seed: int = 0) -> Array:
    return numpy.random.default_rng(seed).standard_normal(shape).astype("f")


def close(found: Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    assert found.device == "QCOM"
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
    a, b = numbers(33, 40), numbers(40, 17, seed=1)
    found = Tensor(a).cast(dtype) @ Tensor(b).cast(dtype)
    close(found.cast(dtypes.float32), a.astype("d") @ b, tolerance)


def test_bytes_times_a_constant() -> None:
    """The upper half of the constant, moved up, is in one of two instructions alone."""
    a = numpy.arange(-40, 40, dtype="b")
    assert (Tensor(a) * 7 + 3).tolist() == (a * numpy.int8(7) + numpy.int8(3)).tolist()


def test_integers() -> None:
    a = numpy.array([5, -7, 2**31 - 1, -(2**31), 9], "i")
    b = numpy.array([2, 2, 1, -1, 0], "i")
    assert (Tensor(a) + 1).tolist() == [6, -6, -(2**31), -(2**31) + 1, 10]
    assert Tensor(a).idiv(Tensor(b)).tolist() == [2, -4, 2**31 - 1, -(2**31), 0]


def test_wide_integers() -> None:
    a = numpy.array([5, -7, 2**62 - 1, -(2**62), 9])
    b = numpy.array([2, 2, 12345, -3, 7])
    assert (Tensor(a) * Tensor(b)).tolist() == (a * b).tolist()
    assert (Tensor(a) // Tensor(b)).tolist() == (a // b).tolist()
    close(Tensor(a).cast(dtypes.float32), a.astype("f"))


def test_float64_is_refused_before_the_compiler_is_called() -> None:
    with pytest.raises(UnsupportedError, match="no float64"):
        (Tensor([1.0], dtype=dtypes.float64) + 1).realize()


def test_views_that_start_anywhere() -> None:
    a = numbers(1030)
    base = Tensor(a).realize()
    for start in (0, 1, 2, 4):
        close(base[start : start + 1024].contiguous() * 2, a[start : start + 1024] * 2)


@pytest.mark.parametrize(("mode", "tolerance"), [(1, 1e-5), (2, 2e-3)])
def test_operands_in_images(driver: Kgsl, mode: int, tolerance: float) -> None:
    a, b = numbers(33, 40), numbers(40, 20, seed=1)
    driver.launches.clear()
    with Context(IMAGE=mode):
        close(Tensor(a) @ Tensor(b), a.astype("d") @ b, tolerance)
    assert any(launch.textures for launch in driver.launches)
    assert any(launch.images for launch in driver.launches)


def test_channels_of_a_pixel_that_are_read_one_by_one() -> None:
    """An instruction that reads one channel leaves the registers of the others alone."""
    a = numbers(8, 8)
    image = Tensor(a).cast(dtypes.imagef((8, 2))).realize()
    close(image.sum(1), a.sum(1))
    close(image[:, 2:3] * 2, a[:, 2:3] * 2)


def test_a_convolution_in_images(driver: Kgsl) -> None:
    torch = pytest.importorskip("torch")
    image, weight = numbers(2, 4, 9, 8), numbers(8, 4, 3, 3, seed=1)
    driver.launches.clear()
    with Context(IMAGE=1):
        found = Tensor(image).conv2d(Tensor(weight), padding=1, stride=2).realize()
    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (image, weight)), None, 2, 1)
    close(found, expected.numpy())
    assert any(launch.textures for launch in driver.launches)


def test_a_captured_step_with_a_variable() -> None:
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
        for _ in range(3):
            optimizer.zero_grad()
            loss = ((layer(Tensor(x)) - Tensor(y)) ** 2).mean().backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
