"""Sides of a product joined to one loop: convolutions in whole tiles, in one pipeline of fills."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
from interpreted import computed

from tests.unit.lower.matrices import COPIES, LOAD, MFMA, MMA, SIMDGROUP, WMMA
from tests.unit.lower.test_tensorize import CARD
from tinycore import Tensor
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Fuse, Tensorize
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

COPYING = replace(CARD, copies=COPIES)


def convolution(
    size: tuple[int, int, int],
    unit: MatrixUnit = MMA,
    window: int = 3,
    stride: int = 1,
    dilation: int = 1,
) -> UOp:
    """A convolution of images that lie along their 16 channels, with 24 results."""
    image = Tensor.empty(*size, 16, dtype=unit.a, device="NULL")
    weight = Tensor.empty(24, window, window, 16, dtype=unit.a, device="NULL")
    images, weights = image.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    ast: UOp = images.conv2d(weights, stride=stride, dilation=dilation).schedule()[-1].ast
    return ast


def gradient(batch: int, height: int, width: int) -> UOp:
    """The gradient of weights for results and images that lie along the batch."""
    image = Tensor.empty(16, height + 2, width + 2, batch, dtype=MMA.a, device="NULL")
    change = Tensor.empty(16, height, width, batch, dtype=MMA.a, device="NULL")
    ast: UOp = image.permute(0, 3, 1, 2).conv2d(change.permute(0, 3, 1, 2)).schedule()[-1].ast
    return ast


def name_of(unit: MatrixUnit) -> str:
    """Name of a unit in the ids of tests."""
    return unit.name if unit.load is None else f"{unit.name}_{unit.load.name}"


def assert_same(ast: UOp, limits: Limits) -> list[Fuse]:
    """The loops that the plan for a card joins, once it has computed what plain loops compute."""
    plan = plan_for(ast, limits)
    assert any(isinstance(step, Tensorize) for step in plan)
    _, (found, *_) = computed(ast, plan, limits)
    _, (expected, *_) = computed(ast, (), limits)
    assert numpy.array_equal(found, expected)
    return [step for step in plan if isinstance(step, Fuse)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", [(2, 9, 10), (3, 5, 7), (1, 3, 20)], ids=str)
def test_tiles_of_a_convolution_span_rows_of_images(size: tuple[int, int, int]) -> None:
    assert len(assert_same(convolution(size), COPYING)) >= 2


@pytest.mark.parametrize(("window", "stride", "dilation"), [(3, 2, 1), (3, 1, 2), (1, 1, 1)])
def test_windows_that_lie_apart_are_found(window: int, stride: int, dilation: int) -> None:
    assert assert_same(convolution((2, 7, 9), MMA, window, stride, dilation), COPYING)


@pytest.mark.parametrize("unit", [WMMA, MFMA, SIMDGROUP, replace(MMA, load=LOAD)], ids=name_of)
def test_every_unit_has_such_tiles(unit: MatrixUnit) -> None:
    limits = replace(CARD, matrix=(unit,), subgroup=unit.threads)

    assert assert_same(convolution((2, 6, 5), unit), limits)


def test_steps_that_lie_behind_each_other_in_all_operands_are_one_sum() -> None:
    joined = assert_same(gradient(16, 4, 6), COPYING)

    assert "fuse(7 5)" in map(str, joined)


def test_a_short_sum_across_both_operands_is_one_loop() -> None:
    image = Tensor.empty(3, 9, 9, 16, dtype=MMA.a, device="NULL").permute(3, 0, 1, 2)
    change = Tensor.empty(3, 7, 7, 16, dtype=MMA.a, device="NULL").permute(3, 0, 1, 2)
    ast: UOp = image.conv2d(change).schedule()[-1].ast
    joined = assert_same(ast, COPYING)

    (summed,) = [n for n in ast.toposort() if n.op is Op.REDUCE]
    numbers = {r.arg.number for r in summed.src[1:]}
    assert {number for s in joined for number in (s.outer, s.inner)} & numbers == numbers
