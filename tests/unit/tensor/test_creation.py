"""Tensors from sizes and numbers, with NumPy and torch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tinycore import GlobalCounters
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, OutOfMemory, ShapeError, UnsupportedError
from tinycore.tensor import Tensor

RANGES: list[tuple[Any, ...]] = [
    (0,),
    (-3,),
    (2.5,),
    (2, 7),
    (7, 2),
    (7, 2, -2),
    (0, -5, -1),
    (0, 10, 3),
    (0.0, 1.0, 0.1),
    (1, 0, -0.25),
    (10**6, 10**6 + 5),
]


def test_a_tensor_of_nothing_is_a_number() -> None:
    x = Tensor(None, dtype="int16", device="PYTHON")

    assert (x.shape, x.dtype, x.device, x.numel()) == ((), dtypes.int16, "PYTHON", 1)
    assert Tensor(None, device="PYTHON").dtype is dtypes.float32


def test_a_tensor_of_a_range() -> None:
    assert Tensor(range(5, 0, -2)).tolist() == torch.tensor(range(5, 0, -2)).tolist()
    assert Tensor(range(2), dtype="float32").tolist() == [0.0, 1.0]
    assert Tensor(range(0)).shape == (0,)


def test_a_number_in_the_shape_of_a_tensor_is_written_once() -> None:
    x = Tensor([1.0, 2.0]).realize()
    GlobalCounters.reset()

    y = x.full_like(7).realize()

    assert (GlobalCounters.kernel_count, GlobalCounters.global_mem) == (1, x.nbytes())
    assert y.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("ends", RANGES, ids=str)
def test_arange(ends: tuple[Any, ...]) -> None:
    fractional = any(isinstance(n, float) for n in ends)
    expected = numpy.arange(*ends, dtype=numpy.float64 if fractional else numpy.int64)

    ours = Tensor.arange(*ends)

    assert ours.dtype is (dtypes.float32 if fractional else dtypes.int32)
    numpy.testing.assert_allclose(ours.numpy(), expected, 3e-7)


@pytest.mark.parametrize(
    "ends", [(2**33, 2**33 + 4, 1), (0, 2**31 + 5, 2**30), (-(2**62), 2**62, 2**61)], ids=str
)
def test_arange_beyond_int32(ends: tuple[int, int, int]) -> None:
    assert Tensor.arange(*ends, dtype=dtypes.int64).tolist() == list(range(*ends))
    assert Tensor.arange(*ends, dtype=dtypes.float64).tolist() == [float(n) for n in range(*ends)]


def test_arange_in_narrow_dtypes() -> None:
    assert Tensor.arange(250, 260, dtype=dtypes.uint8).tolist() == [*range(250, 256), 0, 1, 2, 3]
    assert Tensor.arange(0, 1, 0.25, dtype=dtypes.float16).tolist() == [0, 0.25, 0.5, 0.75]
    assert Tensor.arange(0, 4, 1, dtypes.float64).dtype is dtypes.float64


@pytest.mark.parametrize("ends", [(0, 5, 0), (float("inf"),), (0, float("nan"))], ids=str)
def test_ranges_without_end_are_refused(ends: tuple[Any, ...]) -> None:
    with pytest.raises(ArgumentError, match="arange"):
        Tensor.arange(*ends)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
@pytest.mark.parametrize("ends", [(0, 1), (-3.5, 2.5), (5, 5), (10, -1)], ids=str)
def test_linspace(ends: tuple[float, float], steps: int) -> None:
    expected = numpy.linspace(*ends, steps)

    numpy.testing.assert_allclose(Tensor.linspace(*ends, steps).numpy(), expected, 3e-7, 3e-7)
    wide = Tensor.linspace(*ends, steps, dtypes.float64)
    numpy.testing.assert_allclose(wide.numpy(), expected, 1e-15, 1e-15)


def test_linspace_of_integers() -> None:
    assert Tensor.linspace(0, 10, 11, dtype=dtypes.int8).tolist() == list(range(11))
    large = [0, 2**23, 2**24 + 1]
    assert Tensor.linspace(0, 2**24 + 1, 3, dtype=dtypes.int64).tolist() == large
    with pytest.raises(ArgumentError, match="linspace"):
        Tensor.linspace(0, 1, -1)


@pytest.mark.parametrize("sizes", [(0, None), (3, None), (0, 2), (2, 0), (2, 5), (5, 2)], ids=str)
def test_eye(sizes: tuple[int, int | None]) -> None:
    for dtype, kind in ((dtypes.float32, "float32"), (dtypes.bool, "bool"), (dtypes.int8, "int8")):
        ours = Tensor.eye(*sizes, dtype).numpy()
        assert ours.dtype == kind
        assert (ours == numpy.eye(*sizes).astype(kind)).all()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, dtypes.int32),
        (2.5, dtypes.float32),
        (True, dtypes.bool),
        (float("nan"), dtypes.float32),
        (numpy.float64(1.5), dtypes.float64),
        (numpy.int8(-3), dtypes.int8),
    ],
    ids=repr,
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5)], ids=str)
def test_full(shape: tuple[int, ...], value: Any, dtype: Any) -> None:
    for buffer in (True, False):
        ours = Tensor.full(shape, value, buffer=buffer)
        assert ours.dtype is dtype
        numpy.testing.assert_array_equal(ours.numpy(), numpy.full(shape, value))


@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.int16, dtypes.uint64], ids=str)
def test_numbers_wrap_into_the_dtype_asked_for(dtype: Any) -> None:
    low = int(dtypes.max(dtype)) if dtypes.is_unsigned(dtype) else -1

    assert Tensor.full((2,), -1, dtype=dtype).tolist() == [low, low]
    assert Tensor.full((1,), 2 ** (8 * dtype.itemsize) + 5, dtype=dtype).tolist() == [5]


def test_zeros_ones_and_empty() -> None:
    for shape in ((), (0,), (2, 3)):
        assert Tensor.zeros(shape).tolist() == numpy.zeros(shape).tolist()
        assert Tensor.ones(*shape, dtype=dtypes.int64).tolist() == numpy.ones(shape).tolist()
        assert Tensor.empty(shape, dtype=dtypes.uint8).shape == shape
    for name in ("zeros", "ones", "empty"):
        with pytest.raises(ShapeError, match=name):
            getattr(Tensor, name)(2, -1)


@pytest.mark.parametrize("dtype", [None, dtypes.bool, dtypes.float16, dtypes.uint64], ids=str)
def test_likes_take_shape_and_dtype(dtype: Any) -> None:
    x = Tensor(numpy.arange(6, dtype=numpy.int16).reshape(2, 3))
    found = dtype or dtypes.int16

    for ours, value in (
        (x.zeros_like(dtype=dtype), 0),
        (x.ones_like(dtype=dtype), 1),
        (x.full_like(1, dtype=dtype), 1),
        (x.const_like(1, dtype=dtype), 1),
    ):
        assert (ours.dtype, ours.shape) == (found, (2, 3))
        assert ours.tolist() == [[value] * 3] * 2
    assert x.empty_like(dtype=dtype).dtype is found


def test_what_is_filled_has_memory_of_its_own() -> None:
    first, second = Tensor.zeros(3), Tensor.zeros(3)

    first[0] = 5

    assert (first.tolist(), second.tolist()) == ([5, 0, 0], [0, 0, 0])


def test_meshgrid_of_scalars_and_nothing() -> None:
    ours = Tensor(1.0).meshgrid(Tensor([1.0, 2.0]), Tensor.zeros(0))
    theirs = torch.meshgrid(
        torch.tensor(1.0), torch.tensor([1.0, 2.0]), torch.zeros(0), indexing="ij"
    )

    assert [t.shape for t in ours] == [tuple(t.shape) for t in theirs]


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "bool"])
def test_a_list_of_arrays_is_stacked(dtype: str) -> None:
    rows = [numpy.ones((2, 3), dtype), numpy.zeros((2, 3), dtype)]

    made = Tensor(rows)

    assert (made.shape, made.dtype.name) == ((2, 2, 3), dtype)
    numpy.testing.assert_array_equal(made.numpy(), numpy.stack(rows))
    assert Tensor((rows, rows), dtype="float16").shape == (2, 2, 2, 3)


def test_a_list_of_numpy_numbers() -> None:
    assert Tensor([numpy.float32(1.5), numpy.float32(2)]).tolist() == [1.5, 2.0]
    assert Tensor([[numpy.int64(3)], [numpy.int64(4)]]).tolist() == [[3], [4]]
    assert Tensor([numpy.bool_(True)]).dtype is dtypes.bool


@pytest.mark.parametrize("make", [Tensor.zeros, Tensor.empty, Tensor.ones])
def test_memory_of_more_bytes_than_can_be_counted_is_refused_at_the_call(make: Any) -> None:
    with pytest.raises(ShapeError, match="takes 36,893,488,147,419,103,228 bytes"):
        make((1 << 63) - 1)


def test_more_memory_than_there_is_ends_in_an_error_when_it_is_needed() -> None:
    huge = Tensor.zeros(1 << 60)

    with pytest.raises((OutOfMemory, UnsupportedError), match=r"no room|groups; the device"):
        huge[-1].item()
