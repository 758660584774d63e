"""Tensor programs in machine code of Mesa's compiler, interpreted on the stand-in of KGSL."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from adreno.kgsl import Kgsl
from simulated_qcom import backend_of, execute
from tensor_programs import TensorPrograms, numbers

from tiny_qcom.ir3 import library_path
from tinycore import Context, Device, Tensor, TinyJit, dtypes
from tinycore.dtype import DType
from tinycore.errors import CompilerUnavailable, UnsupportedError
from tinycore.lower.pipeline import lower
from tinycore.plugin import SupportsAssembly, register, unregister

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


PROGRAMS = TensorPrograms("QCOM")
close = PROGRAMS.close


def test_elements() -> None:
    PROGRAMS.elements()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums(axis: int | None) -> None:
    PROGRAMS.sums(axis)


def test_softmax() -> None:
    PROGRAMS.softmax()


def test_a_product_that_only_a_sum_uses_is_computed_with_it() -> None:
    """A multiply-add of a matrix product is one instruction, of which an Adreno begins as many as
    of any."""
    with Context(DEV="NULL:IR3:a640"):
        x, y = Tensor.empty(512, 512), Tensor.empty(512, 512)
        toolchain = Device["NULL"].toolchain
        (item,) = (x @ y).schedule()
        assert isinstance(toolchain.compiler, SupportsAssembly)
        text = toolchain.compiler.assembly(
            toolchain.renderer.render(lower(item.ast, toolchain.renderer, "kernel"))
        )
    assert "mad.f32" in text
    assert "mul.f" not in text
    assert "add.f" not in text


@pytest.mark.parametrize("sizes", [(7, 33, 7), (64, 64, 64), (65, 50, 130)])
def test_products_of_matrices(sizes: tuple[int, int, int]) -> None:
    PROGRAMS.matmul(*sizes)


@pytest.mark.parametrize(("dtype", "tolerance"), [(dtypes.half, 2e-3), (dtypes.bfloat16, 2e-2)])
def test_products_of_other_types(dtype: DType, tolerance: float) -> None:
    PROGRAMS.matmul_of(dtype, tolerance, (33, 40, 17), dtypes.float32)


def test_bytes_times_a_constant() -> None:
    """The upper half of the constant, moved up, is in one of two instructions alone."""
    a = numpy.arange(-40, 40, dtype="b")
    assert (Tensor(a) * 7 + 3).tolist() == (a * numpy.int8(7) + numpy.int8(3)).tolist()


@pytest.mark.parametrize("kind", ["b", "h"])
def test_narrow_integers(kind: str) -> None:
    bits = numpy.iinfo(kind)
    a = numpy.array([bits.min, bits.max, -7, 7, -1, 0, 100, -100], kind)
    b = numpy.array([3, -2, 2, -3, -1, 5, -7, 7], kind)
    x, y = Tensor(a), Tensor(b)
    assert (x < y).tolist() == (a < b).tolist()
    assert x.maximum(y).tolist() == numpy.maximum(a, b).tolist()
    assert (x // y).tolist() == (a // b).tolist()
    assert (x % y).tolist() == (a % b).tolist()
    assert (x >> 2).tolist() == (a >> 2).tolist()


def test_a_condition_that_is_stored_and_used() -> None:
    a = numbers(64)
    close(Tensor(a).asinh(), numpy.arcsinh(a))


def test_integers() -> None:
    PROGRAMS.integers()


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
    PROGRAMS.views()


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
    driver.launches.clear()
    with Context(IMAGE=1):
        PROGRAMS.convolution()
    assert any(launch.textures for launch in driver.launches)


def test_a_captured_step_with_a_variable() -> None:
    PROGRAMS.sums_of_a_variable_size()


def test_a_captured_step_of_several_kernels_is_one_submission(driver: Kgsl) -> None:
    step = TinyJit(lambda x: ((x @ x).relu().contiguous() + 1).softmax(1).contiguous().sum(0))
    for seed in range(4):
        a = numbers(16, 16, seed=seed)
        x = Tensor(a).realize()
        Device["QCOM"].synchronize()
        before = driver.submissions
        found = step(x).realize()
        Device["QCOM"].synchronize()
        submissions = driver.submissions - before
        powers = numpy.exp(numpy.maximum(a.astype("d") @ a, 0) + 1)
        close(found, (powers / powers.sum(1, keepdims=True)).sum(0))
    assert submissions == 1


def test_a_training_step() -> None:
    PROGRAMS.training_step()


def test_launches_of_a_captured_step_that_may_overlap() -> None:
    PROGRAMS.independent_launches()
