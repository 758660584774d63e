"""Rows that threads of a group fold and store: what each of them holds, and legal plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.lower.legal import applied
from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import LIMITS, Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context, Tensor, Variable
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.errors import ArgumentError
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import (
    Bind,
    Split,
    Unite,
)
from tinycore.render.base import Limits, LinearKernel, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

CARD = replace(LIMITS, threads=1 << 10, block_wanted=64, vector_bytes=16)


def softmax(*shape: int) -> UOp:
    """The kernel of a softmax of rows."""
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(CARD), limits=CARD)
    with accelerator(parts), Context(DEV="CARD"):
        (item,) = Tensor.empty(*shape).softmax(-1).schedule()
    return item.ast


def lowered(ast: UOp, limits: Limits) -> LinearKernel:
    return lower(ast, PythonRenderer(limits), "rows")


def loads(linear: LinearKernel) -> int:
    """Loads from memory that the program has written out."""
    found = (u for u in linear.uops if u.op is Op.LOAD)
    return sum(pointer_of(u.src[0]).op is Op.DEFINE_GLOBAL for u in found)


def test_a_row_that_threads_hold_is_loaded_once() -> None:
    linear = lowered(softmax(64, 1024), CARD)

    assert linear.launch("block") == (32, 2, 1)
    assert linear.launch("grid") == (32, 1, 1)
    assert loads(linear) == 1024 // 4 // 32
    assert not any(u.op in (Op.RANGE, Op.BARRIER) for u in linear.uops)


def test_rows_of_a_subgroup_need_no_barrier() -> None:
    linear = lowered(softmax(256, 128), CARD)

    assert linear.launch("block") == (8, 8, 1)
    assert linear.launch("grid") == (32, 1, 1)
    assert not any(u.op in (Op.BARRIER, Op.DEFINE_LOCAL) for u in linear.uops)
    assert [u.arg for u in linear.uops if u.op is Op.SHUFFLE] == [1, 2, 4] * 2


def test_a_longer_row_is_loaded_for_each_fold() -> None:
    limits = replace(CARD, block_threads=64)
    linear = lowered(softmax(64, 4096), limits)

    assert linear.launch("block") == (64, 1, 1)
    assert loads(linear) == 3 * 4  # of four vectors each


def test_threads_that_share_no_sums_have_rows_of_their_own() -> None:
    linear = lowered(softmax(256, 128), replace(CARD, shared_is_near=False, vector_bytes=0))

    assert linear.launch("block") == (64, 1, 1)
    assert linear.launch("grid") == (4, 1, 1)


def test_the_plan_is_legal() -> None:
    ast = softmax(64, 300)
    plan = plan_for(ast, CARD)

    assert any(isinstance(step, Unite) for step in plan)
    applied(ast, plan, CARD)


def test_sums_of_symbolic_length_are_planned_as_before() -> None:
    length, data = Variable("length", 1, 8), Tensor(list(range(8)), device="PYTHON").realize()
    total = data[: length.bind(3)].sum() + data[: length.bind(4)].sum()

    assert total.item() == 9


def cut(ast: UOp, *steps: Split | Bind) -> UOp:
    return applied(ast, steps, CARD)


def loops(ast: UOp, kind: AxisKind) -> list[tuple[int, ...]]:
    return [n.arg.number for n in ast.toposort() if n.op is Op.RANGE and n.arg.kind is kind]


def test_loops_that_are_not_as_long_are_not_united() -> None:
    ast = softmax(64, 32)
    first, second = loops(ast, AxisKind.REDUCE)
    halved = cut(ast, Split(first, 16))

    with pytest.raises(ArgumentError, match="as long"):
        applied(halved, (Unite(((*first, 1), second)),), CARD)


def test_a_fold_over_loops_that_others_fold_one_by_one_is_planned_as_before() -> None:
    """The mean of a window whose padding does not count: a sum, and how many are summed."""
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(CARD), limits=CARD)
    values = [[[[float(k + 4 * j + 20 * i) for k in range(4)] for j in range(5)] for i in range(4)]]

    def means(device: str) -> Tensor:
        x = Tensor([values], device=device)
        return x.avg_pool2d((2, 3, 2), 2, padding=(1, 1, 0), count_include_pad=False)

    with accelerator(parts):
        assert means("CARD").tolist() == means("PYTHON").tolist()
