"""Convolution, pooling, resizing and normalization over odd, empty and large images, with torch."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import Array, compare, integers, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import Tensor

F = torch.nn.functional
FLOAT = [dtypes.float32]
HALVES = [dtypes.float16, dtypes.bfloat16]

# --- convolution

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 3, 8), (4, 3, 3), {"stride": 2, "padding": 1}),
    "line_groups_dilation": ((1, 4, 9), (6, 2, 2), {"groups": 2, "dilation": 3}),
    "solid": (
        (1, 2, 4, 5, 3),
        (4, 1, 2, 3, 2),
        {"groups": 2, "stride": (1, 2, 1), "padding": (1, 0, 1)},
    ),
    "all_at_once": (
        (2, 4, 7, 6),
        (2, 2, 3, 2),
        {"groups": 2, "stride": (2, 3), "dilation": (1, 2), "padding": (2, 1)},
    ),
    "window_of_the_image": ((1, 2, 3, 5), (3, 2, 3, 5), {}),
    "window_in_the_padding": ((1, 1, 1, 1), (1, 1, 1, 1), {"padding": 2}),
    "stride_beyond_the_window": ((1, 1, 7, 7), (1, 1, 2, 2), {"stride": 4}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    shape, weight, options = CONVOLUTIONS[name]
    theirs = (F.conv1d, F.conv2d, F.conv3d)[len(shape) - 3]

    compare(
        lambda x, w, b: x.conv2d(w, b, **options),
        lambda x, w, b: theirs(x, w, b, **options),
        numbers(*shape),
        numbers(*weight, seed=1),
        numbers(weight[0], seed=2),
        dtypes_used=FLOAT,
        scale=4,
    )


TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 3, 5), (3, 2, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "solid": ((1, 2, 2, 3, 2), (2, 2, 2, 1, 2), {"stride": (1, 2, 1)}),
    "all_at_once": (
        (2, 4, 4, 3),
        (4, 3, 3, 2),
        {"groups": 2, "stride": (3, 2), "dilation": (1, 2), "padding": (2, 1)}
        | {"output_padding": (2, 1)},
    ),
    "padding_beyond_the_window": ((1, 1, 5, 5), (1, 1, 2, 2), {"padding": 2}),
    "output_padding_by_dilation": (
        (1, 1, 3, 3),
        (1, 1, 2, 2),
        {"dilation": 3, "output_padding": 2},
    ),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    shape, weight, options = TRANSPOSED[name]
    theirs = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(shape) - 3]
    outputs = weight[1] * options.get("groups", 1)

    compare(
        lambda x, w, b: x.conv_transpose2d(w, b, **options),
        lambda x, w, b: theirs(x, w, b, **options),
        numbers(*shape),
        numbers(*weight, seed=1),
        numbers(outputs, seed=2),
        dtypes_used=FLOAT,
        scale=4,
    )


def test_convolution_of_no_images() -> None:
    x, w, b = numbers(0, 2, 5, 5), numbers(3, 2, 2, 2), numbers(3)

    compare(lambda x, w, b: x.conv2d(w, b), F.conv2d, x, w, b, dtypes_used=FLOAT)
    assert Tensor.zeros(0, 3, 4, 4).conv_transpose2d(Tensor(w)).shape == (0, 2, 5, 5)


@pytest.mark.parametrize(
    ("name", "dtype"), [("conv2d", dtypes.float16), ("conv_transpose2d", dtypes.bfloat16)], ids=str
)
def test_convolution_of_halves(name: str, dtype: Any) -> None:
    compare(
        lambda x, w: getattr(x, name)(w, padding=1),
        lambda x, w: getattr(F, name)(x, w, padding=1),
        numbers(1, 3, 5, 4),
        numbers(3, 3, 3, 3, seed=1),
        dtypes_used=[dtype],
        scale=4,
    )


@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "int64"])
def test_convolution_of_integers(kind: str) -> None:
    """Sums wrap, as torch's do."""
    x, w = (integers(*shape).astype(kind) for shape in ((2, 4, 4, 5), (2, 2, 3, 2)))

    ours = Tensor(x).conv2d(Tensor(w), groups=2)
    theirs = F.conv2d(torch.tensor(x), torch.tensor(w), groups=2)

    assert ours.numpy().dtype == x.dtype
    assert (ours.numpy() == theirs.numpy()).all()


def test_convolution_in_another_dtype() -> None:
    x, w = Tensor.full((1, 300, 1, 1), 100, dtype=dtypes.int8), Tensor.ones(1, 300, 1, 1)

    assert x.conv2d(w.cast(dtypes.int8), dtype=dtypes.int32).item() == 30_000
    assert x.conv2d(w).dtype is dtypes.float32


def test_a_large_convolution(target: str) -> None:
    if target == "PYTHON":
        pytest.skip("an interpreter needs minutes for this")
    compare(
        lambda x, w: x.conv2d(w, padding=1, stride=2),
        lambda x, w: F.conv2d(x, w, padding=1, stride=2),
        numbers(2, 16, 65, 63),
        numbers(24, 16, 3, 3, seed=1, low=-0.1, high=0.1),
        dtypes_used=FLOAT,
        scale=10,
    )


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "large_window": ({"dilation": 4}, ShapeError, r"window: size \(2, 2\).*\(2, 4, 4, 4\)"),
    "groups": ({"groups": 3}, ShapeError, "groups"),
    "no_groups": ({"groups": 0}, ShapeError, "0"),
    "stride": ({"stride": 0}, ArgumentError, "stride"),
    "dilation": ({"dilation": -1}, ArgumentError, "dilation"),
    "padding": ({"padding": (1, 2, 3)}, ArgumentError, "padding"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_at_the_call(name: str) -> None:
    options, error, text = MISTAKES[name]
    x, w = Tensor.zeros(2, 4, 4, 4), Tensor.zeros(4, 4, 2, 2)

    with pytest.raises(error, match=text):
        x.conv2d(w, **options)
    if name != "large_window":
        with pytest.raises(error, match=text):
            x.conv_transpose2d(w, **options)


def test_more_padding_than_there_is_is_told_at_the_call() -> None:
    x, w = Tensor.zeros(1, 1, 3, 3), Tensor.zeros(1, 1, 2, 2)

    with pytest.raises(ShapeError, match="conv_transpose2d: padding"):
        x.conv_transpose2d(w, padding=5)
    with pytest.raises(ArgumentError, match="output_padding"):
        x.conv_transpose2d(w, output_padding=-1)


# --- pooling

POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 3, 9), {"kernel_size": (3,), "stride": 2, "padding": 1, "ceil_mode": True}),
    "solid": ((1, 2, 4, 5, 4), {"kernel_size": (2, 3, 2), "stride": 2, "padding": (1, 1, 0)}),
    "overlapping": ((1, 2, 6, 7), {"kernel_size": 3, "stride": 1, "padding": 1}),
    "one_by_one": ((1, 2, 3, 3), {"kernel_size": 1}),
    "stride_beyond": ((1, 1, 7, 7), {"kernel_size": 2, "stride": 3, "ceil_mode": True}),
    "hanging": ((1, 2, 5, 6), {"kernel_size": (4, 3), "stride": 3, "ceil_mode": True}),
    "no_images": ((0, 2, 4, 4), {"kernel_size": 2}),
    "whole": ((2, 1, 3, 4), {"kernel_size": (3, 4)}),
}


@pytest.mark.parametrize("name", POOLS)
def test_max_pool_with_indices(name: str) -> None:
    shape, options = POOLS[name]
    theirs = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(shape) - 3]

    compare(
        lambda x: list(x.max_pool2d(return_indices=True, **options)),
        lambda x: list(theirs(x, return_indices=True, **options)),
        numbers(*shape),
        dtypes_used=FLOAT,
    )


@pytest.mark.parametrize("padding", [0, 1])
def test_max_pool_with_gaps(padding: int) -> None:
    compare(
        lambda x: list(x.max_pool2d(2, 2, (3, 2), padding, True, return_indices=True)),
        lambda x: list(
            F.max_pool2d(x, 2, 2, padding, dilation=(3, 2), ceil_mode=True, return_indices=True)
        ),
        numbers(1, 2, 8, 7),
        dtypes_used=FLOAT,
    )


@pytest.mark.parametrize("name", [*POOLS, *["-" + name for name in ("line", "solid", "hanging")]])
def test_avg_pool(name: str) -> None:
    """A name with a minus: padded zeros do not count."""
    include, (shape, options) = name[0] != "-", POOLS[name.removeprefix("-")]
    theirs = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(shape) - 3]

    compare(
        lambda x: x.avg_pool2d(count_include_pad=include, **options),
        lambda x: theirs(x, count_include_pad=include, **options),
        numbers(*shape),
        dtypes_used=FLOAT,
    )


def test_pools_of_nan_and_infinity() -> None:
    x = numbers(2, 3, 6, 5)
    x[0, 0, 2, 2], x[0, 0, 0, 0], x[1] = numpy.nan, -numpy.inf, -numpy.inf

    compare(
        lambda x: list(x.max_pool2d(3, 2, padding=1, return_indices=True)),
        lambda x: list(F.max_pool2d(x, 3, 2, 1, return_indices=True)),
        x,
        gradient=False,
    )


@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "int64"])
def test_pools_of_integers(kind: str) -> None:
    x = integers(1, 2, 4, 5, low=-100, high=100).astype(kind)
    pairs = numpy.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))[:, :, ::2, ::2]

    best, average = Tensor(x).max_pool2d(2), Tensor(x).avg_pool2d(2)

    assert best.numpy().dtype == x.dtype
    assert (best.numpy() == pairs.max((-1, -2))).all()
    numpy.testing.assert_allclose(average.numpy(), pairs.mean((-1, -2)), 1e-6)


def test_pools_of_halves() -> None:
    compare(
        lambda x: [x.max_pool2d(3, 2), x.avg_pool2d(3, 2)],
        lambda x: [F.max_pool2d(x, 3, 2), F.avg_pool2d(x, 3, 2)],
        numbers(1, 2, 5, 7),
        dtypes_used=HALVES,
    )


@pytest.mark.parametrize("options", [(2, None, 0), (3, 2, 1), ((2, 3), (1, 2), (1, 0))], ids=str)
def test_unpooling_of_overlapping_windows(options: tuple[Any, Any, Any]) -> None:
    """Windows may share their greatest element, which is put back once."""
    kernel, stride, padding = options
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel

    def ours(x: Tensor) -> Tensor:
        best, places = x.max_pool2d(kernel, stride, padding=padding, return_indices=True)
        return best.max_unpool2d(places, kernel, stride, padding=padding, output_size=(6, 7))

    def theirs(x: torch.Tensor) -> torch.Tensor:
        best, places = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
        flat = torch.zeros(2, 3, 42, dtype=x.dtype).scatter(
            -1, places.reshape(2, 3, -1), best.reshape(2, 3, -1)
        )
        return flat.reshape(2, 3, 6, 7)

    compare(ours, theirs, numbers(2, 3, 6, 7), dtypes_used=FLOAT)


def test_pool_mistakes_are_told_at_the_call() -> None:
    x = Tensor.zeros(1, 1, 3, 3)

    with pytest.raises(ShapeError, match="window"):
        x.max_pool2d(4)
    with pytest.raises(ShapeError, match="avg_pool2d"):
        Tensor.zeros(3).avg_pool2d(2)
    with pytest.raises(ArgumentError, match="stride"):
        x.max_pool2d(2, 0)


# --- resizing

SIZES = (1, 2, 5, 9)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("count", SIZES)
def test_linear_resizing_of_a_line(count: int, align: bool) -> None:
    for old in (1, 5):
        compare(
            lambda x: x.interpolate((count,), align_corners=align),
            lambda x: F.interpolate(x, count, mode="linear", align_corners=align),
            numbers(2, 1, old),
            dtypes_used=FLOAT,
        )


@pytest.mark.parametrize("mode", ["linear", "nearest", "nearest-exact"])
def test_resizing_of_a_solid(mode: str) -> None:
    compare(
        lambda x: x.interpolate((3, 7, 2), mode),
        lambda x: F.interpolate(x, (3, 7, 2), mode="trilinear" if mode == "linear" else mode),
        numbers(1, 2, 4, 3, 5),
        dtypes_used=FLOAT,
    )


def nearest(old: int, count: int, exact: bool) -> list[int]:
    """The old pixel that each new one shows, in exact arithmetic."""
    shift = Fraction(1, 2) if exact else Fraction(0)
    return [floor((i + shift) * Fraction(old, count)) for i in range(count)]


@pytest.mark.parametrize("exact", [False, True])
def test_nearest_pixels_are_found_exactly(exact: bool) -> None:
    """At 14 -> 23 torch's float32 arithmetic misses by one; so may float64 elsewhere."""
    mode = "nearest-exact" if exact else "nearest"
    sizes = [(14, 23), (49, 98), (41, 40), (93, 31), (1, 3), (29, 58)]
    found = [Tensor.arange(old).interpolate((new,), mode) for old, new in sizes]

    whole = found[0].cat(*found[1:]).tolist()

    assert whole == [i for old, new in sizes for i in nearest(old, new, exact)]


def test_resizing_of_integers() -> None:
    x = numpy.arange(12, dtype=numpy.uint8).reshape(1, 1, 3, 4)

    kept = Tensor(x).interpolate((5, 6), "nearest")

    assert kept.dtype is dtypes.uint8
    assert kept.tolist() == F.interpolate(torch.tensor(x), (5, 6)).tolist()
    assert Tensor(x).interpolate((5, 6)).dtype is dtypes.uint8  # as in torch


def test_resizing_of_halves_and_of_no_images() -> None:
    compare(
        lambda x: x.interpolate((5, 3)),
        lambda x: F.interpolate(x, (5, 3), mode="bilinear"),
        numbers(1, 2, 4, 4),
        dtypes_used=HALVES,
        scale=2,
    )
    assert Tensor.zeros(0, 2, 3).interpolate((5,)).shape == (0, 2, 5)


@pytest.mark.parametrize("size", [(), (0,), (2, 2, 2)], ids=str)
def test_sizes_that_do_not_fit_are_told_at_the_call(size: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="interpolate: sizes"):
        Tensor.zeros(2, 3).interpolate(size)


# --- normalization


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 7), (0, 3), (2, 3, 5)], ids=str)
def test_layernorm(shape: tuple[int, ...]) -> None:
    compare(
        lambda x: x.layernorm(eps=1e-3),
        lambda x: F.layer_norm(x, shape[-1:], eps=1e-3),
        numbers(*shape),
        dtypes_used=FLOAT,
        scale=10,
    )


def test_layernorm_of_halves_is_computed_in_float32() -> None:
    x = numbers(2, 64) + 100

    ours = Tensor(x, dtype=dtypes.bfloat16)
    theirs = F.layer_norm(torch.tensor(ours.numpy().astype(numpy.float64)), (64,))

    numpy.testing.assert_allclose(ours.layernorm().numpy(), theirs.numpy(), 1e-2, 1e-2)


def mean_and_scale(x: Array) -> tuple[Array, Array]:
    return x.mean((0, 2)), 1 / numpy.sqrt(x.var((0, 2)) + 1e-5)


@pytest.mark.parametrize("trained", [True, False])
def test_batchnorm_with_and_without_weights(trained: bool) -> None:
    x, w, b = numbers(3, 4, 5), numbers(4, seed=1), numbers(4, seed=2)
    mean, scale = mean_and_scale(x)

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        given = Tensor(mean, dtype=x.dtype), Tensor(scale, dtype=x.dtype)
        return x.batchnorm(w, b, *given) if trained else x.batchnorm(None, None, *given)

    def theirs(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        given = [torch.tensor(v).reshape(4, 1) for v in (mean, scale)]
        shifted = (x - given[0]) * given[1]
        return shifted * w.reshape(4, 1) + b.reshape(4, 1) if trained else shifted

    compare(ours, theirs, x, w, b, dtypes_used=FLOAT, scale=4)
