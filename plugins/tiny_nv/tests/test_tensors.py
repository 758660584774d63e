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
from tensor_programs import TensorPrograms, numbers

from tinycore import Device, Tensor, TinyJit, dtypes
from tinycore.dtype import DType
from tinycore.errors import DeviceError
from tinycore.plugin import register, unregister

pytestmark = pytest.mark.usefixtures("simulated")


PROGRAMS = TensorPrograms("CUDA")
close = PROGRAMS.close


def test_a_ragged_shape_is_computed_once_each() -> None:
    PROGRAMS.elements()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_shared_by_a_block_and_sums_of_one_thread(axis: int | None) -> None:
    PROGRAMS.sums(axis)


def test_softmax_has_two_sums_over_one_loop() -> None:
    PROGRAMS.softmax()


@pytest.mark.sample(4)
@pytest.mark.parametrize("sizes", [(7, 33, 7), (64, 64, 64), (65, 50, 130), (128, 96, 256)])
def test_matmul_with_and_without_whole_tiles(sizes: tuple[int, int, int]) -> None:
    PROGRAMS.matmul(*sizes)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(dtypes.half, 2e-3), (dtypes.bfloat16, 2e-2), (dtypes.float64, 1e-13)]
)
def test_matmul_of_other_types(dtype: DType, tolerance: float) -> None:
    PROGRAMS.matmul_of(dtype, tolerance, (64, 40, 64))


def test_convolution_with_padding_and_stride() -> None:
    PROGRAMS.convolution((2, 8, 13, 11), (16, 8, 3, 3))


def test_integers_wrap_and_quotients_by_zero_are_zero() -> None:
    PROGRAMS.integers()


def test_greatest_keeps_nan() -> None:
    a, b = numpy.array([1, numpy.nan, 3], "f"), numpy.array([numpy.nan, 2, 1], "f")

    assert numpy.isnan(Tensor(a).maximum(Tensor(b)).numpy()).tolist() == [True, True, False]


def test_views_that_start_anywhere() -> None:
    PROGRAMS.views(4096)


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
    PROGRAMS.sums_of_a_variable_size()


def test_a_training_step() -> None:
    PROGRAMS.training_step(4)


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


def test_launches_of_a_captured_step_that_may_overlap() -> None:
    PROGRAMS.independent_launches()


def test_memory_of_halves_is_filled() -> None:
    assert Tensor.full((2, 3), 1.5, dtype=dtypes.half).contiguous().tolist() == [[1.5] * 3] * 2
