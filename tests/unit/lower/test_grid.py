"""Kernels on a grid: whatever the limits of the device, they compute what loops compute."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import ClassVar

import numpy
import pytest

from tests.unit.lower.test_tile import GRAPHS, buffers_after
from tests.unit.schedule.graphs import assign, buffer, kernels, matmul, permute, total
from tiny_testing.kernels import element, load, store
from tinycore.dtype import DType, dtypes
from tinycore.errors import UnsupportedError, VerifyError
from tinycore.lower.dims import cut_to_fit, folded_axes, launches, loops_to_launch
from tinycore.lower.legality import problem_of
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Bind, Plan, Split, Tail, apply_plan
from tinycore.render.base import Limits, LinearKernel, Renderer, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.verify import verify

WIDE = (1 << 31) - 1
GROUPS = Limits(
    threads=1 << 10,
    grid=(WIDE, WIDE, WIDE),
    block=(64, 64, 64),
    block_threads=64,
    block_wanted=64,
    shared_bytes=1 << 14,
    vector_bytes=16,
)
LIMITS = {
    "groups of 64": GROUPS,
    "groups of 8, scalars": Limits(
        threads=64,
        grid=(WIDE, 1, 1),
        block=(8, 1, 1),
        block_threads=8,
        block_wanted=8,
        shared_bytes=64,
    ),
    "few groups per axis": Limits(
        grid=(3, 5, 1 << 20), block=(4, 2, 2), block_threads=16, block_wanted=16, vector_bytes=8
    ),
    "no groups": Limits(grid=(7, 7, WIDE)),
}


class Emulating(Renderer):
    """A language that only stores bfloat16."""

    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16})


def lowered(ast: UOp, limits: Limits, plan: Plan | None = None) -> LinearKernel:
    return lower(ast, Renderer(limits), "kernel", plan)


def assert_same(ast: UOp, limits: Limits, plan: Plan | None = None) -> LinearKernel:
    """The kernel for these limits, once it has computed what plain loops compute."""
    linear = lowered(ast, limits, plan)
    for found, expected in zip(
        buffers_after(linear), buffers_after(lowered(ast, limits, ())), strict=True
    ):
        numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    return linear


def sum_of(size: int, rows: int = 1) -> UOp:
    return kernels(total(buffer(rows, size), 1))[-1].arg.ast  # type: ignore[no-any-return]


@pytest.mark.sample(4)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_kernel_computes_the_same_on_a_grid(name: str, limits: str) -> None:
    assert_same(kernels(GRAPHS[name]())[-1].arg.ast, LIMITS[limits])


@pytest.mark.parametrize("size", [5, 63, 64, 65, 1000, 1021])
def test_a_ragged_size_is_computed_once_each(size: int) -> None:
    weight = buffer(size)
    ast = kernels(assign(weight, weight * weight + weight))[0].arg.ast

    linear = assert_same(ast, GROUPS)
    assert math.prod(linear.launch("grid")) == -(-size // 64)


@pytest.mark.slow
def test_a_large_matmul_has_tiles_of_lanes_and_rows() -> None:
    ast = kernels(matmul(buffer(128, 64), buffer(64, 192)))[0].arg.ast
    linear = assert_same(ast, GROUPS)

    assert sum(u.op is Op.DEFINE_REG for u in linear.uops) == 4
    assert {u.dtype.base.count for u in linear.uops if u.op is Op.DEFINE_REG} == {4}  # type: ignore[attr-defined]


# Sums that threads of a group share


@pytest.mark.parametrize("size", [32, 33, 100, 255, 256, 1000])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_a_sum_of_any_size_is_shared(rows: int, size: int) -> None:
    linear = assert_same(sum_of(size, rows), GROUPS)

    threads = min(64, 1 << size.bit_length() - 1)
    assert linear.launch("block")[0] == threads
    assert linear.shared_bytes >= 4 * math.prod(linear.launch("block"))
    assert sum(u.op is Op.BARRIER for u in linear.uops) == 2


def test_a_shared_sum_is_stored_by_one_thread() -> None:
    outputs = [
        u.src[0]
        for u in lowered(sum_of(100), GROUPS).uops
        if u.op is Op.STORE and u.src[0].src[0].op is Op.DEFINE_GLOBAL
    ]

    assert [len(index.src) for index in outputs] == [3]


def test_sums_are_shared_as_far_as_there_is_memory() -> None:
    small = replace(GROUPS, block=(64, 1, 1), shared_bytes=0)

    assert assert_same(sum_of(1000), small).launch("block") == (1, 1, 1)
    for size, threads in ((32, 4), (64, 8), (100, 8), (1 << 10, 64)):
        limits = replace(small, shared_bytes=size)
        assert assert_same(sum_of(1000), limits).launch("block")[0] == threads


def test_a_shared_sum_of_a_type_that_is_only_stored_is_kept_in_float32() -> None:
    k = UOp.range(64, 0, AxisKind.REDUCE)
    value = load(element(1, dtypes.bfloat16, 64, k), dtypes.bfloat16)
    total = UOp(Op.REDUCE, dtypes.bfloat16, (value, k), Op.ADD)
    ast = UOp.sink(store(element(0, dtypes.bfloat16, 1, UOp.index(0)), total))
    renderer = Emulating(GROUPS)

    linear = lower(ast, renderer, "kernel")
    shared = [u.dtype for u in linear.uops if u.op is Op.DEFINE_LOCAL]
    assert shared == [dtypes.float32.ptr(size, "local") for size in (64, 16)]


def test_a_sum_inside_a_loop_is_not_shared() -> None:
    i, k = UOp.range(3, 0, AxisKind.ORDERED), UOp.range(64, 1, AxisKind.REDUCE)
    value = load(element(1, dtypes.float32, 192, i * 64 + k), dtypes.float32)
    total = UOp(Op.REDUCE, dtypes.float32, (value, k), Op.ADD)
    change = store(element(0, dtypes.float32, 3, i), total)

    linear = assert_same(UOp.sink(UOp(Op.END, dtypes.void, (change, i))), GROUPS)
    assert linear.launch("block") == (1, 1, 1)


def test_a_sum_of_what_was_just_stored_is_not_shared() -> None:
    i, k = UOp.range(64, 0), UOp.range(64, 1, AxisKind.REDUCE)
    first = store(element(0, dtypes.float32, 64, i), UOp.const(dtypes.float32, 2.0))
    pointer = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(64), (), 0)
    after = UOp(Op.AFTER, pointer.dtype, (pointer, UOp(Op.END, dtypes.void, (first, i))))
    read = UOp(Op.LOAD, dtypes.float32, (UOp(Op.INDEX, after.dtype, (after, k)),))
    total = UOp(Op.REDUCE, dtypes.float32, (read, k), Op.ADD)
    change = store(element(1, dtypes.float32, 1, UOp.index(0)), total)

    linear = assert_same(UOp.sink(change), GROUPS)
    assert linear.launch("block") == (1, 1, 1)


def test_sums_over_one_loop_are_shared_together() -> None:
    k = UOp.range(100, 0, AxisKind.REDUCE)
    value = load(element(2, dtypes.float32, 100, k), dtypes.float32)
    most = UOp(Op.REDUCE, dtypes.float32, (value, k), Op.MAX)
    total = UOp(Op.REDUCE, dtypes.float32, ((value - most) * (value - most), k), Op.ADD)
    stores = (
        store(element(0, dtypes.float32, 1, UOp.index(0)), most),
        store(element(1, dtypes.float32, 1, UOp.index(0)), total),
    )
    linear = assert_same(UOp.sink(UOp(Op.GROUP, dtypes.void, stores)), GROUPS)

    assert linear.launch("block") == (16, 1, 1)  # of 25 vectors, which each holds for both
    assert linear.shared_bytes == 2 * 16 * 4


def test_steps_of_sums_are_written_out_in_the_order_of_the_kernel() -> None:
    """And not in that of their addresses, which another process has otherwise."""
    i, loops = UOp.range(1 << 20, 0), [UOp.range(4, n, AxisKind.REDUCE) for n in range(1, 9)]
    read = [load(element(n.arg.number[0], dtypes.float32, 4, n), dtypes.float32) for n in loops]
    sums = [UOp(Op.REDUCE, dtypes.float32, pair, Op.ADD) for pair in zip(read, loops, strict=True)]
    change = store(element(0, dtypes.float32, 1 << 20, i), functools.reduce(UOp.__add__, sums))

    plan = plan_for(UOp.sink(UOp(Op.END, dtypes.void, (change, i))), GROUPS)
    unrolled = [s.axis for s in plan if isinstance(s, Bind) and s.kind is AxisKind.UNROLL]
    assert unrolled == [n.arg.number for n in loops]


# What may be launched


def test_a_store_outside_of_a_loop_keeps_the_loop() -> None:
    i, j = UOp.range(5, 0), UOp.range(7, 1)
    first = store(
        element(0, dtypes.float32, 5, i), load(element(1, dtypes.float32, 5, i), dtypes.float32)
    )
    inner = UOp(Op.END, dtypes.void, (first, i))
    pointer = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(5), (), 0)
    after = UOp(Op.AFTER, pointer.dtype, (pointer, inner))
    read = UOp(Op.LOAD, dtypes.float32, (UOp(Op.INDEX, after.dtype, (after, UOp.index(0))),))
    second = store(element(2, dtypes.float32, 7, j), read)

    kernel = UOp.sink(UOp(Op.END, dtypes.void, (second, j)))
    linear = assert_same(kernel, GROUPS)
    assert not any(u.op is Op.SPECIAL for u in linear.uops)
    problem = problem_of(Bind(j.arg.number, AxisKind.GRID).apply(kernel), GROUPS)
    assert problem == "something is stored outside of loop (1,), as each of its steps would"


def test_steps_in_order_stay_a_loop() -> None:
    i, k = UOp.range(5, 0), UOp.range(7, 1, AxisKind.ORDERED)
    place = element(0, dtypes.float32, 5, i)
    value = load(place, dtypes.float32) * 0.5 + load(
        element(1, dtypes.float32, 35, i * 7 + k), dtypes.float32
    )
    change = store(place, value)

    linear = assert_same(UOp.sink(UOp(Op.END, dtypes.void, (change, i, k))), GROUPS)
    assert {u.arg for u in linear.uops if u.op is Op.SPECIAL} == {"block0"}
    assert [u.arg.kind for u in linear.uops if u.op is Op.RANGE] == [AxisKind.ORDERED]


# Axes


def grid_of(graph: UOp, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """The groups launched, axis 0 first."""
    return lowered(kernels(graph)[-1].arg.ast, Limits(grid=grid)).launch("grid")


def test_loops_stay_axes_of_a_grid_as_far_as_there_is_room() -> None:
    reversed_axes = permute(buffer(2, 3, 4, 6), 3, 2, 1, 0)
    graph = UOp(Op.CONTIGUOUS, dtypes.float32, (reversed_axes,))

    assert grid_of(graph, (100, 100, 100)) == (6, 4, 6)
    assert grid_of(graph, (200, 3, 100)) == (144, 1, 1)


def test_a_grid_of_one_axis() -> None:
    graph = matmul(buffer(14, 24), buffer(24, 37))

    assert grid_of(graph, (1000, 100, 100)) == (37, 14, 1)
    assert grid_of(graph, (1000, 10, 10)) == (14 * 37, 1, 1)


def test_an_axis_beyond_its_limit_becomes_several() -> None:
    graph = buffer(1000) * buffer(1000)

    assert grid_of(graph, (100, 100, 100)) == (100, 10, 1)
    assert grid_of(graph, (30, 30, 30)) == (25, 20, 2)


def test_a_launch_beyond_the_device_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"needs 1000 groups; .* at most 9 x 9 x 9"):
        grid_of(buffer(1000) * buffer(1000), (9, 9, 9))


@pytest.mark.parametrize("total", [1, 2, 97, 100, 128, 1009, 30030])
@pytest.mark.parametrize("most", [(97, 97, 97), (1000, 64, 1), (40, 30, 30)])
def test_cut_axes_cover_a_long_one(total: int, most: tuple[int, int, int]) -> None:
    if total <= math.prod(most) // 2:
        sizes = cut_to_fit(total, "grid", most)

        assert math.prod(sizes) >= total
        assert all(size <= limit for size, limit in zip(sizes, most, strict=True))


def test_folded_axes_hold_all_loops() -> None:
    for extents in itertools.product((1, 2, 5), repeat=4):
        axes = folded_axes(list(extents), (10, 10, 10))
        if axes is not None:
            assert sum(count for count, _ in axes) == 4
            assert math.prod(size for _, size in axes) == math.prod(extents)
            assert all(size <= 10 for _, size in axes)


def counted(offset: UOp, *ranges: UOp) -> UOp:
    change = store(element(0, dtypes.float32, 16, offset), UOp.const(dtypes.float32, 1.0))
    return UOp.sink(UOp(Op.END, dtypes.void, (change, *ranges)))


def test_grid_loops_become_launch_indices_the_innermost_first() -> None:
    i, j = UOp.range(4, 0, AxisKind.GRID), UOp.range(3, 1, AxisKind.GRID)
    launched = loops_to_launch(counted(i * 3 + j, i, j), Limits(grid=(9, 9, 9)))
    sizes = {u.arg: u.src[0].arg for u in launched.toposort() if u.op is Op.SPECIAL}

    assert sizes == {"grid0": 3, "grid1": 4}
    assert not any(u.op in (Op.RANGE, Op.END) for u in launched.toposort())


def test_loops_inside_a_grid_stay_loops() -> None:
    i, j = UOp.range(4, 0, AxisKind.GRID), UOp.range(3, 1)
    launched = loops_to_launch(counted(i * 3 + j, i, j), Limits(grid=(9, 9, 9)))

    assert [u.op for u in launched.toposort() if u.op in (Op.RANGE, Op.END)] == [Op.RANGE, Op.END]


def test_covering_steps_past_the_end_store_nothing() -> None:
    ast = kernels(buffer(10) * buffer(10))[0].arg.ast
    plan = (Split((0,), 4, Tail.GUARD), Bind((0, 0), AxisKind.GRID), Bind((0, 1), AxisKind.BLOCK))
    (gate,) = {n.src[0].src[2] for n in apply_plan(ast, plan).toposort() if n.op is Op.STORE}

    assert gate.op is Op.CMPLT
    assert plan_for(ast, GROUPS) != plan
    assert_same(ast, GROUPS, plan)


def test_covering_steps_past_the_end_read_nothing_that_is_overwritten() -> None:
    """The thread whose place it is may be storing there."""
    i = UOp.range(10, 0)
    own, other = (element(slot, dtypes.float32, 10, i) for slot in (0, 1))
    value = load(own, dtypes.float32) + load(other, dtypes.float32)
    ast = UOp.sink(UOp(Op.END, dtypes.void, (store(own, value), i)))
    plan = (Split((0,), 4, Tail.GUARD), Bind((0, 0), AxisKind.GRID), Bind((0, 1), AxisKind.BLOCK))
    loads = [n for n in apply_plan(ast, plan).toposort() if n.op is Op.LOAD]

    assert {pointer_of(n.src[0]).arg: len(n.src[0].src) for n in loads} == {0: 3, 1: 2}


# What is legal


def test_a_launch_index_has_a_name_and_a_size() -> None:
    for name, size in (("grid3", UOp.index(4)), ("lane0", UOp.index(4)), ("grid0", UOp.index(0))):
        with pytest.raises(VerifyError, match="SPECIAL"):
            verify([size, UOp(Op.SPECIAL, dtypes.index, (size,), name)], "linear")


def test_a_launch_index_has_one_size() -> None:
    sizes = [UOp.index(4), UOp.index(5)]
    specials = [UOp(Op.SPECIAL, dtypes.index, (size,), "grid0") for size in sizes]
    with pytest.raises(VerifyError, match="two sizes"):
        verify([*sizes, *specials], "linear")


def test_threads_meet_at_a_barrier_in_the_same_step() -> None:
    thread = UOp(Op.SPECIAL, dtypes.index, (UOp.index(4),), "block0")
    steps = UOp.range(thread, 0)
    barrier = UOp(Op.BARRIER, dtypes.void, ())
    end = UOp(Op.END, dtypes.void, (UOp(Op.GROUP, dtypes.void), steps))
    with pytest.raises(VerifyError, match="differs between threads"):
        verify([UOp.index(4), thread, steps, barrier, end], "linear")


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ([8, 8, 8], True),  # an axis each
        ([2, 4, 8, 8], True),  # the smallest folded
        ([64, 3], True),  # over more axes than loops, as 8 * 8 * 3
        ([67], False),  # a prime, longer than any axis
        ([8, 8, 8, 2], False),  # more than all axes hold
    ],
)
def test_loops_are_launched_as_just_as_many_threads(extents: list[int], expected: bool) -> None:
    assert launches(extents, "block", (8, 8, 8)) is expected


def test_a_grid_of_very_many_is_cut_at_once() -> None:
    sizes = cut_to_fit((1 << 61) - 1, "grid", (1 << 20, 1 << 21, 1 << 40))  # a prime

    assert math.prod(sizes) >= (1 << 61) - 1
