"""Chains of two products on a matrix unit, with row reductions between them: attention.

Floor 3'. In attention the rows of a product are reduced, and weights computed from them are an
operand of the next product (T. Dao et al., "FlashAttention", 2022). A subgroup has some rows, and
iterates over the columns of the first product in blocks. Operands that all subgroups of a group
read are staged; the operand of the rows stays in registers. `schedule/product_chains.py` fuses such
kernels, and `render/chains.py` decides which tiles they may have.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tinycore.lower.cost import Cost, Proposal, resident_groups
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number
from tinycore.lower.steps.chain import COLUMNS_AFTER, STEPS_AFTER, Chain
from tinycore.lower.steps.stage import WORD_BYTES, Dimension, Stage
from tinycore.lower.steps.tensorize import COLUMNS, STEPS
from tinycore.lower.strategies.grid_shared import fits_group, innermost_group
from tinycore.lower.strategies.matrix_unit import (
    GROUPS_OF_A_UNIT,
    LEAST_TURNS,
    cut_tile,
    dimension,
    fills_ahead,
    launch_tiles,
    stage_side,
    take_first,
)
from tinycore.lower.tile import Split, Tail
from tinycore.render.base import Limits
from tinycore.render.chains import ChainTile, Products, chain_tiles, products_of, units_of
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.op import Part

MOST_FILLED: Final = 32
"""Registers of a lane that a fill may use beside the counted ones: with twice as many, for 128
features, LLVM spills 7 registers on gfx1201."""
CYCLES: Final = 1 / 64
"""Estimated words loaded per multiply-add: fewer than by any plan that computes the first product
again for each column of the second."""
REGISTERS_OF_MASK: Final = 16
"""Registers of a lane for an operand that is read per score, such as a mask: 15 by ptxas."""
CYCLES_OF_FEW: Final = 4 * CYCLES
"""Added cost where some units of the device get no tile of rows: other units have smaller tiles."""


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """The chain of products of a kernel, on each unit and in each tile that suits it."""
    if facts.has_order or facts.overwrites or not facts.is_cuttable:
        return
    for unit in units_of(limits):
        found = products_of(facts.kernel, facts.launchable, unit)
        if isinstance(found, str):
            continue
        masks = sum({found.m, found.between} <= n.ranges for n in facts.loads)
        for place, tile in enumerate(chain_tiles(limits, unit, found.sizes)):
            apply = partial(use_unit, unit=unit, found=found, tile=tile)
            name = f"chain of {unit.name} {tile.rows.subgroups} x {tile.rows.tiles}"
            cycles = CYCLES * (place + 1)
            if unit.is_described:
                if not resident(limits, unit, found, tile, masks * REGISTERS_OF_MASK):
                    continue
                cycles = CYCLES / (1 + resident(limits, unit, found, tile))
                cycles += 0 if is_enough(limits, unit, found) else CYCLES_OF_FEW
            yield Proposal(name, None, Cost(cycles), apply)


def resident(
    limits: Limits, unit: MatrixUnit, found: Products, tile: ChainTile, more: int = 0
) -> int:
    """Occupancy: subgroups that are resident on a unit, whose lanes need `more` registers beside
    those of the products.
    """
    subgroups, registers = tile.rows.subgroups, registers_of_tile(unit, found, tile)
    return subgroups * resident_groups(limits, subgroups * unit.threads, registers + more)


def registers_of_tile(unit: MatrixUnit, found: Products, tile: ChainTile) -> int:
    """Registers of a lane for the products of a tile."""
    columns = [n // tile.parts for n in found.sizes.columns]
    return unit.registers_of_chain(columns, found.sizes.steps, tile.block, tile.rows.tiles)


def waits_alone(
    limits: Limits, unit: MatrixUnit, found: Products, tile: ChainTile, subgroups: int
) -> bool:
    """True if only one group of `subgroups` is resident, so that it waits for its own fills."""
    if fills_ahead(limits):
        return False
    registers = registers_of_tile(unit, found, tile)
    return resident_groups(limits, subgroups * unit.threads, registers) < GROUPS_OF_A_UNIT


def registers_of_fill(unit: MatrixUnit, found: Products, block: int, subgroups: int) -> int:
    """Registers of a lane through which it copies a block of columns to shared memory."""
    staged = block * (sum(found.sizes.steps) + sum(found.sizes.columns)) * unit.b.itemsize
    return staged // (WORD_BYTES * subgroups * unit.threads) if block > unit.k else 0


def is_enough(limits: Limits, unit: MatrixUnit, found: Products) -> bool:
    """True if a chain has at least one tile of rows for each unit of the device."""
    others, rows = found.sizes[:2]
    return rows >= unit.m and -(-rows // unit.m) * others >= limits.units


def use_unit(draft: Draft, unit: MatrixUnit, found: Products, tile: ChainTile) -> bool:
    """Compute some rows per subgroup; False if the unit cannot compute the products."""
    most = LEAST_TURNS if fills_ahead(draft.limits) else 1
    plan = partial(chain, unit=unit, found=found, tile=tile)
    return take_first(draft, (partial(plan, turns=turns) for turns in range(most, -1, -1)))


def chain(draft: Draft, unit: MatrixUnit, found: Products, tile: ChainTile, turns: int) -> bool:
    """Apply the steps of `use_unit` with `turns` copies of each stage; True if they fit.

    With 0 copies operands are read from memory. Raises ArgumentError if the unit cannot compute the
    products.
    """
    (most, tiles, _), block, parts = tile
    rows = tiles * unit.m
    if not unit.is_described:
        most = min(most, draft.limits.block_wanted // unit.threads)
        while most > 1 and waits_alone(draft.limits, unit, found, tile, most):
            most //= 2
    subgroups = subgroups_of(draft, found, most, rows)
    while (
        not fills_ahead(draft.limits)
        and registers_of_fill(unit, found, block, subgroups) > MOST_FILLED
    ):
        block //= 2
    _, down = cut_tile(draft, found.m, subgroups, rows)
    assert down is not None, f"{unit.name} has rows"  # or else its sums are no operand
    n, between = found.n.arg.number, found.between.arg.number
    k = tuple(loop.arg.number for loop in found.k)
    if parts > 1:
        draft.do(Split(n, found.n.extent // parts))
        n = (*n, 1)
    is_split = block < found.between.extent or not found.between.is_fixed
    if is_split:
        is_whole = found.between.is_fixed and found.between.extent % block == 0
        draft.do(Split(between, block, Tail.AUTO if is_whole else Tail.GUARD))
        between = (*between, 1)
    step = Chain(down, n, between, k, unit)
    draft.do(step)
    launch_tiles(draft, *((*axis, 0) for axis in (down, n, *k, between)))
    names = [(*found.between.arg.number, 0, *marks) for marks in ((), (Part.ONLINE,))]
    at = next((name for name in names if is_split and draft.present(name)), None)
    copies = turns if at is not None else min(turns, 1)
    columns = dimension(draft, (*between, 0), step.tiles, step.number(COLUMNS))
    after = dimension(draft, (*n, 0), step.number(COLUMNS_AFTER))
    further = dimension(draft, (*between, 0), step.number(STEPS_AFTER))
    sides = [
        (columns, dimension(draft, (*axis, 0), step.number(STEPS, product)))
        for product, axis in enumerate(k)
    ]
    is_staged = bool(copies) or not unit.is_described
    for side in (*sides, (after, further)) if copies else ():
        is_staged &= stage(draft, unit, at or innermost_group(draft), side, copies)
    return is_staged and fits_group(draft)


def subgroups_of(draft: Draft, found: Products, most: int, own: int) -> int:
    """Subgroups of a group: as many as possible without leaving a unit idle."""
    limits, (others, rows, *_) = draft.limits, found.sizes
    while most > 1 and (
        most * own >= 2 * rows or -(-rows // (most * own)) * others < max(limits.units, 1)
    ):
        most //= 2
    return max(most, 1)


def stage(
    draft: Draft,
    unit: MatrixUnit,
    at: Number | None,
    sides: tuple[Dimension, Dimension],
    copies: int,
) -> bool:
    """Stage a second operand, with columns and steps in the order in which lanes load vectors.

    False if the unit reads shared memory by itself, and cannot read that layout.
    """
    dimensions = sides if unit.fragment("b").map.neighbors[0] == "k" else sides[::-1]
    return stage_side(draft, Stage(at, dimensions, copies=copies), unit, COLUMNS)
