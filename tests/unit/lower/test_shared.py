"""Operands in memory that a group shares: right, read from a buffer once a group, without races."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.test_grid import GROUPS, assert_same, lowered
from tests.unit.schedule.graphs import buffer, kernels, matmul, permute
from tiny_testing.kernels import Array
from tinycore import Tensor, dtypes
from tinycore.device import Buffer, Device
from tinycore.dtype import DType
from tinycore.engine.compile import info_of
from tinycore.errors import ArgumentError
from tinycore.lower.plan import plan_for
from tinycore.lower.plan_neighbors import default, starts
from tinycore.lower.steps.stage import Stage
from tinycore.lower.strategies.levels import block_of, loop_tile
from tinycore.lower.tile import Bind, Plan, Split, Tail
from tinycore.render.base import Limits, LinearKernel, pointer_of
from tinycore.tensor.methods.placeholder import Placeholder
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

SMALL = replace(GROUPS, threads=1)
SCALARS = replace(SMALL, block_threads=32, block_wanted=32, vector_bytes=0)
FAR = replace(SMALL, shared_is_near=False)
ROWS, COLUMNS, INNER = (0,), (1,), (3,)
BLOCK, GRID, GROUP, FILL = AxisKind.BLOCK, AxisKind.GRID, AxisKind.GROUP, AxisKind.FILL


def ast_of(graph: UOp | Tensor) -> UOp:
    """The last kernel of a graph."""
    root = graph.uop if isinstance(graph, Tensor) else graph
    ast: UOp = kernels(root)[-1].arg.ast
    return ast


def product(rows: int, inner: int, columns: int) -> UOp:
    return ast_of(matmul(buffer(rows, inner), buffer(inner, columns)))


def empty(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device="PYTHON").realize()


def stages_of(plan: Plan) -> int:
    return sum(isinstance(step, Stage) for step in plan)


def loads_of_buffers(linear: LinearKernel) -> int:
    """Number of elements of buffers that all threads load."""
    threads = math.prod((*linear.launch("grid"), *linear.launch("block")))
    steps, total = [threads], 0
    for u in linear.uops:
        if u.op is Op.RANGE:
            steps.append(steps[-1] * u.extent)
        elif u.op is Op.END:
            steps.pop()
        elif u.op is Op.LOAD and pointer_of(u.src[0]).op is Op.DEFINE_GLOBAL:
            total += steps[-1] * u.dtype.count
    return total


def results(linear: LinearKernel, arrays: list[Array]) -> Array:
    """Content of a kernel's first buffer after a launch."""
    device = Device["PYTHON"]
    toolchain = device.toolchain
    binary = toolchain.compiler.compile(toolchain.renderer.render(linear))
    program = device.runtime.load(binary, info_of(linear, len(arrays)))
    buffers = [Buffer.from_cpu("PYTHON", array) for array in arrays]
    program([b.handle for b in buffers], [], wait=True)
    return buffers[0].numpy()


def twice_around(linear: LinearKernel) -> list[UOp]:
    """The nodes in the order of a run, every loop gone through twice."""
    bodies: list[list[UOp]] = [[]]
    for u in linear.uops:
        if u.op is Op.RANGE:
            bodies.append([])
        elif u.op is Op.END:
            body = bodies.pop()
            bodies[-1] += body + body
        else:
            bodies[-1].append(u)
    return bodies[0]


def assert_no_races(linear: LinearKernel) -> None:
    """Between two barriers, shared memory is written or read, and never both."""
    since: dict[UOp, Op] = {}
    for u in twice_around(linear):
        if u.op is Op.BARRIER:
            since.clear()
        elif u.op in (Op.LOAD, Op.STORE):
            memory = pointer_of(u.src[0])
            if memory.op is Op.DEFINE_LOCAL:
                assert since.setdefault(memory, u.op) is u.op, f"{memory} is {since[memory]}, {u}"


def assert_shared(ast: UOp, limits: Limits = SMALL, plan: Plan | None = None) -> LinearKernel:
    """The kernel, once it shares operands without races and computes what loops compute."""
    linear = assert_same(ast, limits, plan)
    assert stages_of(plan_for(ast, limits) if plan is None else plan) >= 1
    assert any(u.op is Op.BARRIER for u in linear.uops)
    assert linear.shared_bytes <= limits.shared_bytes
    assert_no_races(linear)
    return linear


# What it computes


@pytest.mark.sample(9)
@pytest.mark.parametrize("limits", [SMALL, SCALARS], ids=["vectors", "scalars"])
@pytest.mark.parametrize(
    "size", [(64, 64, 64), (77, 77, 77), (100, 33, 129), (128, 128, 128), (5, 200, 70), (9, 2, 8)]
)
def test_products_of_any_size(size: tuple[int, int, int], limits: Limits) -> None:
    assert_shared(product(*size), limits)


def squared(a: UOp) -> UOp:
    return matmul(a, a)


GRAPHS: dict[str, Callable[[], UOp | Tensor]] = {
    "transposed left": lambda: matmul(permute(buffer(33, 40), 1, 0), buffer(33, 50)),
    "transposed right": lambda: matmul(buffer(40, 33), permute(buffer(50, 33), 1, 0)),
    "with itself": lambda: squared(buffer(44, 44)),
    "epilogue": lambda: matmul(buffer(40, 20), buffer(20, 32)) * buffer(40, 32) + buffer(40, 32),
    "batched": lambda: empty(3, 20, 24) @ empty(3, 24, 20),
    "scores": lambda: empty(2, 2, 21, 16) @ empty(2, 2, 23, 16).transpose(2, 3),
    "einsum": lambda: Tensor.einsum("ik,kab->aib", empty(20, 30), empty(30, 7, 9)),
    "scaled": lambda: empty(30, 40) * empty(40) @ empty(40, 24),
    "heads": lambda: empty(2, 2, 12, 8).permute(0, 3, 1, 2).reshape(16, 24) @ empty(24, 16),
    "conv2d": lambda: empty(2, 3, 9, 14).conv2d(empty(8, 3, 3, 3), padding=1),
    "conv2d with strides": lambda: empty(1, 20, 15, 15).conv2d(empty(6, 20, 3, 3), stride=2),
    "conv2d of points": lambda: empty(2, 37, 5, 5).conv2d(empty(12, 37, 1, 1)),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("limits", [SMALL, SCALARS], ids=["vectors", "scalars"])
@pytest.mark.parametrize("name", GRAPHS)
def test_rows_and_columns_are_found_by_addresses(name: str, limits: Limits) -> None:
    assert_shared(ast_of(GRAPHS[name]()), limits)


@pytest.mark.parametrize("size", [(32, 9, 64), (36, 9, 35)])
def test_a_kernel_that_reads_what_it_writes_computes_each_element_once(
    size: tuple[int, int, int],
) -> None:
    plain = product(*size)
    (change,) = (n for n in plain.toposort() if n.op is Op.STORE)
    place, value = change.src
    added = change.with_src((place, value + UOp(Op.LOAD, value.dtype, (place,))))

    assert_shared(plain.substitute({change: added}))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.int32, dtypes.int8], ids=str)
def test_types(dtype: DType) -> None:
    ast = ast_of(empty(20, 37, dtype=dtype) @ empty(37, 24, dtype=dtype))
    generator = numpy.random.default_rng(0)
    arrays = [generator.integers(-9, 9, size).astype(dtype.name) for size in (480, 740, 888)]

    found, expected = (results(lowered(ast, SMALL, plan), arrays) for plan in (None, ()))
    numpy.testing.assert_array_equal(found, expected)
    assert_no_races(lowered(ast, SMALL))


def test_what_fills_leave_out_adds_nothing() -> None:
    arrays = [numpy.zeros(24 * 20, "f"), numpy.full(24 * 17, numpy.inf, "f"), numpy.ones(340, "f")]

    found = results(lowered(product(24, 17, 20), SMALL), arrays)
    assert numpy.isposinf(found).all()


# What it reads


@pytest.mark.parametrize(("size", "tile"), [((64, 64, 64), 32), ((96, 33, 64), 32)])
def test_a_buffer_is_read_once_for_each_tile(size: tuple[int, int, int], tile: int) -> None:
    rows, inner, columns = size
    ast = product(*size)
    linear = assert_shared(ast)

    once = inner * (rows * (columns // tile) + columns * (rows // tile))
    # Threads past the end of a fill read what the last one reads.
    assert once <= loads_of_buffers(linear) <= (1.3 if inner % 16 else 1) * once
    assert loads_of_buffers(lowered(ast, FAR)) >= 4 * once


def test_scores_and_windows_read_less_too() -> None:
    for name in ("batched", "scores", "einsum", "conv2d", "conv2d with strides"):
        ast = ast_of(GRAPHS[name]())
        shared, own = (loads_of_buffers(lowered(ast, limits)) for limits in (SMALL, FAR))
        assert (9 if "conv" in name else 5) * shared <= own, name


def test_windows_that_overlap_are_staged_once() -> None:
    ast = ast_of(GRAPHS["conv2d"]())
    image, weights = (s for s in plan_for(ast, SMALL) if isinstance(s, Stage))

    assert [len(d) for d in image.dimensions] == [3, 3]
    assert [len(d) for d in weights.dimensions] == [1, 1, 2]


def test_few_outputs_share_sums_and_operands() -> None:
    ast = product(20, 64, 32)
    limits = replace(GROUPS, threads=2048)
    linear = assert_shared(ast, limits)

    assert linear.launch("block") == (4, 4, 4)
    assert [u.dtype.base.count for u in linear.uops if u.op is Op.DEFINE_REG] == [1, 1]  # type: ignore[attr-defined]
    assert 4 * loads_of_buffers(linear) <= loads_of_buffers(lowered(ast, FAR, ()))
    assert assert_same(product(4, 64, 4), limits).launch("block")[0] == 64


# When it is done


@pytest.mark.slow
def test_blocks_are_as_deep_as_there_is_memory() -> None:
    ast = product(64, 64, 64)
    for size, used in ((1 << 14, 4096), (4095, 2048), (2047, 1024), (1024, 1024)):
        assert assert_shared(ast, replace(SMALL, shared_bytes=size)).shared_bytes == used
    assert stages_of(plan_for(ast, replace(SMALL, shared_bytes=100))) == 0


def test_a_plan_that_does_not_fit_is_the_one_without() -> None:
    ast = product(64, 64, 64)

    assert plan_for(ast, replace(SMALL, shared_bytes=100)) == plan_for(ast, FAR)
    assert_same(ast, replace(SMALL, shared_bytes=100))


@pytest.mark.parametrize(
    ("grid", "block"), [((3, 5, 1 << 20), (4, 2, 2)), ((1 << 20, 1, 1), (16, 1, 1))]
)
def test_axes_of_a_launch_are_kept(grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    limits = replace(SMALL, grid=grid, block=block, block_threads=16, block_wanted=16)
    linear = assert_shared(product(40, 20, 32), limits)

    assert math.prod(linear.launch("block")) <= 16
    for prefix, most in (("grid", grid), ("block", block)):
        assert all(n <= m for n, m in zip(linear.launch(prefix), most, strict=True))


def test_what_nothing_is_shared_of_stays_as_it_was() -> None:
    graphs = [buffer(64, 64) * buffer(64, 64), matmul(buffer(64, 64), buffer(64, 1))]
    for graph in graphs:
        ast = ast_of(graph)
        assert plan_for(ast, SMALL) == plan_for(ast, FAR)


def test_a_search_begins_with_both_plans() -> None:
    ast = product(64, 64, 64)
    for limits in (SMALL, FAR):
        found = [default(ast, limits), *starts(ast, limits)]
        plans = [candidate.plan for candidate in found if candidate is not None]
        assert len(plans) == len(found)
        assert {stages_of(plan) > 0 for plan in plans} == {True, False}
        assert all(applied(ast, plan, limits).op is Op.SINK for plan in plans)


def test_the_plan_says_what_is_shared() -> None:
    text = " ".join(map(str, plan_for(product(64, 64, 64), SMALL)))

    assert "stage([3.1][8*0.1.0+0.1.1] at 3.0) stage([3.1][4*1.1.0+1.1.1] at 3.0)" in text
    assert f"fill(3.1.{Part.FILL}.1)" in text


# Tiles


def test_odd_numbers_of_threads_need_axes_that_take_them() -> None:
    limits = replace(SMALL, block=(4, 2, 2), block_threads=16, block_wanted=16)
    ast = product(9, 20, 15)

    assert assert_same(ast, limits).launch("block") <= limits.block


def test_tiles_waste_little() -> None:
    assert loop_tile(64, 16, 4, exact=False) == (16, 4)
    assert loop_tile(128, 16, 4, exact=False) == (16, 4)
    assert loop_tile(14, 16, 4, exact=True) == (7, 2)
    for extent in range(4, 200):
        threads, copies = loop_tile(extent, 16, 4, exact=False)
        steps = threads * copies
        assert -(-extent // steps) * steps <= 1.5 * extent


def test_blocks_divide_what_is_reduced_where_some_number_near_does() -> None:
    assert [block_of(n, 16) for n in (64, 100, 33, 37, 54)] == [16, 20, 11, 16, 18]


# By hand

TILE: Plan = (
    *(Split(ROWS, 4), Bind((0, 0), GRID), Bind((0, 1), BLOCK)),
    *(Split(COLUMNS, 8), Bind((1, 0), GRID), Bind((1, 1), BLOCK)),
)
LEFT, RIGHT = ((((0, 1), 1),), (((1, 1), 1),))


def test_a_fill_that_nobody_dealt_out_is_done_by_every_thread() -> None:
    stage = Stage((3, 0), ((((3, 1), 1),), RIGHT))
    assert_shared(product(10, 24, 20), plan=(*TILE, Split(INNER, 8), stage))


def test_a_stage_of_a_stage() -> None:
    whole = Stage((1, 0), (((INNER, 1),), RIGHT))
    part = Stage((3, 0), ((((3, 1), 1),), RIGHT))
    deal = [Bind((*axis, Part.FILL, n), FILL) for axis, n in ((INNER, 0), ((1, 1), 0))]
    linear = assert_shared(product(10, 24, 20), plan=(*TILE, whole, *deal, Split(INNER, 8), part))
    assert linear.shared_bytes == 4 * (24 * 8 + 8 * 8)


@pytest.mark.parametrize("inner", [64, 50])
def test_threads_that_share_a_sum_share_operands(inner: int) -> None:
    block = (((3, 1, 0), 4), ((3, 1, 1), 1))
    plan: Plan = (
        *TILE,
        *(Split(INNER, 16, Tail.GUARD), Split((3, 1), 4), Bind((3, 1, 1), GROUP)),
        *(Stage((3, 0), (block, LEFT)), Stage((3, 0), (block, RIGHT))),
        *(Bind((3, 1, 0, Part.FILL, n), FILL) for n in (0, 1)),
        *(Bind((0, 1, Part.FILL, 0), FILL), Bind((1, 1, Part.FILL, 1), FILL)),
    )
    linear = assert_shared(product(10, inner, 20), plan=plan)
    assert linear.launch("block") == (4, 8, 4)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Bind((1, 0), BLOCK), "filled in each of several threads"),
        (Bind((3, 0), AxisKind.UNROLL), "filled in each of several threads or copies"),
        (Split((3, 0), 2), "has no rest: scratch is filled in it"),
        (Stage((3, 0), ((((3, 1), 1),), LEFT)), "bytes of scratch memory are too many"),
    ],
)
def test_illegal_step_is_told_why(step: Bind | Split | Stage, why: str) -> None:
    stage = Stage((3, 0), ((((3, 1), 1),), RIGHT))
    tile = tuple(s for s in TILE if s not in (Bind((1, 0), GRID), Bind((0, 0), GRID)))
    limits = replace(SMALL, shared_bytes=300)

    with pytest.raises(ArgumentError, match=why):
        applied(product(10, 24, 20), (*tile, Split(INNER, 8), stage, step), limits)


# Shared memory of custom kernels


def reversed_by_hand(out: Placeholder, x: Placeholder) -> UOp:
    """A kernel that goes through shared memory, and knows of no threads."""
    i, j = UOp.range(4, 0), UOp.range(4, 1)
    own = UOp(Op.DEFINE_LOCAL, x.dtype.ptr(4, "local"), (), 0)
    fill = UOp(Op.STORE, dtypes.void, (UOp(Op.INDEX, own.dtype, (own, i)), x[i]))
    filled = UOp(Op.AFTER, own.dtype, (own, UOp(Op.END, dtypes.void, (fill, i))))
    value = UOp(Op.LOAD, x.dtype, (UOp(Op.INDEX, own.dtype, (filled, 3 - j)),))
    return UOp.sink(UOp(Op.END, dtypes.void, (out.store(j, value), j)))


def test_one_thread_fills_what_a_custom_kernel_fills() -> None:
    """Every thread would write every element: a race, if of equal values."""
    ast = ast_of(empty(4).custom_kernel(empty(4), fxn=reversed_by_hand)[0])

    linear = assert_same(ast, GROUPS)

    (thread,) = [u for u in linear.uops if u.op is Op.SPECIAL and u.dtype is not dtypes.void]
    stores = [u for u in linear.uops if u.op is Op.STORE]
    (fill,) = [u for u in stores if pointer_of(u.src[0]).op is Op.DEFINE_LOCAL]
    assert thread in fill.src[0].src[2].toposort()
