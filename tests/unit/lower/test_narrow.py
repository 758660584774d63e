"""Operands of narrow types in memory that a group shares: widened when they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy
import pytest

from tests.unit.lower.test_matrix_product import converted_product
from tests.unit.lower.test_shared import SMALL
from tests.unit.lower.test_tensorize import check, computed
from tinycore import Context, Tensor, dtypes
from tinycore.dtype import DType, PointerDType
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import plan_from_text, plan_to_text
from tinycore.render.base import Limits, LinearKernel, Renderer, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

KEPT = (dtypes.float16, dtypes.bfloat16, dtypes.int8)
NARROW = replace(SMALL, converted=KEPT, access_alignment=16)
SIZE = (64, 32, 64)


class Storing(Renderer):
    """A language that only stores the small floats, but for what its device converts."""

    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})


def lowered(ast: UOp, limits: Limits) -> LinearKernel:
    with Context(VERIFY=1):
        return lower(ast, Storing(limits), "product", plan_for(ast, limits))


def shared_types(linear: LinearKernel) -> list[DType]:
    """The types of the arrays in shared memory."""
    arrays = [u.dtype for u in linear.uops if u.op is Op.DEFINE_LOCAL]
    return [a.base for a in arrays if isinstance(a, PointerDType)]


@pytest.mark.parametrize("size", [SIZE, (37, 50, 29), (100, 33, 129)], ids=str)
@pytest.mark.parametrize("dtype", KEPT, ids=lambda d: d.name)
def test_operands_are_shared_as_they_are(dtype: DType, size: tuple[int, int, int]) -> None:
    ast = converted_product(*size, dtype.name)
    plan = plan_for(ast, NARROW)
    linear = check(ast, plan, size, uses_unit=False)

    assert shared_types(linear) == [dtype] * 2
    assert 2 * linear.shared_bytes <= lowered(ast, SMALL).shared_bytes + 64
    assert plan_from_text(plan_to_text(plan)) == plan


def test_types_that_are_converted_are_shared_as_bits() -> None:
    linear = lowered(converted_product(*SIZE, "bfloat16"), NARROW)

    assert shared_types(linear) == [dtypes.uint16] * 2
    casts = [u for u in linear.uops if u.op is Op.CAST and u.dtype.scalar() is dtypes.float32]
    assert {u.src[0].dtype.scalar() for u in casts} == {dtypes.bfloat16}


def test_types_that_arithmetic_converts_are_converted_once() -> None:
    linear = lowered(converted_product(*SIZE, "fp8e4m3"), NARROW)

    assert shared_types(linear) == [dtypes.float32] * 2


def test_vectors_of_a_fill_are_as_wide_as_of_a_wider_type() -> None:
    limits = replace(NARROW, block_threads=32, block_wanted=32)
    linear = lowered(converted_product(256, 256, 256, "float16"), limits)
    fills = [
        u.src[1].dtype.size_bytes
        for u in linear.uops
        if u.op is Op.STORE and pointer_of(u.src[0]).op is Op.DEFINE_LOCAL
    ]

    assert max(fills) == 16


def test_what_arithmetic_made_is_shared_unrounded() -> None:
    left, right = (Tensor.empty(64, 64, dtype="bfloat16", device="PYTHON") for _ in range(2))
    scale = Tensor.empty(64, dtype="bfloat16", device="PYTHON")
    ast = ((left * scale).contiguous() @ right).schedule()[-1].ast
    scaled = (left * scale).matmul(right).schedule()[-1].ast

    assert shared_types(lowered(ast, NARROW)) == [dtypes.uint16] * 2
    assert set(shared_types(lowered(scaled, NARROW))) <= {dtypes.uint16, dtypes.float32}


def padded() -> Tensor:
    x = Tensor.empty(2, 8, 9, 14, dtype="float16", device="PYTHON")
    return x.conv2d(Tensor.empty(8, 8, 3, 3, dtype="float16", device="PYTHON"), padding=1)


def batched() -> Tensor:
    left = Tensor.empty(3, 20, 24, dtype="float16", device="PYTHON")
    return left.matmul(Tensor.empty(3, 24, 20, dtype="float16", device="PYTHON"), dtype="float32")


@pytest.mark.parametrize("make", [padded, batched])
def test_results_are_those_of_plain_loops(make: Callable[[], Tensor]) -> None:
    ast = make().schedule()[-1].ast
    plan = plan_for(ast, NARROW)
    assert any(isinstance(step, Stage) for step in plan)
    linear, (found, *_) = computed(ast, plan)
    _, (expected, *_) = computed(ast, ())

    numpy.testing.assert_array_equal(found, expected)
    assert dtypes.float16 in shared_types(linear)
