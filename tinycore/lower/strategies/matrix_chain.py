"""Chains of two products on a matrix unit, with row reductions between them: attention.

Floor 3'. In attention the rows of a product are reduced, and weights computed from them are an
operand of the next product (T. Dao et al., "FlashAttention", 2022). A subgroup has some rows, and
iterates over the columns of the first product in blocks. Operands that all subgroups of a group
read are staged; the operand of the rows stays in registers.
`schedule/product_chains.py` makes such kernels, of which `render/chains.py` tells the ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.cost import Cost, Proposal, resident_groups
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number
from tinycore.lower.steps.chain import COLUMNS_AFTER, STEPS_AFTER, Chain
from tinycore.lower.steps.stage import Dimension, Stage
from tinycore.lower.steps.tensorize import COLUMNS, STEPS
from tinycore.lower.strategies.grid_shared import fits_group, innermost_group
from tinycore.lower.strategies.matrix_unit import (
    GROUPS_OF_A_UNIT,
    WORD_BYTES,
    cut_tile,
    dimension,
    fills_ahead,
    is_described,
    stage_operand,
)
from tinycore.lower.tile import Bind, Split, Tail
from tinycore.render.base import Limits
from tinycore.render.chains import Products, Way, products_of, units_of, ways_of
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.op import AxisKind, Part

LEAST_TURNS: Final = 2
MOST_FILLED: Final = 32
"""Registers of a lane for what it copies through them at once, of those that are not counted: LLVM
spills 7 of a lane of gfx1201 that copies twice as many for 128 features."""
CYCLES: Final = 1 / 64
"""Estimated words loaded per multiply-add: fewer than by any plan that computes the first product
again for each column of the second."""
REGISTERS_OF_MASK: Final = 16
"""Registers of a lane for what is read for each score, as a mask is: 15 by ptxas."""
CYCLES_OF_FEW: Final = 4 * CYCLES
"""More of them where some units of the device have no tile of rows: those of others are smaller."""


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """All products of a kernel on each unit that suits them."""
    if facts.has_order or facts.overwrites or not facts.is_fixed:
        return
    for unit in units_of(limits):
        found = products_of(facts.kernel, facts.launchable, unit)
        if isinstance(found, str):
            continue
        masks = sum({found.m, found.between} <= n.ranges for n in facts.loads)
        for place, way in enumerate(ways_of(limits, unit, found.sizes)):
            apply = partial(use_unit, unit=unit, found=found, way=way)
            name = f"chain of {unit.name} {way.rows.subgroups} x {way.rows.tiles}"
            cycles = CYCLES * (place + 1)
            if unit.is_described:
                if not resident(limits, unit, found, way, masks * REGISTERS_OF_MASK):
                    continue
                cycles = CYCLES / (1 + resident(limits, unit, found, way))
                cycles += 0 if is_enough(limits, unit, found) else CYCLES_OF_FEW
            yield Proposal(name, None, Cost(cycles), apply)


def refusal(draft: Draft) -> str:
    """Why a chain of no unit applies to a kernel."""
    told: dict[str, None] = {}
    facts, limits = draft.facts, draft.limits
    for unit in units_of(limits):
        found = products_of(facts.kernel, facts.launchable, unit)
        if isinstance(found, str):
            continue
        for way in ways_of(limits, unit, found.sizes):
            why = "operands fit no shared memory"
            try:
                chain(draft.copy(), unit, found, way, 0)
            except ArgumentError as error:
                why = str(error)
            told[f"{unit.name}: {why}"] = None
    return "; ".join(told) or "no unit has such products"


def resident(limits: Limits, unit: MatrixUnit, found: Products, way: Way, more: int = 0) -> int:
    """Occupancy in tiles of rows: how many a multiprocessor has registers for at once.

    Of a lane with some more registers than those of the products.
    """
    subgroups, registers = way.rows.subgroups, registers_of_way(unit, found, way)
    return subgroups * resident_groups(limits, subgroups * unit.threads, registers + more)


def registers_of_way(unit: MatrixUnit, found: Products, way: Way) -> int:
    """Registers of a lane for a division of rows."""
    columns = [n // way.parts for n in found.sizes.columns]
    return unit.registers_of_chain(columns, found.sizes.steps, way.block, way.rows.tiles)


def waits_alone(
    limits: Limits, unit: MatrixUnit, found: Products, way: Way, subgroups: int
) -> bool:
    """True if no group of so many subgroups computes while another fills shared memory."""
    if fills_ahead(limits):
        return False
    registers = registers_of_way(unit, found, way)
    return resident_groups(limits, subgroups * unit.threads, registers) < GROUPS_OF_A_UNIT


def registers_of_fill(unit: MatrixUnit, found: Products, block: int, subgroups: int) -> int:
    """Registers of a lane for what it copies to shared memory of a block of columns."""
    staged = block * (sum(found.sizes.steps) + sum(found.sizes.columns)) * unit.b.itemsize
    return staged // (WORD_BYTES * subgroups * unit.threads) if block > unit.k else 0


def is_enough(limits: Limits, unit: MatrixUnit, found: Products) -> bool:
    """True if a chain has a tile of rows for each unit of the device."""
    others, rows = found.sizes[:2]
    return rows >= unit.m and -(-rows // unit.m) * others >= limits.units


def use_unit(draft: Draft, unit: MatrixUnit, found: Products, way: Way) -> bool:
    """Some rows for each subgroup; False if the unit cannot compute the products."""
    try:
        turns = range(LEAST_TURNS if fills_ahead(draft.limits) else 1, -1, -1)
        return any(chain(draft, unit, found, way, copies) for copies in turns)
    except ArgumentError:
        return False


def chain(given: Draft, unit: MatrixUnit, found: Products, way: Way, turns: int) -> bool:
    """Apply the steps of `use_unit` with `turns` copies of each stage; True if they fit.

    With 0 copies operands are read from memory. Raises ArgumentError if the unit cannot compute the
    products.
    """
    draft = given.copy()
    (most, tiles, _), block, parts = way
    rows = tiles * unit.m
    if not unit.is_described:
        most = min(most, draft.limits.block_wanted // unit.threads)
        while most > 1 and waits_alone(draft.limits, unit, found, way, most):
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
    for axis in (down, n, *k, between):
        if draft.present((*axis, 0)):
            draft.do(Bind((*axis, 0), AxisKind.UNROLL))
    draft.do(*(Bind(counter.arg.number, AxisKind.GRID) for counter in draft.facts.launchable))
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
    if not is_staged or not fits_group(draft):
        return False
    given.become(draft)
    return True


def subgroups_of(draft: Draft, found: Products, most: int, own: int) -> int:
    """Subgroups of a group: as many as possible while each unit has a group."""
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
    """Stage a second operand, with its columns and steps in the order that is loaded best.

    False where a unit that reads it by itself cannot.
    """
    operand = unit.fragment("b")
    dimensions = sides if operand.map.neighbors[0] == "k" else sides[::-1]
    done = len(draft.steps)
    stage_operand(draft, Stage(at, dimensions, copies=copies), operand, unit.load)
    return not unit.is_described or is_described(draft, done)
