"""Launches that follow loops of symbolic length: right for every value, no larger than needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

import numpy
import pytest

from tests.unit.lower import test_grid
from tests.unit.lower.legal import applied
from tests.unit.lower.test_grid import GROUPS, LIMITS
from tests.unit.schedule.graphs import kernels
from tiny_testing.kernels import Array
from tinycore import Tensor, Variable
from tinycore.device import Buffer, Device
from tinycore.device.extent import OPERATORS, Extent
from tinycore.device.protocols import ProgramInfo
from tinycore.dtype import PointerDType
from tinycore.engine.compile import info_of
from tinycore.errors import ArgumentError
from tinycore.lower.dims import OPERATOR_OF
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import Bind, Split, Tail, apply_plan
from tinycore.render.base import Limits, LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

MOST: Final = 150
VARYING: Final = replace(GROUPS, grid_varies=True)
SIZES: Final = (1, 2, 63, 64, 65, 149, 150)
UNTOUCHED: Final = 77.0


lowered = cache(test_grid.lowered)


def empty(*shape: int) -> Tensor:
    return Tensor.empty(*shape, device="PYTHON").realize()


def ast_of(make: Callable[[Variable], Tensor], least: int = 1) -> UOp:
    """The last kernel of a computation over a Variable from `least` to MOST."""
    size = Variable("size", least, MOST).bind(MOST)
    ast: UOp = kernels(make(size).uop)[-1].arg.ast
    return ast


def scores(size: Variable) -> Tensor:
    return (empty(3, MOST, 8)[:, :size] * empty(3, 1, 8)).sum(-1)


def softmax_sum(size: Variable) -> Tensor:
    return empty(3, MOST)[:, :size].exp().sum(-1)


def weighted(size: Variable) -> Tensor:
    return (empty(3, MOST)[:, :size].unsqueeze(-1) * empty(3, MOST, 8)[:, :size]).sum(1)


def elementwise(size: Variable) -> Tensor:
    return empty(3, MOST)[:, :size] * 2


def suffix(size: Variable) -> Tensor:
    return empty(MOST)[MOST - size :] + 1


def both_sides(size: Variable) -> Tensor:
    return empty(MOST)[:size].unsqueeze(1) * empty(MOST)[:size].unsqueeze(0)


def rows_of_a_product(size: Variable) -> Tensor:
    return empty(MOST, 32)[:size] @ empty(32, 48)


def long_sum_of_a_product(size: Variable) -> Tensor:
    return empty(32, MOST)[:, :size] @ empty(MOST, 48)[:size]


def divided(size: Variable) -> Tensor:
    return empty(MOST)[:size].cast("int32") // (empty(MOST)[:size].cast("int32") * 2 + 1)


COMPUTED: Final = [
    scores, softmax_sum, weighted, elementwise, suffix, both_sides, rows_of_a_product,
    long_sum_of_a_product, divided,
]  # fmt: skip


def run(linear: LinearKernel, value: int) -> list[Array]:
    """Buffers after a kernel ran for a value; what it writes to is UNTOUCHED before."""
    device = Device["PYTHON"]
    toolchain = device.toolchain
    binary = toolchain.compiler.compile(toolchain.renderer.render(linear))
    program = device.runtime.load(binary, as_launched(linear))
    generator = numpy.random.default_rng(0)
    buffers = []
    for node in linear.buffers:
        assert isinstance(node.dtype, PointerDType)
        content = generator.standard_normal(node.dtype.size).astype("f")
        if node.arg in linear.written:
            content[:] = UNTOUCHED
        kind = numpy.dtype(node.dtype.base.name)
        buffers.append(Buffer.from_cpu("PYTHON", content.astype(kind)))
    program([b.handle for b in buffers], [value], wait=True)
    return [b.numpy() for b in buffers]


def as_launched(linear: LinearKernel) -> ProgramInfo:
    return replace(info_of(linear, len(linear.buffers)), values=("value0",))


def assert_right(ast: UOp, limits: Limits, value: int) -> LinearKernel:
    """The kernel for these limits, once it has left what plain loops leave, and no more."""
    linear = lowered(ast, limits)
    for found, expected in zip(
        run(linear, value), run(lowered(ast, limits, ()), value), strict=True
    ):
        numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    return linear


@pytest.mark.sample(4)
@pytest.mark.parametrize("make", COMPUTED)
def test_every_value_is_launched_and_computed(make: Callable[[Variable], Tensor]) -> None:
    for value in SIZES:
        assert_right(ast_of(make), VARYING, value)


@pytest.mark.sample(3)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("make", COMPUTED)
def test_every_value_is_computed_within_other_limits(
    make: Callable[[Variable], Tensor], limits: str
) -> None:
    """If an axis holds few groups, loops lie on several, for some values on fewer."""
    varying = replace(LIMITS[limits], grid_varies=True)
    for value in (1, 64, 149):
        linear = assert_right(ast_of(make), varying, value)
        groups = as_launched(linear).groups([value])
        assert all(a <= b for a, b in zip(groups, varying.grid or (), strict=True))


@pytest.mark.parametrize("make", COMPUTED)
def test_loops_of_symbolic_length_are_no_loops_of_a_thread(
    make: Callable[[Variable], Tensor],
) -> None:
    """A GRID axis or threads that share a sum take them; each thread ran all of it before."""
    ast = ast_of(make)
    linear = lowered(ast, VARYING)

    plan = plan_for(ast, VARYING)
    assert any(isinstance(s, Bind) and s.kind in (AxisKind.GRID, AxisKind.GROUP) for s in plan)
    loops = [u for u in linear.uops if u.op is Op.RANGE and not u.is_fixed]
    assert all(loop.extent <= MOST // 3 for loop in loops if make is not weighted)


@pytest.mark.parametrize(("value", "groups"), [(1, 1), (64, 1), (65, 2), (150, 3)])
def test_a_launch_has_the_groups_that_its_value_needs(value: int, groups: int) -> None:
    info = as_launched(lowered(ast_of(elementwise), VARYING))

    assert info.groups([value]) == (groups, 3, 1)
    assert info.grid == (3, 3, 1)


def test_an_axis_beyond_its_limit_is_cut_by_the_value() -> None:
    """At most 3, 5 and 1 << 20 groups: a third axis is counted only where two are full."""
    limits = replace(LIMITS["no groups"], grid=(3, 5, 1 << 20), grid_varies=True)
    info = as_launched(lowered(ast_of(suffix), limits))

    assert info.groups([2]) == (2, 1, 1)
    assert info.groups([13]) == (3, 5, 1)
    assert math.prod(info.groups([MOST])) == MOST


@pytest.mark.slow
def test_operands_of_a_product_with_symbolic_sides_are_shared_by_a_group() -> None:
    limits = replace(VARYING, threads=1)

    for make in (rows_of_a_product, long_sum_of_a_product):
        ast = ast_of(make)
        assert any(isinstance(step, Stage) for step in plan_for(ast, limits))
        for value in (1, 31, 64, 149):
            assert_right(ast, limits, value)


@pytest.mark.parametrize("most", [3, 8, 20])
def test_a_sum_that_is_one_block_at_its_longest_is_shared_too(most: int) -> None:
    """No loop over blocks is left then, which the copies would be made in."""
    size = Variable("size", 1, most).bind(most)
    product = empty(32, most)[:, :size] @ empty(most, 48)[:size]
    ast = kernels(product.uop)[-1].arg.ast
    limits = replace(VARYING, threads=1)

    assert any(isinstance(step, Stage) for step in plan_for(ast, limits))
    for value in (1, most):
        assert_right(ast, limits, value)


@pytest.mark.parametrize("value", [0, 1, 64, 65])
@pytest.mark.parametrize("limits", [VARYING, replace(LIMITS["no groups"], grid_varies=True)])
@pytest.mark.parametrize("make", [elementwise, suffix, scores, softmax_sum, rows_of_a_product])
def test_a_loop_that_may_be_empty_reads_and_stores_nothing(
    make: Callable[[Variable], Tensor], limits: Limits, value: int
) -> None:
    """One group is launched even then; the interpreter raises where it reads past a buffer."""
    assert_right(ast_of(make, 0), limits, value)


def test_what_divides_reads_nothing_past_the_end() -> None:
    """Nobody knows whether other elements are 0. Rows of 128 are whole groups."""
    whole = Variable("size", 1, 128).bind(5)
    x = empty(2, 128)[:, :whole]
    clamped = []
    for result in (x * 2, x.cast("int32") // x.cast("int32")):
        linear = lowered(kernels(result.uop)[-1].arg.ast, VARYING)
        clamped.append(any(u.op is Op.MIN for u in linear.uops))

    assert clamped == [False, True]


def test_devices_that_launch_a_fixed_grid_keep_the_loop() -> None:
    """So do plugins of before, whose programs launch `info.grid`."""
    linear = lowered(ast_of(elementwise), GROUPS)

    assert any(u.op is Op.RANGE and not u.is_fixed for u in linear.uops)
    assert not info_of(linear, 2).grid_extents


def test_steps_that_need_launches_to_follow_are_refused_elsewhere() -> None:
    ast = ast_of(elementwise)
    guarded = (Split((1,), 64, Tail.GUARD), Bind((1, 0), AxisKind.GRID))

    assert applied(ast, guarded, VARYING) is apply_plan(ast, guarded)
    with pytest.raises(ArgumentError, match="known at launch only"):
        applied(ast, guarded, GROUPS)


def test_threads_of_a_processor_share_the_outermost_loop() -> None:
    """Only where launches follow its length, and it has a step at least."""
    loops = Limits(threads=2, vector_bytes=32)
    follow = replace(loops, parallel_varies=True)
    shared = Bind((0,), AxisKind.PARALLEL)
    rows = ast_of(lambda size: empty(MOST, 2048)[:size].sum(-1))

    assert shared in plan_for(rows, follow)
    assert shared not in plan_for(rows, loops)
    assert shared not in plan_for(ast_of(lambda n: empty(MOST, 2048)[:n].sum(-1), 0), follow)
    assert lowered(rows, follow).sizes == {"parallel": Extent(("#0", 1, "max"))}
    with pytest.raises(ArgumentError, match="known at launch only"):
        applied(rows, (shared,), loops)


@pytest.mark.sample(3)
@pytest.mark.parametrize("make", COMPUTED)
def test_loops_of_a_processor_are_cut_into_tiles(make: Callable[[Variable], Tensor]) -> None:
    loops = Limits(vector_bytes=32, cache_bytes=1 << 10)
    assert plan_for(ast_of(make), loops)
    for value in (1, 2, 7, 8, 9, 149, 150):
        assert_right(ast_of(make), loops, value)


@pytest.mark.parametrize("most", [16, 17])
def test_tiles_of_a_processor_store_nothing_past_the_end(most: int) -> None:
    """Rows of 16 are whole tiles, which read past the end instead of the last row again."""
    loops = Limits(vector_bytes=32)
    for least in (0, 1):
        size = Variable("size", least, most).bind(most)
        ast = kernels((empty(most, 32)[:size] @ empty(32, 48)).uop)[-1].arg.ast
        assert Split((0,), 4 if most == 16 else 6) in plan_for(ast, loops)
        for value in range(least, most + 1):
            assert_right(ast, loops, value)


def test_the_code_of_an_extent() -> None:
    groups = Extent(("#1", 63, "+", 64, "//", "#0", "*"))

    assert [groups.of([2, n]) for n in (1, 64, 65)] == [2, 2, 4]
    assert set(OPERATOR_OF.values()) == OPERATORS.keys()
