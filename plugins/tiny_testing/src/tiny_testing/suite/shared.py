"""Level 2: operands that a group loads into its shared memory, again in each step of a loop.

Plans of devices that have such memory near their threads, asked of all that have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy

from tiny_testing.kernels import product, product_of_types
from tiny_testing.suite.case import Level, NotApplicable, Variant, case
from tiny_testing.suite.kernels import grid_limits, integers, loaded, results
from tiny_testing.suite.operations import words_of
from tiny_testing.suite.subject import Subject
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import Bind, Plan, Split, Tail
from tinycore.render.base import Limits, LinearKernel
from tinycore.uop.host_bytes import decode, encode
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Part

__all__ = [
    "test_boxes_are_copied_by_one_thread",
    "test_narrow_operands_are_widened",
    "test_narrow_operands_in_shared_memory",
    "test_operands_in_shared_memory",
    "test_operands_in_swizzled_rows",
    "test_shared_memory_is_filled_ahead",
]

THREADS: Final = 64
"""Threads of a group, where a device takes as many."""
Size = tuple[int, int, int]
SIZES: Final = ((32, 16, 32), (64, 128, 64), (37, 50, 29), (100, 33, 129))


def sharing_plan(subject: Subject, kernel: UOp, copies: int = 1) -> tuple[Plan, Limits]:
    """The plan of a kernel for devices where sharing pays, and this device's other limits.

    Shared memory has room for so many `copies`.
    """
    limits, _ = grid_limits(subject)
    wanted = min(THREADS, limits.block_threads)
    room = limits.shared_bytes // copies
    limits = replace(limits, threads=1, block_wanted=wanted, shared_is_near=True, shared_bytes=room)
    limits = replace(limits, units=0)  # small tiles for all units would share nothing
    return plan_for(kernel, limits), limits


def sharing(subject: Subject, kernel: UOp, copies: int = 1) -> LinearKernel:
    """A kernel as it is for devices where sharing pays, for this device's other limits.

    Shared memory is in as many `copies` that a group fills in turn, ahead of what it reads. Raises
    NotApplicable where the device has not the memory.
    """
    plan, limits = sharing_plan(subject, kernel, copies)
    if not any(isinstance(step, Stage) for step in plan):
        raise NotApplicable(f"a tile does not fit its groups: {limits}")
    plan = tuple(replace(step, copies=copies) if isinstance(step, Stage) else step for step in plan)
    return lower(kernel, subject.toolchain.renderer, "sharing", plan)


NARROW: Final = tuple(
    Variant(f"{dtype.name}-{'x'.join(map(str, size))}", (size, dtype), words_of(dtype))
    for size in ((32, 16, 32), (37, 50, 29))
    for dtype in dtypes.all
    if dtype.itemsize < 4 and dtype not in {dtypes.bool, *dtypes.fp8s}
)


@case(Level.COMPUTE, "local_memory", over=NARROW)
def test_narrow_operands_in_shared_memory(subject: Subject, what: tuple[Size, DType]) -> None:
    """Operands of 8 and 16 bits share words of shared memory, each in its place."""
    (rows, inner, columns), dtype = what
    least = 0 if dtypes.is_unsigned(dtype) else -1
    left, right = (
        integers(size, seed) % 3 + least
        for seed, size in enumerate((rows * inner, inner * columns))
    )
    kernel = sharing(subject, product(rows, inner, columns, dtype))
    program = loaded(subject, kernel.uops, 3, kernel.name)
    start = numpy.full(rows * columns, 77)
    given = [encode(numbers, dtype) for numbers in (start, left, right)]
    found = decode(results(subject, program, given)[0], dtype)
    # Sums of so few products of so small integers are exact in every type.
    expected = left.reshape(rows, inner) @ right.reshape(inner, columns)
    wrong = numpy.flatnonzero(found != expected.reshape(-1))
    assert not len(wrong), (
        f"{len(wrong)} of {found.size} sums of {dtype.name} are wrong; the one of row "
        f"{wrong[0] // columns}, column {wrong[0] % columns} is {found[wrong[0]]}"
    )


@case(Level.COMPUTE, "local_memory", over=NARROW)
def test_narrow_operands_are_widened(subject: Subject, what: tuple[Size, DType]) -> None:
    """Operands of 8 and 16 bits are shared as they are, and widened when a thread reads them."""
    (rows, inner, columns), dtype = what
    wide = dtypes.float32 if dtype.kind == "float" else dtypes.int32
    low, high = (dtypes.min(dtype), dtypes.max(dtype)) if wide is dtypes.int32 else (-100, 100)
    left, right = (
        numpy.clip(integers(size, seed) % 200 - 100, low, high)
        for seed, size in enumerate((rows * inner, inner * columns))
    )
    kernel = sharing(subject, product_of_types(rows, inner, columns, dtype, dtype, wide))
    program = loaded(subject, kernel.uops, 3, kernel.name)
    start = numpy.full(rows * columns, 77)
    given = [encode(n, d) for n, d in ((start, wide), (left, dtype), (right, dtype))]
    found = decode(results(subject, program, given)[0], wide)
    # Each number is exact in its type, and each sum of their products in the wider one.
    expected = left.reshape(rows, inner) @ right.reshape(inner, columns)
    wrong = numpy.flatnonzero(found != expected.reshape(-1))
    assert not len(wrong), (
        f"{len(wrong)} of {found.size} sums of products of {dtype.name} are wrong; the one of row "
        f"{wrong[0] // columns}, column {wrong[0] % columns} is {found[wrong[0]]} instead of "
        f"{expected.reshape(-1)[wrong[0]]}"
    )


@case(
    Level.COMPUTE,
    "local_memory",
    over=(
        Variant(f"{dtype.name}-{'x'.join(map(str, size))}", (size, dtype))
        for size in SIZES
        for dtype in (dtypes.int32, dtypes.float32)
    ),
)
def test_operands_in_shared_memory(subject: Subject, what: tuple[Size, DType]) -> None:
    """A group multiplies blocks of matrices that its threads load together, block after block."""
    (rows, inner, columns), dtype = what
    left, right = (
        (integers(size, seed) % 200 - 100).astype(dtype.name)
        for seed, size in enumerate((rows * inner, inner * columns))
    )
    kernel = sharing(subject, product(rows, inner, columns, dtype))
    program = loaded(subject, kernel.uops, 3, kernel.name)
    start = numpy.full(rows * columns, -7777, dtype.name)
    found, *_ = results(subject, program, [start, left, right])
    # Sums of products of such small integers are exact in float32, in whatever order.
    expected = left.reshape(rows, inner) @ right.reshape(inner, columns)
    wrong = numpy.flatnonzero(found != expected.reshape(-1))
    assert not len(wrong), (
        f"{len(wrong)} of {found.size} sums are wrong; the one of row {wrong[0] // columns}, "
        f"column {wrong[0] % columns} is {found[wrong[0]]}"
    )


@case(
    Level.COMPUTE,
    "local_memory",
    over=(
        Variant(f"{dtype.name}-{copies}", (dtype, copies), words_of(dtype))
        for dtype in (dtypes.float32, dtypes.float16)
        for copies in (2, 3)
    ),
)
def test_shared_memory_is_filled_ahead(subject: Subject, what: tuple[DType, int]) -> None:
    """A group fills shared memory for later steps, by copies behind its back where it has such."""
    (dtype, copies), (rows, inner, columns) = what, (64, 128, 64)
    left, right = (
        integers(size, seed) % 3 - 1 for seed, size in enumerate((rows * inner, inner * columns))
    )
    kernel = product_of_types(rows, inner, columns, dtype, dtype, dtypes.float32)
    linear = sharing(subject, kernel, copies)
    program = loaded(subject, linear.uops, 3, linear.name)
    given = [numpy.full(rows * columns, 77, numpy.float32), encode(left, dtype)]
    found, *_ = results(subject, program, [*given, encode(right, dtype)])
    expected = left.reshape(rows, inner) @ right.reshape(inner, columns)
    wrong = numpy.flatnonzero(found != expected.reshape(-1))
    assert not len(wrong), (
        f"{len(wrong)} of {found.size} sums are wrong where {copies} parts of shared memory are "
        f"filled in turn; the one of row {wrong[0] // columns}, column {wrong[0] % columns} is "
        f"{found[wrong[0]]}"
    )


@case(
    Level.COMPUTE,
    "local_memory",
    over=(
        Variant(f"{dtype.name}-{pieces}x{size}", (dtype, pieces, size), words_of(dtype))
        for dtype in (dtypes.float32, dtypes.float16)
        for pieces, size in ((2, 16), (4, 16), (2, 32))
    ),
)
def test_operands_in_swizzled_rows(subject: Subject, what: tuple[DType, int, int]) -> None:
    """Rows of shared memory whose pieces are exchanged by XOR are read as they were filled."""
    dtype, pieces, size = what
    side = 64
    kernel = product(side, side, side, dtype)
    plan, limits = sharing_plan(subject, kernel)
    steps = tuple(
        replace(step, swizzle=pieces, piece_bytes=size) if isinstance(step, Stage) else step
        for step in plan
    )
    try:
        linear = lower(kernel, subject.toolchain.renderer, "swizzled", steps)
    except ArgumentError as error:
        raise NotApplicable(f"its tiles have no such rows: {error}; limits: {limits}") from error
    if not any(isinstance(step, Stage) for step in plan):
        raise NotApplicable(f"a tile does not fit its groups: {limits}")
    left, right = (integers(side * side, seed) % 3 - 1 for seed in (0, 1))
    program = loaded(subject, linear.uops, 3, linear.name)
    given = [encode(numbers, dtype) for numbers in (numpy.full(side * side, 77), left, right)]
    found = decode(results(subject, program, given)[0], dtype).reshape(side, side)
    expected = left.reshape(side, side) @ right.reshape(side, side)
    wrong = numpy.argwhere(found != expected)
    assert not len(wrong), (
        f"{len(wrong)} of {found.size} sums are wrong where rows exchange {pieces} pieces of "
        f"{size} bytes; row {wrong[0][0]}, column {wrong[0][1]} is {found[tuple(wrong[0])]} "
        f"instead of {expected[tuple(wrong[0])]}"
    )


BOX_ROWS: Final = 16
BOX_COLUMNS: Final = 8
BOX_PIECES: Final = 4
"""Pieces of 16 bytes in a row of a box, which are exchanged."""
BOXES_IN_TURN: Final = 3
BOXED: Final = tuple(
    Variant(f"{dtype.name}-{'x'.join(map(str, size))}", (size, dtype))
    for dtype in (dtypes.float16, dtypes.float32)
    for size in ((64, 256, 96), (50, 200, 88))
)


def boxed_plan(
    axes: Sequence[tuple[int, ...]],
    depth: int,
    narrow: DType,
    *,
    rows: int = BOX_ROWS,
    columns: int = BOX_COLUMNS,
    copies: int = BOXES_IN_TURN,
    swizzle: int = BOX_PIECES,
) -> Plan:
    """Both operands of a product staged in boxes, whose rows lie along the sum.

    `axes` are those of the nest: any batch, rows, columns, and the sum, of which `depth` steps are
    staged at a time.
    """
    *batch, row, column, inner = axes
    sides = tuple((((((*side, 1), 1),), (((*inner, 1), 1),))) for side in (row, column))
    fills = (
        (*axis, 1, Part.FILL, array)
        for array, side in enumerate((row, column))
        for axis in (side, inner)
    )
    return (
        *(Split(row, rows, Tail.GUARD), Split(column, columns, Tail.GUARD)),
        Split(inner, depth, Tail.GUARD),
        *(Bind(axis, AxisKind.GRID) for axis in (*batch, (*row, 0), (*column, 0))),
        *(Bind((*row, 1), AxisKind.BLOCK), Bind((*column, 1), AxisKind.UNROLL)),
        *(
            Stage((*inner, 0), side, copies=copies, swizzle=swizzle, narrow=(narrow,))
            for side in sides
        ),
        *(Bind(axis, AxisKind.FILL) for axis in fills),
    )


@case(Level.COMPUTE, over=BOXED)
def test_boxes_are_copied_by_one_thread(subject: Subject, what: tuple[Size, DType]) -> None:
    """Boxes of operands that one thread has the device copy arrive in their swizzled places.

    Those that reach beyond an operand have zeros there.
    """
    if subject.limits.fills is None:
        raise NotApplicable("its limits do not state that it copies boxes of tensors")
    (rows, inner, columns), dtype = what
    if not subject.claims(dtype.name):
        raise NotApplicable(f"{dtype.name} is not claimed")
    kernel = product_of_types(rows, inner, columns, dtype, dtype, dtypes.float32, is_turned=True)
    depth = BOX_PIECES * 16 // dtype.itemsize
    plan = boxed_plan(((0,), (1,), (2,)), depth, dtype)
    linear = lower(kernel, subject.toolchain.renderer, "boxes", plan)
    assert linear.effects, "no operand is copied as boxes, whatever its limits state"
    left, right = (
        integers(size, seed) % 3 - 1 for seed, size in enumerate((rows * inner, inner * columns))
    )
    program = loaded(subject, linear.uops, 3, linear.name)
    given = [numpy.full(rows * columns, 77, numpy.float32), encode(left, dtype)]
    found, *_ = results(subject, program, [*given, encode(right, dtype)])
    expected = left.reshape(rows, inner) @ right.reshape(columns, inner).T
    wrong = numpy.flatnonzero(found != expected.reshape(-1))
    assert not len(wrong), (
        f"{len(wrong)} of {found.size} sums are wrong where operands are copied as boxes; the one "
        f"of row {wrong[0] // columns}, column {wrong[0] % columns} is {found[wrong[0]]} instead "
        f"of {expected.reshape(-1)[wrong[0]]}"
    )
