"""Products of matrices for a matrix unit: tiles of a group, of a subgroup, of an instruction.

Floor 3'. The levels are those of CUTLASS: a group computes a block of the result, its subgroups
parts of it, each in several tiles of the unit whose sums stay in registers. Both operands are
staged in shared memory, in the type in which they were, some steps of the unit at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tinycore.config import settings
from tinycore.dtype import DType
from tinycore.errors import ArgumentError
from tinycore.lower.cost import Cost, Proposal
from tinycore.lower.draft import Draft
from tinycore.lower.facts import KernelFacts
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.steps.stage import Dimension, Stage
from tinycore.lower.steps.tensorize import COLUMNS, ROWS, STEPS, Tensorize
from tinycore.lower.strategies.grid_shared import (
    Sides,
    arrays,
    deal_out,
    fits_group,
    innermost_group,
    sides_of,
)
from tinycore.lower.tile import Bind, Reorder, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

DEPTH_BYTES: Final = 64
"""Bytes of a row of an operand that are staged at a time."""
WORD_BYTES: Final = 4
ACCESS_BYTES: Final = 16
"""The widest access of a thread to shared memory; 8 of these are as wide as its banks."""
MOST_WASTE: Final = 1.25
"""How many times the work of a product its tiles may do, as they pass its ends."""
MOST_WASTE_OF_ONE: Final = 4.0
"""The same for tiles of the unit itself, which is that much faster than multiply-adds."""


@dataclass(frozen=True)
class Tile:
    """The subgroups of a group along rows and columns, and what each computes of the result."""

    tall: int
    wide: int
    rows: int
    columns: int


ONE_TILE: Final = Tile(1, 1, 1, 1)
"""One tile of the unit, whatever its size."""
TILES: Final = (
    *(Tile(2, 4, 64, 32), Tile(4, 2, 32, 64), Tile(2, 2, 64, 32), Tile(2, 2, 32, 32)),
    *(Tile(2, 2, 32, 16), Tile(2, 1, 32, 16), Tile(1, 1, 16, 16), ONE_TILE),
)


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """A sum of products given to each unit of the device, in tiles that suit its size."""
    units = [
        unit
        for unit in limits.matrix
        if unit.threads == limits.subgroup and (settings.ALLOW_TF32 or not unit.rounds)
    ]
    sides = sides_of(facts) if units and not facts.overwrites else None
    if sides is None:
        return
    for unit in units:
        for tile in TILES:
            if suits(facts, limits, unit, tile, sides):
                apply = partial(use_unit, unit=unit, tile=tile, sides=sides)
                name = f"{unit.name} {tile.tall}x{tile.wide} of {tile.rows}x{tile.columns}"
                yield Proposal(name, None, Cost(loads_of_product(unit, tile)), apply)


def loads_of_product(unit: MatrixUnit, tile: Tile) -> float:
    """Words that a group loads for each multiply-add: fewer than by any plan without a unit."""
    tall, wide = tile.tall * copies(tile.rows, unit.m), tile.wide * copies(tile.columns, unit.n)
    words = unit.a.itemsize / WORD_BYTES
    return words / (tall * unit.m) + words / (wide * unit.n)


def suits(facts: KernelFacts, limits: Limits, unit: MatrixUnit, tile: Tile, sides: Sides) -> bool:
    """Whether tiles of a size keep the device busy, and do not pass the ends of a product."""
    threads = tile.tall * tile.wide * unit.threads
    if threads > max(limits.block_wanted, unit.threads):
        return False
    rows, columns = longest(sides.rows).extent, longest(sides.columns).extent
    tall, wide = tile.tall * copies(tile.rows, unit.m), tile.wide * copies(tile.columns, unit.n)
    down, across = -(-rows // (tall * unit.m)), -(-columns // (wide * unit.n))
    steps = longest(tuple(facts.reduced)).extent
    padded = down * tall * unit.m * across * wide * unit.n * -(-steps // unit.k) * unit.k
    most = MOST_WASTE_OF_ONE if tile == ONE_TILE else MOST_WASTE
    if padded > most * rows * columns * steps:
        return False
    others = facts.outputs_launched // (rows * columns)
    return tile == ONE_TILE or down * across * others * threads >= limits.threads


def use_unit(draft: Draft, unit: MatrixUnit, tile: Tile, sides: Sides) -> bool:
    """A block of the result for each group; False if it takes more than a group has."""
    try:
        return tensorize(draft, unit, tile, sides)
    except ArgumentError:  # not a product of these types
        return False


def tensorize(draft: Draft, unit: MatrixUnit, tile: Tile, sides: Sides) -> bool:
    """The steps of `use_unit`. Raises ArgumentError where the sum is none for the unit."""
    row, column = longest(sides.rows), longest(sides.columns)
    below, down = cut_tile(draft, row, tile.tall, copies(tile.rows, unit.m) * unit.m)
    beside, right = cut_tile(draft, column, tile.wide, copies(tile.columns, unit.n) * unit.n)
    block, depth = cut_steps(draft, unit)
    step = Tensorize(down, right, depth, unit)
    draft.do(step)
    for axis in (down, right, depth):
        if has(draft, (*axis, 0)):
            draft.do(Bind((*axis, 0), AxisKind.UNROLL))
    draft.do(*(Bind(counter.arg.number, AxisKind.GRID) for counter in draft.facts.launchable))
    at = block if has(draft, block) else innermost_group(draft)
    along = dimension(draft, (*depth, 0), step.number(STEPS))
    for subgroups, axis, part in ((below, down, ROWS), (beside, right, COLUMNS)):
        across = dimension(draft, subgroups, (*axis, 0), step.number(part))
        operand = unit.fragment("a" if part is ROWS else "b")
        inner = operand.map.neighbors[0] == "k"
        stage_operand(draft, at, (across, along) if inner else (along, across), operand.dtype)
    return fits_group(draft)


def cut_tile(draft: Draft, loop: UOp, subgroups: int, size: int) -> tuple[Number | None, Number]:
    """Cut a side into blocks of groups and parts of subgroups: the loops of parts, and in one.

    A group of one subgroup has no loop of parts.
    """
    number = loop.arg.number
    draft.do(Split(number, subgroups * size, Tail.GUARD))
    if subgroups == 1:
        return None, (*number, 1)
    draft.do(Split((*number, 1), size), Bind((*number, 1, 0), AxisKind.BLOCK))
    return (*number, 1, 0), (*number, 1, 1)


def cut_steps(draft: Draft, unit: MatrixUnit) -> tuple[Number, Number]:
    """Cut the longest reduced loop, the innermost now, into what is staged at a time."""
    loops = draft.facts.reduced
    loop = longest(tuple(loops))
    others = [r.arg.number for r in loops if r is not loop]
    number = loop.arg.number
    if others:
        draft.do(Reorder((*others, number)))
    most = max(DEPTH_BYTES // unit.a.itemsize, unit.k)
    draft.do(Split(number, min(most, -(-loop.extent // unit.k) * unit.k), Tail.GUARD))
    return (*number, 0), (*number, 1)


def dimension(draft: Draft, *axes: Number | None) -> Dimension:
    """How the steps of a block are counted by some loops, the outermost first."""
    parts: list[tuple[Number, int]] = []
    size = 1
    for axis in reversed(axes):
        if axis is not None and has(draft, axis):
            parts.insert(0, (axis, size))
            size *= counter_of(draft.kernel, axis).extent
    return tuple(parts)


def stage_operand(
    draft: Draft, at: Number | None, dimensions: tuple[Dimension, ...], dtype: DType
) -> None:
    """Stage an operand, if it moves with just these loops."""
    first = len(arrays(draft))
    row = sum((counter_of(draft.kernel, a).extent - 1) * f for a, f in dimensions[-1]) + 1
    try:
        draft.do(Stage(at, dimensions, padding_of(row * dtype.itemsize) // dtype.itemsize))
    except ArgumentError:  # it is read where it lies
        return
    for number in range(first, len(arrays(draft))):
        deal_out(draft, number, draft.limits.vector_bytes // dtype.itemsize)


def padding_of(row_bytes: int) -> int:
    """Bytes behind each row, so that neighboring rows start in other banks of shared memory.

    Rows of an odd number of pieces lie in 8 different ones: a subgroup that reads a word of each of
    4 lanes of 8 rows, or 8 threads that each move a piece of a row's, find all banks.
    """
    pieces, rest = divmod(row_bytes, ACCESS_BYTES)
    return ACCESS_BYTES if rest == 0 and pieces % 2 == 0 else 0


def has(draft: Draft, axis: Number) -> bool:
    """Whether there is a loop of a number: those of one step are none."""
    return any(r.arg.number == axis for r in draft.facts.loops)


def longest(loops: tuple[UOp, ...]) -> UOp:
    """The loop with most steps, the innermost of several."""
    return max(reversed(loops), key=lambda r: r.extent)


def copies(size: int, of: int) -> int:
    """The tiles of a unit along a side."""
    return max(size // of, 1)
