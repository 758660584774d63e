"""Sums that the threads of a group share, folded by lanes that exchange what they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy
import pytest

from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import LIMITS, Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context, Tensor, dtypes
from tinycore.builtin.interpreter import PythonCompiler, PythonRenderer
from tinycore.device import Buffer, Device
from tinycore.engine.compile import info_of
from tinycore.errors import DeviceError, UnsupportedError, VerifyError
from tinycore.lower.pipeline import lower
from tinycore.render.base import Limits, LinearKernel, Renderer
from tinycore.render.cstyle import CStyle
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.verify import verify

SHARING = replace(LIMITS, threads=1 << 12, block_wanted=256)
"""A card that a few sums do not keep busy."""
ROWS = numpy.random.default_rng(0).integers(-5, 6, (7, 1000)).astype(numpy.float32)


def kernel_of(
    expression: Callable[[Tensor], Tensor],
    limits: Limits,
    family: type[Renderer] = PythonRenderer,
) -> LinearKernel:
    ast = expression(Tensor.empty(7, 1000, device="PYTHON")).schedule()[-1].ast
    return lower(ast, family(limits), "sums")


def number_of(linear: LinearKernel, op: Op) -> int:
    return sum(u.op is op for u in linear.uops)


@pytest.mark.parametrize("wanted", [32, 64, 256])
@pytest.mark.parametrize(
    "expression",
    [
        lambda x: x.sum(1),
        lambda x: x.max(1),
        lambda x: x.sum(),
        lambda x: x[:, :40].sum(1),
        lambda x: (x > 0).sum(1),
        lambda x: (x - x.max(1, keepdim=True)).sum(1),
    ],
)
def test_sums_by_lanes_are_those_of_a_processor(
    expression: Callable[[Tensor], Tensor], wanted: int
) -> None:
    limits = replace(SHARING, block_wanted=wanted)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        found = expression(Tensor(ROWS, device="CARD")).numpy()

    assert numpy.array_equal(found, expression(Tensor(ROWS, device="PYTHON")).numpy())


def test_a_subgroup_needs_no_shared_memory() -> None:
    linear = kernel_of(lambda x: x.sum(1), replace(SHARING, block_wanted=32))

    assert [u.arg for u in linear.uops if u.op is Op.SHUFFLE] == [1, 2, 4, 8, 16]
    assert number_of(linear, Op.BARRIER) == number_of(linear, Op.DEFINE_LOCAL) == 0


def test_subgroups_leave_one_part_each_in_shared_memory() -> None:
    linear = kernel_of(lambda x: x.sum(1), SHARING)

    assert number_of(linear, Op.SHUFFLE) == 5
    assert number_of(linear, Op.BARRIER) == 1
    assert linear.shared_bytes == 256 // 32 * 4


@pytest.mark.parametrize(
    "limits",
    [replace(SHARING, shuffles=(dtypes.int32,)), replace(SHARING, block_wanted=16)],
    ids=["another type", "a part of a subgroup"],
)
def test_other_sums_go_through_shared_memory(limits: Limits) -> None:
    linear = kernel_of(lambda x: x.sum(1), limits)

    assert number_of(linear, Op.SHUFFLE) == 0
    assert number_of(linear, Op.BARRIER) > 0


class Grid(CStyle):
    """A language of groups of threads."""

    builtins: ClassVar[Mapping[str, str]] = {"grid": "group{0}", "block": "thread{0}"}
    barrier = "wait();"
    native_ops: ClassVar[frozenset[Op]] = CStyle.native_ops - {Op.FLOORDIV, Op.FLOORMOD}


class Shuffling(Grid):
    """A language whose lanes exchange values."""

    shuffle = "exchanged({value}, {mask})"


def test_a_language_writes_its_shuffle_as_a_statement_of_its_own() -> None:
    linear = kernel_of(lambda x: x.sum(1), SHARING, Shuffling)
    lines = [line for line in Shuffling(SHARING).render(linear).splitlines() if "exchanged" in line]

    assert len(lines) == 5
    assert not [line for line in lines if "if (" in line]


def test_a_language_without_shuffles_refuses_one() -> None:
    with pytest.raises(UnsupportedError, match="has no words for SHUFFLE"):
        Grid(SHARING).render(kernel_of(lambda x: x.sum(1), SHARING, Grid))


def exchange(threads: int, mask: int) -> tuple[UOp, ...]:
    """A program whose lanes store what those of another number have."""
    lane = UOp(Op.SPECIAL, dtypes.index, (UOp.index(threads),), "block0")
    memory = UOp(Op.DEFINE_GLOBAL, dtypes.int32.ptr(threads), (), 0)
    place = UOp(Op.INDEX, memory.dtype, (memory, lane))
    value = UOp(Op.LOAD, dtypes.int32, (place,))
    other = UOp(Op.SHUFFLE, dtypes.int32, (value,), mask)
    return tuple(UOp(Op.STORE, dtypes.void, (place, other)).toposort())


def test_lanes_that_are_not_there_are_told() -> None:
    linear = LinearKernel("exchange", exchange(12, 8))
    binary = PythonCompiler().compile(PythonRenderer().render(linear))
    program = Device["PYTHON"].runtime.load(binary, info_of(linear, 1))
    memory = Buffer.from_cpu("PYTHON", numpy.zeros(12, numpy.int32))

    with pytest.raises(DeviceError, match="8 apart are asked of a group of 12 threads"):
        program([memory.handle], [], wait=True)


@pytest.mark.parametrize("mask", [0, -1, None])
def test_a_shuffle_has_a_mask(mask: int) -> None:
    with pytest.raises(VerifyError, match="SHUFFLE takes a positive mask"):
        verify(exchange(8, mask), "linear")
