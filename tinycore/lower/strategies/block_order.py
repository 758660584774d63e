"""Block order: the launch order of the groups of a product, for reuse in L2 (threadblock swizzle).

Floor 3'. A device starts groups in the order of their numbers, one wave at a time. In row-major
order a wave reads few rows of one operand and all columns of the other; in bands of several rows of
blocks it reads about as much of both, which is the minimum (threadblock swizzling of CUTLASS). The
order matters if the operands do not fit in L2 together.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.lower.draft import Draft
from tinycore.lower.loops import Number
from tinycore.lower.tile import Reorder, Split
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

LEAST_GAIN: Final = 1.1
"""Least ratio of the operands that a wave reads in row-major order to those it reads in bands."""


def order_blocks(draft: Draft, row: UOp, column: UOp, depth: int, itemsize: int) -> None:
    """Order the groups of a product of `depth` steps in bands, if that saves reads from memory."""
    operands = (row.extent + column.extent) * depth * itemsize
    limits = draft.limits
    # In any order, operands that fit L2 are read from memory once.
    if not limits.units or not limits.l2_bytes or operands <= limits.l2_bytes:
        return
    grid = [r for r in draft.facts.outputs if r.arg.kind is AxisKind.GRID]
    below = [r for r in grid if is_part(r, row.arg.number)]
    beside = [r for r in grid if is_part(r, column.arg.number)]
    if len(below) != 1 or len(beside) != 1 or not (below[0].is_fixed and beside[0].is_fixed):
        return
    (down,), (across,) = below, beside
    sizes = (row.extent / down.extent, column.extent / across.extent)
    band = band_of(down.extent, across.extent, limits.units, sizes)
    if band is None:
        return
    number, beside_it = down.arg.number, across.arg.number
    others = [r.arg.number for r in grid if r not in (down, across)]
    draft.do(Split(number, band), Reorder((*others, (*number, 0), beside_it, (*number, 1))))


def band_of(down: int, across: int, wave: int, sizes: tuple[float, float]) -> int | None:
    """The height of a band in blocks; None if row-major order is as good.

    `sizes` are the rows and columns of a block.
    """
    tall, wide = sizes

    def read(rows: float, columns: float) -> float:
        return min(rows, down) * tall + min(columns, across) * wide

    def read_in(band: int) -> float:
        return read(band * math.ceil(wave / (band * across)), wave / band)

    heights = [n for n in range(1, down) if down % n == 0]
    best = min(heights, key=read_in, default=1)
    return best if best > 1 and read_in(1) >= LEAST_GAIN * read_in(best) else None


def is_part(loop: UOp, number: Number) -> bool:
    """True if a loop has a number, or was split from the loop that has it."""
    return bool(loop.arg.number[: len(number)] == number)
