"""Prefetches of the next row: loads of one pass, where rows of a large array have several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tiny_testing.kernels import element, load, store
from tinycore.dtype import dtypes
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Bind, Plan, Split
from tinycore.render.base import Limits, Renderer, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

ROWS, COLUMNS = 64, 128
SIZE = ROWS * COLUMNS
ROW_BYTES = 4 * COLUMNS
LIMITS = Limits(vector_bytes=32, stream_bytes=4 * SIZE)
LANES = tuple(step for n in (1, 3) for step in (Split((n,), 8), Bind((n, 1), AxisKind.VECTOR)))
PARTS = (*LANES, Split((3, 0), 2), Bind((3, 0, 1), AxisKind.PARTIAL))

Value = Callable[[UOp, UOp], UOp]


def rows(summed: Value, stored: Value, pitch: int = COLUMNS) -> UOp:
    """A kernel that folds values of each row of a matrix, and then stores one for each place."""
    i, j, k = UOp.range(ROWS, 0), UOp.range(COLUMNS, 3), UOp.range(COLUMNS, 1)
    x, y = (
        load(element(1, dtypes.float32, ROWS * pitch, i * pitch + at), dtypes.float32)
        for at in (j, k)
    )
    total = UOp(Op.REDUCE, dtypes.float32, (summed(x, x), j), Op.ADD)
    change = store(element(0, dtypes.float32, SIZE, i * COLUMNS + k), stored(y, total))
    return UOp.sink(UOp(Op.END, dtypes.void, (change, i, k)))


def fetches(kernel: UOp, limits: Limits = LIMITS, plan: Plan = LANES) -> list[int]:
    """Bytes that each prefetching load fetches ahead."""
    linear = lower(kernel, Renderer(limits), "rows", plan)
    loads = [u for u in linear.uops if u.op is Op.LOAD and u.arg is not None]
    assert all(pointer_of(u.src[0]).arg == 1 for u in loads)
    return [u.arg for u in loads]


def much(x: UOp, _: UOp) -> UOp:
    for _step in range(10):
        x = x * x + 1.0
    return x


def test_a_row_that_is_read_again_fetches_the_next() -> None:
    assert fetches(rows(lambda x, _: x, lambda y, total: y * total)) == [ROW_BYTES]


def test_the_pass_that_computes_much_does() -> None:
    little = rows(lambda x, _: x, lambda y, total: y * total)

    assert len(fetches(rows(much, lambda y, total: y * total), plan=PARTS)) == 2
    assert len(fetches(little, plan=PARTS)) == 1


def turned(rows: int, columns: int) -> UOp:
    """A transposed copy."""
    i, j = UOp.range(rows, 0), UOp.range(columns, 1)
    x = load(element(1, dtypes.float32, rows * columns, j * rows + i), dtypes.float32)
    change = store(element(0, dtypes.float32, rows * columns, i * columns + j), x)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, i, j)))


def test_blocks_of_a_transposed_copy_fetch_those_after_the_next() -> None:
    limits = replace(LIMITS, stream_bytes=4 * 1024 * 64)
    kernel = turned(1024, 64)
    plan = plan_for(kernel, limits)
    square = [step.by for step in plan if step in (Split((1,), 16), Split((0,), 16))]

    assert square == [16, 16]
    assert fetches(kernel, limits, plan) == 2 * [2 * 16 * 1024 * 4] * 16, "two vectors of 16 rows"
    assert fetches(turned(32, 2048), limits, plan_for(turned(32, 2048), limits)) == []
    assert fetches(kernel, replace(limits, stream_bytes=1 << 30), plan) == []


@pytest.mark.parametrize(
    ("kernel", "limits"),
    [
        (rows(lambda x, _: x, lambda _, total: total), LIMITS),
        (rows(lambda x, _: x, lambda y, total: y * total, pitch=2 * COLUMNS), LIMITS),
        (
            rows(lambda x, _: x, lambda y, total: y * total),
            Limits(vector_bytes=32, stream_bytes=8 * SIZE),
        ),
        (rows(lambda x, _: x, lambda y, total: y * total), Limits(vector_bytes=32)),
        (
            rows(lambda x, _: x, lambda y, total: y * total),
            Limits(vector_bytes=32, stream_bytes=4 * SIZE, cache_bytes=ROW_BYTES),
        ),
    ],
    ids=["read once", "parts of rows", "small", "no such cache", "rows too long"],
)
def test_others_do_not(kernel: UOp, limits: Limits) -> None:
    assert fetches(kernel, limits) == []
