"""Chains of two products on a matrix unit, with row reductions between them: attention.

Floor 3'. In attention the rows of a product are reduced, and weights computed from them are an
operand of the next product (T. Dao et al., "FlashAttention", 2022). A subgroup has some rows, and
iterates over the columns of the first product in blocks. Operands that all subgroups of a group
read are staged; the operand of the rows stays in registers.
`schedule/product_chains.py` makes such kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from tinycore.config import settings
from tinycore.errors import ArgumentError
from tinycore.lower.cost import Cost, Proposal, resident_groups
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number
from tinycore.lower.steps.chain import COLUMNS_AFTER, STEPS_AFTER, Chain
from tinycore.lower.steps.stage import Dimension, Stage
from tinycore.lower.steps.tensorize import COLUMNS, STEPS
from tinycore.lower.strategies.grid_shared import fits_group, innermost_group
from tinycore.lower.strategies.matrix_sides import longest
from tinycore.lower.strategies.matrix_unit import (
    cut_tile,
    dimension,
    is_described,
    is_turned,
    stage_operand,
)
from tinycore.lower.tile import Bind, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part


class Rows(NamedTuple):
    """The rows of a group: its subgroups, and the tiles of each, which share the fragments of the
    other operands."""

    subgroups: int
    tiles: int
    least: int
    """Least columns of a block of scores from which this division pays."""


WAYS: Final = (Rows(4, 2, 32), Rows(8, 1, 16))
"""Divisions of rows, the best first."""
WAYS_OF_SEVERAL: Final = (Rows(2, 1, 64), Rows(1, 1, 64))
"""Divisions for a unit of several subgroups that reads staged operands by itself: its products for
one overlap with the folds of another, so as many are resident as registers allow."""
MOST_REGISTERS: Final = 255
"""Registers of a lane, if the device states none."""
LEAST_TURNS: Final = 2
CYCLES: Final = 1 / 64
"""Estimated words loaded per multiply-add: fewer than by any plan that computes the first product
again for each column of the second."""


@dataclass(frozen=True)
class Products:
    """The loops of products, each once: rows, columns of the second ones, those between, and steps
    of the first ones; the lengths of these for each first product, the widths of the second ones.
    """

    m: UOp
    n: UOp
    between: UOp
    k: tuple[UOp, ...]
    steps: tuple[int, ...]
    columns: tuple[int, ...]


def products_of(facts: KernelFacts, unit: MatrixUnit) -> Products | None:
    """The loops of products, some with an operand computed from the others; None without."""
    firsts: list[UOp] = []
    rows, columns, between = set(), set(), set()
    seconds = 0
    for total in facts.reductions:
        value, loops = total.src[0], total.src[1:]
        if total.arg is not Op.ADD or value.op is not Op.MUL or len(loops) != 1:
            continue
        made, other = (s.src[0] if s.op is Op.CAST else s for s in value.src)
        if made.dtype is not unit.a or other.dtype is not unit.a:
            continue
        if has_sums(other):
            made, other = other, made
        if not has_sums(made):
            firsts.append(total)
            continue
        seconds += 1
        between.add(loops[0])
        rows |= {r for r in facts.launchable if r in made.ranges and r not in other.ranges}
        columns |= {r for r in facts.launchable if r in other.ranges and r not in made.ranges}
    if not firsts or not rows or any(len(found) != 1 for found in (columns, between)):
        return None
    # Heads that share keys are rows, too: groups of their own.
    m = longest(tuple(r for r in facts.launchable if r in rows))
    (n,), (through,) = columns, between
    if any(through not in first.ranges or m not in first.ranges for first in firsts):
        return None
    summed = [first.src[1] for first in firsts]
    steps, widths = tuple(r.extent for r in summed), (n.extent,) * seconds
    return Products(m, n, through, tuple(dict.fromkeys(summed)), steps, widths)


def has_sums(value: UOp) -> bool:
    """True if a value depends on a reduction."""
    return any(n.op is Op.REDUCE for n in value.toposort())


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """All products of a kernel on each unit that suits them."""
    if facts.has_order or facts.overwrites or not all(r.is_fixed for r in facts.loops):
        return
    for given in limits.matrix:
        if not given.is_of(limits.subgroup) or (given.rounds and not settings.ALLOW_TF32):
            continue
        if (unit := given.chained) is None:
            continue
        found = products_of(facts, unit)
        if found is None or unit.out not in limits.shuffles:
            continue
        if unit.is_described and not is_enough(facts, limits, unit, found):
            continue
        ways = WAYS_OF_SEVERAL if unit.is_described else WAYS
        for place, way in enumerate(ways):
            if (way.tiles - 1) * unit.m >= found.m.extent:
                continue
            if (block := block_of(limits, unit, found, way)) is not None:
                apply = partial(use_unit, unit=unit, found=found, block=block, way=way)
                name = f"chain of {unit.name} {way.subgroups} x {way.tiles}"
                cost = CYCLES * (place + 1)
                if unit.is_described:
                    cost = CYCLES / (1 + resident(limits, unit, found, block, way))
                yield Proposal(name, None, Cost(cost), apply)


def resident(limits: Limits, unit: MatrixUnit, found: Products, block: int, way: Rows) -> int:
    """Occupancy in tiles of rows: how many a multiprocessor has registers for at once."""
    registers = unit.registers_of_chain(found.columns, found.steps, block, way.tiles)
    return way.subgroups * resident_groups(limits, way.subgroups * unit.threads, registers)


def is_enough(facts: KernelFacts, limits: Limits, unit: MatrixUnit, found: Products) -> bool:
    """True if a chain has a tile of rows for each unit of the device."""
    rows = found.m.extent
    others = facts.outputs_launched // (rows * found.n.extent)
    return rows >= unit.m and -(-rows // unit.m) * others >= max(limits.units, 1)


def block_of(limits: Limits, unit: MatrixUnit, found: Products, way: Rows) -> int | None:
    """The columns of a block of scores; None if registers are too few."""
    registers, length = limits.thread_registers or MOST_REGISTERS, found.between.extent
    block = unit.block_of_chain(found.columns, found.steps, length, registers, way.tiles)
    return block if block is not None and block >= min(way.least, length) else None


def use_unit(draft: Draft, unit: MatrixUnit, found: Products, block: int, way: Rows) -> bool:
    """Some rows for each subgroup; False if the unit cannot compute the products."""
    try:
        turns = range(LEAST_TURNS if draft.limits.async_bytes else 1, -1, -1)
        return any(chain(draft, unit, found, block, way, copies) for copies in turns)
    except ArgumentError:
        return False


def chain(
    given: Draft, unit: MatrixUnit, found: Products, block: int, way: Rows, turns: int
) -> bool:
    """Apply the steps of `use_unit` with `turns` copies of each stage; True if they fit.

    With 0 copies operands are read from memory. Raises ArgumentError if the unit cannot compute the
    products.
    """
    draft = given.copy()
    rows = way.tiles * unit.m
    wanted = draft.limits.block_wanted // unit.threads
    most = way.subgroups if unit.is_described else min(way.subgroups, wanted)
    _, down = cut_tile(draft, found.m, subgroups_of(draft, found, most, rows), rows)
    assert down is not None, f"{unit.name} has rows"  # or else its sums are no operand
    n, between = found.n.arg.number, found.between.arg.number
    k = tuple(loop.arg.number for loop in found.k)
    is_split = block < found.between.extent
    if is_split:
        is_whole = found.between.extent % block == 0
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
    limits, rows = draft.limits, found.m.extent
    others = draft.facts.outputs_launched // (rows * found.n.extent)
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
    before, done = draft.copy(), len(draft.steps)
    stage_operand(draft, Stage(at, dimensions, copies=copies), operand, unit.load)
    if unit.load and unit.load.turned_bytes == operand.dtype.itemsize and is_turned(draft):
        draft.become(before)
        stage_operand(draft, Stage(at, dimensions[::-1], copies=copies), operand, unit.load)
    return not unit.is_described or is_described(draft, done)
