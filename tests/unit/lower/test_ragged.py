"""Rows that vectors do not divide: what is left of them costs what it is, and no more."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from tests.unit.lower.test_tile import CPU, run
from tests.unit.schedule.graphs import buffer, kernels, permute, total
from tinycore import Context, Tensor
from tinycore.lower.plan import planned
from tinycore.lower.tile import Reorder
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

NARROW = replace(CPU, vector_bytes=32, vector_registers=16, threads=1)


def fills(kernel: UOp) -> list[int]:
    """How often each array of a kernel's own is filled, by the loops that do."""
    after = [n for n in kernel.toposort() if n.op is Op.AFTER and n.src[0].op is Op.DEFINE_LOCAL]
    arrays = dict.fromkeys(n.src[0] for n in after)
    ends = {a: {s for n in after for s in n.src[1:] if n.src[0] is a} for a in arrays}
    return [sum(s.op is Op.END for s in found) for found in ends.values()]


@pytest.mark.parametrize("columns", [192, 196, 199])
def test_what_all_parts_of_a_row_read_is_computed_once(columns: int) -> None:
    with Context(DEV="CPU"):
        (launch,) = Tensor.empty(16, columns).softmax(-1).schedule()
    plan, kernel = planned(launch.ast, NARROW)

    assert fills(kernel) == [1, 1, 1], "the greatest, powers and their sum"
    numpy.testing.assert_allclose(run(launch.ast, plan), run(launch.ast, ()), rtol=1e-5)


def image_gradient(size: int) -> UOp:
    """The kernel that sums what the results of a padded convolution bring to its image."""
    with Context(DEV="PYTHON"):
        x = Tensor.empty(2, 6, size, size)
        weight = Tensor.empty(5, 6, 3, 3)
        over = Tensor.empty(2, 5, size, size)
        (found,) = (x.conv2d(weight, padding=1) * over).sum().gradient(x)
        return found.schedule()[-1].ast


def test_what_is_cut_off_a_sum_is_not_computed() -> None:
    ast = image_gradient(7)
    (end,) = ast.src

    assert [r.extent for r in end.src[1:]] == [2, 6, 7, 7]
    assert any(n.op is Op.REDUCE for n in ast.toposort()), "no copy of a larger result"


def test_windows_are_summed_inside_of_channels() -> None:
    ast = image_gradient(7)
    plan, kernel = planned(ast, NARROW)
    (loops,) = {n.src[-2:] for n in kernel.toposort() if n.op is Op.REDUCE}

    assert isinstance(plan[0], Reorder)
    assert [r.extent for r in loops] == [3, 3]
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-4, atol=1e-4)


def test_loops_stay_where_operands_lie_in_different_orders() -> None:
    ast = kernels(total(buffer(6, 5, 4) * permute(buffer(4, 5, 6), 2, 1, 0), 0, 1, 2))[0].arg.ast
    plan, _ = planned(ast, NARROW)

    assert not any(isinstance(step, Reorder) for step in plan)


def test_sums_of_what_is_not_loaded_have_a_plan() -> None:
    """Of the numbers of a loop's steps, which are computed."""
    with Context(DEV="PYTHON"):
        counted = Tensor.arange(40).reshape(5, 8).float().sin().sum()
    ast = counted.schedule()[-1].ast

    assert not any(n.op is Op.LOAD for n in ast.toposort())
    numpy.testing.assert_allclose(run(ast, planned(ast, NARROW)[0]), run(ast, ()), rtol=1e-5)
