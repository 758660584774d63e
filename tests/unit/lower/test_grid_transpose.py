"""Transposed copies by groups: squares through shared memory, on cards that state their units."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
from interpreted import computed

from tests.unit.lower.test_units import SUMMING
from tinycore import Tensor
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Bind
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

MOVING = replace(SUMMING, threads=64)


def turned(*shape: int, dtype: DType = dtypes.float32) -> UOp:
    """The last two axes exchanged."""
    x = Tensor.empty(*shape, dtype=dtype, device="PYTHON")
    return x.transpose(-1, -2).contiguous().schedule()[-1].ast


def arrays(ast: UOp, limits: Limits = MOVING) -> list[DType]:
    """Types of the arrays in shared memory of a kernel's plan."""
    linear = lower(ast, PythonRenderer(limits), "copy")
    return [
        u.dtype.base
        for u in linear.uops
        if u.op is Op.DEFINE_LOCAL and isinstance(u.dtype, PointerDType)
    ]


@pytest.mark.parametrize("shape", [(64, 96), (40, 33), (3, 17, 50), (2, 3, 16, 16)])
def test_squares_arrive_where_they_should(shape: tuple[int, ...]) -> None:
    ast = turned(*shape)
    linear, (found, given) = computed(ast, plan_for(ast, MOVING), MOVING)

    expected = given.reshape(shape).swapaxes(-1, -2)
    assert numpy.array_equal(found, expected.reshape(-1))
    assert arrays(ast) == [dtypes.float32]
    assert linear.launch("block")[:2] == (32, 8)


def test_threads_store_words_of_halves() -> None:
    ast = turned(3, 80, 33, dtype=dtypes.float16)
    linear, (found, given) = computed(ast, plan_for(ast, MOVING), MOVING)

    expected = given.reshape(3, 80, 33).swapaxes(-1, -2)
    assert numpy.array_equal(found, expected.reshape(-1))
    stored = [u.src[1].dtype for u in linear.uops if u.op is Op.STORE]
    assert dtypes.float16.vec(2) in stored
    assert arrays(ast) == [dtypes.float16]


@pytest.mark.parametrize("bounds", [(0, 0), (1, 1)], ids=["as it is", "padded"])
def test_neighbors_load_side_by_side_where_squares_pass_the_end(bounds: tuple[int, int]) -> None:
    x = Tensor.empty(64, 56, device="PYTHON").pad(((0, 0), bounds))
    ast = x.T.contiguous().schedule()[-1].ast
    plan = plan_for(ast, MOVING)

    fills = [s for s in plan if isinstance(s, Bind) and s.kind is AxisKind.FILL]
    assert [s.axis[0] for s in fills] == [1, 0]
    _, (found, _) = computed(ast, plan, MOVING)
    _, (expected, _) = computed(ast, (), MOVING)
    assert numpy.array_equal(found, expected)


def test_rows_of_a_square_begin_in_other_banks() -> None:
    linear = lower(turned(64, 64), PythonRenderer(MOVING), "copy")
    (array,) = [u for u in linear.uops if u.op is Op.DEFINE_LOCAL]

    assert isinstance(array.dtype, PointerDType)
    assert array.dtype.size == 32 * (32 + 1)


@pytest.mark.parametrize(
    ("ast", "limits"),
    [
        pytest.param(turned(64, 64), replace(MOVING, units=0), id="no card"),
        pytest.param(turned(64, 64), replace(MOVING, shared_bytes=0), id="no shared memory"),
        pytest.param(turned(64, 64), replace(MOVING, shared_bytes=4096), id="no room for a square"),
        pytest.param(turned(64, 8), MOVING, id="a short side"),
        pytest.param(
            (Tensor.empty(64, 64, device="PYTHON") + 1).contiguous().schedule()[-1].ast,
            MOVING,
            id="nothing is turned",
        ),
    ],
)
def test_other_copies_are_made_by_threads_alone(ast: UOp, limits: Limits) -> None:
    assert not arrays(ast, limits)


def test_squares_of_bool_are_copied_without_shared_memory() -> None:
    x = Tensor.empty(64, 96, dtype=dtypes.bool, device="PYTHON")
    ast = x.T.contiguous().schedule()[-1].ast

    assert arrays(ast) == []


def several(*factors: int) -> UOp:
    """Products of one matrix and some numbers, each turned and stored."""
    x = Tensor.empty(64, 64, device="PYTHON")
    return Tensor.schedule(*((x * factor).T.contiguous() for factor in factors))[-1].ast


@pytest.mark.parametrize("factors", [(1, 2), (2, 1)], ids=str)
def test_threads_share_the_squares_of_several_outputs(factors: tuple[int, int]) -> None:
    ast = several(*factors)
    plan = plan_for(ast, MOVING)
    linear, (found, _, given) = computed(ast, plan, MOVING)

    assert numpy.array_equal(found, factors[0] * given.reshape(64, 64).T.reshape(-1))
    assert len(arrays(ast)) == 2
    assert sum(isinstance(s, Bind) and s.kind is AxisKind.FILL for s in plan) == 4
    assert linear.launch("block")[:2] == (32, 8)


def test_outputs_whose_squares_have_no_room_are_stored_by_threads_alone() -> None:
    few = replace(MOVING, shared_bytes=32 << 10)

    assert len(arrays(several(*range(1, 8)), few)) == 7
    assert arrays(several(*range(1, 9)), few) == []
