"""Operands from shared memory: what lanes get by tiles, and layouts that a unit reads by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy
import pytest

from tiny_nv.matrix import INSTRUCTIONS
from tiny_nv.operand_fragments import described
from tiny_nv.operand_loads import MatrixDescriptor, MatrixLoad
from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import LIMITS, Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context, Device, Tensor
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.pipeline import lower
from tinycore.lower.steps.stage import Stage, element_of, layout_of, swizzled
from tinycore.render.base import LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

ROWS: Final = 64
MMA: Final = INSTRUCTIONS["mma_m16n8k16_f16"].unit
UNIT: Final = replace(MMA, load=MatrixDescriptor("rows"))
M: Final = UOp.range(16, (0,), AxisKind.FRAGMENT)
K: Final = UOp.range(16, (1,), AxisKind.FRAGMENT)
N: Final = UOp.range(8, (2,), AxisKind.FRAGMENT)


def operand(row_bytes: int, swizzle: int, left: int = 0, top: int = 0) -> UOp:
    """A load of the left operand, staged in rows of halves."""
    step = Stage((9,), ((((0,), 1),), (((1,), 1),)), swizzle=swizzle)
    layout = layout_of([ROWS, row_bytes // 2], 2, step)
    array = UOp(Op.DEFINE_LOCAL, dtypes.float16.ptr(ROWS * row_bytes // 2, "local"), (), 0)
    column, row = K + left, M + top
    column = swizzled(column, row, layout) if swizzle else column
    place = rewrite(row * layout.pitches[0] + column, simplify, name="test")
    return UOp(Op.LOAD, dtypes.float16, (UOp(Op.INDEX, array.dtype, (array, place)),))


def descriptor_of(value: UOp, row_bytes: int) -> UOp:
    """The node of an operand."""
    loops = {"m": M, "n": N, "k": K}
    load = MatrixDescriptor("rows", row_bytes)
    return described(value, UNIT.fragment("a"), loops, load)


@pytest.mark.parametrize("row_bytes", [32, 64, 128])
def test_rows_whose_pieces_are_all_exchanged_are_described(row_bytes: int) -> None:
    found = descriptor_of(operand(row_bytes, row_bytes // 16), 128)

    assert found.op is Op.INSTRUCTION
    assert found.arg == MatrixDescriptor("rows", row_bytes)
    assert found.src[0].src[1] is UOp.index(0)


def across(panel: int, rows: int = 256) -> UOp:
    """A load of the left operand, whose rows lie across k in panels of so many halves."""
    step = Stage((9,), ((((1,), 1),), (((0,), 1),)), swizzle=8, panel=panel)
    layout = layout_of([ROWS, rows], 2, step)
    array = UOp(Op.DEFINE_LOCAL, dtypes.float16.ptr(ROWS * rows, "local"), (), 0)
    found = element_of(array, [K, UOp.range(128, (0,), AxisKind.FRAGMENT)], layout, UOp.index(0))
    place = rewrite(found.src[1], simplify, name="test")
    return UOp(Op.LOAD, dtypes.float16, (UOp(Op.INDEX, array.dtype, (array, place)),))


def test_rows_across_k_are_described_by_their_panels() -> None:
    load = MatrixDescriptor("rows", turned_bytes=2)
    loops = {"m": UOp.range(128, (0,), AxisKind.FRAGMENT), "n": N, "k": K}

    found = described(across(64), UNIT.fragment("a"), loops, load)

    assert found.arg == replace(load, panel_bytes=64 * 128)
    with pytest.raises(ArgumentError, match="does not lie so"):
        described(across(64), UNIT.fragment("a"), loops, MatrixDescriptor("rows"))
    with pytest.raises(ArgumentError, match="does not lie so"):
        described(across(128), UNIT.fragment("a"), loops, load)


def test_an_operand_may_begin_inside_of_a_row() -> None:
    found = descriptor_of(operand(64, 4, left=16, top=16), 64)

    assert found.src[0].src[1] is UOp.index(16 * 32 + 16)


@pytest.mark.parametrize(
    ("row_bytes", "swizzle", "top"), [(64, 0, 0), (128, 4, 0), (64, 2, 0), (64, 4, 2)]
)
def test_what_lies_otherwise_is_refused(row_bytes: int, swizzle: int, top: int) -> None:
    with pytest.raises(ArgumentError, match="does not lie so"):
        descriptor_of(operand(row_bytes, swizzle, top=top), 64)


def test_what_is_not_in_memory_is_refused() -> None:
    with pytest.raises(ArgumentError, match="takes an operand in shared memory, not CONST"):
        descriptor_of(UOp.const(dtypes.float16, 1), 64)


def test_arrays_begin_where_the_exchange_repeats() -> None:
    first = UOp(Op.DEFINE_LOCAL, dtypes.float32.ptr(5, "local"), (), 0)
    second = UOp(Op.DEFINE_LOCAL, dtypes.float16.ptr(64 * 32, "local"), (), 1)
    index = UOp(Op.INDEX, second.dtype, (second, UOp.index(0)))
    load = UOp(Op.INSTRUCTION, dtypes.float16.vec(8), (index,), MatrixDescriptor("rows"))
    kernel = LinearKernel("test", (first, second, index.src[1], index, load))

    assert kernel.shared_layout == {first: 0, second: 1024}
    assert kernel.shared_alignment == 1024
    assert kernel.shared_bytes == 1024 + 64 * 64


@pytest.mark.parametrize("row_bytes", [128, 64, 32])
@pytest.mark.parametrize("size", [(64, 64, 8), (64, 64, 64), (64, 32, 40)], ids=str)
def test_a_side_that_fills_no_row_of_a_described_operand_is_staged_along_the_sum(
    size: tuple[int, int, int], row_bytes: int
) -> None:
    """Eight columns of halves are one piece of a row, which no swizzle exchanges."""
    unit = replace(MMA, load=MatrixDescriptor("rows", row_bytes, turned_bytes=2))
    limits = replace(LIMITS, matrix=(unit,), threads=1, copies=None)
    parts = replace(CORRECT, name="ROWS", renderer=lambda: Rewriter(limits), limits=limits)
    rows, inner, columns = size
    generator = numpy.random.default_rng(0)
    left, right = (generator.integers(-3, 4, at) for at in ((rows, inner), (inner, columns)))
    with accelerator(parts), Context(CCACHE=0, VERIFY=1):
        a, b = (Tensor(x.astype("f2"), device="ROWS").realize() for x in (left, right))
        product = a.matmul(b, dtype=dtypes.float32)
        (item,) = product.schedule()
        linear = lower(item.ast, Device["ROWS"].toolchain.renderer, "product")
        assert numpy.array_equal(product.numpy(), left @ right)
    assert row_bytes < 128 or any(isinstance(u.arg, MatrixDescriptor) for u in linear.uops)


# --- tiles


def test_a_load_by_tiles_gives_each_lane_what_its_unit_wants() -> None:
    load = MatrixLoad("ldmatrix", turned_bytes=2)
    for unit in (MMA, INSTRUCTIONS["mma_m16n8k32_s8"].unit):
        for name in ("a", "b"):
            held = unit.fragment(name)
            rows = held.axes.replace("k", "")
            steps = load.tiles_of(held, "k")
            assert steps is not None
            for lane in range(32):
                for element in range(held.count):
                    row, column = load.place(lane, element, held.dtype.itemsize)
                    moved = [s for i, s in enumerate(steps) if row // load.rows >> i & 1]
                    down = row % load.rows + sum(s.power for s in moved if s.axis == rows)
                    along = column + sum(s.power for s in moved if s.axis == "k")
                    assert held.map.place(rows, lane, element) == down
                    assert held.map.place("k", lane, element) == along


def test_operands_in_another_order_are_not_loaded_by_tiles() -> None:
    load = MatrixLoad("ldmatrix", turned_bytes=2)
    columns = replace(MMA, a_map="m1 m2 m4 k2 k4 | k1 m8 k8")
    assert load.tiles_of(columns.fragment("a"), "k") is None
    assert MatrixLoad("one", tiles=1).tiles_of(MMA.fragment("a"), "k") is None
