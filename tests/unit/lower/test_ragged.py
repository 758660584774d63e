"""Rows that vectors do not divide: what is left of them costs what it is, and no more."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.test_tile import CPU, run
from tests.unit.schedule.graphs import buffer, kernels, permute, total
from tinycore import Context, Tensor
from tinycore.dtype import dtypes
from tinycore.lower.expand import expand
from tinycore.lower.loops import counters
from tinycore.lower.merge_reductions import merge_reductions
from tinycore.lower.plan import planned
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import Bind, Plan, Reorder, Split, Tail, apply_plan
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite

NARROW = replace(CPU, vector_bytes=32, vector_registers=16, threads=1)


def fills(kernel: UOp) -> list[int]:
    """Number of fills of each array of a kernel's own, by the loops that fill it."""
    after = [n for n in kernel.toposort() if n.op is Op.AFTER and n.src[0].op is Op.DEFINE_LOCAL]
    arrays = dict.fromkeys(n.src[0] for n in after)
    ends = {a: {s for n in after for s in n.src[1:] if n.src[0] is a} for a in arrays}
    return [sum(s.op is Op.END for s in found) for found in ends.values()]


@pytest.mark.device("CPU")
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
    """Such as the numbers of a loop's steps, which are computed."""
    with Context(DEV="PYTHON"):
        counted = Tensor.arange(40).reshape(5, 8).float().sin().sum()
    ast = counted.schedule()[-1].ast

    assert not any(n.op is Op.LOAD for n in ast.toposort())
    numpy.testing.assert_allclose(run(ast, planned(ast, NARROW)[0]), run(ast, ()), rtol=1e-5)


@pytest.mark.parametrize("op", [Op.ADD, Op.MAX])
@pytest.mark.parametrize("columns", [17, 23, 40])
def test_the_last_vector_of_a_row_begins_early(op: Op, columns: int) -> None:
    ast = kernels(total(buffer(6, columns), 1, op=op))[-1].arg.ast
    (number,) = {r.arg.number for n in ast.toposort() if n.op is Op.REDUCE for r in n.src[1:]}
    parts = [(*number, 1), (*number, 2)][: 2 if columns % 8 else 1]
    plan: Plan = (Split(number, 8, Tail.SHIFT), *(Bind(part, AxisKind.VECTOR) for part in parts))
    loads = {n.dtype.count for n in expand(apply_plan(ast, plan)).toposort() if n.op is Op.LOAD}

    assert loads == {8}
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-5, atol=1e-5)


def test_what_was_added_before_is_not_read_as_a_number() -> None:
    """A product of nothing and what is infinite would be no number."""
    ast = kernels(total(buffer(3, 21) * buffer(3, 21), 1))[-1].arg.ast
    (number,) = {r.arg.number for n in ast.toposort() if n.op is Op.REDUCE for r in n.src[1:]}
    tiled = apply_plan(ast, (Split(number, 8, Tail.SHIFT),))
    (product,) = (n for n in tiled.toposort() if n.op is Op.MUL and n.src[0].op is Op.WHERE)

    assert [factor.op for factor in product.src] == [Op.WHERE, Op.WHERE]


@pytest.mark.parametrize("tail", [Tail.AUTO, Tail.SHIFT])
def test_the_tail_of_results_under_each_strategy(tail: Tail) -> None:
    ast = kernels(buffer(10) * buffer(10))[0].arg.ast
    plan: Plan = (Split((0,), 4, tail),)
    loops = [r.arg.number for r in counters(applied(ast, plan, NARROW))]

    assert (0, 2) not in loops
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()))


def test_what_is_overwritten_is_not_computed_twice() -> None:
    ast = kernels(buffer(10) * buffer(10))[0].arg.ast
    output, *operands = sorted(
        (n for n in ast.toposort() if n.op is Op.DEFINE_GLOBAL), key=lambda n: int(n.arg)
    )
    ast = ast.substitute({operands[0]: output})

    for tail in (Tail.AUTO, Tail.SHIFT):
        tiled = apply_plan(ast, (Split((0,), 4, tail),))
        assert [r.extent for r in counters(tiled) if r.arg.number == (0, 2)] == [2]


def sums(*loops: tuple[UOp, ...]) -> list[UOp]:
    """Sums over some loops each, of how far they are from the start."""
    counted = [sum(r[1:], r[0]).cast(dtypes.float32) for r in loops]
    return [
        UOp(Op.REDUCE, dtypes.float32, (value, *r), Op.ADD)
        for value, r in zip(counted, loops, strict=True)
    ]


def counter(size: int, number: int, kind: AxisKind = AxisKind.REDUCE) -> UOp:
    return UOp.range(size, (number,), kind)


def joined(*loops: tuple[UOp, ...]) -> UOp:
    first, second = sums(*loops)
    return rewrite(first + second, merge_reductions, name="test")


def test_sums_over_loops_alike_are_one() -> None:
    found = joined((counter(5, 0), counter(3, 1)), (counter(5, 2), counter(3, 3)))

    assert found.op is Op.REDUCE
    assert [s.op for s in found.src] == [Op.CAST, Op.CAST, Op.RANGE, Op.RANGE]


def test_sums_over_the_same_loops_stay_apart() -> None:
    loop = counter(5, 0)
    first, second = sums((loop,), (loop,))
    other = first.with_src((first.src[0] * 2.0, loop))

    assert rewrite(other + second, merge_reductions, name="test").op is Op.ADD


def test_lanes_alike_are_added_before_they_are_folded() -> None:
    lanes = [counter(8, number, AxisKind.VECTOR) for number in (1, 2)]
    found = joined((counter(5, 0), lanes[0]), (lanes[1],))

    assert found.op is Op.REDUCE
    assert found.src[1:] == (lanes[0],)
    assert found.src[0].op is Op.ADD


def test_sums_over_different_loops_stay_apart() -> None:
    assert joined((counter(5, 0),), (counter(4, 1),)).op is Op.ADD


# Which loop has lanes


def convolution(images: int, channels: int, size: int) -> UOp:
    """Windows of 3 by 3 of some channels, for 32 others."""
    x = Tensor.empty(images, channels, size, size, device="PYTHON")
    weight = Tensor.empty(32, channels, 3, 3, device="PYTHON")
    ast: UOp = x.conv2d(weight).schedule()[-1].ast
    return ast


def lanes_of(kernel: UOp) -> list[int]:
    """The loops over results that lanes are a part of."""
    found = [r for n in kernel.toposort() if n.op is Op.END for r in n.src[1:]]
    return [r.arg.number[0] for r in found if r.arg.kind is AxisKind.VECTOR]


@pytest.mark.parametrize(("channels", "along_channels"), [(3, False), (64, True)])
def test_windows_of_many_channels_have_lanes_along_those_of_results(
    channels: int, along_channels: bool
) -> None:
    ast = convolution(2, channels, 18)
    (end,) = ast.src
    outputs, place = (end.src[position].arg.number[0] for position in (2, -1))
    plan, kernel = planned(ast, NARROW)

    assert (outputs in lanes_of(kernel)) is along_channels
    assert (place in lanes_of(kernel)) is not along_channels
    assert any(isinstance(step, Stage) for step in plan) is along_channels


def test_rows_of_a_tile_are_neighbors_in_a_line() -> None:
    """There are more images than places in a line, but these lie side by side."""
    ast = convolution(9, 64, 9)
    (end,) = ast.src
    _, kernel = planned(ast, NARROW)
    written = [
        r.arg.number[0]
        for n in kernel.toposort()
        if n.op is Op.END
        for r in n.src[1:]
        if r.arg.kind is AxisKind.UNROLL
    ]

    assert end.src[-1].arg.number[0] in written
    assert end.src[1].arg.number[0] not in written


def test_threads_share_lines_where_there_are_few_panels() -> None:
    ast = convolution(1, 64, 58)
    line, place = ast.src[0].src[-2:]
    plan, kernel = planned(ast, replace(NARROW, threads=4))
    first = kernel.src[0].src[1]

    assert first.arg.kind is AxisKind.PARALLEL
    assert any(isinstance(s, Split) and s.axis == line.arg.number for s in plan)
    assert [s.by for s in plan if isinstance(s, Split) and s.axis == place.arg.number] == [4]


@pytest.mark.parametrize(("size", "outside"), [(9, False), (42, True)])
def test_images_go_inside_of_panels_where_they_are_small(size: int, outside: bool) -> None:
    """Weights that few places read would be staged again for each image."""
    ast = convolution(9, 64, size)
    images, outputs = (r.arg.number for r in ast.src[0].src[1:3])
    plan, kernel = planned(ast, NARROW)
    (stage,) = (s for s in plan if isinstance(s, Stage))
    order = [r.arg.number for r in kernel.src[0].src[1:] if r.arg.kind is AxisKind.LOOP]
    panels = next(n for n in order if n[:1] == outputs)

    assert stage.at == panels
    assert (order.index(images) < order.index(panels)) is outside
