"""Tensor programs on the GPUs of mocked Macs: an M1, an M3, and a discrete one without bfloat.

In brief what `TENSOR_TESTS=METAL pytest tests/unit/tensor` proves at length. clang runs the
kernels, and every access, its alignment, every barrier and every race is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import pytest
from tensor_programs import TensorPrograms, numbers

from tinycore import Device, Tensor, TinyJit, Variable, dtypes
from tinycore.dtype import DType
from tinycore.errors import TinycoreError

if TYPE_CHECKING:
    from mock_metal.metal import Mac

pytestmark = [pytest.mark.usefixtures("simulated"), pytest.mark.sample(2)]


PROGRAMS = TensorPrograms("METAL")
close = PROGRAMS.close


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


@pytest.mark.parametrize(("dtype", "tolerance"), [(dtypes.half, 2e-3), (dtypes.bfloat16, 2e-2)])
def test_products_of_other_types(dtype: DType, tolerance: float) -> None:
    PROGRAMS.matmul_of(dtype, tolerance, (33, 40, 64), dtypes.float32)


def test_half_and_bfloat_become_each_other() -> None:
    x = Tensor([1.5, 3.140625, -2.0], dtype="float16").contiguous()
    assert x.cast(dtypes.bfloat16).cast(dtypes.half).tolist() == [1.5, 3.140625, -2.0]


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.bfloat16, dtypes.int8, dtypes.bool])
def test_vectors_of_narrow_types(dtype: DType) -> None:
    a = numpy.random.default_rng(2).integers(0, 2, (64, 64))
    found = (Tensor(a).cast(dtype).contiguous().T.contiguous() + Tensor(a).cast(dtype)).realize()
    expected = (a.T + a) > 0 if dtype is dtypes.bool else a.T + a
    assert (found.cast(dtypes.int32).numpy() == expected).all()


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.bfloat16, dtypes.int8, dtypes.uint8])
def test_more_lanes_than_the_language_has(dtype: DType) -> None:
    """Sixteen bytes are eight halves or sixteen bytes, which are moved at once."""
    a = numpy.arange(4096) % 100
    x = Tensor(a).cast(dtype).realize()
    assert ((x + 1) * 1).cast(dtypes.int32).tolist() == (a + 1).tolist()
    assert (x + 1).realize().cast(dtypes.int32).tolist() == (a + 1).tolist()


def test_a_convolution() -> None:
    PROGRAMS.convolution()


def test_integers() -> None:
    PROGRAMS.integers()
    assert (Tensor([1, 2]) << Tensor([33, 1])).tolist() == [2, 4]
    assert (Tensor([200, 100], dtype="uint8").contiguous() >> 1).tolist() == [100, 50]
    assert (Tensor([2**40, -1], dtype="int64") * 3).tolist() == [3 * 2**40, -3]


def test_bits_of_what_is_promoted() -> None:
    """C++ makes an int of these, which has other bits, and more of them, than a half."""
    a = numpy.arange(-40, 40, dtype="h") * 400
    x = Tensor(a).realize()
    for found, expected in ((x & 0x3FFF, a & 0x3FFF), (x >> 2, a >> 2), (x.maximum(7), a.clip(7))):
        bits = found.bitcast(dtypes.half).realize().bitcast(dtypes.int16)
        assert bits.tolist() == expected.tolist()


def test_floats_that_fit_no_integer() -> None:
    x = Tensor([1e20, float("nan"), -3.7, float("inf")])
    assert x.cast(dtypes.int32).tolist() == [-(2**31), -(2**31), -3, -(2**31)]
    assert x.cast(dtypes.half).cast(dtypes.int16).tolist()[2] == -3


def test_zero_keeps_its_sign() -> None:
    x = Tensor([0.0, -0.0, 1.0]).contiguous().realize()
    assert numpy.signbit((x * -1.0).numpy()).tolist() == [True, False, True]
    assert numpy.signbit((x + -0.0).numpy()).tolist() == [False, True, False]
    assert (1 / x).tolist() == [float("inf"), float("-inf"), 1]


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
    total, expected = Tensor(parts[0]), parts[0]
    for part in parts[1:]:
        total, expected = total + Tensor(part), expected + part
    close(total, expected, 1e-4)


def test_views_that_start_anywhere() -> None:
    PROGRAMS.views()


def test_rows_that_no_vector_is_aligned_in() -> None:
    a = numbers(640, 66)
    close(Tensor(a).realize()[:, 1:65] * 2 + 1, a[:, 1:65] * 2 + 1)


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
    runtime: Any = Device["METAL"].runtime
    handle = runtime.allocator.alloc(a.nbytes)
    runtime.allocator.write(handle, a.data.cast("B"))
    tensor = Tensor.from_blob(runtime.address(handle)[0], (300,), device="METAL", dtype="float32")
    close(tensor[7:] * 2, a[7:] * 2)


def test_memory_is_shown_without_a_copy_where_it_is_shared() -> None:
    x = (Tensor.ones(5).contiguous() * 3).realize()
    runtime: Any = Device["METAL"].runtime
    if "host_memory" not in runtime.capabilities:
        with pytest.raises(ValueError, match="a copy is needed"):
            numpy.array(x, copy=False)
        return
    numpy.array(x, copy=False)[2] = 7
    assert (x + 1).tolist() == [4, 4, 8, 4, 4]


@pytest.mark.slow
def test_a_training_step() -> None:
    PROGRAMS.training_step()


def test_the_launches_of_a_captured_step_follow_a_variable() -> None:
    PROGRAMS.sums_of_a_variable_size()


def test_launches_of_a_captured_step_that_may_overlap() -> None:
    PROGRAMS.independent_launches()
