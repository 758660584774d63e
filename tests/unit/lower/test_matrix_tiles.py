"""Plans for the matrix unit of a processor: packed tiles, and which products get them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.matrices import TILE_BYTES, TILE_SHORTS
from tests.unit.lower.test_stage import stages_of
from tests.unit.lower.test_tile import run
from tiny_testing.kernels import Array
from tinycore import Context, Tensor, dtypes
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.errors import ArgumentError
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import Stage
from tinycore.lower.steps.tensorize import Tensorize
from tinycore.lower.tile import Bind, Plan, Reorder, Split
from tinycore.plugin import deferred
from tinycore.render import Limits
from tinycore.schedule.limits import cut_for
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

pytest.importorskip("tiny_cpu", reason="the strategies of AMX are tiny_cpu's")

UNITS: Final = (TILE_BYTES, TILE_SHORTS)
STRATEGIES: Final = (deferred("tiny_cpu.tiles:propose"),)
"""Strategies of AMX, for units that are made up."""


def limits_with(*units: MatrixUnit) -> Limits:
    """A processor of two threads, with some units."""
    limits = Limits(vector_bytes=64, vector_registers=32, threads=2, matrix=units)
    return replace(limits, strategies=STRATEGIES)


def product(unit: MatrixUnit, shape: tuple[int, int, int], turned: str = "", batch: int = 1) -> UOp:
    """The kernel of a product of matrices, some of which lie transposed in memory."""
    rows, columns, steps = shape
    left = (batch, steps, rows) if "a" in turned else (batch, rows, steps)
    right = (batch, columns, steps) if "b" in turned else (batch, steps, columns)
    a, b = (Tensor.empty(*s, dtype=unit.a, device="PYTHON") for s in (left, right))
    a = a.transpose(1, 2) if "a" in turned else a
    b = b.transpose(1, 2) if "b" in turned else b
    ast: UOp = a.matmul(b, dtype=unit.out).schedule()[-1].ast
    return ast


def is_by_unit(plan: Plan) -> bool:
    """True if a plan uses a matrix unit."""
    return any(isinstance(step, Tensorize) for step in plan)


def result(ast: UOp, plan: Plan) -> Array:
    """The sums of a kernel under a plan, of arbitrary bytes."""
    return run(ast, plan).view(numpy.int32)


@pytest.mark.sample(4)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_products_are_the_same_by_tiles(unit: MatrixUnit, turned: str) -> None:
    ast = product(unit, (64, 96, 2 * unit.k), turned)
    with Context(VERIFY=1):
        plan = plan_for(ast, limits_with(unit))

    assert is_by_unit(plan)
    assert applied(ast, plan, limits_with(unit)) is not None
    assert numpy.array_equal(result(ast, plan), result(ast, ()))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("shape", "batch"),
    [((80, 64, 64), 1), ((112, 80, 192), 1), ((64, 112, 64), 2), ((67, 91, 120), 1)],
)
def test_blocks_of_tiles_of_any_number(shape: tuple[int, int, int], batch: int) -> None:
    ast = product(TILE_BYTES, shape, batch=batch)
    plan = plan_for(ast, limits_with(TILE_BYTES))

    assert is_by_unit(plan)
    assert numpy.array_equal(result(ast, plan), result(ast, ()))


@pytest.mark.parametrize("shape", [(64, 64, 96), (64, 64, 63), (48, 256, 64), (256, 48, 64)])
def test_products_for_which_tiles_do_not_pay_have_other_plans(
    shape: tuple[int, int, int],
) -> None:
    assert not is_by_unit(plan_for(product(TILE_BYTES, shape), limits_with(TILE_BYTES)))


@pytest.mark.parametrize(("shape", "turned"), [((20, 80, 256), "b"), ((80, 16, 256), "")])
def test_long_products_of_few_inputs_copy_the_rows_of_weights(
    shape: tuple[int, int, int], turned: str
) -> None:
    ast = product(TILE_BYTES, shape, turned)
    plan = plan_for(ast, limits_with(TILE_BYTES))
    rows, columns = stages_of(plan)

    assert is_by_unit(plan)
    assert (rows.interleaved, columns.interleaved) == (1, 4)
    assert columns.at is None  # once for all weights
    assert numpy.array_equal(result(ast, plan), result(ast, ()))


@pytest.mark.parametrize("shape", [(32, 64, 256), (64, 32, 256)])
def test_tiles_are_stored_by_vectors_whichever_way_results_lie(shape: tuple[int, int, int]) -> None:
    tiled = lowered(product(TILE_BYTES, shape, "b"), limits_with(TILE_BYTES))
    kinds = [n.src[1].dtype for n in tiled if n.op is Op.STORE]

    assert {k.count for k in kinds if k.scalar() is dtypes.int32} - {256} == {16}


def test_few_inputs_of_weights_that_lie_the_other_way_have_other_plans() -> None:
    assert not is_by_unit(plan_for(product(TILE_BYTES, (20, 80, 256)), limits_with(TILE_BYTES)))


def test_other_types_and_two_sums_have_other_plans() -> None:
    limits = limits_with(TILE_BYTES)
    unsigned = replace(TILE_BYTES, a=dtypes.uint8, name="other")
    twice = Tensor.empty(64, 64, dtype="int8", device="PYTHON")
    both = [
        twice.matmul(Tensor.empty(64, 64, dtype="int8", device="PYTHON"), dtype="int32")
        for _ in range(2)
    ]
    sums: UOp = (both[0] + both[1]).schedule()[-1].ast

    assert not is_by_unit(plan_for(product(TILE_SHORTS, (64, 64, 64)), limits))
    assert not is_by_unit(plan_for(product(unsigned, (64, 64, 64)), limits))
    assert not is_by_unit(plan_for(sums, limits))


def strips_of_two_products(heads: int, rows: int = 64) -> UOp:
    """The kernel of two products of bytes with a maximum of each row between them (attention)."""
    a, b, c = (Tensor.empty(heads, *s, dtype="int8", device="PYTHON") for s in [(rows, 64)] * 3)
    with cut_for(limits_with(TILE_BYTES)):
        scores = a.matmul(b.transpose(1, 2), dtype="int32")
        weights = (scores - scores.max(-1, keepdim=True)).cast("int8")
        (item,) = weights.matmul(c, dtype="int32").schedule()
    ast: UOp = item.ast
    return ast


@pytest.mark.slow
def test_strips_of_rows_take_tiles_in_each_nest() -> None:
    ast = strips_of_two_products(2)
    with Context(VERIFY=1):
        plan = plan_for(ast, limits_with(TILE_BYTES))

    assert sum(isinstance(step, Tensorize) for step in plan) == 2
    assert numpy.array_equal(result(ast, plan), result(ast, ()))


def test_operands_that_all_strips_of_a_head_share_are_packed_before_these() -> None:
    ast = strips_of_two_products(8, 512)
    plan = plan_for(ast, limits_with(TILE_BYTES))
    head, strip = (r.arg.number for r in ast.src[0].src[1:])

    assert [s.at for s in stages_of(plan)] == [strip, head] * 2


def test_operands_are_loaded_as_whole_tiles() -> None:
    ast = product(TILE_SHORTS, (64, 64, 128), "b")
    with Context(VERIFY=1):
        tiled = lowered(ast, limits_with(TILE_SHORTS))
    products = [n for n in tiled if n.op is Op.MATRIX]

    assert len(products) == 4
    assert all(s.op is Op.LOAD and s.dtype.count == 512 for n in products for s in n.src[:2])
    assert len({s for n in products for s in n.src[:2]}) == 4


def test_results_are_stored_by_rows_of_tiles() -> None:
    tiled = lowered(product(TILE_BYTES, (64, 64, 64)), limits_with(TILE_BYTES))
    stores = [n for n in tiled if n.op is Op.STORE and n.src[1].dtype.scalar() is dtypes.int32]
    to_memory = [n for n in stores if n.src[1].dtype.count < 256]

    assert len(to_memory) == 64
    assert {n.src[1].dtype.count for n in to_memory} == {16}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_rows_side_by_side_are_filled_by_vectors(unit: MatrixUnit) -> None:
    tiled = lowered(product(unit, (64, 64, 2 * unit.k), "b"), limits_with(unit))
    fills = [
        n.src[1].dtype for n in tiled if n.op is Op.STORE and n.src[1].dtype.scalar() is unit.a
    ]

    assert {kind.size_bytes for kind in fills} == {64}


def lowered(ast: UOp, limits: Limits) -> tuple[UOp, ...]:
    """The nodes of a kernel in order, under its plan."""
    return lower(ast, PythonRenderer(limits), "kernel", plan_for(ast, limits)).uops


def test_rows_that_cannot_alternate_are_refused() -> None:
    ast = product(TILE_SHORTS, (64, 64, 64))
    column, step = (
        r.arg.number for r in ast.toposort() if r.op is Op.RANGE if r.arg.number != (1,)
    )
    rows = (((step, 1),), ((column, 1),))

    with pytest.raises(ArgumentError, match="64 rows are not interleaved by"):
        Stage(None, rows, interleaved=3).apply(ast)


def test_stages_say_that_rows_alternate() -> None:
    stages = stages_of(plan_for(product(TILE_SHORTS, (64, 64, 64)), limits_with(TILE_SHORTS)))

    assert [s.interleaved for s in stages] == [1, 2]
    assert "2 rows interleaved" in str(stages[1])


@pytest.mark.sample(3)
@pytest.mark.parametrize("extent", [2, 4])
def test_steps_side_by_side_are_two_or_four(extent: int) -> None:
    ast = product(TILE_BYTES, (64, 64, 64))
    column, step = (
        r.arg.number for r in ast.toposort() if r.op is Op.RANGE if r.arg.number != (1,)
    )
    stage = Stage(None, (((step, 1),), ((column, 1),)), interleaved=extent)
    row, across = ((*axis, Part.FILL, 0) for axis in (step, column))
    fill = (
        Split(row, extent),
        Reorder(((*row, 0), across, (*row, 1))),
        Bind((*row, 1), AxisKind.PAIR),
    )
    plan = (stage, *fill, Bind(across, AxisKind.VECTOR))

    applied(ast, plan, limits_with())
    assert numpy.array_equal(result(ast, plan), result(ast, ()))
