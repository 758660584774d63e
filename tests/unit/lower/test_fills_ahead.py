"""Stages of several copies: a group fills one while it reads others, and waits for each in time.

The interpreter watches shared memory in such kernels: what is read before a barrier, or written
while others still read it, is a DeviceError.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from interpreted import Program, checked_product, computed

from tests.unit.lower.legal import applied
from tests.unit.lower.matrices import COPIES, MMA, MMA_BFLOAT, MMA_INT8
from tests.unit.lower.test_tensorize import CARD, INNER, ROWS, SIZES, product_for
from tinycore import Tensor
from tinycore.errors import ArgumentError, DeviceError
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import (
    Bind,
    Plan,
    Split,
    Stage,
    Tail,
)
from tinycore.render.base import LATE, Limits, LinearKernel, pointer_of
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

ASYNC = replace(CARD, matrix=(MMA, MMA_BFLOAT, MMA_INT8), copies=COPIES)
LONG = (64, 256, 64)
"""A product of 8 steps, more than there are copies."""


def with_copies(ast: UOp, copies: int) -> Plan:
    """The plan for a card without asynchronous copies, with stages of so many copies."""
    plan = plan_for(ast, replace(ASYNC, copies=None))
    return tuple(
        replace(s, copies=copies) if isinstance(s, Stage) and s.at == (*INNER, 0) else s
        for s in plan
    )


def check(
    unit: MatrixUnit, size: tuple[int, int, int], limits: Limits, plan: Plan | None = None
) -> LinearKernel:
    return checked_product(product_for(unit, size), size, limits, plan)


def right_turned(size: tuple[int, int, int]) -> UOp:
    """A product whose right operand lies along the sum, as the left one does."""
    rows, inner, columns = size
    left = Tensor.empty(rows, inner, dtype="float16", device="PYTHON")
    right = Tensor.empty(columns, inner, dtype="float16", device="PYTHON")
    return left.matmul(right.T, dtype="float32").schedule()[-1].ast


def number_of(linear: LinearKernel, op: Op) -> int:
    return sum(u.op is op for u in linear.uops)


def test_without_shared_memory_no_operand_is_staged() -> None:
    ast = product_for(MMA, LONG)
    copies, none = (replace(ASYNC, shared_bytes=0, copies=way) for way in (COPIES, None))

    assert plan_for(ast, copies) == plan_for(ast, none)
    assert number_of(check(MMA, LONG, copies), Op.MATRIX) == 0


# --- what it computes


@pytest.mark.sample(4)
@pytest.mark.parametrize("size", [*SIZES, LONG], ids=str)
@pytest.mark.parametrize("copies", [2, 3, 4])
def test_products_of_all_sizes(size: tuple[int, int, int], copies: int) -> None:
    check(MMA, size, ASYNC, with_copies(product_for(MMA, size), copies))


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", [MMA, MMA_BFLOAT, MMA_INT8], ids=lambda unit: unit.name)
def test_products_of_all_units_are_planned(unit: MatrixUnit) -> None:
    check(unit, LONG, ASYNC)


def test_a_large_product_is_planned_with_copies_where_the_device_has_them() -> None:
    ast = product_for(MMA, (1024, 1024, 1024))
    plans = [plan_for(ast, limits) for limits in (CARD, ASYNC)]
    copies = [{s.copies for s in plan if isinstance(s, Stage)} for plan in plans]

    assert copies == [{1}, {3}]
    applied(ast, plans[1], ASYNC)


def test_copies_fit_beside_those_of_another_group() -> None:
    ast = product_for(MMA, (1024, 1024, 1024))
    for size, expected in ((48, 2), (64, 2), (96, 3), (160, 4), (227, 4)):
        limits = replace(ASYNC, shared_bytes=size << 10)
        (copies,) = {s.copies for s in plan_for(ast, limits) if isinstance(s, Stage)}
        assert copies == expected, size


def test_a_step_has_one_barrier_behind_the_fills_of_first_steps() -> None:
    linear = check(MMA, LONG, ASYNC, with_copies(product_for(MMA, LONG), 3))
    ops = [u.op for u in linear.uops]

    assert number_of(linear, Op.BARRIER) == 1
    assert ops.index(Op.RANGE) < ops.index(Op.BARRIER) < ops.index(Op.MATRIX)


def test_the_fill_of_a_later_step_is_loaded_early_and_stored_late() -> None:
    ast = right_turned(LONG)
    linear, _ = computed(ast, with_copies(ast, 2), ASYNC)
    loop = linear.uops[next(i for i, u in enumerate(linear.uops) if u.op is Op.RANGE) :]
    matrices = [i for i, u in enumerate(loop) if u.op is Op.MATRIX]
    stores = [i for i, u in enumerate(loop) if u.op is Op.STORE and u.arg == LATE]
    loads = [
        i
        for i, u in enumerate(loop)
        if u.op is Op.LOAD and pointer_of(u.src[0]).op is Op.DEFINE_GLOBAL
    ]

    assert stores
    assert max(loads) < matrices[0]
    assert matrices[-1] < min(stores)


def test_lanes_that_are_stored_apart_wait_in_registers() -> None:
    linear = check(MMA, LONG, ASYNC, with_copies(product_for(MMA, LONG), 2))
    when = {u.arg for u in linear.uops if u.op is Op.STORE and u.src[1].op is Op.EXTRACT}

    assert when == {None, LATE}  # the first are stored before the loop


def test_loops_around_the_sum_begin_anew() -> None:
    """Each step of an outer loop waits until the last has read what it fills first."""
    plan: Plan = (
        *(Split(ROWS, 16), Split((1,), 16), Bind((*ROWS, 1), AxisKind.BLOCK)),
        *(Bind((1, 1), AxisKind.BLOCK), Split(INNER, 16, Tail.GUARD)),
        Stage((*INNER, 0), ((((*ROWS, 1), 1),), (((*INNER, 1), 1),)), copies=3),
        Bind((*ROWS, 1, Part.FILL, 0), AxisKind.FILL),
        Bind((*INNER, 1, Part.FILL, 0), AxisKind.FILL),
    )
    linear = check(MMA, (64, 128, 64), ASYNC, plan)

    assert number_of(linear, Op.RANGE) > 2
    assert number_of(linear, Op.BARRIER) == 2


# --- what is found


def without_barriers(uops: Program) -> Program:
    return tuple(u for u in uops if u.op is not Op.BARRIER)


def test_a_barrier_that_is_forgotten_is_found() -> None:
    ast = product_for(MMA, LONG)
    with pytest.raises(DeviceError, match="that another thread has written: no barrier"):
        computed(ast, with_copies(ast, 3), ASYNC, without_barriers)


def test_a_store_before_the_barrier_is_found() -> None:
    def early(uops: Program) -> Program:
        barrier = next(u for u in uops if u.op is Op.BARRIER)
        last = max(i for i, u in enumerate(uops) if u.op is Op.STORE and u.arg == LATE)
        rest = [u for u in uops if u is not barrier]
        return (*rest[:last], barrier, *rest[last:])

    ast = product_for(MMA, LONG)
    with pytest.raises(DeviceError, match="another thread"):
        computed(ast, with_copies(ast, 2), ASYNC, early)


# --- what is refused


def test_copies_count_as_shared_memory() -> None:
    ast = product_for(MMA, LONG)
    with pytest.raises(ArgumentError, match="bytes of scratch memory are too many"):
        applied(ast, with_copies(ast, 8), replace(ASYNC, shared_bytes=48 << 10))


def test_the_text_of_a_plan_tells_the_layout() -> None:
    plan = with_copies(product_for(MMA, LONG), 3)
    assert "4 x 16 bytes of a row swizzled, 3 in turn" in " ".join(map(str, plan))
