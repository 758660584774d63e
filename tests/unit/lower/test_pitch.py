"""Rows that lie apart in shared memory, joined to one loop (`Fuse.pitch`)."""

from __future__ import annotations

import pytest

from tinycore import dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.steps.fuse import Fuse
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import apply_plan
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op


def rows_in_scratch(pitch: int, padding: int = 8) -> UOp:
    """Sums of two neighbors below one another of 4 rows of 6, staged in rows of a pitch."""
    source = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(5 * pitch), (), 1)
    target = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(4 * 6), (), 0)
    row, column = (UOp.range(size, (n,), AxisKind.LOOP) for n, size in enumerate((4, 6)))
    tap = UOp.range(2, (2,), AxisKind.REDUCE)
    place = UOp(Op.INDEX, source.dtype, (source, (row + tap) * pitch + column))
    value = UOp(Op.LOAD, dtypes.float32, (place,))
    total = UOp(Op.REDUCE, dtypes.float32, (value, tap), Op.ADD)
    index = UOp(Op.INDEX, target.dtype, (target, row * 6 + column))
    store = UOp(Op.STORE, dtypes.void, (index, total))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (store, row, column)))
    dimensions = ((((0,), 1), ((2,), 1)), (((1,), 1),))
    return apply_plan(kernel, (Stage(None, dimensions, padding=padding),))


def test_rows_that_lie_apart_in_shared_memory_are_one_loop() -> None:
    kernel = apply_plan(rows_in_scratch(6, padding=2), (Fuse((0,), (1,), 8, 32),))
    loops = {n.arg.number: n.src[0].arg for n in kernel.toposort() if n.op is Op.RANGE}
    (store,) = (
        n for n in kernel.toposort() if n.op is Op.STORE and n.src[0].src[0].op is Op.DEFINE_GLOBAL
    )

    assert loops[(0,)] == 32
    assert (1,) not in loops
    assert len(store.src[0].src) == 3  # a gate


@pytest.mark.parametrize(("pitch", "steps"), [(7, 32), (8, 64)], ids=["other rows", "past its end"])
def test_rows_that_lie_otherwise_are_not(pitch: int, steps: int) -> None:
    with pytest.raises(ArgumentError, match="steps apart"):
        apply_plan(rows_in_scratch(6, padding=2), (Fuse((0,), (1,), pitch, steps),))
