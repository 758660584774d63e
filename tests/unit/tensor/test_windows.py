"""Convolution, pooling, resizing and normalization against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import Tensor

F = torch.nn.functional

# --- convolution

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 6, 7), (4, 3, 3, 3), {}),
    "one_by_one": ((2, 3, 4, 4), (5, 3, 1, 1), {}),
    "stride": ((1, 2, 7, 8), (3, 2, 3, 2), {"stride": 2}),
    "stride_dilation": ((1, 2, 9, 9), (3, 2, 2, 3), {"stride": (2, 1), "dilation": (3, 2)}),
    "padding": ((1, 2, 5, 5), (3, 2, 3, 3), {"padding": (1, 2)}),
    "groups": ((2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((1, 4, 5, 5), (4, 1, 3, 3), {"groups": 4}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(name: str) -> None:
    shape, weight, options = CONVOLUTIONS[name]

    compare(
        lambda x, w, b: x.conv2d(w, b, **options),
        lambda x, w, b: F.conv2d(x, w, b, **options),
        numbers(*shape),
        numbers(*weight, seed=1),
        numbers(weight[0], seed=2),
        scale=4,
    )


@pytest.mark.slow
def test_convolution_over_one_and_three_axes() -> None:
    compare(
        lambda x, w: x.conv2d(w, padding=1),
        lambda x, w: F.conv1d(x, w, padding=1),
        numbers(2, 3, 8),
        numbers(4, 3, 3),
        scale=4,
    )
    compare(
        lambda x, w: x.conv2d(w), F.conv3d, numbers(1, 2, 4, 4, 4), numbers(2, 2, 2, 2, 2), scale=4
    )


def test_uneven_padding() -> None:
    compare(
        lambda x, w: x.conv2d(w, padding=(1, 0, 2, 1)),
        lambda x, w: F.conv2d(F.pad(x, (1, 0, 2, 1)), w),
        numbers(1, 2, 4, 4),
        numbers(2, 2, 3, 3),
        scale=4,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"dilation": 2},
        {"groups": 2, "stride": (1, 3)},
    ],
    ids=str,
)
def test_conv_transpose2d(options: dict[str, Any]) -> None:
    groups = options.get("groups", 1)

    compare(
        lambda x, w, b: x.conv_transpose2d(w, b, **options),
        lambda x, w, b: F.conv_transpose2d(x, w, b, **options),
        numbers(2, 4, 4, 5),
        numbers(4, 6 // groups, 3, 2, seed=1),
        numbers(6, seed=2),
        scale=4,
    )


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Tensor(numbers(1, 1, 6)).realize(),
        lambda: (Tensor(numbers(6)) * 2).reshape(1, 1, 6),
        lambda: (Tensor(numbers(6, 1, 1)) * 2).permute(2, 1, 0),
        lambda: (Tensor(numbers(1, 1, 6)) * 2).expand(3, 1, 6),
        lambda: (Tensor(numbers(1, 1, 6)) * 2).cast("float64"),
    ],
    ids=["memory", "reshape", "permute", "expand", "cast"],
)
def test_gradients_go_to_what_is_convolved_however_it_is_made(
    make: Callable[[], Tensor], stride: int
) -> None:
    x, weight = make(), make()[:1, :, :3]
    result = x.conv_transpose2d(weight, stride=stride)
    scale = Tensor(numbers(*result.shape, seed=1))

    found = [g.numpy() for g in (result * scale).sum().gradient(x, weight)]

    ours = [torch.tensor(t.numpy(), requires_grad=True) for t in (x, weight)]
    theirs = F.conv_transpose1d(ours[0], ours[1], stride=stride) * torch.tensor(scale.numpy())
    expected = torch.autograd.grad(theirs.sum(), ours)
    for one, other in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5)


def test_second_gradients_go_to_memory_that_a_first_one_is_given() -> None:
    x, given = Tensor(numbers(1, 1, 6)).realize(), Tensor(numbers(1, 1, 5)).realize()
    (first,) = x.conv2d(Tensor([[[1.0, 2.0]]])).gradient(x, gradient=given)

    assert first.sum().gradient(given)[0].tolist() == [[[3.0] * 5]]


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_convolutions_of_halves_are_summed_in_float32(name: str) -> None:
    x = Tensor.full((1, 2000, 1, 1), 0.038, dtype=dtypes.float16)
    w = x if name == "conv2d" else x.transpose(0, 1)

    result = getattr(x, name)(w)

    assert result.dtype is dtypes.float16
    assert result.item() == numpy.float16(2000 * float(numpy.float16(0.038)) ** 2)


def test_convolution_mistakes_are_told_at_the_call() -> None:
    x, w = Tensor.zeros(1, 3, 4, 4), Tensor.zeros(2, 3, 3, 3)

    with pytest.raises(ShapeError, match=r"the image and those of the weight differ \(3 and 4\)"):
        x.conv2d(Tensor.zeros(2, 4, 3, 3))
    with pytest.raises(ShapeError, match=r"window: size \(5, 5\)"):
        x.conv2d(Tensor.zeros(2, 3, 5, 5))
    with pytest.raises(ShapeError, match="conv2d"):
        Tensor.zeros(3, 4).conv2d(w)
    with pytest.raises(ArgumentError, match="padding"):
        x.conv2d(w, padding=(1, 2, 3))


POOLS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 2},
    "stride": {"kernel_size": (3, 2), "stride": (2, 1)},
    "padding": {"kernel_size": 3, "stride": 2, "padding": 1},
    "ceil": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "ceil_padding": {"kernel_size": (2, 3), "stride": (3, 2), "padding": 1, "ceil_mode": True},
}


@pytest.mark.parametrize("name", POOLS)
def test_max_pool2d(name: str) -> None:
    options = POOLS[name]

    compare(
        lambda x: x.max_pool2d(**options), lambda x: F.max_pool2d(x, **options), numbers(2, 3, 7, 8)
    )


def test_max_pool2d_dilation_and_indices() -> None:
    compare(
        lambda x: x.max_pool2d(2, 1, 2),
        lambda x: F.max_pool2d(x, 2, 1, dilation=2),
        numbers(1, 1, 6, 6),
    )
    compare(
        lambda x: list(x.max_pool2d(3, 2, padding=1, return_indices=True)),
        lambda x: list(F.max_pool2d(x, 3, 2, padding=1, return_indices=True)),
        numbers(2, 2, 7, 7),
        gradient=False,
    )


def test_max_pool2d_of_integers() -> None:
    assert Tensor([[[[-5, -7], [-9, -8]]]]).max_pool2d(padding=1).tolist() == [
        [[[-5, -7], [-9, -8]]]
    ]


@pytest.mark.slow
def test_max_unpool2d() -> None:
    def ours(x: Tensor) -> Tensor:
        best, places = x.max_pool2d(2, return_indices=True)
        return best.max_unpool2d(places, 2)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        best, places = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(best, places, [2, 2])

    compare(ours, theirs, numbers(1, 2, 4, 6))


@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("name", POOLS)
def test_avg_pool2d(name: str, count_include_pad: bool) -> None:
    options = POOLS[name] | {"count_include_pad": count_include_pad}

    compare(
        lambda x: x.avg_pool2d(**options), lambda x: F.avg_pool2d(x, **options), numbers(2, 3, 7, 8)
    )


# --- resizing


@pytest.mark.parametrize("size", [(7, 3), (2, 8), (1, 1)], ids=str)
@pytest.mark.parametrize("align", [False, True])
def test_linear_interpolation(size: tuple[int, int], align: bool) -> None:
    compare(
        lambda x: x.interpolate(size, align_corners=align),
        lambda x: F.interpolate(x, size, mode="bilinear", align_corners=align),
        numbers(2, 3, 4, 5),
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_interpolation(mode: str) -> None:
    compare(
        lambda x: x.interpolate((7, 3), mode),
        lambda x: F.interpolate(x, (7, 3), mode=mode),
        numbers(2, 3, 4, 5),
    )
    with pytest.raises(ArgumentError, match="cubic"):
        Tensor.zeros(1, 1, 2).interpolate((3,), "cubic")


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_interpolate_has_nothing_to_resize_on_an_empty_axis(mode: str) -> None:
    with pytest.raises(ShapeError, match="sizes"):
        Tensor.zeros(1, 2, 0).interpolate((3,), mode)

    assert Tensor.zeros(0, 2, 4).interpolate((3,), mode).shape == (0, 2, 3)


# --- normalization


def test_layernorm() -> None:
    compare(lambda x: x.layernorm(), lambda x: F.layer_norm(x, (4,)), numbers(3, 4), scale=4)
    compare(
        lambda x: x.layernorm((1, 2)), lambda x: F.layer_norm(x, (3, 4)), numbers(2, 3, 4), scale=4
    )


def test_batchnorm() -> None:
    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        return x.batchnorm(w, b, mean, (variance + 1e-5).rsqrt())

    compare(
        ours,
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        numbers(4, 3, 2, 2),
        numbers(3, seed=1),
        numbers(3, seed=2),
        scale=10,
    )
