"""Lanes over what windows of a stride read and write: repeated, strided, at borders, in between."""

from __future__ import annotations

import numpy
import pytest

from tests.unit.lower.test_tile import run
from tinycore import Tensor
from tinycore.lower.expand import expand
from tinycore.lower.loops import counters
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Bind, Peel, Plan, Split, apply_plan
from tinycore.render import Limits
from tinycore.uop.affine import repetition
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

AVX2 = Limits(vector_bytes=32, vector_registers=16)


def last_kernel(x: Tensor) -> UOp:
    ast: UOp = x.schedule()[-1].ast
    return ast


def enlarged(size: int, times: int = 2) -> UOp:
    """Every element of a row of an image several times."""
    x = Tensor.empty(3, size, device="PYTHON")
    wide = x.reshape(3, size, 1).expand(3, size, times).reshape(3, times * size)
    return last_kernel(wide * 2)


def greatest(stride: int, padding: int) -> UOp:
    """The greatest of windows of 3 by 3 of an image."""
    x = Tensor.empty(2, 25, 42, device="PYTHON")
    return last_kernel(x.max_pool2d(3, stride, padding=padding))


def lanes_of(ast: UOp, plan: Plan | None = None) -> set[int]:
    """The sizes of the vectors that are loaded under a kernel's plan."""
    tiled = apply_plan(ast, plan_for(ast, AVX2) if plan is None else plan)
    nodes = expand(tiled).toposort()
    return {n.dtype.count for n in nodes if n.op is Op.LOAD}


def test_a_division_of_a_counter_repeats() -> None:
    i, j = UOp.range(16, 0), UOp.range(16, 1)

    assert repetition((j + 3) // 2 + i * 8, j) == 2
    assert repetition(j // 2 + i, i) is None
    assert repetition((j // 2) * 3, j) is None
    assert repetition((j * 3) // 2, j) is None
    assert repetition(j // 2 + j, j) is None


def test_what_lanes_read_repeatedly_is_loaded_once() -> None:
    assert lanes_of(enlarged(16)) == {4}


@pytest.mark.parametrize("size", [16, 13, 4, 30])
def test_repeated_elements_under_their_plan(size: int) -> None:
    ast = enlarged(size)

    numpy.testing.assert_array_equal(run(ast, plan_for(ast, AVX2)), run(ast, ()))


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("times", [2, 3, 4, 6, 8, 12, 16])
def test_repeated_elements_under_any_lanes(times: int, lanes: int) -> None:
    """Lanes that begin in the middle of what is repeated read their own elements."""
    ast = enlarged(16, times)
    column = ast.src[0].src[-1].arg.number
    plan = (Split(column, lanes), Bind((*column, 1), AxisKind.VECTOR))
    loaded = 1 if lanes % times or lanes == times else lanes // times

    assert lanes_of(ast, plan) == {loaded}
    numpy.testing.assert_array_equal(run(ast, plan), run(ast, ()))


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (3, 1), (1, 0), (2, 0)])
def test_windows_of_a_padded_image_have_lanes_between_their_borders(
    stride: int, padding: int
) -> None:
    ast = greatest(stride, padding)
    plan = plan_for(ast, AVX2)
    tiled = apply_plan(ast, plan)

    assert any(r.arg.kind is AxisKind.VECTOR for r in counters(tiled))
    assert any(isinstance(s, Peel) for s in plan) == (padding > 0)
    assert max(lanes_of(ast)) == 8
    numpy.testing.assert_array_equal(run(ast, plan), run(ast, ()))


def test_a_short_loop_stored_between_lanes_is_written_out() -> None:
    x = Tensor.empty(3, 40, device="PYTHON")
    ast = last_kernel(x.reshape(3, 40, 1).exp2() + Tensor.empty(3, 1, 2, device="PYTHON"))
    plan = plan_for(ast, AVX2)

    assert any(isinstance(s, Bind) and s.kind is AxisKind.UNROLL for s in plan)
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-6)
