"""The gradient of sliding windows is made of windows where it can be, and always right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional

from tinycore.schedule.adjoint import with_windows
from tinycore.tensor import Tensor
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def numbers(*shape: int, seed: int = 0) -> Any:
    """Random float32."""
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def spread(result: Tensor) -> list[UOp]:
    """The UNSKEWs that a result is computed by."""
    nodes = with_windows({node: node for node in result.uop.toposort()})
    return [n for n in nodes[result.uop].toposort() if n.op is Op.UNSKEW]


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 6, 7), (4, 3, 3, 2), {}),
    "padded": ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": 1}),
    "dilated": ((1, 2, 9, 8), (3, 2, 2, 3), {"dilation": 2}),
    "groups": ((2, 4, 5, 6), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ((2, 4, 5, 6), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "one place": ((2, 3, 4, 4), (5, 3, 1, 1), {}),
    "a row": ((3, 2, 9), (4, 2, 5), {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradient_of_a_convolution_is_a_convolution(name: str) -> None:
    shape, window, options = CONVOLUTIONS[name]
    x, w = numbers(*shape), numbers(*window, seed=1)
    ours, theirs = Tensor(x), torch.tensor(x).double().requires_grad_()
    over = functional.conv2d if len(shape) == 4 else functional.conv1d
    expected = over(theirs, torch.tensor(w).double(), **options)
    weight = numbers(*expected.shape, seed=2)
    (found,) = (ours.conv2d(Tensor(w), **options) * Tensor(weight)).sum().gradient(ours)
    (truth,) = torch.autograd.grad((expected * torch.tensor(weight)).sum(), theirs)

    assert not spread(found)
    numpy.testing.assert_allclose(found.numpy(), truth.numpy(), rtol=1e-4, atol=1e-5)


OTHERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "stride": (
        lambda x: x.conv2d(Tensor(numbers(4, 3, 3, 3, seed=1)), stride=2),
        lambda x: functional.conv2d(
            x, torch.tensor(numbers(4, 3, 3, 3, seed=1)).double(), stride=2
        ),
    ),
    "stride beyond the window": (
        lambda x: x.conv2d(Tensor(numbers(4, 3, 2, 2, seed=1)), stride=3),
        lambda x: functional.conv2d(
            x, torch.tensor(numbers(4, 3, 2, 2, seed=1)).double(), stride=3
        ),
    ),
    "stride and dilation": (
        lambda x: x.conv2d(Tensor(numbers(4, 3, 3, 3, seed=1)), stride=2, dilation=2, padding=1),
        lambda x: functional.conv2d(
            x,
            torch.tensor(numbers(4, 3, 3, 3, seed=1)).double(),
            stride=2,
            dilation=2,
            padding=1,
        ),
    ),
    "wide windows of a stride": (
        lambda x: x.conv2d(Tensor(numbers(4, 3, 5, 4, seed=1)), stride=(2, 3), padding=2),
        lambda x: functional.conv2d(
            x, torch.tensor(numbers(4, 3, 5, 4, seed=1)).double(), stride=(2, 3), padding=2
        ),
    ),
    "greatest of windows side by side": (
        lambda x: x.max_pool2d((2, 3)),
        lambda x: functional.max_pool2d(x, (2, 3)),
    ),
    "greatest of windows of a stride": (
        lambda x: x.max_pool2d(3, stride=2, padding=1),
        lambda x: functional.max_pool2d(x, 3, stride=2, padding=1),
    ),
    "as large as the image": (
        lambda x: x.conv2d(Tensor(numbers(4, 3, 7, 8, seed=1))),
        lambda x: functional.conv2d(x, torch.tensor(numbers(4, 3, 7, 8, seed=1)).double()),
    ),
    "greatest of a window": (
        lambda x: x.max_pool2d((3, 2), stride=1),
        lambda x: functional.max_pool2d(x, (3, 2), stride=1),
    ),
    "mean of a window": (
        lambda x: x.avg_pool2d((3, 2), stride=1),
        lambda x: functional.avg_pool2d(x, (3, 2), stride=1),
    ),
    "each place by itself": (
        lambda x: x.unfold(3, 2, 1).square(),
        lambda x: x.unfold(3, 2, 1).square(),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_gradient_of_other_windows(name: str) -> None:
    here, there = OTHERS[name]
    x = numbers(2, 3, 7, 8)
    ours, theirs = Tensor(x), torch.tensor(x).double().requires_grad_()
    expected = there(theirs)
    weight = numbers(*expected.shape, seed=2)
    (found,) = (here(ours) * Tensor(weight)).sum().gradient(ours)
    (truth,) = torch.autograd.grad((expected * torch.tensor(weight)).sum(), theirs)

    numpy.testing.assert_allclose(found.numpy(), truth.numpy(), rtol=1e-4, atol=1e-5)


def test_gradient_of_a_gradient_of_a_convolution() -> None:
    x, w = numbers(1, 2, 5, 5), numbers(3, 2, 3, 3, seed=1)
    ours, weights = Tensor(x), Tensor(w)
    (first,) = ours.conv2d(weights).square().sum().gradient(ours)
    (found,) = first.square().sum().gradient(weights)
    theirs = torch.tensor(x).double().requires_grad_()
    kernel = torch.tensor(w).double().requires_grad_()
    total = functional.conv2d(theirs, kernel).square().sum()
    (inner,) = torch.autograd.grad(total, theirs, create_graph=True)
    (truth,) = torch.autograd.grad(inner.square().sum(), kernel)

    numpy.testing.assert_allclose(found.numpy(), truth.numpy(), rtol=1e-3, atol=1e-2)


def test_no_sum_over_channels_is_written_for_every_place_of_a_window() -> None:
    x, w = Tensor(numbers(4, 16, 12, 12)).realize(), Tensor(numbers(8, 16, 5, 5)).realize()
    over = Tensor(numbers(4, 8, 8, 8)).realize()
    (found,) = (x.conv2d(w) * over).sum().gradient(x)
    largest = max(buffer.nbytes for item in found.schedule() for buffer in item.bufs)

    assert largest <= x.nbytes()


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (2, 3, 0)])
def test_no_element_is_asked_whether_it_lies_in_a_window_of_a_stride(
    kernel: int, stride: int, padding: int
) -> None:
    x = Tensor(numbers(2, 3, 12, 12))
    (found,) = x.max_pool2d(kernel, stride, padding=padding).square().sum().gradient(x)

    assert all(n.arg.stride == 1 for n in spread(found))


def test_transposed_convolution_with_a_stride_rounds_narrow_sums_once() -> None:
    x, w = numbers(1, 4, 5, 5), numbers(4, 2, 3, 3, seed=1)
    ours = Tensor(x).half().conv_transpose2d(Tensor(w).half(), stride=2).float().numpy()
    truth = functional.conv_transpose2d(
        torch.tensor(x).half().double(), torch.tensor(w).half().double(), stride=2
    ).numpy()

    numpy.testing.assert_allclose(ours, truth, rtol=1e-3, atol=1e-3)


SEEDS: dict[str, Callable[[Any], Any]] = {
    "reshaped": lambda x: x.reshape(1, 3, 3, 3),
    "permuted": lambda x: x.reshape(3, 1, 3, 3).permute(1, 0, 2, 3),
    "repeated": lambda x: x.reshape(1, 3, 3, 3)[:, :1].expand(1, 3, 3, 3),
    "multiplied": lambda x: x.reshape(1, 3, 3, 3) * x.sum(),
    "added up": lambda x: x.reshape(1, 3, 3, 3, 1).expand(1, 3, 3, 3, 2).sum(4),
}


@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.parametrize("spatial", [{}, {"stride": 2, "padding": 1}])
def test_gradient_of_a_gradient_to_what_the_first_was_given(
    name: str, spatial: dict[str, Any]
) -> None:
    made = SEEDS[name]
    x, w, a = numbers(1, 2, 5, 5), numbers(3, 2, 3, 3, seed=1), numbers(27, seed=2)
    here = [Tensor(n) for n in (x, w, a)]
    there = [torch.tensor(n).double().requires_grad_() for n in (x, w, a)]
    given = made(here[2].sin())
    truth = made(there[2].sin())

    (first,) = here[0].conv2d(here[1], **spatial).gradient(here[0], gradient=given)
    output = functional.conv2d(there[0], there[1], **spatial)
    (expected,) = torch.autograd.grad(output, there[0], truth, create_graph=True)
    found = first.square().sum().gradient(given, here[2], here[1])
    second = torch.autograd.grad(expected.square().sum(), (truth, there[2], there[1]))

    for ours, theirs in zip(found, second, strict=True):
        numpy.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-3)
