"""Tensor programs whose OpenCL C takes the way of Qualcomm's compiler, and is run by PoCL."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from adreno import opencl
from adreno.kgsl import Kgsl
from simulated_qcom import backend_of, execute
from tensor_programs import TensorPrograms, numbers

from tinycore import Context, Tensor, dtypes
from tinycore.errors import CompileError, UnsupportedError
from tinycore.plugin import register, unregister

if why := opencl.missing():
    pytest.skip(why, allow_module_level=True)


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
    with Context(DEV="QCOM:QCOMCL"):
        yield


PROGRAMS = TensorPrograms("QCOM")
close = PROGRAMS.close


def test_elements() -> None:
    a, b = numbers(7, 1, 9), numbers(5, 1, seed=1)
    close(Tensor(a) * Tensor(b) + 1, a * b + 1)


def test_a_sum_by_a_group() -> None:
    a = numbers(3, 3000)
    close(Tensor(a).sum(1), a.sum(1, dtype="d"))


def test_a_product_of_matrices() -> None:
    PROGRAMS.matmul(33, 40, 17)


def test_sines_without_float64() -> None:
    """The reduction of large arguments takes integers instead."""
    a = numpy.array([0.5, -2.0, 1e3, 3e7, 1e30], "f")
    close(Tensor(a).sin(), numpy.sin(a.astype("d")), 1e-6)
    with pytest.raises(UnsupportedError, match="float64"):
        (Tensor([1.0], dtype=dtypes.float64) + 1).realize()


def test_views_that_start_anywhere() -> None:
    a = numbers(200)
    base = Tensor(a).realize()
    close(base[3:67].contiguous() * 2, a[3:67] * 2)


def test_memory_of_this_process() -> None:
    a = numbers(16)
    x = Tensor.from_blob(a.ctypes.data, (16,), dtype="float32", device="QCOM", owner=a)
    close(x + 1, a + 1)


def test_a_captured_step_with_a_variable() -> None:
    PROGRAMS.sums_of_a_variable_size()


def test_what_the_compiler_says_is_shown() -> None:
    with pytest.raises(CompileError, match="rejected a kernel"):
        opencl.Compiler().compile("kernel void a_() { what }", 0)
