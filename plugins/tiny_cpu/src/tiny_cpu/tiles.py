"""Matrix products by AMX: blocks of tiles over packed operands.

The loops of BLIS with an instruction for the innermost ones: rows are packed in blocks
that threads share out, columns in panels that a block of rows reads, both in the order in which
the instruction takes a tile. A few tiles of sums stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from tinycore.errors import ArgumentError
from tinycore.render.base import Limits
from tinycore.tiling import (
    COLUMNS,
    LEAST_CHUNKS,
    MOST_SCRATCH,
    ROWS,
    STEPS,
    Bind,
    Cost,
    Dimension,
    Draft,
    Fuse,
    KernelFacts,
    Number,
    Proposal,
    Reorder,
    Sides,
    Split,
    Stage,
    Tail,
    Tensorize,
    arrays_of,
    counter_of,
    dimension,
    factors_of,
    fill_of,
    loads_of,
    longest,
    operand_accesses,
    plan_fill,
    sides_among,
    sides_of,
)
from tinycore.uop.affine import coefficient
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

__all__ = ["propose"]

SIDE_TILES: Final = 2
"""Tiles of a block along rows and along columns, each read for as many products."""
TILE_CYCLES: Final = 0.06
"""Cost of a product of a tile, as that of a vector that does as many products with 1 cycle each."""
MOST_PADDED: Final = 1.25
"""Steps of whole tiles, relative to those of the sum: the rest is filled with zeros."""
ROWS_FOR_JOINED: Final = 2
"""Times as many rows as else pay for an operand whose columns are joined."""
LEAST_NARROW: Final = 256
"""Steps of the sum of a product of few columns: results are stored across its tiles."""


class Blocks(NamedTuple):
    """The loops around the tiles of a product: those that both operands vary with, blocks of rows,
    panels of columns, rows of a block, and the tiles that registers hold."""

    outside: Sequence[Number]
    block: Number
    inner: Sequence[Number]
    rows: Number
    tall: Number
    wide: Number


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """A product on each unit of a single thread.

    Tiles that pass an end begin earlier and are computed twice in part.
    """
    units = [unit for unit in limits.matrix if unit.threads == 1] if facts.is_fixed else []
    is_plain = not facts.elsewhere and not facts.has_order
    found = None
    if units and not facts.overwrites:
        found = sides_of(facts) if is_plain else sides_among(facts, facts.stored)
    if found is None:
        return
    for unit in units:
        if (step := step_loop(facts, unit)) is None:
            continue
        for sides in (found, Sides(found.columns, found.rows)):
            row = longest(sides.rows)
            suits = sides is found and is_worth(sides, row, unit)
            suits = suits or (is_plain and is_narrow(facts, sides, row, step, unit))
            if suits and is_product(facts, row, sides.columns[-1], unit):
                apply = partial(use_tiles, unit=unit, sides=sides, row=row, step=step)
                yield Proposal(unit.name, None, Cost(TILE_CYCLES), apply)
                break


def is_worth(sides: Sides, row: UOp, unit: MatrixUnit) -> bool:
    """True if a product has as many tiles as pay for packing.

    An operand whose columns are joined is packed element by element, which more rows pay for.
    """
    columns = math.prod(r.extent for r in sides.columns)
    rows = row.extent if sides.columns[-1].extent >= unit.n else row.extent // ROWS_FOR_JOINED
    return unit.repays_packing(rows, columns)


def is_narrow(facts: KernelFacts, sides: Sides, row: UOp, step: UOp, unit: MatrixUnit) -> bool:
    """True if a long product of a few tiles of columns has rows that are packed by mere copies.

    As of the weights of a layer, which a few dozen inputs multiply: memory is what they wait for.
    """
    read = [n for n in operand_accesses(facts) if row in n.ranges]
    return (
        sides.columns[-1].extent >= unit.n
        and step.extent >= LEAST_NARROW
        and unit.repays_packing(row.extent, LEAST_NARROW)
        and all(facts.stride(n, step) == 1 for n in read)
    )


def step_loop(facts: KernelFacts, unit: MatrixUnit) -> UOp | None:
    """The reduced loop along which tiles lie: the innermost, or another of enough steps.

    A convolution sums over the places of a window inside of channels: tiles lie along channels.
    """
    innermost = facts.reduced[-1:]
    others = sorted(facts.reduced, key=lambda r: r.extent, reverse=True)

    def fills_tiles(loop: UOp) -> bool:
        padded = -(-loop.extent // unit.k) * unit.k
        return unit.k <= loop.extent and padded <= MOST_PADDED * loop.extent

    return next(filter(fills_tiles, (*innermost, *others)), None)


def is_product(facts: KernelFacts, row: UOp, column: UOp, unit: MatrixUnit) -> bool:
    """True if the kernel has one sum, of products in the types of a unit."""
    if len(facts.reductions) != 1:
        return False  # sums of several would take all tile registers
    try:
        factors_of(facts.reductions[0], row, column, unit)
    except ArgumentError:
        return False
    return True


def use_tiles(draft: Draft, unit: MatrixUnit, sides: Sides, row: UOp, step: UOp) -> bool:
    """Blocks of tiles over packed operands; False where they are not packed."""
    column, between = whole_columns(draft, sides.columns, unit.n)
    m, n, k = row.arg.number, column.arg.number, step.arg.number
    outside = [r.arg.number for r in draft.facts.outputs if r.arg.number not in (m, n, *between)]
    if step.extent > unit.k:
        draft.do(Split(k, unit.k, Tail.GUARD if step.extent % unit.k else Tail.AUTO))
        k = (*k, 1)
    product = Tensorize(m, n, k, unit)
    draft.do(product)
    rows, tall = cut(draft, (*m, 0))
    columns, wide = cut(draft, (*n, 0))
    inner = [*between, columns]
    chunks = chunks_left(draft, outside)
    pieces = pieces_of_columns(draft, inner, chunks) if is_wide(sides, row) else ()
    blocks = 1 if pieces else chunks
    if not pieces and not draft.present(*inner):  # a packed row is read once: from a near cache
        blocks = max(blocks, counter_of(draft.kernel, rows).extent)
    block, rows = split(draft, rows, rows_of_block(draft, rows, unit.m * SIDE_TILES, blocks))
    outside = [*outside, *pieces]
    return pack_operands(draft, product, Blocks(outside, block, inner, rows, tall, wide))


def pack_operands(draft: Draft, product: Tensorize, loops: Blocks) -> bool:
    """Pack both operands, panels for all strips of a nest where these share them; False if one
    varies with other loops."""
    depth = [((r.arg.number, 1),) for r in draft.facts.reduced if r.arg.kind is AxisKind.REDUCE]
    n, k = (dimension(draft, product.number(part)) for part in (COLUMNS, STEPS))
    tall = dimension(draft, loops.tall, product.number(ROWS))
    left = (dimension(draft, loops.rows), *depth, tall, k)
    right = (*depth, dimension(draft, loops.wide), k, n)
    _, beside = product.unit.fragment("b").map.neighbors
    outside = (*draft.around, *draft.present(*loops.outside))
    around = (*outside, *draft.present(loops.block))
    panels = draft.present(*loops.inner)

    def pack(order: Sequence[Number], at: tuple[Number, ...], sides: Sequence[Dimension]) -> bool:
        ends = (loops.tall, loops.wide)
        draft.do(Reorder(draft.present(*loops.outside, loops.block, *order, *ends)))
        return pack_tiles(draft, around[-1:], left, 1) and pack_tiles(draft, at[-1:], sides, beside)

    if is_shared_by_strips(draft, (*panels, *(axis for side in right for axis, _ in side))):
        before = draft.copy()
        every = (dimension(draft, axis) for axis in panels)
        # Rows outside: results are then written along whole rows, all panels being at hand.
        if pack((loops.rows, *loops.inner), draft.around[:-1], (*every, *right)):
            return True
        draft.become(before)
    at = (*around, *panels) if panels else outside  # a single panel is read by all blocks
    return pack((*loops.inner, loops.rows), at, right)


def is_shared_by_strips(draft: Draft, panels: Sequence[Number]) -> bool:
    """True if panels of all columns, over these loops, may be packed before the strips of rows.

    Not where threads would have too little to share, or panels are more than scratch memory has.
    """
    outer = draft.around[:-1]
    steps = math.prod(counter_of(draft.kernel, axis).extent for axis in outer)
    if draft.nest is None or not outer or steps < draft.nest.threads * LEAST_CHUNKS:
        return False
    size = math.prod(counter_of(draft.kernel, axis).extent for axis in panels)
    return size * draft.facts.itemsize <= MOST_SCRATCH


def whole_columns(draft: Draft, columns: tuple[UOp, ...], size: int) -> tuple[UOp, list[Number]]:
    """The loop over columns that is cut into tiles, and those around it.

    Inner loops are joined until they have the steps of a tile.
    """
    *around, column = columns
    while around and column.extent < size:
        outer, inner = around.pop().arg.number, column.arg.number
        others = [r.arg.number for r in draft.facts.outputs]
        rest = [number for number in others if number not in (outer, inner)]
        draft.do(Reorder((*rest, outer, inner)), Fuse(outer, inner))
        column = counter_of(draft.kernel, outer)
    return column, [r.arg.number for r in around]


def chunks_left(draft: Draft, outside: list[Number]) -> int:
    """Pieces of work for all threads, inside of the loops around both operands of a product."""
    threads = draft.limits.threads
    wanted = LEAST_CHUNKS // 2 * threads if threads > 1 else 1
    return -(-wanted // math.prod(counter_of(draft.kernel, n).extent for n in outside))


def is_wide(sides: Sides, row: UOp) -> bool:
    """True if a product has more columns than rows: threads then share the columns.

    What they do not share is packed by each of them, which should be the smaller operand.
    """
    return math.prod(r.extent for r in sides.columns) > row.extent


def pieces_of_columns(draft: Draft, inner: list[Number], pieces: int) -> tuple[Number, ...]:
    """The loop over pieces of columns, if there are several.

    The longest loop of `inner` is cut, and becomes that over the steps of a piece.
    """
    loops = {n: counter_of(draft.kernel, n).extent for n in draft.present(*inner)}
    if pieces == 1 or not loops:
        return ()
    longest_one = max(loops, key=loops.__getitem__)
    outer, inside = split(draft, longest_one, -(-loops[longest_one] // pieces))
    inner[inner.index(longest_one)] = inside
    return (outer,)


def pack_tiles(
    draft: Draft, at: tuple[Number, ...], dimensions: Sequence[Dimension], interleaved: int
) -> bool:
    """Pack an operand tile by tile inside of a loop, or before all if `at` is empty.

    False if no value varies with the loops of the dimensions.
    """
    first = len(arrays_of(draft.kernel))
    step = Stage(next(iter(at), None), tuple(filter(None, dimensions)), interleaved=interleaved)
    try:
        draft.do(step)
    except ArgumentError:
        return False
    for number in range(first, len(arrays_of(draft.kernel))):
        fill_tiles(draft, number, interleaved)
    return True


def fill_tiles(draft: Draft, number: int, interleaved: int) -> None:
    """The loops that fill an array of tiles: vectors along rows, whose elements may alternate."""
    if interleaved == 1:
        plan_fill(draft, number)
        return
    *outer, row, column = (r.arg.number for r in fill_of(draft, number).src[1:])
    draft.do(Split(row, interleaved), Reorder((*outer, (*row, 0), column, (*row, 1))))
    steps = counter_of(draft.kernel, (*row, 0))
    if all(coefficient(n.src[1], steps) == interleaved for n in loads_of(fill_of(draft, number))):
        draft.do(Bind((*row, 0), AxisKind.UNROLL))  # squares that are transposed in registers
    draft.do(Bind(column, AxisKind.VECTOR), Bind((*row, 1), AxisKind.PAIR))


def cut(draft: Draft, axis: Number) -> tuple[Number, Number]:
    """Cut a loop over tiles into blocks of some: the loops over blocks, and in one."""
    if not draft.present(axis):
        return (), ()  # a single tile
    draft.cut(axis, SIDE_TILES, AxisKind.UNROLL)
    return (*axis, 0), (*axis, 1)


def split(draft: Draft, axis: Number, by: int) -> tuple[Number, Number]:
    """Cut a loop into blocks of some steps, unless that leaves one loop: the loops of both."""
    if by == 1:
        return axis, ()
    if by >= counter_of(draft.kernel, axis).extent:
        return (), axis
    draft.do(Split(axis, by))
    return (*axis, 0), (*axis, 1)


def rows_of_block(draft: Draft, rows: Number, tall: int, blocks: int) -> int:
    """Steps of the loop over rows for at least so many blocks, which fit scratch memory."""
    extent = counter_of(draft.kernel, rows).extent
    depth = math.prod(r.extent for r in draft.facts.reduced)
    most = max(MOST_SCRATCH // (depth * draft.facts.itemsize * tall), 1)
    return -(-extent // max(-(-extent // most), min(blocks, extent)))
