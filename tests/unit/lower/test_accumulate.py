"""Held sums: rows are added to an array in place of sums down the columns."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from tests.unit.lower.test_stage import AVX2
from tests.unit.lower.test_tile import run
from tests.unit.schedule.graphs import buffer, kernels, matmul, total
from tiny_testing.kernels import element, load, store
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.accumulate import Accumulate
from tinycore.lower.strategies.matrix_vector import LEAST_HELD
from tinycore.lower.tile import Bind, Plan, Split, apply_plan
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

F32 = dtypes.float32


def columns_of(rows: int, columns: int, op: Op = Op.ADD) -> UOp:
    ast: UOp = kernels(total(buffer(rows, columns), 0, op=op))[-1].arg.ast
    return ast


def depth_of(ast: UOp) -> tuple[int, ...]:
    (reduce,) = (n for n in ast.toposort() if n.op is Op.REDUCE)
    number: tuple[int, ...] = reduce.src[1].arg.number
    return number


def holds_of(plan: Plan) -> list[Accumulate]:
    return [step for step in plan if isinstance(step, Accumulate)]


def same(ast: UOp, plan: Plan) -> None:
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", [Op.ADD, Op.MAX])
def test_sums_of_columns(op: Op) -> None:
    ast = columns_of(13, 21, op)
    column = ast.src[0].src[1].arg.number
    same(ast, (Accumulate((column,), (depth_of(ast),)),))


def test_array_is_cleared_for_every_step_outside_of_it() -> None:
    ast = columns_of(13, 21)
    column, depth = ast.src[0].src[1].arg.number, depth_of(ast)
    block, lane = (*column, 1), (*column, 1, Part.HELD, 1)
    plan = (
        *(Split(column, 8), Split(depth, 3), Bind((*depth, 1), AxisKind.UNROLL)),
        *(Accumulate((block,), ((*depth, 0),)), Split(lane, 4), Bind((*lane, 1), AxisKind.VECTOR)),
    )
    same(ast, plan)


def test_no_sum_over_the_loops_says_so() -> None:
    ast = columns_of(4, 5)
    column = ast.src[0].src[1].arg.number

    with pytest.raises(ArgumentError, match="holds nothing"):
        apply_plan(ast, (Accumulate((depth_of(ast),), (column,)),))


def test_sums_inside_of_each_other_are_not_held() -> None:
    """The outer one needs the inner one whole in each of its steps."""
    i, k = UOp.range(4, 0), UOp.range(6, 1, AxisKind.REDUCE)
    value = load(element(1, F32, 24, i * 6 + k), F32)
    inner = UOp(Op.REDUCE, F32, (value, k), Op.ADD)
    beside = UOp(Op.REDUCE, F32, (value * value, k), Op.ADD)
    outer = UOp(Op.REDUCE, F32, (value * inner, k), Op.ADD)

    def kernel(result: UOp) -> UOp:
        change = store(element(0, F32, 4, i), result)
        return UOp.sink(UOp(Op.END, dtypes.void, (change, i)))

    with pytest.raises(ArgumentError, match="no sums side by side"):
        Accumulate(((0,),), ((1,),)).apply(kernel(outer))
    same(kernel(inner + beside), (Accumulate(((0,),), ((1,),)),))


# The plan


@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (21, 300), (45, 1029)])
def test_sums_down_long_rows_are_held(rows: int, columns: int) -> None:
    ast = columns_of(rows, columns)
    plan = plan_for(ast, AVX2)

    assert holds_of(plan)
    same(ast, plan)


def test_vector_times_matrix_is_held() -> None:
    ast = kernels(matmul(buffer(1, 19), buffer(19, 263)))[-1].arg.ast
    plan = plan_for(ast, AVX2)

    assert holds_of(plan)
    same(ast, plan)


def test_products_with_many_rows_and_short_sums_are_not_held() -> None:
    assert not holds_of(
        plan_for(kernels(matmul(buffer(32, 19), buffer(19, 263)))[-1].arg.ast, AVX2)
    )
    assert not holds_of(plan_for(columns_of(8, 300), AVX2))
    assert not holds_of(plan_for(columns_of(300, 100), AVX2))


@pytest.mark.parametrize("columns", [256, 1024])
def test_held_sums_are_made_once_however_many_threads_there_are(columns: int) -> None:
    """A fill before the loop that threads share would be repeated for each chunk."""
    ast = kernels(matmul(buffer(1, 4096), buffer(4096, columns)))[-1].arg.ast
    plan = plan_for(ast, AVX2)
    filled = [n.src[1] for n in apply_plan(ast, plan).toposort() if n.op is Op.AFTER]
    shared = [s.axis for s in plan if isinstance(s, Bind) and s.kind is AxisKind.PARALLEL]

    assert holds_of(plan)
    assert bool(shared) == (columns > LEAST_HELD)
    for axis in shared:
        assert all(any(r.arg.number == axis for r in n.ranges) for n in filled if n.op is Op.END)


@pytest.mark.parametrize("columns", [768, 1000, 1001, 4100, 5000])
def test_every_thread_holds_as_many_sums(columns: int) -> None:
    ast = columns_of(4096, columns)
    (end,) = (n for n in apply_plan(ast, plan_for(ast, AVX2)).src if n.op is Op.END)
    (shared,) = (r for r in end.src[1:] if r.arg.kind is AxisKind.PARALLEL)

    assert shared.extent % AVX2.threads == 0


@pytest.mark.sample(9)
@pytest.mark.parametrize("rows", [2, 5, 16])
def test_a_few_rows_are_held_together(rows: int) -> None:
    near = replace(AVX2, cache_bytes=1 << 16)
    ast = kernels(matmul(buffer(rows, 40), buffer(40, 520)))[-1].arg.ast
    plan = plan_for(ast, near)
    (held,) = holds_of(plan)

    assert len(held.outputs) == 2, "rows and columns"
    same(ast, plan)
    assert not holds_of(plan_for(ast, AVX2)), "the matrix stays in a near cache"
