"""Kernels take no more buffers than their device binds: what would take more is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

import numpy
import pytest

from tiny_testing.kernels import Array, elementwise
from tinycore import Context, Device, Tensor, dtypes
from tinycore.errors import UnsupportedError
from tinycore.lower.pipeline import lower
from tinycore.plugin import Backend, Toolchain, register, unregister
from tinycore.render.base import Limits, Renderer
from tinycore.uop.op import Op

MOST = 4


def narrow(arch: str) -> Toolchain[Renderer]:
    """The toolchain of PYTHON for a device that binds few buffers."""
    found = Device["PYTHON"].toolchain_for()
    renderer = replace(found.renderer, limits=replace(found.renderer.limits, buffers=MOST))
    return replace(found, renderer=renderer)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """PYTHON under another name, with few buffers for a kernel."""
    like = Device.backend("PYTHON")
    register(
        Backend(
            name="NARROW",
            api=(2, 0),
            open=like.open,
            renderers={"N": narrow},
            capabilities=like.capabilities,
        )
    )
    with Context(DEV="NARROW"):
        yield
    unregister("NARROW")


def launches(result: Tensor) -> list[int]:
    """Number of buffers of each kernel of a result."""
    return [len(item.bufs) for item in result.schedule() if item.ast.op is not Op.COPY]


def inputs(count: int, *shape: int) -> tuple[list[Array], list[Tensor]]:
    generator = numpy.random.default_rng(0)
    arrays = [generator.standard_normal(shape or (5, 7)).astype("f") for _ in range(count)]
    return arrays, [Tensor(a).realize() for a in arrays]


@pytest.mark.parametrize("count", [3, 4, 5, 9, 20])
def test_a_sum_of_many_is_cut(count: int) -> None:
    arrays, tensors = inputs(count)
    total = reduce(lambda a, b: a + b, tensors)
    taken = launches(total)

    assert max(taken) <= MOST
    assert len(taken) == max(1, -(-(count - 1) // (MOST - 2)))
    numpy.testing.assert_allclose(total.numpy(), sum(arrays), rtol=1e-5, atol=1e-5)


def test_what_is_moved_about_is_cut_where_it_is_computed() -> None:
    arrays, tensors = inputs(8, 4, 6)
    halves = [reduce(lambda a, b: a * b, part) for part in (tensors[:4], tensors[4:])]
    result = (
        halves[0].permute(1, 0).pad(((0, 1), (0, 0)))
        + halves[1].permute(1, 0).pad(((1, 0), (0, 0)))
    ).sum(1)

    assert max(launches(result)) <= MOST
    first, second = numpy.prod(arrays[:4], axis=0).T, numpy.prod(arrays[4:], axis=0).T
    expected = numpy.pad(first, ((0, 1), (0, 0))) + numpy.pad(second, ((1, 0), (0, 0)))
    numpy.testing.assert_allclose(result.numpy(), expected.sum(1), rtol=1e-4, atol=1e-5)


def test_values_read_on_two_paths_are_counted_once_each() -> None:
    arrays, (a, b, c) = inputs(3)
    x = a * b + c
    result = x * a + x * b - c.exp() * (a + b)

    assert max(launches(result)) <= MOST
    f = [array.astype("d") for array in arrays]
    y = f[0] * f[1] + f[2]
    expected = y * f[0] + y * f[1] - numpy.exp(f[2]) * (f[0] + f[1])
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_outputs_share_a_kernel_only_where_there_is_room() -> None:
    arrays, tensors = inputs(3)
    results = [tensors[0] + 1, tensors[0] * tensors[1], tensors[0] - tensors[2]]
    Tensor.realize(*results)

    expected = [arrays[0] + 1, arrays[0] * arrays[1], arrays[0] - arrays[2]]
    for found, wanted in zip(results, expected, strict=True):
        numpy.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_one_buffer_too_many_parts_outputs() -> None:
    arrays, (a, b, c) = inputs(3)
    product, other = a * b, a * c  # read three buffers and write two
    shared, same = a * b + 1, a - b  # read two and write two

    assert sorted(len(i.bufs) for i in product.schedule(other)) == [MOST - 1] * 2
    assert [len(i.bufs) for i in shared.schedule(same)] == [MOST]
    Tensor.realize(product, other, shared, same)
    numpy.testing.assert_allclose(product.numpy(), arrays[0] * arrays[1], rtol=1e-6)
    numpy.testing.assert_allclose(other.numpy(), arrays[0] * arrays[2], rtol=1e-6)
    numpy.testing.assert_allclose(shared.numpy(), arrays[0] * arrays[1] + 1, rtol=1e-5)
    numpy.testing.assert_allclose(same.numpy(), arrays[0] - arrays[1], rtol=1e-5, atol=1e-6)


def test_a_kernel_by_hand_that_takes_too_many_is_refused() -> None:
    five = [dtypes.float32] * 5
    kernel = elementwise(lambda *x: [reduce(lambda a, b: a + b, x)], five, 8)
    with pytest.raises(UnsupportedError, match="takes 6 buffers, the device binds 4"):
        lower(kernel, Renderer(Limits(buffers=MOST)), "wide")
