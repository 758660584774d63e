"""Plans by facts of a card's units: large tiles, groups for each unit, the order of groups."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy
import pytest
from interpreted import computed

from tests.unit.lower.legal import applied
from tests.unit.lower.matrices import COPIES, MMA
from tests.unit.lower.test_tensorize import CARD, product_for
from tiny_testing.kernels import product_of_types
from tinycore import Tensor
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.cost import resident_groups
from tinycore.lower.draft import Draft, fuse_loops
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.strategies.grid import propose_grid
from tinycore.lower.strategies.grid_sides import sides_of
from tinycore.lower.strategies.grid_tiling import band_of
from tinycore.lower.strategies.levels import LEVELS, RegisterTile, Tile
from tinycore.lower.strategies.vector_product import VectorProduct
from tinycore.lower.tile import Bind, Plan, Reorder, Split, Stage, Tail
from tinycore.render.base import LATE, Limits, LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

UNIT = replace(
    CARD,
    matrix=(MMA,),
    copies=COPIES,
    units=1,
    unit_threads=2048,
    unit_registers=64 << 10,
    thread_registers=255,
)
"""A card of one unit, which any number of groups keeps busy."""


def checked(ast: UOp, plan: Plan, limits: Limits, size: tuple[int, int, int]) -> LinearKernel:
    """A product under a plan, computed as NumPy does."""
    rows, inner, columns = size
    linear, (found, left, right) = computed(ast, plan, limits)
    expected = left.reshape(rows, inner) @ right.reshape(inner, columns)
    assert numpy.array_equal(found.reshape(rows, columns), expected)
    return linear


def groups(ast: UOp, limits: Limits) -> tuple[int, int, int]:
    """The groups of the plan for some limits."""
    linear = lower(ast, PythonRenderer(limits), "product", plan_for(ast, limits))
    return linear.launch("grid")


def singles(*size: int) -> UOp:
    """A product of single numbers."""
    rows, inner, columns = size
    return product_of_types(rows, inner, columns, *(dtypes.float32,) * 3)


def test_sums_of_a_large_tile_are_those_of_numpy() -> None:
    size = (128, 32, 256)
    ast = product_for(MMA, size)

    assert checked(ast, plan_for(ast, UNIT), UNIT, size).launch("grid") == (1, 1, 1)
    assert groups(ast, replace(UNIT, units=0)) == (2, 1, 1)


@pytest.mark.parametrize(
    "few",
    [replace(UNIT, thread_registers=120), replace(UNIT, unit_registers=30 << 10)],
    ids=["thread", "unit"],
)
def test_a_tile_whose_sums_fit_no_registers_is_not_chosen(few: Limits) -> None:
    assert groups(product_for(MMA, (128, 64, 256)), few) == (2, 1, 1)


@pytest.mark.slow
def test_sums_of_two_products_in_one_kernel_take_twice_the_registers() -> None:
    operands = [Tensor.empty(*size, dtype=MMA.a, device="NULL") for size in ((256, 64), (64, 256))]
    others = [Tensor.empty(*size, dtype=MMA.a, device="NULL") for size in ((256, 64), (64, 256))]
    one, two = (x.matmul(y, dtype=dtypes.float32) for x, y in (operands, others))
    single, double = (product.schedule()[-1].ast for product in (one, one * two))

    assert groups(single, UNIT) == (2, 1, 1)
    assert groups(double, UNIT) == (2, 2, 1)


def test_a_thread_has_eight_rows_and_columns_where_registers_are_stated() -> None:
    size = (128, 24, 128)
    ast = singles(*size)
    few = replace(UNIT, unit_registers=0, matrix=())
    many = replace(few, unit_registers=64 << 10)

    assert checked(ast, plan_for(ast, many), many, size).launch("grid") == (1, 1, 1)
    assert groups(ast, few) == (2, 2, 1)


@pytest.mark.parametrize("size", [(128, 64, 128), (130, 70, 72)], ids=str)
def test_operands_of_threads_are_copied_ahead(size: tuple[int, int, int]) -> None:
    """The one that lies along the sum goes to rows in other banks."""
    limits = replace(UNIT, matrix=(), shared_bytes=64 << 10, unit_shared_bytes=128 << 10)
    ast = singles(*size)
    plan = plan_for(ast, limits)
    stages = [s for s in plan if isinstance(s, Stage)]
    linear = checked(ast, plan, limits, size)

    assert [(s.copies, s.padding) for s in stages] == [(3, 4), (3, 0)]
    assert any(u.op is Op.STORE and u.arg == LATE for u in linear.uops)
    assert not any(isinstance(s, Stage) and s.copies > 1 for s in plan_for(ast, without(limits)))


def without(limits: Limits) -> Limits:
    """The same without copies that are under way."""
    return replace(limits, copies=None)


def test_operands_that_are_computed_are_not_copied_ahead() -> None:
    left, right = (Tensor.empty(128, 128, device="PYTHON") for _ in range(2))
    ast = ((left + 1) @ right).schedule()[-1].ast
    plan = plan_for(ast, replace(UNIT, matrix=()))

    assert {s.copies for s in plan if isinstance(s, Stage)} == {1}


def test_groups_are_smaller_where_there_would_be_too_few_for_the_units() -> None:
    ast = singles(128, 24, 128)
    stated = [replace(UNIT, matrix=(), units=units) for units in (1, 4, 16)]

    assert [groups(ast, limits) for limits in stated] == [(1, 1, 1), (2, 2, 1), (4, 4, 1)]


def test_blocks_are_in_bands_where_operands_do_not_fit_the_cache() -> None:
    size = (512, 16, 512)
    ast = singles(*size)
    few = replace(UNIT, matrix=(), units=4, l2_bytes=1 << 10)
    enough = replace(few, l2_bytes=1 << 20)
    plan = plan_for(ast, few)

    assert checked(ast, plan, few, size).launch("grid") == (2, 4, 2)
    assert groups(ast, enough) == (4, 4, 1)
    assert [len(s.axes) for s in plan if isinstance(s, Reorder)][-1] == 3


def test_a_band_reads_as_much_of_both_operands() -> None:
    square = (128.0, 128.0)

    assert band_of(32, 32, 64, *square) == 8
    assert band_of(32, 32, 64, 128.0, 512.0) == 16
    assert (
        band_of(32, 8, 64, *square) is None
    )  # a wave has whole rows of blocks, and enough of them
    assert band_of(31, 32, 64, *square) is None


def test_units_with_more_groups_than_others_are_waited_for() -> None:
    limits = Limits(units=132)

    assert limits.unevenness(132) == 1
    assert limits.unevenness(133) == 264 / 133
    assert limits.unevenness(33) == 4
    assert Limits().unevenness(33) == 1


def test_groups_of_a_unit_share_its_threads_and_registers() -> None:
    limits = Limits(unit_threads=1024, unit_registers=64 << 10, thread_registers=255)

    assert resident_groups(limits, 256, 32) == 4
    assert resident_groups(limits, 256, 128) == 2
    assert resident_groups(limits, 256, 256) == 0


def test_a_product_of_a_card_without_facts_is_planned_as_before() -> None:
    ast = singles(128, 24, 128)
    none = replace(UNIT, units=0, unit_threads=0, unit_registers=0, thread_registers=0)

    assert plan_for(ast, none) == plan_for(ast, replace(none, l2_bytes=1, l2_rate=1.0))
    assert plan_for(ast, none) != plan_for(ast, UNIT)


# --- sums


SUMMING = replace(UNIT, matrix=(), units=2, threads=512, shuffles=(dtypes.float32,))


def sums_of(shape: tuple[int, ...], axis: int) -> UOp:
    """Sums of an array along an axis."""
    return Tensor.empty(*shape, device="PYTHON").sum(axis).schedule()[-1].ast


def test_threads_side_by_side_read_lines_of_columns() -> None:
    ast = sums_of((256, 128), 0)
    plan = plan_for(ast, SUMMING)
    linear, (found, given) = computed(ast, plan, SUMMING)

    assert numpy.array_equal(found, given.reshape(256, 128).sum(0))
    assert Bind((1, 0, 1), AxisKind.LANE) in plan
    assert linear.launch("block")[0] == 8  # of 4 lanes: a line of 128 bytes
    assert plan_for(ast, replace(SUMMING, units=0)) == plan


@pytest.mark.parametrize(("columns", "beside"), [(128, 4), (512, 8)])
def test_threads_read_columns_of_halves_by_whole_vectors(columns: int, beside: int) -> None:
    """Half a line at a time where groups are few, so that units have enough under way."""
    x = Tensor.empty(256, columns, dtype=dtypes.float16, device="PYTHON")
    ast = x.sum(0).schedule()[-1].ast
    limits = replace(SUMMING, block_wanted=256, threads=1024)
    plan = plan_for(ast, limits)
    linear, (found, given) = computed(ast, plan, limits)

    assert numpy.array_equal(found, given.reshape(256, columns).sum(0))
    assert Split((0,), 8) in plan, plan
    assert linear.launch("block")[0] == beside


def test_lanes_share_short_sums_of_many_rows() -> None:
    ast = sums_of((1024, 64), 1)
    linear, (found, given) = computed(ast, plan_for(ast, SUMMING), SUMMING)
    apart = lower(ast, PythonRenderer(replace(SUMMING, units=0)), "sum")

    assert numpy.array_equal(found, given.reshape(1024, 64).sum(1))
    assert linear.launch("block")[:2] == (16, 16)
    assert not any(u.op is Op.SHUFFLE for u in apart.uops)
    assert [u.arg for u in linear.uops if u.op is Op.SHUFFLE] == [1, 2, 4, 8]


@pytest.mark.parametrize(("length", "sharers"), [(100, 16), (512, 32)])
def test_lanes_share_long_sums_of_many_rows(length: int, sharers: int) -> None:
    ast = sums_of((1024, length), 1)
    linear, (found, given) = computed(ast, plan_for(ast, SUMMING), SUMMING)

    assert numpy.array_equal(found, given.reshape(1024, length).sum(1))
    assert linear.launch("block")[0] == sharers
    assert len([u for u in linear.uops if u.op is Op.SHUFFLE]) == sharers.bit_length() - 1


def test_outputs_that_addresses_take_apart_are_two_loops() -> None:
    x, w = (Tensor.empty(*shape, device="PYTHON") for shape in ((4, 1, 64), (4, 64, 32)))
    ast = (x @ w).reshape(1, 128).contiguous().schedule()[-1].ast
    linear, (found, left, right) = computed(ast, plan_for(ast, SUMMING), SUMMING)
    expected = left.reshape(4, 1, 64) @ right.reshape(4, 64, 32)

    assert numpy.array_equal(found, expected.reshape(-1))
    assert any(u.op is Op.LOAD and u.dtype.count == 4 for u in linear.uops)


def test_a_thread_has_as_many_halves_under_way_as_a_vector_holds() -> None:
    x = Tensor.empty(1 << 14, dtype=dtypes.bfloat16, device="PYTHON")
    ast = (x * 2 + 1).contiguous().schedule()[-1].ast
    plan = plan_for(ast, SUMMING)

    assert Split((0,), 8) in plan, plan


def cost_of_plain_grid(ast: UOp, limits: Limits) -> float:
    draft = Draft(ast, limits)
    fuse_loops(draft)
    found = [p for p in propose_grid(draft.facts, limits, 64) if p.strategy.startswith("grid")]
    return next(p.cost.cycles for p in found if p.strategy in ("grid", "grid of groups"))


def test_the_plain_grid_waits_for_units_with_more_groups_than_others_as_its_rivals_do() -> None:
    limits = replace(SUMMING, units=9, threads=1 << 20, shuffles=())
    limits = replace(limits, shared_is_near=False, vector_bytes=0)
    even, uneven = (singles(64, 8, 9 * groups) for groups in (1, 10))

    assert cost_of_plain_grid(even, limits) == cost_of_plain_grid(even, replace(limits, units=0))
    last = cost_of_plain_grid(singles(64, 8, 10), limits)
    assert last == pytest.approx(1.8 * cost_of_plain_grid(even, limits))
    assert cost_of_plain_grid(uneven, limits) == cost_of_plain_grid(even, limits)


def test_a_thread_reads_its_row_by_vectors_where_no_lanes_share_it() -> None:
    """Scores of a decode step: a line for each thread, read as few times as can be."""
    left = Tensor.empty(4, 1, 128, device="PYTHON")
    keys = Tensor.empty(4, 512, 128, dtype=dtypes.float16, device="PYTHON")
    ast = (left @ keys.cast(dtypes.float32).transpose(1, 2)).schedule()[-1].ast
    limits = replace(SUMMING, shuffles=(), threads=512)
    plan = plan_for(ast, limits)
    _, (found, numbers, rows) = computed(ast, plan, limits)
    expected = numbers.reshape(4, 1, 128) @ rows.reshape(4, 512, 128).swapaxes(1, 2)

    lanes = [s for s in plan if isinstance(s, Bind) and s.kind is AxisKind.VECTOR]
    assert [s.axis[-1] for s in lanes] == [1]
    split = next(s for s in plan if isinstance(s, Split) and s.axis == lanes[0].axis[:-1])
    assert split.by == 8  # 16 bytes of halves
    assert (found.reshape(4, 1, 512) == expected).all()


def test_more_threads_along_an_axis_than_the_flattest_admits_are_legal() -> None:
    """The last axis of a group has the fewest threads; none of a plan's need lie there."""
    limits = replace(SUMMING, block=(1024, 1024, 64), block_threads=1024)
    ast = singles(1024, 8, 512)
    row = ast.src[0].src[1].arg.number

    applied(ast, (Split(row, 512, Tail.GUARD), Bind((*row, 1), AxisKind.BLOCK)), limits)
    column = ast.src[0].src[2].arg.number
    steps = (Split(row, 4), Bind((*row, 1), AxisKind.BLOCK), Bind(column, AxisKind.BLOCK))
    with pytest.raises(ArgumentError, match="2048 threads on 2 axes"):
        applied(ast, steps, limits)


def test_groups_may_be_counted_in_two_loops() -> None:
    ast = singles(64, 8, 48)
    row = ast.src[0].src[1].arg.number
    bound = (Bind(row, AxisKind.GRID), Split(row, 4))

    kinds = [r.arg.kind for r in applied(ast, bound, SUMMING).src[0].src[1:3]]
    assert kinds == [AxisKind.GRID, AxisKind.GRID]


def test_an_impossible_step_of_a_strategy_fails_where_it_is_done() -> None:
    with pytest.raises(ArgumentError, match="no loop"):
        Draft(singles(64, 8, 48), SUMMING).do(Split((9,), 4))


@pytest.mark.parametrize("limits", [SUMMING, UNIT, CARD], ids=["sums", "unit", "card"])
def test_default_plans_are_legal_wherever_they_come_from(limits: Limits) -> None:
    for ast in (singles(512, 64, 256), sums_of((300, 4096), 1), sums_of((4096, 300), 0)):
        applied(ast, plan_for(ast, limits), limits)


def test_units_of_other_types_are_not_proposed() -> None:
    def proposed(ast: UOp) -> list[str]:
        facts = Draft(ast, UNIT).facts
        return [p.strategy for p in propose_grid(facts, UNIT, 256) if MMA.name in p.strategy]

    assert proposed(product_for(MMA, (128, 32, 256)))
    assert not proposed(singles(128, 32, 256))


@pytest.mark.parametrize("sides", [(56, 56), (9, 30)], ids=str)
def test_groups_of_a_tile_are_counted_as_they_are_launched(sides: tuple[int, int]) -> None:
    """Tiles of a convolution end where rows of images end, with fewer threads than a group has."""
    image = Tensor.empty(2, 8, *(side + 2 for side in sides), device="PYTHON")
    ast = image.conv2d(Tensor.empty(64, 8, 3, 3, device="PYTHON")).schedule()[-1].ast
    limits = replace(UNIT, matrix=())
    draft = Draft(ast, limits)
    fuse_loops(draft)
    found = sides_of(draft.facts)
    assert found is not None
    (level,) = (level for level in LEVELS if Tile(8, 8) in level.tiles)
    threads = limits.block_wanted
    product = VectorProduct(draft.facts, limits, found, level, RegisterTile(8, 8), threads, 1, 16)
    assert product.apply(draft)
    linear = lower(ast, PythonRenderer(limits), "windows", tuple(draft.steps))

    assert product.groups == math.prod(linear.launch("grid"))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
def test_a_thread_copies_what_lies_apart_where_it_has_no_lanes(dtype: DType) -> None:
    """Rows of a border begin anywhere: 16 bytes of a thread are of several planes."""
    x = Tensor.empty(16, 6, 9, dtype=dtype, device="PYTHON").pad(((0, 0), (1, 1), (1, 1)))
    ast = x.contiguous().schedule()[-1].ast
    linear, (found, _) = computed(ast, plan_for(ast, UNIT), UNIT)
    _, (expected, _) = computed(ast, (), UNIT)

    assert numpy.array_equal(found, expected)
    assert sum(u.op is Op.LOAD for u in linear.uops) == 16 // dtype.itemsize
    assert sum(u.op is Op.LOAD for u in lower(ast, PythonRenderer(CARD), "copy").uops) == 1
