"""Two products by a matrix unit in one kernel: the rows of the first are folded, then multiplied.

Floor 3'. Attention is such a chain: scores are the sums of a product, their rows are folded, and
what is made of them is an operand of the next product (T. Dao et al., "FlashAttention", 2022). A
subgroup has some rows, and goes through the columns of the first product block by block. Operands
that all subgroups of a group read are staged; that of the rows stays in registers.
`schedule/product_chains.py` makes such kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tinycore.config import settings
from tinycore.errors import ArgumentError
from tinycore.lower.cost import Cost, Proposal
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number
from tinycore.lower.steps.chain import COLUMNS_AFTER, STEPS_AFTER, Chain
from tinycore.lower.steps.stage import Dimension, Stage
from tinycore.lower.steps.tensorize import COLUMNS, STEPS
from tinycore.lower.strategies.grid_shared import fits_group, innermost_group
from tinycore.lower.strategies.matrix_unit import (
    cut_tile,
    dimension,
    has,
    is_turned,
    stage_operand,
)
from tinycore.lower.tile import Bind, Split
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

MOST_SUBGROUPS: Final = 8
"""Subgroups of a group, which share what is staged."""
MOST_REGISTERS: Final = 255
"""Registers of a lane where a device states none."""
LEAST_TURNS: Final = 2
CYCLES: Final = 1 / 64
"""Words that are loaded for each multiply-add, roughly: fewer than by any plan that goes through
the first product again for each column of the second."""


@dataclass(frozen=True)
class Products:
    """The loops of two products: rows, columns of the second, those between, steps of the first."""

    m: UOp
    n: UOp
    between: UOp
    k: UOp


def products_of(facts: KernelFacts, unit: MatrixUnit) -> Products | None:
    """The loops of two products of which the second multiplies what is made of the first."""
    firsts, seconds = [], []
    for total in facts.reductions:
        value, loops = total.src[0], total.src[1:]
        if total.arg is not Op.ADD or value.op is not Op.MUL or len(loops) != 1:
            continue
        inner = [s.src[0] if s.op is Op.CAST else s for s in value.src]
        if any(s.dtype is not unit.a for s in inner):
            continue
        below = [any(n.op is Op.REDUCE for n in s.toposort()) for s in inner]
        if not any(below):
            firsts.append((total, *inner))
        elif below == [True, False]:
            seconds.append((total, *inner))
        elif below == [False, True]:
            seconds.append((total, *reversed(inner)))
    if len(firsts) != 1 or len(seconds) != 1:
        return None
    (first, *_), (second, made, other) = firsts[0], seconds[0]
    rows = [r for r in facts.launchable if r in made.ranges and r not in other.ranges]
    columns = [r for r in facts.launchable if r in other.ranges and r not in made.ranges]
    between, k = second.src[1], first.src[1]
    if len(rows) != 1 or len(columns) != 1 or between not in first.ranges:
        return None
    return Products(rows[0], columns[0], between, k)


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """Both products by each unit that can, for a kernel of two."""
    if facts.has_order or facts.overwrites or not all(r.is_fixed for r in facts.loops):
        return
    for unit in limits.matrix:
        if unit.threads != limits.subgroup or (unit.rounds and not settings.ALLOW_TF32):
            continue
        found = products_of(facts, unit)
        if found is None or unit.out not in limits.shuffles:
            continue
        registers = limits.thread_registers or MOST_REGISTERS
        size = unit.block_of_chain(found.n.extent, found.k.extent, found.between.extent, registers)
        if size is not None:
            apply = partial(use_unit, unit=unit, found=found, block=size)
            yield Proposal(f"chain of {unit.name}", None, Cost(CYCLES), apply)


def use_unit(draft: Draft, unit: MatrixUnit, found: Products, block: int) -> bool:
    """Some rows for each subgroup; False if the products are none for the unit."""
    try:
        turns = range(LEAST_TURNS if draft.limits.async_bytes else 1, -1, -1)
        return any(chain(draft, unit, found, block, copies) for copies in turns)
    except ArgumentError:
        return False


def chain(given: Draft, unit: MatrixUnit, found: Products, block: int, turns: int) -> bool:
    """The steps of `use_unit`, with stages of so many copies; whether they fit.

    With no copies operands are read where they lie. Raises ArgumentError where the products are
    none for the unit.
    """
    draft = given.copy()
    _, down = cut_tile(draft, found.m, subgroups_of(draft, unit, found), unit.m)
    n, k, between = (loop.arg.number for loop in (found.n, found.k, found.between))
    if block < found.between.extent:
        draft.do(Split(between, block))
        between = (*between, 1)
    step = Chain(down, n, between, k, unit)
    draft.do(step)
    for axis in (down, n, k, between):
        if has(draft, (*axis, 0)):
            draft.do(Bind((*axis, 0), AxisKind.UNROLL))
    draft.do(*(Bind(counter.arg.number, AxisKind.GRID) for counter in draft.facts.launchable))
    online = (*between[:-1], 0, Part.ONLINE)
    at = online if has(draft, online) else innermost_group(draft)
    copies = turns if at == online else min(turns, 1)
    columns = dimension(draft, (*between, 0), step.tiles, step.number(COLUMNS))
    steps = dimension(draft, (*k, 0), step.number(STEPS))
    after = dimension(draft, (*n, 0), step.number(COLUMNS_AFTER))
    further = dimension(draft, (*between, 0), step.number(STEPS_AFTER))
    if copies:
        stage(draft, unit, at, (columns, steps), copies)
        stage(draft, unit, at, (after, further), copies)
    if not fits_group(draft):
        return False
    given.become(draft)
    return True


def subgroups_of(draft: Draft, unit: MatrixUnit, found: Products) -> int:
    """Subgroups of a group: as many as share what is staged while every unit has a group."""
    limits, rows = draft.limits, found.m.extent
    others = draft.facts.outputs_launched // (rows * found.n.extent)
    most = min(limits.block_wanted // unit.threads, MOST_SUBGROUPS)
    while most > 1 and (
        most * unit.m >= 2 * rows or -(-rows // (most * unit.m)) * others < max(limits.units, 1)
    ):
        most //= 2
    return max(most, 1)


def stage(
    draft: Draft,
    unit: MatrixUnit,
    at: Number | None,
    sides: tuple[Dimension, Dimension],
    copies: int,
) -> None:
    """Stage a second operand, by columns and steps, in the order in which it is loaded best."""
    operand = unit.fragment("b")
    dimensions = sides if operand.map.neighbors[0] == "k" else sides[::-1]
    before = draft.copy()
    stage_operand(draft, Stage(at, dimensions, copies=copies), operand)
    if unit.load and unit.load.turned_bytes == operand.dtype.itemsize and is_turned(draft):
        draft.become(before)
        stage_operand(draft, Stage(at, dimensions[::-1], copies=copies), operand)
