"""Blocks of gathers become rows and shuffles, and hold what they held before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from tiny_testing.kernels import element, load, store
from tinycore import Context, Tensor
from tinycore.dtype import DType, dtypes
from tinycore.lower.hints import mark_nontemporal
from tinycore.lower.pipeline import expand_loops
from tinycore.lower.plan import plan_for
from tinycore.lower.register_transpose import transposed
from tinycore.lower.tile import Bind, Split, apply_plan
from tinycore.render.base import STREAM, Limits, Renderer
from tinycore.uop.evaluate import evaluate
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

COMPILED = ("CPU:CLANG", "CPU:LLVM")


def turned(rows: int, columns: int) -> UOp:
    """A kernel that stores a (columns, rows) array as its transpose."""
    i, j = UOp.range(rows, 0), UOp.range(columns, 1)
    value = load(element(1, dtypes.float32, rows * columns, j * rows + i), dtypes.float32)
    change = store(element(0, dtypes.float32, rows * columns, i * columns + j), value)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, i, j)))


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_columns_of_a_square(count: int) -> None:
    square = numpy.arange(count * count).reshape(count, count)
    rows = [
        UOp(
            Op.VECTORIZE, dtypes.int32.vec(count), tuple(UOp.const(dtypes.int32, int(n)) for n in r)
        )
        for r in square
    ]

    columns = [evaluate(column, {}) for column in transposed(rows)]

    assert columns == [tuple(column) for column in square.T.tolist()]


def test_no_element_is_loaded_alone() -> None:
    limits = Limits(vector_bytes=32)
    kernel = turned(40, 24)

    planned = expand_loops(apply_plan(kernel, plan_for(kernel, limits)), Renderer(limits))
    loads = [n for n in planned.toposort() if n.op is Op.LOAD]

    assert {n.dtype for n in loads} == {dtypes.float32.vec(8)}


@pytest.mark.parametrize(("extent", "tall"), [(48, 16), (1000, 16), (8, 8), (20, 8), (40, 8)])
def test_whole_lines_are_read_where_little_is_read_twice(extent: int, tall: int) -> None:
    plan = plan_for(turned(extent, 64), Limits(vector_bytes=32))

    assert Split((1,), 8) in plan
    assert Split((0,), tall) in plan


@pytest.mark.parametrize(
    ("rows", "columns", "wide"),
    [(64, 64, 16), (64, 40, 8), (40, 64, 8), (1000, 64, 8)],
    ids=["whole lines", "parts of lines stored", "parts of lines read", "a line read twice"],
)
def test_whole_lines_are_stored_in_turn_past_the_caches(rows: int, columns: int, wide: int) -> None:
    limits = Limits(vector_bytes=32, stream_bytes=1)
    kernel = turned(rows, columns)
    plan = plan_for(kernel, limits)

    stored = mark_nontemporal(expand_loops(apply_plan(kernel, plan), Renderer(limits)), limits)

    assert Split((1,), wide) in plan
    assert {n.arg == STREAM for n in stored.every(Op.STORE)} == {wide == 16}


@pytest.mark.parametrize(
    ("rows", "columns", "blocks"),
    [(512, 512, {4, 2}), (48, 512, {2}), (512, 48, {4}), (80, 80, set())],
)
def test_neighboring_squares_are_copied_in_blocks_without_rest(
    rows: int, columns: int, blocks: set[int]
) -> None:
    kernel = turned(rows, columns)
    plan = plan_for(kernel, Limits(vector_bytes=64))
    cut = {step.by for step in plan if isinstance(step, Split) and len(step.axis) == 2}

    assert cut == blocks, [str(step) for step in plan]
    loads = expand_loops(apply_plan(kernel, plan), Renderer(Limits(vector_bytes=64))).every(Op.LOAD)
    assert {n.dtype for n in loads} == {dtypes.float32.vec(16)}


def test_threads_share_a_transpose() -> None:
    plan = plan_for(turned(512, 512), Limits(vector_bytes=32, threads=2))

    assert AxisKind.PARALLEL in {step.kind for step in plan if isinstance(step, Bind)}


@pytest.mark.sample(9)
@pytest.mark.parametrize("device", [pytest.param(d, marks=pytest.mark.device(d)) for d in COMPILED])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int64, dtypes.uint8, dtypes.float16])
@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: x.permute(2, 1, 0),
        lambda x: x.permute(0, 2, 1),
        lambda x: x.permute(1, 0, 2),
        lambda x: x.flip(0).permute(2, 0, 1),
        lambda x: x.permute(2, 1, 0) + x.permute(2, 1, 0).flip(2),
    ],
)
def test_permuted_copies(device: str, dtype: DType, arrange: Callable[[Tensor], Tensor]) -> None:
    array: Any = numpy.random.default_rng(3).integers(0, 99, (37, 18, 69))
    with Context(DEV=device):
        tensor = Tensor(array, dtype=dtype).realize()

        result = arrange(tensor).numpy()
        with Context(DEV="PYTHON"):
            expected = arrange(Tensor(array, dtype=dtype)).numpy()

    numpy.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("device", [pytest.param(d, marks=pytest.mark.device(d)) for d in COMPILED])
@pytest.mark.parametrize("shape", [(32, 10), (10, 32), (33, 20), (20, 33), (66, 130), (24, 17)])
def test_a_transpose_is_added_where_the_last_tile_must_not_shift(
    device: str, shape: tuple[int, int]
) -> None:
    """As gradients are added to weights: what was overwritten must not be read again."""
    before, change = numpy.random.default_rng(4).integers(0, 99, (2, *shape), dtype="int32")
    with Context(DEV=device):
        held = Tensor(before).contiguous().realize()
        held.assign(held + Tensor(change.T.copy()).realize().T).realize()

    numpy.testing.assert_array_equal(held.numpy(), before + change)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_plans_of_transposes_in_place_exist_for_all_sizes(vector_bytes: int) -> None:
    for rows in range(2, 70, 9):
        for columns in range(2, 70, 7):
            i, j = UOp.range(rows, 0), UOp.range(columns, 1)
            place = element(0, dtypes.float32, rows * columns, i * columns + j)
            turned = load(element(1, dtypes.float32, rows * columns, j * rows + i), dtypes.float32)
            change = store(place, load(place, dtypes.float32) + turned)
            kernel = UOp.sink(UOp(Op.END, dtypes.void, (change, i, j)))

            apply_plan(kernel, plan_for(kernel, Limits(vector_bytes=vector_bytes)))
