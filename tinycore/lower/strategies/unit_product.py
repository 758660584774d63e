"""Products on a matrix unit: tiles of a group, of a subgroup, of an instruction.

Floor 3'. A group computes a block of the result, and each of its subgroups a part of the block in
several tiles of the unit, with accumulators in registers. Both operands are staged in shared memory
in their own type, a few steps of the unit at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Final

from tinycore.config import settings
from tinycore.lower.cooperative import filled_by_device, turn_of
from tinycore.lower.cost import (
    ceil_power_of_two,
    cycles_of_loads,
    resident_groups,
)
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number, counter_of, fills_of
from tinycore.lower.steps.stage import WORD_BYTES, Stage, scratch_bytes
from tinycore.lower.steps.tensorize import COLUMNS, ROWS, STEPS, Tensorize
from tinycore.lower.strategies.grid_sides import (
    Sides,
    join_blocks,
    join_side,
    join_steps,
    length_of,
    longest,
    operand_accesses,
    steps_of,
)
from tinycore.lower.strategies.grid_stages import (
    GROUPS_BESIDE,
    fills_ahead,
    is_turned,
    load_of_side,
    stage_side,
)
from tinycore.lower.strategies.grid_tiling import (
    Cut,
    Tiling,
    cut_tile,
    dimension,
    innermost_group,
    keeps_busy,
    launch_tiles,
    order_blocks,
)
from tinycore.lower.strategies.levels import ADDRESSES, ONE_TILE, Level, Tile
from tinycore.lower.tile import Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

LEAST_COPIES: Final = 2
"""Copies of a stage that pay even if shared memory then holds only one group."""
DESCRIBED_CYCLES: Final = 0.5
"""Cost of a product whose unit reads operands from shared memory (wgmma), relative to one whose
lanes load them: mma.sync has .46 to .50 of cuBLAS's rate on an H200."""
EDGE_BYTES: Final = 1024
"""Time of the prologue and epilogue of a group, in bytes along the sum that take as long to
compute: some 5 us on an H200, measured by wgmma on products of 2,048 and of 64 times 512."""
MOST_WASTE: Final = 1.25
"""Most work of tiles, padding included, relative to the product."""
MOST_WASTE_OF_ONE: Final = 4.0
"""`MOST_WASTE` of a single tile of the unit, which is that much faster than multiply-adds."""


@dataclass(frozen=True, eq=False)
class UnitProduct(Tiling):
    """A product on a unit, of which each group computes a block in tiles."""

    facts: KernelFacts
    limits: Limits
    sides: Sides
    unit: MatrixUnit
    level: Level
    tile: Tile

    def __str__(self) -> str:
        tile = self.tile
        return f"{self.unit.name} {tile.tall}x{tile.wide} of {tile.rows}x{tile.columns}"

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.tile.tall * self.tile.wide * self.unit.threads

    @property
    def parts(self) -> tuple[int, int]:
        """The tiles of the unit that a subgroup computes along rows and columns."""
        return max(self.tile.rows // self.unit.m, 1), max(self.tile.columns // self.unit.n, 1)

    @property
    def part(self) -> tuple[int, int]:
        """The rows and columns of the result that a subgroup computes."""
        tall, wide = self.parts
        return tall * self.unit.m, wide * self.unit.n

    @property
    def block(self) -> tuple[int, int]:
        """The same of a group."""
        return self.tile.tall * self.part[0], self.tile.wide * self.part[1]

    def loads(self, size: tuple[int, int]) -> float:
        """Words loaded per multiply-add of a part of the result of a size."""
        return sum(self.unit.a.itemsize / WORD_BYTES / side for side in size)

    @cached_property
    def lengths(self) -> tuple[int, int]:
        """Rows and columns."""
        return length_of(self.facts, self.sides.rows), length_of(self.facts, self.sides.columns)

    @cached_property
    def steps(self) -> int:
        """Steps of the sums."""
        return iterations_of(self.summed(self.facts))

    @property
    def depth(self) -> int:
        """Most steps of a sum that are staged at a time."""
        load = self.unit.load
        row_bytes = load.row_bytes if load and self.unit.is_described else self.level.depths[0]
        return max(row_bytes // self.unit.a.itemsize, self.unit.k)

    def summed(self, facts: KernelFacts) -> list[UOp]:
        """The reduced loops that the unit sums over."""
        return steps_of(facts, inner_loop(facts, self.unit), self.depth)

    @cached_property
    def groups(self) -> int:
        """Number of groups."""
        rows, columns = self.lengths
        height, width = self.block
        own = self.facts.outputs_launched // (rows * columns)
        return -(-rows // height) * -(-columns // width) * own

    @cached_property
    def waste(self) -> float:
        """Work in tiles, padding included, relative to the product."""
        lengths, sizes = (*self.lengths, self.steps), (*self.block, self.unit.k)
        padded = [-(-n // by) * by for n, by in zip(lengths, sizes, strict=True)]
        return math.prod(padded) / math.prod(lengths)

    def cycles(self) -> float:
        """Words loaded per multiply-add, weighted by where they come from and by idle units."""
        limits, loads = self.limits, self.loads(self.block)
        if self.unit.is_described:
            loads *= DESCRIBED_CYCLES * self.waste
        if not limits.units:
            return loads
        loads = cycles_of_loads(limits, self.loads(self.part), loads)
        loads *= limits.unevenness(self.groups)
        has_described = any(unit.is_described for unit in runnable(limits))
        return loads * (1 + self.edges()) if has_described else loads

    def resident(self, products: int = 1) -> int:
        """Occupancy: groups that are resident on a unit, by the registers of so many products."""
        tall, wide = self.parts
        held = {"a": tall, "b": wide, "out": tall * wide * products}
        fragments = ((self.unit.fragment(name), times) for name, times in held.items())
        sizes = (f.count * f.dtype.itemsize * times // WORD_BYTES for f, times in fragments)
        return resident_groups(self.limits, self.threads, sum(sizes) + ADDRESSES)

    def edges(self) -> float:
        """Time of a group's prologue and epilogue, relative to that of its products.

        Groups that are resident on a unit together overlap theirs.
        """
        terms = iterations_of(self.facts.reduced)
        cycles = 1.0 if self.unit.is_described else DESCRIBED_CYCLES
        most = min(self.resident(), GROUPS_BESIDE, self.groups // self.limits.units)
        return cycles * EDGE_BYTES / (terms * self.unit.a.itemsize) / max(most, 1)

    def suits(self) -> bool:
        """True if the tiles fit a group, keep the device busy and need little padding."""
        limits, is_one = self.limits, self.tile == ONE_TILE
        if self.threads > max(limits.block_wanted, self.unit.threads):
            return False
        if self.level.is_large and not (
            limits.copies and self.resident(len(self.facts.reductions))
        ):
            return False
        if self.waste > (MOST_WASTE_OF_ONE if is_one else MOST_WASTE):
            return False
        return is_one or keeps_busy(limits, self.groups * self.threads)

    def copies(self, cut: Cut) -> Iterable[int]:
        """Most first, where stages are filled ahead."""
        most = self.level.copies if fills_ahead(self.limits) else 1
        return range(min(most, cut.blocks or 1), 0, -1)

    def cut(self, draft: Draft) -> Cut | None:
        """Subgroups and their tiles along both sides, stages of the sum, then the unit.

        Raises ArgumentError if the sum is no product for the unit.
        """
        unit, tile, (height, width) = self.unit, self.tile, self.part
        row, column = join_side(draft, self.sides.rows), join_side(draft, self.sides.columns)
        joined = draft.facts
        below, down = cut_tile(draft, row, tile.tall, height)
        beside, right = cut_tile(draft, column, tile.wide, width)
        block, depth = self.cut_steps(draft)
        # A unit of one row or column has no loop along it: the tile's loop counts whole units.
        step = Tensorize(down if unit.m > 1 else None, right if unit.n > 1 else None, depth, unit)
        draft.do(step)
        down = down if step.m is None else (*step.m, 0)
        right = right if step.n is None else (*step.n, 0)
        launch_tiles(draft, down, right, (*depth, 0))
        blocks = counter_of(draft.kernel, block).extent if draft.present(block) else None
        at = innermost_group(draft) if blocks is None else block
        along = dimension(draft, (*depth, 0), step.number(STEPS))
        stages = []
        for side, subgroups, axis, part in (
            (row, below, down, ROWS),
            (column, beside, right, COLUMNS),
        ):
            if across := dimension(draft, subgroups, axis, step.number(part)):
                inner = steps_are_inner(joined, side, unit, part)
                stage = Stage(at, (across, along) if inner else (along, across))
                stages.append((stage, part))
            elif unit.is_described:
                return None  # lanes could read a single row from memory
        return Cut(stages, blocks, (row, column))

    def cut_steps(self, draft: Draft) -> tuple[Number, Number]:
        """Split the reduced loop of a product into stages; that over stages, and that inside."""
        loops, unit = self.summed(draft.facts), self.unit
        number = join_steps(draft, loops)
        steps = -(-iterations_of(loops) // unit.k)
        if unit.is_described:
            steps = ceil_power_of_two(steps)
        depth = min(draft.size("depth", self.depth), steps * unit.k)
        draft.do(Split(number, depth, Tail.GUARD))
        return join_blocks(draft, (*number, 0)), (*number, 1)

    def stage(self, draft: Draft, cut: Cut, copies: int) -> bool:
        """Stage both operands in rows that a unit reads without conflicts of banks."""
        unit = self.unit
        for step, part in cut.stages:
            if not stage_side(draft, replace(step, copies=copies), unit, part):
                return False
            if copies > 1 and unit.a.itemsize == 1 and is_turned(draft):
                return False
        if cut.blocks is not None and not is_rounded_apart(draft, unit):
            return False
        return self.leaves_room(draft, copies, cut.blocks or 1)

    def leaves_room(self, draft: Draft, copies: int, blocks: int) -> bool:
        """True if stages leave shared memory for the groups that should be resident together.

        A group that is resident alone, and fills only one step ahead, waits for memory. Products
        that go on while threads wait need no group beside theirs if registers hold only one.
        """
        unit = self.unit
        beside = max(min(self.resident(), GROUPS_BESIDE), 1) if unit.is_described else GROUPS_BESIDE
        fits = scratch_bytes(draft.kernel) <= draft.limits.shared_bytes // beside
        if unit.load and unit.is_described:
            return fits and copies >= min(LEAST_COPIES + unit.load.behind, blocks)
        return fits or copies <= LEAST_COPIES

    def finish(self, draft: Draft, cut: Cut) -> None:
        """Order the groups."""
        depth = longest(tuple(self.facts.reduced)).extent
        row, column = cut.sides
        order_blocks(draft, row, column, depth, self.unit.a.itemsize)


def units_for(facts: KernelFacts, limits: Limits) -> Iterator[MatrixUnit]:
    """The units of a device that may compute the sums of a kernel.

    A device has units for many types, each in many tiles: most are left out by types, cheaply.
    """
    totals = {(total.arg, total.dtype) for total in facts.reductions}
    for unit in runnable(limits) if not facts.overwrites else ():
        if {unit.a, unit.b} <= facts.reduced_types and totals <= {(Op.ADD, unit.out)}:
            yield unit


def runnable(limits: Limits) -> Iterator[MatrixUnit]:
    """The units for single products; others are for chains of products."""
    for unit in limits.matrix:
        is_exact = settings.ALLOW_TF32 or not unit.rounds
        is_single = not unit.is_described or unit.load_of("a") is not None
        if is_exact and is_single and unit.runs_on(limits.subgroup):
            yield unit


def steps_are_inner(facts: KernelFacts, side: UOp, unit: MatrixUnit, part: int) -> bool:
    """True if the rows of a staged operand are along the sum, not along its side of the result."""
    load = load_of_side(unit, part)
    if load and load.is_described and load.turned_bytes == unit.a.itemsize:
        return not lies_across(facts, side, unit)
    return unit.fragment("a" if part is ROWS else "b").map.neighbors[0] == "k"


def lies_across(facts: KernelFacts, loop: UOp, unit: MatrixUnit) -> bool:
    """True if an operand is contiguous along a side of the product, not along the sum."""
    steps = inner_loop(facts, unit)
    moving = [n for n in facts.loads if facts.stride(n, loop) and facts.stride(n, steps)]
    return any(facts.stride(n, loop) == 1 for n in moving)


def is_rounded_apart(draft: Draft, unit: MatrixUnit) -> bool:
    """True unless threads have to round operands that the unit reads from shared memory by itself.

    Other plans are faster: a device rounds what it fills, and lanes fragments as they load them.
    """
    if not unit.rounds or not unit.is_described:
        return True
    fills = fills_of(draft.kernel)
    turns = {turn_of(fill, draft.kernel) for fill in fills}
    turn = turns.pop()
    if turns or turn is None:
        return False
    return bool(filled_by_device(draft.kernel, fills, turn, draft.limits, count()))


def inner_loop(facts: KernelFacts, unit: MatrixUnit) -> UOp:
    """The reduced loop along which the unit sums: contiguous in most operands, then the longest."""
    read = operand_accesses(facts)

    def suits_unit(loop: UOp) -> tuple[int, int]:
        along = sum(facts.stride(n, loop) == 1 for n in read)
        return along if loop.extent >= unit.k else 0, loop.extent

    return max(reversed(facts.reduced), key=suits_unit)
