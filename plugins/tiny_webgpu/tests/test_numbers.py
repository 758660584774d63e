"""Numbers on the device: packed types, pairs of words, NaN and infinity, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from tinycore import Context, Tensor
from tinycore.dtype import DType, dtypes
from tinycore.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("on_webgpu")

EDGES = [0, 1, -1, 2, -7, 255, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 32, -(1 << 32), 10**18]
EDGES += [(1 << 63) - 1, -(1 << 63), 0x123456789ABCDEF, -0x0FEDCBA987654321]
Array = numpy.ndarray[Any, Any]
Function = Callable[[Tensor, Tensor], Tensor]


def pairs(kind: type) -> tuple[Array, Array]:
    """Every edge with every other, as 64-bit numbers."""
    numbers: Array = numpy.array(EDGES, dtype=numpy.int64).astype(kind)
    rows, columns = numpy.meshgrid(numbers, numbers)
    return rows.reshape(-1), columns.reshape(-1)


@pytest.mark.parametrize("kind", [numpy.int64, numpy.uint64])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda a, b: a + b, numpy.add),
        (lambda a, b: a - b, numpy.subtract),
        (lambda a, b: a * b, numpy.multiply),
        (lambda a, b: a.maximum(b), numpy.maximum),
        (lambda a, b: a.minimum(b), numpy.minimum),
        (lambda a, b: a < b, numpy.less),
        (lambda a, b: a == b, numpy.equal),
        (lambda a, b: a != b, numpy.not_equal),
        (lambda a, b: a & b, numpy.bitwise_and),
        (lambda a, b: a | b, numpy.bitwise_or),
        (lambda a, b: a ^ b, numpy.bitwise_xor),
        (lambda a, b: a // (b + (b == 0)), lambda a, b: a // (b + (b == 0).astype(b.dtype))),
        (lambda a, b: a % (b + (b == 0)), lambda a, b: a % (b + (b == 0).astype(b.dtype))),
    ],
    ids="add sub mul max min lt eq ne and or xor div mod".split(),
)
def test_integers_of_64_bits(kind: type, ours: Function, theirs: Function) -> None:
    a, b = pairs(kind)
    with numpy.errstate(all="ignore"):
        expected = theirs(a, b)  # type: ignore[arg-type]

    numpy.testing.assert_array_equal(ours(Tensor(a), Tensor(b)).numpy(), expected)


@pytest.mark.parametrize("by", [0, 1, 31, 32, 33, 63])
def test_shifts_of_64_bits(by: int) -> None:
    a = numpy.array(EDGES, dtype=numpy.int64)
    for x in (a, a.astype(numpy.uint64)):
        n = x.dtype.type(by)
        numpy.testing.assert_array_equal((Tensor(x) << by).numpy(), x << n)
        numpy.testing.assert_array_equal((Tensor(x) >> by).numpy(), x >> n)


def test_64_bits_become_floats_with_one_rounding() -> None:
    drawn = numpy.random.default_rng(0).integers(-(1 << 63), (1 << 63) - 1, 2000)
    x = numpy.concatenate([drawn, drawn >> 20, drawn >> 40, numpy.array(EDGES, dtype=numpy.int64)])

    numpy.testing.assert_array_equal(Tensor(x).float().numpy(), x.astype(numpy.float32))
    unsigned = x.astype(numpy.uint64)
    numpy.testing.assert_array_equal(
        Tensor(unsigned).float().numpy(), unsigned.astype(numpy.float32)
    )


def test_floats_become_64_bits() -> None:
    x = numpy.array([0.0, 1.5, -1.5, 1e9, -3e9, 4.2e9, 1e18, -9.2e18, 0.99, -8388609.0])
    x = x.astype(numpy.float32)
    large = numpy.array([1e19, 3.5], numpy.float32)

    numpy.testing.assert_array_equal(Tensor(x).long().numpy(), x.astype(numpy.int64))
    numpy.testing.assert_array_equal(
        Tensor(large).cast(dtypes.uint64).numpy(), large.astype(numpy.uint64)
    )


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16], ids=str)
def test_small_integers_wrap(dtype: DType) -> None:
    kind = numpy.dtype(dtype.name)
    a = numpy.arange(-300, 300).astype(kind)
    b = a[::-1].copy()
    with numpy.errstate(all="ignore"):
        for ours, theirs in (
            (Tensor(a) + Tensor(b), a + b),
            (Tensor(a) * Tensor(b), a * b),
            (-Tensor(a), -a),
            (Tensor(a) << 3, a << kind.type(3)),
            (Tensor(a).sum(), a.sum()),
        ):
            numpy.testing.assert_array_equal(ours.numpy(), theirs)


def test_neighbors_in_a_word_are_written_by_different_threads() -> None:
    for size in (1, 3, 1001):
        x = numpy.random.default_rng(size).integers(0, 2, size).astype(bool)
        numpy.testing.assert_array_equal((~Tensor(x)).numpy(), ~x)


def test_nan_is_seen() -> None:
    x = Tensor([float("nan"), 1.0, float("inf"), -float("inf"), 0.0])

    assert (x != x).tolist() == [True, False, False, False, False]
    assert x.isnan().tolist() == [True, False, False, False, False]
    assert x.isinf().tolist() == [False, False, True, True, False]
    assert x.maximum(0.5).isnan().tolist() == [True, False, False, False, False]
    assert x.cast(dtypes.bool).tolist() == [True, True, True, True, False]
    assert (x < 2).tolist() == [False, True, False, True, True]
    assert (~(x < 2)).tolist() == [True, False, True, False, False]


def test_rounding_is_not_simplified_away() -> None:
    x = numpy.random.default_rng(0).uniform(-80, 80, 4096).astype(numpy.float32)

    numpy.testing.assert_allclose(Tensor(x).exp().numpy(), numpy.exp(x), rtol=3e-7)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
def test_sums_with_zero_lose_the_sign_of_a_zero(dtype: DType) -> None:
    zeros = Tensor([-0.0, 0.0], dtype=dtype).realize()

    for found in (zeros + 0.0, 0.0 - zeros, zeros * zeros.abs() + 0.0):
        assert numpy.signbit(found.numpy()).tolist() == [False, False]
    assert numpy.signbit((zeros - 0.0).numpy()).tolist() == [True, False]
    assert numpy.signbit(zeros.pow(Tensor([0.5, 0.5], dtype=dtype)).numpy()).tolist() == [False] * 2


def test_sines_need_no_float64() -> None:
    small = numpy.linspace(-100, 100, 5000, dtype=numpy.float32)
    near = (numpy.arange(1, 5000) * (numpy.pi / 2)).astype(numpy.float32)
    x = numpy.concatenate([small, near, numpy.array([1e10, 1e30, 3e38], numpy.float32)])
    exact = numpy.sin(x.astype(numpy.longdouble)).astype(numpy.float64)

    error = numpy.abs(Tensor(x).sin().numpy().astype(numpy.float64) - exact)
    assert (error <= 1.7 * numpy.spacing(numpy.abs(exact).astype(numpy.float32))).all()


def test_index_math_beyond_32_bits() -> None:
    step = 1 << 61

    assert Tensor.arange(-(1 << 62), 1 << 62, step, dtype=dtypes.int64).tolist() == [
        -(1 << 62), -step, 0, step,
    ]  # fmt: skip


def test_rows_picked_by_places_beyond_32_bits() -> None:
    rows = Tensor([[1.0], [2.0], [3.0]]).expand(3, 1 << 31)
    columns = Tensor([(1 << 31) - 1, 5], dtype=dtypes.int64)

    assert rows[Tensor([0, 2]), columns].tolist() == [1.0, 3.0]


@pytest.mark.parametrize("arch", ["", "f16"])
def test_halves_are_rounded_alike_with_and_without_f16(arch: str) -> None:
    x = numpy.random.default_rng(1).uniform(-4, 4, 500).astype(numpy.float16)
    with Context(DEV=f"WEBGPU:WGSL:{arch}" if arch else "WEBGPU:WGSL:threads=64"):
        result = (Tensor(x) * Tensor(x) + 1).numpy()

    numpy.testing.assert_allclose(result, x * x + numpy.float16(1), rtol=2e-3)


def test_a_sum_is_shared_by_the_threads_of_a_group() -> None:
    x = numpy.random.default_rng(2).integers(-9, 9, (3, 1000)).astype(numpy.float32)
    with Context(DEV="WEBGPU:WGSL:shared=16384"):
        numpy.testing.assert_array_equal(Tensor(x).sum(1).numpy(), x.sum(1))


def test_float64_is_refused_with_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match=r"WGSL has no float64.*`x.cast\(dtypes.float32\)`"):
        (Tensor([1.0], dtype=dtypes.float64) + 1).realize()


def test_arrays_of_2_to_the_31_elements_are_refused() -> None:
    with Context(DEV="NULL:WGSL"):
        (Tensor.empty(2**31 - 1, dtype="uint8") + 1).realize()
        with pytest.raises(UnsupportedError, match="addresses 2,147,483,648 elements of uint8"):
            (Tensor.empty(2**31, dtype="uint8") + 1).realize()
