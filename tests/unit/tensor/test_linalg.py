"""Products, einsum, convolution, pooling, normalization, losses and attention against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, integers, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, ShapeError
from tinycore.tensor import Tensor

F = torch.nn.functional
Function = Callable[..., Any]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 3)),
        ((2, 0), (0, 3)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    compare(lambda x, y: x @ y, None, numbers(*a), numbers(*b, seed=1))


def test_matmul_of_integers_and_bools() -> None:
    compare(lambda x, y: x @ y, None, integers(3, 4), integers(4, 2), gradient=False)
    assert (Tensor([[True, False]]) @ Tensor([[False], [True]])).tolist() == [[False]]


def test_products_of_halves_are_summed_in_float32() -> None:
    a = Tensor([[0.1] * 2000], dtype=dtypes.float16)

    assert (a @ a.T).dtype is dtypes.float16
    assert abs((a @ a.T).item() - 20) < 0.02
    assert a.dot(a.T, dtype=dtypes.float32).dtype is dtypes.float32


def test_matmul_mistakes_are_told_at_the_call() -> None:
    with pytest.raises(
        ShapeError, match=r"dot: the inner sizes differ \(3 and 4\) in shapes \(2, 3\) and \(4, 5\)"
    ):
        Tensor.zeros(2, 3) @ Tensor.zeros(4, 5)
    with pytest.raises(ShapeError, match="dot"):
        Tensor(1.0) @ Tensor.zeros(2)
    with pytest.raises(ShapeError, match="broadcast"):
        Tensor.zeros(2, 1, 3) @ Tensor.zeros(3, 3, 1)


def test_linear() -> None:
    compare(
        lambda x, w, b: x.linear(w, b),
        lambda x, w, b: x @ w + b,
        numbers(5, 3),
        numbers(3, 2),
        numbers(2),
    )


@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("...ij,jk->...ik", [(2, 2, 3), (3, 4)]),
        ("i,i,i->i", [(3,), (3,), (3,)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ba,b->", [(2, 3), (2,)]),
    ],
)
def test_einsum(formula: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]

    compare(lambda *x: Tensor.einsum(formula, *x), lambda *x: torch.einsum(formula, *x), *inputs)


def test_einsum_mistakes_are_told_at_the_call() -> None:
    x = Tensor.zeros(2, 3)

    with pytest.raises(ArgumentError, match="einsum"):
        Tensor.einsum("ij,jk->ik", x)
    with pytest.raises(ShapeError, match="'j'"):
        Tensor.einsum("ij,jk->ik", x, x)
    with pytest.raises(ArgumentError, match="einsum"):
        Tensor.einsum("ij->ik", x)


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


def test_convolution_mistakes_are_told_at_the_call() -> None:
    x, w = Tensor.zeros(1, 3, 4, 4), Tensor.zeros(2, 3, 3, 3)

    with pytest.raises(ShapeError, match="channels in 1 groups"):
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


# --- losses

LABELS = numpy.array([0, 2, 1, 2])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy(reduction: Any, smoothing: float) -> None:
    options: Any = {"reduction": reduction, "label_smoothing": smoothing}

    compare(
        lambda x: x.cross_entropy(Tensor(LABELS), **options),
        lambda x: F.cross_entropy(x, torch.tensor(LABELS), **options),
        numbers(4, 3),
    )
    compare(
        lambda x: x.sparse_categorical_crossentropy(Tensor(LABELS), **options),
        lambda x: F.cross_entropy(x, torch.tensor(LABELS), **options),
        numbers(4, 3),
    )


def test_cross_entropy_of_images_and_probabilities() -> None:
    labels = integers(2, 4, low=0, high=3).astype(numpy.int64)
    shares = numpy.random.default_rng(0).dirichlet([1, 1, 1], 4)

    compare(
        lambda x: x.cross_entropy(Tensor(labels)),
        lambda x: F.cross_entropy(x, torch.tensor(labels)),
        numbers(2, 3, 4),
    )
    compare(
        lambda x: x.cross_entropy(Tensor(shares, dtype=x.dtype)),
        lambda x: F.cross_entropy(x, torch.tensor(shares)),
        numbers(4, 3),
    )


def test_ignored_labels_do_not_count() -> None:
    labels = numpy.array([0, -1, 1, -1])

    compare(
        lambda x: x.sparse_categorical_crossentropy(Tensor(labels)),
        lambda x: F.cross_entropy(x, torch.tensor(labels), ignore_index=-1),
        numbers(4, 3),
    )


def test_nll_loss() -> None:
    weight = numpy.array([0.2, 0.5, 0.3])

    compare(
        lambda x: x.nll_loss(Tensor(LABELS), Tensor(weight, dtype=x.dtype), ignore_index=1),
        lambda x: F.nll_loss(x, torch.tensor(LABELS), torch.tensor(weight), ignore_index=1),
        numbers(4, 3),
    )
    compare(
        lambda x: x.nll_loss(Tensor(LABELS)),
        lambda x: F.nll_loss(x, torch.tensor(LABELS)),
        numbers(4, 3),
    )


def test_binary_crossentropy() -> None:
    target = numpy.array([0.0, 1.0, 0.3, 1.0])

    compare(
        lambda x: x.binary_crossentropy(Tensor(target, dtype=x.dtype)),
        lambda x: F.binary_cross_entropy(x, torch.tensor(target)),
        numbers(4, low=0.1, high=0.9),
    )
    compare(
        lambda x: x.binary_crossentropy_logits(Tensor(target, dtype=x.dtype)),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.tensor(target)),
        numbers(4, low=-40, high=40),
    )


def test_loss_mistakes_are_told_at_the_call() -> None:
    x = Tensor.zeros(4, 3)

    with pytest.raises(ShapeError, match="cross_entropy"):
        x.cross_entropy(Tensor([0, 1]))
    with pytest.raises(DTypeError, match="label"):
        x.sparse_categorical_crossentropy(Tensor([0.0] * 4))
    with pytest.raises(ArgumentError, match="reduction"):
        x.cross_entropy(Tensor([0] * 4), reduction="average")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="label_smoothing"):
        x.cross_entropy(Tensor([0] * 4), label_smoothing=2)


# --- attention


def test_attention() -> None:
    inputs = [numbers(2, 2, 5, 4, seed=i) for i in range(3)]

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        F.scaled_dot_product_attention,
        *inputs,
    )
    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *inputs,
    )


def test_attention_masks_and_groups() -> None:
    mask = numpy.tri(5, 6, dtype=bool)
    q, k, v = numbers(1, 4, 5, 4), numbers(1, 2, 6, 4, seed=1), numbers(1, 2, 6, 3, seed=2)

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask), enable_gqa=True),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, torch.tensor(mask), enable_gqa=True
        ),
        q,
        k,
        v,
    )
    with pytest.raises(ArgumentError, match="is_causal"):
        Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), Tensor(mask), is_causal=True)


def test_sequential() -> None:
    assert Tensor([1.0]).sequential([lambda x: x + 1, Tensor.exp2]).tolist() == [4.0]
