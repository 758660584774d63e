"""Which loops become the rows, the columns and the lines of a register tile."""

from __future__ import annotations

import numpy
import pytest

from tests.unit.lower.test_stage import AVX2, product
from tests.unit.lower.test_tile import CPU, run
from tinycore import Tensor
from tinycore.lower.loops import counters
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import apply_plan
from tinycore.render import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op


def convolution(stride: int, height: int, width: int) -> UOp:
    """Six channels of two images, folded over windows of 3 by 3 of five channels."""
    x = Tensor.empty(2, 5, height, width, device="PYTHON")
    weight = Tensor.empty(6, 5, 3, 3, device="PYTHON")
    ast: UOp = x.conv2d(weight, stride=stride).schedule()[-1].ast
    return ast


def accumulators(ast: UOp, limits: Limits) -> int:
    """How many sums the innermost loops of a plan keep in registers."""
    tiled = apply_plan(ast, plan_for(ast, limits))
    (end,) = (n for n in tiled.src if n.op is Op.END)
    count = 1
    for r in end.src[1:]:
        count *= r.extent if r.arg.kind is AxisKind.UNROLL else 1
    return count


@pytest.mark.parametrize(("stride", "height", "width"), [(1, 9, 15), (2, 9, 23)])
def test_convolution_under_its_plan(stride: int, height: int, width: int) -> None:
    ast = convolution(stride, height, width)

    for limits in (AVX2, CPU):
        planned = run(ast, plan_for(ast, limits))
        numpy.testing.assert_allclose(planned, run(ast, ()), rtol=1e-4, atol=1e-4)


def test_lines_of_an_image_are_columns_where_one_line_is_short() -> None:
    ast = convolution(1, 10, 10)
    tiled = apply_plan(ast, plan_for(ast, AVX2))
    unrolled = [r.arg.number for r in counters(tiled) if r.arg.kind is AxisKind.UNROLL]

    assert (3, 1) in unrolled  # two lines
    assert (2, 1) in unrolled  # of several channels
    assert accumulators(ast, AVX2) >= 8


def test_images_that_share_nothing_are_no_lines_of_a_tile() -> None:
    """A convolution of single places: each vector of a line that is wide ends a cache line."""
    image = Tensor.empty(4, 16, 8, 8, device="CPU")
    (item,) = image.conv2d(Tensor.empty(32, 16, 1, 1, device="CPU")).schedule()
    tiled = apply_plan(item.ast, plan_for(item.ast, AVX2))
    unrolled = {r.arg.number for r in counters(tiled) if r.arg.kind is AxisKind.UNROLL}

    assert unrolled == {(3, 0, 1), (2, 1)}  # vectors of a line, channels
    planned = run(item.ast, plan_for(item.ast, AVX2))
    numpy.testing.assert_allclose(planned, run(item.ast, ()), rtol=1e-4, atol=1e-4)


def test_tiles_with_windows_leave_more_registers() -> None:
    assert accumulators(convolution(1, 18, 18), AVX2) <= 10
    assert accumulators(product(60, 20, 64), AVX2) == 12
