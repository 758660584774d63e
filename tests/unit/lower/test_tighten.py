"""Tighter bounds: folds without the steps that a comparison of indices makes neutral."""

from __future__ import annotations

import math

import pytest

from tests.unit.lower.matrices import MMA
from tinycore.dtype import dtypes
from tinycore.lower.tighten import tighten
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

GROUP = UOp.range(4, (0,), AxisKind.GRID)
LANE = UOp.range(128, (1,), AxisKind.LANE)
STEP = UOp.range(8, (2,), AxisKind.REDUCE)
ROW = GROUP * 128 + LANE
COLUMN = STEP * 64
"""The first column of a step."""


def folded(hidden: UOp, neutral: float, fold: Op) -> UOp:
    """A kernel that folds the sums of a product, but for those that are hidden."""
    out, source = (UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(512), (), slot) for slot in (0, 1))
    held = UOp(Op.LOAD, dtypes.float32, (UOp(Op.INDEX, source.dtype, (source, STEP)),))
    product = UOp(Op.MATRIX, dtypes.float32, (held, held, held), MMA)
    value = hidden.where(UOp.const(dtypes.float32, neutral), product)
    total = UOp(Op.REDUCE, dtypes.float32, (value, STEP), fold)
    store = UOp(Op.STORE, dtypes.void, (UOp(Op.INDEX, out.dtype, (out, ROW)), total))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (store, GROUP, LANE)))
    return rewrite(kernel, simplify, name="simplify a test")


def steps_of(kernel: UOp) -> list[int]:
    """The steps of the fold in each group."""
    (fold,) = (n for n in kernel.toposort() if n.op is Op.REDUCE)
    ends = [fold.src[1].src[0].substitute({GROUP: UOp.index(group)}) for group in range(4)]
    return [int(rewrite(end, simplify, name="simplify an end").arg) for end in ends]


def test_steps_that_no_row_of_a_group_sees_are_left_out() -> None:
    kernel = tighten(folded(ROW < COLUMN, -math.inf, Op.MAX))

    expected = [
        sum(any(128 * group + lane >= 64 * step for lane in range(128)) for step in range(8))
        for group in range(4)
    ]
    assert steps_of(kernel) == expected == [2, 4, 6, 8]


def test_a_fold_whose_first_steps_change_nothing_goes_backwards() -> None:
    kernel = tighten(folded(COLUMN + 63 < ROW, 0.0, Op.ADD))

    expected = [
        sum(any(64 * step + 63 >= 128 * group + lane for lane in range(128)) for step in range(8))
        for group in range(4)
    ]
    assert steps_of(kernel) == expected == [8, 6, 4, 2]
    (load,) = (n for n in kernel.toposort() if n.op is Op.LOAD)
    (loop,) = (n for n in load.src[0].src[1].ranges if n.arg.kind is AxisKind.REDUCE)
    assert load.src[0].src[1].substitute({loop: UOp.index(0)}).vmax == 7


@pytest.mark.parametrize(
    ("hidden", "value", "fold"),
    [
        (ROW < COLUMN, 0.0, Op.MAX),  # less than what is folded, perhaps
        (ROW < COLUMN, 1.0, Op.ADD),
        (LANE < COLUMN - 1000, -math.inf, Op.MAX),  # never
        (ROW < COLUMN * STEP, -math.inf, Op.MAX),
        (STEP % 2 < ROW - 100, -math.inf, Op.MAX),
    ],
)
def test_other_folds_have_all_steps(hidden: UOp, value: float, fold: Op) -> None:
    kernel = folded(hidden, value, fold)

    assert steps_of(tighten(kernel)) == [8] * 4


def test_folds_without_a_unit_stay_as_they_are() -> None:
    kernel = folded(ROW < COLUMN, -math.inf, Op.MAX)
    products = [n for n in kernel.toposort() if n.op is Op.MATRIX]
    plain = kernel.substitute({n: n.src[0] for n in products})

    assert tighten(plain) is plain
