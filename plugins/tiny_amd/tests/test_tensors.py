"""Tensor programs on cards that the emulator plays, through the driver: KFD, PM4, SDMA."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest

pytest.importorskip("llvmlite")

from simulated_amd import BACKEND
from tensor_programs import TensorPrograms

from tinycore import Context, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.plugin import register, unregister


@pytest.fixture(autouse=True, scope="module")
def simulated() -> Iterator[None]:
    """Two cards that the emulator plays."""
    register(BACKEND)
    yield
    unregister("AMD")


@pytest.fixture(autouse=True)
def on_the_card(simulated: None) -> Iterator[None]:
    """Tensors that name no device are on the first card."""
    with Context(DEV="AMD"):
        yield


PROGRAMS = TensorPrograms("AMD")


def test_elements() -> None:
    PROGRAMS.elements()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums(axis: int | None) -> None:
    PROGRAMS.sums(axis)


def test_softmax() -> None:
    PROGRAMS.softmax()


@pytest.mark.parametrize("sizes", [(7, 33, 7), (64, 64, 64), (65, 50, 130)])
def test_products_of_matrices(sizes: tuple[int, int, int]) -> None:
    PROGRAMS.matmul(*sizes)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(dtypes.half, 2e-3), (dtypes.bfloat16, 2e-2), (dtypes.float64, 1e-13)]
)
def test_products_of_other_types(dtype: DType, tolerance: float) -> None:
    PROGRAMS.matmul_of(dtype, tolerance, (33, 40, 17))


def test_products_of_bytes_where_one_lane_adds_another() -> None:
    """LLVM's dot products add the condition itself, so they are turned off (tiny_amd.llvm)."""
    generator = numpy.random.default_rng(0)
    a, b = (generator.integers(-9, 9, shape).astype("b") for shape in ((3, 65), (65, 17)))
    assert (Tensor(a) @ Tensor(b)).tolist() == (a @ b).tolist()


def test_a_convolution() -> None:
    PROGRAMS.convolution()


def test_integers() -> None:
    PROGRAMS.integers()


def test_views_that_start_anywhere() -> None:
    PROGRAMS.views()


def test_a_captured_step_with_a_variable() -> None:
    PROGRAMS.sums_of_a_variable_size()


def test_a_training_step() -> None:
    PROGRAMS.training_step()


def test_launches_of_a_captured_step_that_may_overlap() -> None:
    PROGRAMS.independent_launches()
