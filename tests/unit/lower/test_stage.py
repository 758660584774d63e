"""Stages: copies in scratch memory hold what they should, and are made where they pay."""

from __future__ import annotations

import itertools
import random

import numpy
import pytest

from tests.unit.lower.test_tile import run
from tests.unit.schedule.graphs import buffer, kernels, matmul, permute, reshape, total
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.loops import counters
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import Stage, nest_of, staged_values
from tinycore.lower.tile import Bind, Fuse, Plan, Reorder, Split, apply_plan
from tinycore.render import Limits
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import AxisKind, Op, Part

AVX2 = Limits(vector_bytes=32, vector_registers=16, threads=2)

ROWS, COLUMNS, INNER = (0,), (1,), (3,)


def product(rows: int, inner: int, columns: int) -> UOp:
    ast: UOp = kernels(matmul(buffer(rows, inner), buffer(inner, columns)))[-1].arg.ast
    return ast


def padded_windows() -> UOp:
    """Sums of windows of 3 at every second place of rows that have zeros around them."""
    x = UOp(Op.PAD, dtypes.float32, (buffer(4, 21),), ((0, 0), (1, 1)))
    wide = UOp(Op.EXPAND, x.dtype, (reshape(x, (4, 23, 1)),), (4, 23, 3))
    ast: UOp = kernels(total(UOp(Op.SKEW, x.dtype, (wide,), Skew(1, 2, 2, 1, 11)), 2))[-1].arg.ast
    return ast


def same(ast: UOp, plan: Plan) -> None:
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-5, atol=1e-5)


def stages_of(plan: Plan) -> list[Stage]:
    return [step for step in plan if isinstance(step, Stage)]


def gated_loads(ast: UOp, inside: Op) -> int:
    nodes = {n for root in ast.toposort() if root.op is inside for n in root.toposort()}
    fills = {n for root in nodes if root.op is Op.AFTER for n in root.toposort()}
    return sum(n.op is Op.INDEX and len(n.src) == 3 for n in nodes - fills)


# The step


@pytest.mark.parametrize(("rows", "inner", "columns"), [(12, 7, 16), (13, 5, 37), (6, 33, 9)])
def test_panel_of_columns(rows: int, inner: int, columns: int) -> None:
    panel = Stage((1, 0), (((INNER, 1),), (((1, 1), 1),)))
    plan = (Split(COLUMNS, 8), Reorder(((1, 0), ROWS)), panel)
    same(product(rows, inner, columns), plan)


def test_panel_composes_with_every_other_step() -> None:
    panel = Stage((1, 0), (((INNER, 1),), (((1, 1, 0), 4), ((1, 1, 1), 1))))
    fill = (1, 1, 0, Part.FILL, 0)
    plan = (
        *(Split(COLUMNS, 8), Split((1, 1), 4), Split(ROWS, 3), Reorder(((1, 0), (0, 0)))),
        *(Bind((0, 1), AxisKind.UNROLL), Bind((1, 1, 0), AxisKind.UNROLL)),
        *(Bind((1, 1, 1), AxisKind.VECTOR), Bind((1, 0), AxisKind.PARALLEL)),
        *(panel, Split(fill, 4), Bind((*fill, 1), AxisKind.VECTOR)),
    )
    same(product(13, 6, 27), plan)


def test_two_stages_of_one_kernel() -> None:
    columns = Stage((1, 0), (((INNER, 1),), (((1, 1), 1),)))
    rows = Stage((0, 0), ((((0, 1), 1),), ((INNER, 1),)))
    plan = (Split(COLUMNS, 8), Split(ROWS, 4), Reorder(((0, 0), (1, 0))), rows, columns)
    ast = product(10, 9, 21)

    same(ast, plan)
    assert sum(n.op is Op.DEFINE_LOCAL for n in apply_plan(ast, plan).toposort()) == 2


def test_stage_inside_a_reduced_loop_is_filled_anew_for_each_step() -> None:
    block = Stage((3, 0), ((((3, 1), 1),), ((COLUMNS, 1),)))
    same(product(5, 12, 7), (Split(INNER, 4), block))


def test_windows_share_a_row_and_its_zeros() -> None:
    ast = padded_windows()
    plan = (Stage(ROWS, (((COLUMNS, 2), (INNER, 1)),)),)
    tiled = apply_plan(ast, plan)

    same(ast, plan)
    assert gated_loads(ast, Op.REDUCE) == 1
    assert gated_loads(tiled, Op.REDUCE) == 0
    assert {r.extent for r in counters(tiled) if Part.FILL in r.arg.number} == {23}


def test_large_even_pitches_are_made_uneven() -> None:
    ast = product(3, 4, 2048)
    tiled = apply_plan(ast, (Stage(None, (((INNER, 1),), ((COLUMNS, 1),))),))
    (array,) = {n for n in tiled.toposort() if n.op is Op.DEFINE_LOCAL}

    assert array.dtype.size == 4 * (2048 + 16)  # type: ignore[attr-defined]


def test_a_stage_of_nothing_says_so() -> None:
    with pytest.raises(ArgumentError, match="stages nothing"):
        apply_plan(product(4, 4, 4), (Stage(None, (((COLUMNS, 1),),)),))


def test_dimensions_that_do_not_give_the_place_say_so() -> None:
    with pytest.raises(ArgumentError, match="no function of its place"):
        apply_plan(padded_windows(), (Stage(ROWS, (((COLUMNS, 1), (INNER, 1)),)),))


def random_stage(ast: UOp, generator: random.Random) -> Plan:
    """Splits of some loops, and one of all stages that are then possible."""
    plan: Plan = tuple(
        Split(number, generator.randint(2, 6))
        for number in (ROWS, COLUMNS, INNER)
        if generator.random() < 0.7
    )
    tiled = apply_plan(ast, plan)
    loops = [r.arg.number for r in nest_of(tiled)]
    steps = [
        Stage(at, tuple(((axis, 1),) for axis in axes))
        for at in (None, *loops)
        for count in (1, 2)
        for axes in itertools.permutations(loops, count)
        if at not in axes
    ]
    possible = [step for step in steps if staged_values(tiled, step)]
    return (*plan, generator.choice(possible)) if possible else plan


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_stage_computes_the_same(seed: int) -> None:
    ast = product(7, 11, 13)
    plan = random_stage(ast, random.Random(seed))
    print(plan)

    same(ast, plan)


# The plan


def test_panels_are_staged_where_many_rows_read_them() -> None:
    plan = plan_for(product(200, 60, 50), AVX2)

    assert [len(stage.dimensions) for stage in stages_of(plan)] == [2]
    same(product(50, 20, 41), plan_for(product(50, 20, 41), AVX2))


def test_panels_are_not_staged_for_a_few_rows() -> None:
    assert not stages_of(plan_for(product(9, 600, 500), AVX2))


def test_panels_that_fill_the_cache_are_not_staged() -> None:
    small = Limits(vector_bytes=32, vector_registers=16, threads=2, cache_bytes=1 << 14)

    assert not stages_of(plan_for(product(200, 600, 500), small))


def test_transposed_columns_become_panels_by_transposing_squares() -> None:
    ast = kernels(matmul(buffer(50, 24), permute(buffer(37, 24), 1, 0)))[-1].arg.ast
    plan = plan_for(ast, AVX2)
    (stage,) = stages_of(plan)
    fills = [r for r in counters(apply_plan(ast, plan)) if Part.FILL in r.arg.number]

    same(ast, plan)
    assert (INNER, 1) in stage.dimensions[0]
    assert {r.arg.kind for r in fills} >= {AxisKind.VECTOR, AxisKind.UNROLL}


def test_rows_of_a_transposed_operand_are_staged_in_groups() -> None:
    ast = kernels(matmul(permute(buffer(24, 100), 1, 0), buffer(24, 80)))[-1].arg.ast
    plan = plan_for(ast, AVX2)

    same(ast, plan)
    assert [len(stage.dimensions) for stage in stages_of(plan)] == [3, 2]


def test_loops_are_not_merged_across_a_stage() -> None:
    plan = plan_for(product(1023, 25, 77), AVX2)
    merged = [step for step in plan if isinstance(step, Fuse)]

    assert stages_of(plan)
    assert merged == [Fuse((0, 0), (1, 0))]  # blocks of rows and panels, not the tiles inside
