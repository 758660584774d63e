"""Plans of matrix products: the loops that become rows, columns and lines of a register tile."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from tests.unit.lower.test_stage import AVX2, product, stages_of
from tests.unit.lower.test_tile import CPU, run
from tests.unit.schedule.graphs import buffer, expand, kernels, matmul, permute, reshape, total
from tinycore import Tensor
from tinycore.lower.cost import accesses_served
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import counters
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import Stage
from tinycore.lower.strategies.matrix_product import loops_outside
from tinycore.lower.threads import even_pieces
from tinycore.lower.tile import Bind, Plan, Split, apply_plan
from tinycore.render import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

AVX512 = replace(AVX2, vector_bytes=64, vector_registers=32)


def convolution(stride: int, height: int, width: int) -> UOp:
    """Six channels of two images, folded over windows of 3 by 3 of five channels."""
    x = Tensor.empty(2, 5, height, width, device="PYTHON")
    weight = Tensor.empty(6, 5, 3, 3, device="PYTHON")
    ast: UOp = x.conv2d(weight, stride=stride).schedule()[-1].ast
    return ast


def converted_product(rows: int, inner: int, columns: int, dtype: str) -> UOp:
    """A product of two matrices of a narrow type, with a sum in a wider one."""
    left = Tensor.empty(rows, inner, dtype=dtype, device="PYTHON")
    right = Tensor.empty(inner, columns, dtype=dtype, device="PYTHON")
    wide = "float32" if dtype.startswith(("float", "bfloat", "fp8")) else "int32"
    ast: UOp = left.matmul(right, dtype=wide).schedule()[-1].ast
    return ast


def casts_of_steps(ast: UOp, limits: Limits) -> int:
    """Number of conversions in the steps of a sum, under its plan."""
    tiled = apply_plan(ast, plan_for(ast, limits))
    sums = [n for n in tiled.toposort() if n.op is Op.REDUCE]
    below = {n for root in sums for n in root.toposort(lambda n: n.op is not Op.AFTER)}
    return sum(n.op is Op.CAST for n in below)


def accumulators(ast: UOp, limits: Limits) -> int:
    """Number of sums that the innermost loops of a plan keep in registers."""
    tiled = apply_plan(ast, plan_for(ast, limits))
    (end,) = (n for n in tiled.src if n.op is Op.END)
    count = 1
    for r in end.src[1:]:
        count *= r.extent if r.arg.kind is AxisKind.UNROLL else 1
    return count


@pytest.mark.sample(6)
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
    image = Tensor.empty(4, 16, 8, 8, device="PYTHON")
    (item,) = image.conv2d(Tensor.empty(32, 16, 1, 1, device="PYTHON")).schedule()
    tiled = apply_plan(item.ast, plan_for(item.ast, AVX2))
    unrolled = {r.arg.number for r in counters(tiled) if r.arg.kind is AxisKind.UNROLL}

    assert unrolled == {(3, 0, 1), (2, 1)}  # vectors of a line, channels
    planned = run(item.ast, plan_for(item.ast, AVX2))
    numpy.testing.assert_allclose(planned, run(item.ast, ()), rtol=1e-4, atol=1e-4)


def test_tiles_with_windows_leave_more_registers() -> None:
    assert accumulators(convolution(1, 18, 18), AVX2) <= 10
    assert accumulators(product(60, 20, 64), AVX2) == 12


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint16"])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(96, 20, 64), (101, 33, 75)])
def test_narrow_operands_are_converted_once(
    dtype: str, rows: int, inner: int, columns: int
) -> None:
    ast = converted_product(rows, inner, columns, dtype)

    assert len(stages_of(plan_for(ast, AVX2))) == 2
    assert casts_of_steps(ast, AVX2) == 0


def test_rows_for_few_columns_stay_where_they_are() -> None:
    ast = converted_product(96, 20, 45, "bfloat16")

    assert len(stages_of(plan_for(ast, AVX2))) == 1


def test_rows_that_lie_side_by_side_are_copied_only_to_be_converted() -> None:
    assert len(stages_of(plan_for(product(96, 20, 64), AVX2))) == 1


def strided(channels: int, size: int) -> UOp:
    """A convolution whose windows of 3 by 3 step over two places."""
    x = Tensor.empty(2, 5, size, size, device="PYTHON")
    weight = Tensor.empty(channels, 5, 3, 3, device="PYTHON")
    ast: UOp = x.conv2d(weight, stride=2).schedule()[-1].ast
    return ast


@pytest.mark.slow
@pytest.mark.parametrize("channels", [16, 32])
def test_lanes_run_along_channels_where_windows_step_over_places(channels: int) -> None:
    """Lanes along a line would be picked out of two vectors each, for every tap."""
    ast = strided(channels, 23)
    plan = plan_for(ast, AVX2)
    lanes = [s.axis for s in plan if isinstance(s, Bind) and s.kind is AxisKind.VECTOR]
    (stage,) = (s for s in plan if isinstance(s, Stage))

    assert (2, 1) in lanes
    assert len(stage.dimensions) == 4, "the weights: channels, both places in a window, lanes"
    order = [r.arg.number for r in end_of(ast, plan).src[1:] if r.arg.kind is AxisKind.LOOP]
    assert order.index((3,)) < order.index((4, 0)), "lines outside of the places in a line"
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-4, atol=1e-4)


def test_rows_that_share_taps_leave_a_register_more() -> None:
    """The taps stay in registers: five rows of two vectors, which otherwise fit, would spill."""
    ast = strided(32, 31)  # lines of 15: three tiles of five, or four of four
    (end,) = (n for n in (end_of(ast, plan_for(ast, AVX2)),))

    assert sorted(r.extent for r in end.src[1:] if r.arg.kind is AxisKind.UNROLL) == [2, 4]


def end_of(ast: UOp, plan: Plan) -> UOp:
    """The END of the loops over the outputs."""
    (end,) = (n for n in apply_plan(ast, plan).src if n.op is Op.END)
    return end


def test_panels_of_long_sums_are_staged_though_they_leave_the_near_cache() -> None:
    deep = AVX2.cache_bytes // (4 * 16)  # as long as sixteen columns fill the cache

    assert len(stages_of(plan_for(product(96, deep * 3 // 2, 64), AVX2))) == 1
    assert not stages_of(plan_for(product(96, 3 * deep, 64), AVX2))


def rows_of_tile(ast: UOp, row: int) -> int:
    """The rows of a plan's register tile with 32 registers of 64 bytes, along a loop."""
    limits = Limits(vector_bytes=64, vector_registers=32, cache_bytes=2 << 20)
    plan = plan_for(ast, limits)
    (size,) = (s.by for s in plan if isinstance(s, Split) and s.axis == (row,))
    return size


def test_a_panel_in_the_second_cache_is_read_for_more_rows() -> None:
    """Wide tiles of two rows would wait for eight vectors of a panel in each step."""
    image = Tensor.empty(1, 256, 14, 14, device="PYTHON")
    weight = Tensor.empty(256, 256, 3, 3, device="PYTHON")

    assert rows_of_tile(image.conv2d(weight, padding=1).schedule()[-1].ast, 4) == 7
    assert rows_of_tile(product(14, 64, 256), 0) == 2  # these eight fit the first cache


def test_rows_of_an_image_are_not_cut_to_be_converted() -> None:
    """They move with the lines, which are inside of the channels: no stage could hold them."""
    image = Tensor.empty(8, 64, 56, 56, dtype="bfloat16", device="PYTHON")
    weight = Tensor.empty(64, 64, 3, 3, dtype="bfloat16", device="PYTHON")
    ast = image.conv2d(weight, stride=2).schedule()[-1].ast
    steps = [s for s in plan_for(ast, AVX2) if isinstance(s, Split)]

    # Channels, images (for threads), pixels.
    assert [s.axis for s in steps if len(s.axis) == 1] == [(2,), (0,), (4,)]
    assert (4, 1) not in [s.axis for s in steps]


def test_lanes_run_along_what_can_be_staged_for_all_places_of_an_image() -> None:
    """Along images there would be a panel for each place, inside of the loop over channels."""
    x = Tensor.empty(8, 16, 22, 22, device="PYTHON")
    weight = Tensor.empty(35, 16, 3, 3, device="PYTHON")
    plan = plan_for(x.conv2d(weight, stride=2).schedule()[-1].ast, AVX2)

    lanes = [s.axis[0] for s in plan if isinstance(s, Bind) and s.kind is AxisKind.VECTOR]
    assert set(lanes) == {2}
    assert any(isinstance(s, Stage) for s in plan)


def two_products(rows: int, inner: int, columns: int) -> UOp:
    """The slopes of attention: products of two pairs, less what each row of one has."""
    q, g = (Tensor.empty(rows, inner, device="PYTHON") for _ in range(2))
    k, v = (Tensor.empty(columns, inner, device="PYTHON") for _ in range(2))
    top, mean = (Tensor.empty(rows, 1, device="PYTHON") for _ in range(2))
    ast: UOp = ((q @ k.T - top) * (g @ v.T - mean)).schedule()[-1].ast
    return ast


def test_sums_of_the_same_loops_share_the_registers() -> None:
    """Each of two sums has half of the accumulators, so that none is spilled."""
    assert accumulators(two_products(96, 64, 96), AVX2) == 6


def test_lanes_do_not_follow_what_is_read_once_a_sum() -> None:
    """Numbers of each row lie side by side, and so do the results of a row: these are stored."""
    ast = two_products(96, 64, 96)
    columns = ast.src[0].src[2].arg.number
    lanes = [s for s in plan_for(ast, AVX2) if isinstance(s, Bind) and s.kind is AxisKind.VECTOR]

    assert lanes[0].axis[: len(columns)] == columns


@pytest.mark.parametrize(("rows", "inner", "columns"), [(4, 2, 4), (6, 4, 8), (8, 3, 5)])
def test_parts_of_a_loop_are_no_rows_of_each_other(rows: int, inner: int, columns: int) -> None:
    """Matrices side by side: the columns of one are a loop beside those of the other."""
    x = Tensor.empty(rows, inner, device="PYTHON")
    left, right = (Tensor.empty(inner, columns, device="PYTHON") for _ in range(2))
    ast = (x @ left.cat(right, dim=1)).schedule()[-1].ast
    planned = run(ast, plan_for(ast, AVX2))

    numpy.testing.assert_allclose(planned, run(ast, ()), rtol=1e-5)


# Panels, and lanes along sums


def products_added(rows: int, inner: int, columns: int) -> UOp:
    """A sum of two products whose operands all lie along the sums."""
    a, c = (Tensor.empty(rows, inner, device="PYTHON") for _ in range(2))
    b, d = (Tensor.empty(columns, inner, device="PYTHON") for _ in range(2))
    ast: UOp = (a @ b.T + c @ d.T).schedule()[-1].ast
    return ast


@pytest.mark.parametrize("columns", [77, 128])
def test_lanes_go_along_panels_however_much_lies_along_the_sums(columns: int) -> None:
    ast = products_added(96, 512, columns)
    tiled = apply_plan(ast, plan_for(ast, AVX2))
    lanes = {r.arg.number[0] for r in counters(tiled) if r.arg.kind is AxisKind.VECTOR}

    assert 2 not in lanes
    assert len(stages_of(plan_for(ast, AVX2))) == 1


def test_weights_that_few_places_read_are_not_packed() -> None:
    """Vectors along 49 places are three quarters full, which is cheaper than to pack 160 x 960."""
    x, weight = Tensor.empty(1, 960, 7, 7, device="PYTHON"), Tensor.empty(160, 960, 1, 1)
    ast: UOp = x.conv2d(weight.to("PYTHON")).schedule()[-1].ast
    plan = plan_for(ast, AVX512)
    lanes = {
        r.arg.number[0] for r in counters(apply_plan(ast, plan)) if r.arg.kind is AxisKind.VECTOR
    }

    assert (lanes, stages_of(plan)) == ({3}, [])


def test_lanes_go_along_sums_where_panels_would_be_half_empty() -> None:
    ast = products_added(96, 512, 9)
    tiled = apply_plan(ast, plan_for(ast, AVX2))
    (vector,) = (r for r in counters(tiled) if r.arg.kind is AxisKind.VECTOR)

    assert vector.arg.number[0] == 2


def test_long_panels_are_staged_as_well() -> None:
    """They are read from end to end, which a far cache is near enough for."""
    left, right = (Tensor.empty(n, 5000, device="PYTHON") for n in (64, 128))
    ast = (left @ right.T).schedule()[-1].ast

    for size, staged in ((512 << 10, 1), (64 << 10, 0)):
        assert len(stages_of(plan_for(ast, replace(AVX2, cache_bytes=size)))) == staged


@pytest.mark.parametrize("columns", [77, 128])
def test_rows_of_a_tile_are_outside_of_its_columns(columns: int) -> None:
    """A number read for a row is multiplied with all vectors before the next one is read."""
    left, right = (Tensor.empty(n, 2048, device="PYTHON") for n in (512, columns))
    ast = (left @ right.T).schedule()[-1].ast
    (end,) = (n for n in apply_plan(ast, plan_for(ast, AVX2)).src if n.op is Op.END)
    lanes = next(r.arg.number[0] for r in end.src[1:] if r.arg.kind is AxisKind.VECTOR)
    written = [r.arg.number[0] for r in end.src[1:] if r.arg.kind is AxisKind.UNROLL]

    assert written == [1 - lanes, lanes]


@pytest.mark.parametrize(("rows", "columns"), [(512, 256), (500, 120), (9, 64)])
def test_tiles_of_what_overwrites_what_it_reads_come_out_even(rows: int, columns: int) -> None:
    target = Tensor.empty(rows, columns, device="PYTHON")
    left, right = (Tensor.empty(*s, device="PYTHON") for s in ((rows, 40), (40, columns)))
    ast = (target + left @ right).schedule()[-1].ast
    stored = next(n.src[0].src[0] for n in ast.toposort() if n.op is Op.STORE)
    read = next(
        n.src[0].src[0]
        for n in ast.toposort()
        if n.op is Op.LOAD and not any(r.arg.kind is AxisKind.REDUCE for r in n.src[0].ranges)
    )
    ast = ast.substitute({read: stored})
    plan = plan_for(ast, AVX2)
    tiled = apply_plan(ast, plan)

    assert len([n for n in tiled.src if n.op is Op.END]) == 1, "one nest, which threads can share"
    assert accumulators(ast, AVX2) * 8 >= min(rows, 8)


def test_a_number_per_row_beside_a_product_speaks_for_no_lanes_along_columns() -> None:
    """Only what the steps of a sum share is worth as much as what lies along the lanes."""
    row = expand(reshape(buffer(30), (30, 1)), (30, 50))
    plain = matmul(buffer(30, 40), buffer(40, 50))
    served = []
    for graph in (plain, plain + row):
        ast = kernels(graph)[-1].arg.ast
        facts = KernelFacts(ast, (ast,))
        (columns,) = (r for r in facts.outputs if r.extent == 50)
        served.append(accesses_served(facts, CPU, columns))

    assert served[0] == served[1] > 0


@pytest.mark.parametrize(("images", "inside"), [(4, [(0,), (1,)]), (128, [(1,)])])
def test_loops_go_inside_of_a_panel_until_enough_rows_read_it(
    images: int, inside: list[tuple[int, ...]]
) -> None:
    shape = (64, images, 8, 64, 32)
    left = expand(
        reshape(permute(buffer(images, 64, 8, 32), 1, 0, 2, 3), (*shape[:3], 1, 32)), shape
    )
    right = expand(reshape(permute(buffer(32, 64), 1, 0), (1, 1, 1, 64, 32)), shape)
    facts = Draft(kernels(total(left * right, 4))[-1].arg.ast, AVX2).facts

    assert loops_outside(facts, 2, facts.outputs[2], []) == inside


def test_lines_of_an_image_are_shared_among_threads_where_one_panel_has_all_channels() -> None:
    x = Tensor.empty(1, 64, 28, 28, device="PYTHON")
    weight = Tensor.empty(64, 64, 3, 3, device="PYTHON")
    ast: UOp = x.conv2d(weight, padding=1).schedule()[-1].ast
    plan = plan_for(ast, replace(AVX512, threads=2))
    (shared,) = [r for r in counters(apply_plan(ast, plan)) if r.arg.kind is AxisKind.PARALLEL]

    assert shared.extent == 4  # each packs the panel, so there are few of them


def test_equal_pieces_are_searched_for_among_few_numbers() -> None:
    assert [even_pieces(extent, 4) for extent in (3, 12, 14, 17, 22)] == [3, 4, 7, 17, 11]
    assert even_pieces((1 << 61) - 1, 4) == (1 << 61) - 1  # a prime


def test_a_panel_beyond_the_first_cache_is_read_by_tall_tiles() -> None:
    x, weight = (Tensor.empty(*s, device="PYTHON") for s in ((64, 3072), (768, 3072)))
    ast: UOp = x.linear(weight.T).schedule()[-1].ast
    one = replace(AVX512, threads=1, cache_bytes=2 << 20)
    sizes = [s.by for s in plan_for(ast, one) if isinstance(s, Split) and s.axis == (0,)]

    assert sizes == [8]
