"""Sums with lanes along the reduced loop: tiles, what is left of a row, sums that are held."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy
import pytest

from tests.unit.lower.test_tile import CPU, run
from tinycore import Context, Tensor
from tinycore.lower.loops import counters
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.accumulate import Accumulate
from tinycore.lower.strategies.dot import STREAMS
from tinycore.lower.tile import Bind, Plan, apply_plan
from tinycore.render import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

NARROW = replace(CPU, vector_bytes=32, vector_registers=16, threads=1)


def weight_gradient(images: int, inputs: int, outputs: int, size: int, window: int) -> UOp:
    """The kernel that sums products of images with the gradients of what they led to."""
    with Context(DEV="PYTHON"):
        x = Tensor.empty(images, inputs, size, size)
        weight = Tensor.empty(outputs, inputs, window, window)
        over = Tensor.empty(images, outputs, size - window + 1, size - window + 1)
        (found,) = (x.conv2d(weight) * over).sum().gradient(weight)
        return found.schedule()[-1].ast


def extents(ast: UOp, plan: Plan, kind: AxisKind) -> list[int]:
    """Lengths of the loops of a kind, sorted."""
    return sorted(r.extent for r in counters(apply_plan(ast, plan)) if r.arg.kind is kind)


def test_a_tile_shares_what_two_loops_read() -> None:
    ast = weight_gradient(4, 6, 8, 12, 3)
    plan = plan_for(ast, NARROW)
    written = extents(ast, plan, AxisKind.UNROLL)

    assert len(written) >= 2, "rows and columns of sums at once"
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "lanes"), [(17, [8, 8]), (16, [8, 8]), (15, [8, 8]), (11, [8])])
def test_what_is_left_of_a_row_is_one_vector(size: int, lanes: list[int]) -> None:
    """Rows of 14, 13, 12 and 8: a whole vector, which starts early."""
    ast = weight_gradient(2, 3, 2, size, 4)
    plan = plan_for(ast, NARROW)

    assert extents(ast, plan, AxisKind.VECTOR) == lanes
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_are_held_where_what_they_read_does_not_stay_near(threads: int) -> None:
    ast = weight_gradient(6, 8, 8, 12, 3)
    limits = replace(NARROW, cache_bytes=32 << 10, threads=threads)
    plan = plan_for(ast, limits)
    (held,) = [s for s in plan if isinstance(s, Accumulate)]

    assert len(held.reduced) == 1, "the images go around the sums"
    shared = any(isinstance(s, Bind) and s.kind is AxisKind.PARALLEL for s in plan)
    assert shared == (threads > 1)
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-4, atol=1e-4)


def test_sums_are_not_held_where_all_stays_near() -> None:
    ast = weight_gradient(6, 8, 8, 12, 3)

    assert not any(isinstance(s, Accumulate) for s in plan_for(ast, NARROW))


def renumbered(kernel: UOp, more: int) -> UOp:
    """A kernel whose axes have other numbers, in the same order."""
    loops = [n for n in kernel.toposort() if n.op is Op.RANGE]
    others = {
        r: r.replace(arg=r.arg._replace(number=(r.arg.number[0] + more, *r.arg.number[1:])))
        for r in loops
    }
    return kernel.substitute(others)


@pytest.mark.parametrize("more", range(1, 9))
def test_plans_do_not_depend_on_axis_numbers(more: int) -> None:
    """The loops that update held sums once were told by a 7, which is an axis number, too."""
    ast = weight_gradient(6, 3, 16, 15, 3)
    limits = replace(NARROW, cache_bytes=64 << 10, threads=2)
    other = renumbered(ast, more)
    expected = apply_plan(ast, plan_for(ast, limits))

    assert renumbered(apply_plan(other, plan_for(other, limits)), -more) is expected


def row_sums(rows: int, columns: int) -> UOp:
    """The products of a matrix's rows with a vector."""
    with Context(DEV="PYTHON"):
        (item,) = (Tensor.empty(rows, columns) @ Tensor.empty(columns)).schedule()
        return item.ast


def streams(ast: UOp, limits: Limits = NARROW) -> int:
    """Number of rows that a plan reads side by side."""
    return math.prod(extents(ast, plan_for(ast, limits), AxisKind.UNROLL))


def test_rows_of_whole_pages_are_read_beside_each_other() -> None:
    ast = row_sums(21, 1024)

    assert streams(ast) == STREAMS
    assert STREAMS * math.prod(extents(ast, plan_for(ast, NARROW), AxisKind.PARTIAL)) == 8
    numpy.testing.assert_allclose(
        run(ast, plan_for(ast, NARROW)), run(ast, ()), rtol=1e-4, atol=1e-4
    )


def test_rows_are_read_one_after_the_other_where_they_are_short_or_few() -> None:
    assert streams(row_sums(64, 960)) == 1, "shorter than a page"
    assert streams(row_sums(3, 4096)) == 1, "fewer than streams"
    assert streams(row_sums(12, 4096), replace(NARROW, threads=4)) == 1, "too few for all threads"
