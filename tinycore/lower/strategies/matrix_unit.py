"""Matrix products on a matrix unit: tiles of a group, of a subgroup, of an instruction.

Floor 3'. The levels are those of CUTLASS: a group computes a block of the result, and each of its
subgroups a part of the block in several tiles of the unit, with accumulators in registers. Both
operands are staged in shared memory in their own type, a few steps of the unit at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import Final

from tinycore.config import settings
from tinycore.errors import ArgumentError
from tinycore.lower.cooperative import filled_by_device, turn_of
from tinycore.lower.cost import (
    Cost,
    Proposal,
    ceil_power_of_two,
    cycles_of_loads,
    floor_power_of_two,
    resident_groups,
)
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number, arrays_of, counter_of, fills_of, stores_of
from tinycore.lower.steps.stage import BANKS_BYTES, WORD_BYTES, Dimension, Stage, scratch_bytes
from tinycore.lower.steps.tensorize import COLUMNS, ROWS, STEPS, Tensorize
from tinycore.lower.strategies.block_order import order_blocks
from tinycore.lower.strategies.grid_shared import (
    LEAST_FILLED,
    Sides,
    fits_group,
    innermost_group,
    operand_accesses,
    sides_of,
)
from tinycore.lower.strategies.group_fills import deal_out
from tinycore.lower.strategies.matrix_sides import (
    join_blocks,
    join_side,
    join_steps,
    length_of,
    longest,
    steps_of,
)
from tinycore.lower.tile import Bind, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.affine import coefficient
from tinycore.uop.matrix import Fragment, MatrixUnit, OperandLoad
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

DEPTH_BYTES: Final = 64
"""Depth of a stage: bytes per row of an operand that are staged at a time."""
ACCESS_BYTES: Final = 16
"""Widest access of a thread to shared memory; 8 of them span all banks."""
MOST_TURNS: Final = 4
"""Most copies of a stage: fills begin three steps ahead."""
LEAST_TURNS: Final = 2
"""Copies of a stage that pay even if shared memory then holds only one group."""
GROUPS_OF_A_UNIT: Final = 2
"""Groups that should be resident on a unit together, so that one computes while another waits."""
DESCRIBED_CYCLES: Final = 0.5
"""Cost of a product whose unit reads operands from shared memory (wgmma), relative to one whose
lanes load them: mma.sync has .46 to .50 of cuBLAS's rate on an H200."""
EDGE_BYTES: Final = 1024
"""Time of the prologue and epilogue of a group, in bytes along the sum that take as long to
compute: some 5 us on an H200, measured by wgmma on products of 2,048 and of 64 times 512."""
ALONE: Final = 2.0
"""Time of a group that is alone on its unit and waits for its own fills, relative to two groups of
which one computes while the other fills."""
REGISTERS_OF_ADDRESSES: Final = 40
ROOM_OF_PARTS: Final = 0.5
"""Largest fraction of shared memory in which subgroups that share a sum exchange their parts."""
LEAST_BLOCKS: Final = 4
"""Fewest stages of each subgroup that shares a sum."""
MOST_WASTE: Final = 1.25
"""Most work of tiles, padding included, relative to the product."""
MOST_WASTE_OF_ONE: Final = 4.0
"""`MOST_WASTE` of a single tile of the unit, which is that much faster than multiply-adds."""


@dataclass(frozen=True)
class Tile:
    """The subgroups of a group along rows and columns, and the part of the result of each."""

    tall: int
    wide: int
    rows: int
    columns: int

    def block(self, unit: MatrixUnit) -> tuple[int, int]:
        """The rows and columns of the result that a group computes with a unit."""
        rows, columns = copies(self.rows, unit.m) * unit.m, copies(self.columns, unit.n) * unit.n
        return self.tall * rows, self.wide * columns


LARGE_TILES: Final = (Tile(2, 4, 64, 64), Tile(4, 2, 64, 64), Tile(2, 2, 64, 64))
"""Tiles whose accumulators take most registers, so that one group occupies a unit: for devices with
asynchronous copies to shared memory."""
WIDE_TILES: Final = (Tile(1, 4, 64, 32), Tile(1, 4, 32, 32), Tile(1, 4, 16, 32))
"""Tiles for products with few rows, for devices with asynchronous copies."""
ONE_TILE: Final = Tile(1, 1, 1, 1)
"""One tile of the unit, whatever its size."""
THREAD_TILES: Final = (Tile(16, 16, 4, 4), Tile(8, 8, 4, 4), Tile(8, 8, 2, 2))
"""Tiles for units of one thread, such as dot products of vectors."""
TILES: Final = (
    *(Tile(2, 4, 64, 32), Tile(4, 2, 32, 64), Tile(2, 2, 64, 32), Tile(2, 2, 32, 32)),
    *(Tile(2, 2, 32, 16), Tile(2, 1, 32, 16), Tile(1, 1, 16, 16), ONE_TILE),
)


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """A matrix product on each unit of the device, in tiles that suit its size."""
    runnable = [
        unit
        for unit in limits.matrix
        if unit.runs_on(limits.subgroup) and (settings.ALLOW_TF32 or not unit.rounds)
        if not unit.is_described or unit.load_of("a")  # other units are for chains of products
    ]
    units = [unit for unit in runnable if may_sum(facts, unit)]
    sides = sides_of(facts) if units and not facts.overwrites else None
    if sides is None:
        return
    has_described = any(unit.is_described for unit in runnable)
    for unit in units:
        for tile in tiles_for(unit, limits):
            product = Product(facts, limits, unit, tile, sides)
            if product.suits():
                cost = product.cost()
                if limits.units and has_described:
                    cost *= 1 + product.edges()
                yield Proposal(str(product), None, Cost(cost), partial(use_unit, product=product))


@dataclass(frozen=True, eq=False)
class Product:
    """A product on a unit, of which each group computes a block in tiles."""

    facts: KernelFacts
    limits: Limits
    unit: MatrixUnit
    tile: Tile
    sides: Sides

    def __str__(self) -> str:
        tile = self.tile
        return f"{self.unit.name} {tile.tall}x{tile.wide} of {tile.rows}x{tile.columns}"

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.tile.tall * self.tile.wide * self.unit.threads

    @cached_property
    def lengths(self) -> tuple[int, int]:
        """Rows and columns."""
        return length_of(self.facts, self.sides.rows), length_of(self.facts, self.sides.columns)

    @cached_property
    def steps(self) -> int:
        """Steps of the sums."""
        return math.prod(r.extent for r in summed_loops(self.facts, self.unit))

    @cached_property
    def groups(self) -> int:
        """Number of groups."""
        rows, columns = self.lengths
        height, width = self.tile.block(self.unit)
        own = self.facts.outputs_launched // (rows * columns)
        return -(-rows // height) * -(-columns // width) * own

    @cached_property
    def waste(self) -> float:
        """Work in tiles, padding included, relative to the product."""
        lengths, sizes = (*self.lengths, self.steps), (*self.tile.block(self.unit), self.unit.k)
        padded = [-(-n // by) * by for n, by in zip(lengths, sizes, strict=True)]
        return math.prod(padded) / math.prod(lengths)

    def cost(self) -> float:
        """Words loaded per multiply-add, weighted by where they come from and by idle units."""
        limits, loads = self.limits, loads_of_product(self.unit, self.tile)
        if self.unit.is_described:
            loads *= DESCRIBED_CYCLES * self.waste
        if not limits.units:
            return loads
        near = loads_of_product(self.unit, replace(self.tile, tall=1, wide=1))
        loads = cycles_of_loads(limits, near, loads) * limits.unevenness(self.groups)
        waits_for_fills = not limits.copies and not loads_ahead(limits, self.unit)
        return loads * ALONE if self.groups <= limits.units and waits_for_fills else loads

    def resident(self, products: int = 1) -> int:
        """Occupancy: groups that are resident on a unit, by the registers of so many products."""
        registers = registers_of_tile(self.unit, self.tile, products)
        return resident_groups(self.limits, self.threads, registers)

    def edges(self) -> float:
        """Time of a group's prologue and epilogue, relative to that of its products.

        Groups that are resident on a unit together overlap theirs.
        """
        terms = math.prod(r.extent for r in self.facts.reduced)
        cycles = 1.0 if self.unit.is_described else DESCRIBED_CYCLES
        most = min(self.resident(), GROUPS_OF_A_UNIT, self.groups // self.limits.units)
        return cycles * EDGE_BYTES / (terms * self.unit.a.itemsize) / max(most, 1)

    def suits(self) -> bool:
        """True if the tiles fit a group, keep the device busy and need little padding."""
        limits, tile = self.limits, self.tile
        if self.threads > max(limits.block_wanted, self.unit.threads):
            return False
        is_large = tile in LARGE_TILES or tile in WIDE_TILES
        if is_large and not (limits.copies and self.resident(len(self.facts.reductions))):
            return False
        if self.waste > (MOST_WASTE_OF_ONE if tile == ONE_TILE else MOST_WASTE):
            return False
        least = limits.threads // (LEAST_FILLED if limits.units else 1)
        return tile == ONE_TILE or self.groups * self.threads >= least

    def sharers(self) -> int:
        """Subgroups that share each sum (split-K in a group), if a unit would have only one.

        Without asynchronous copies, only more threads bring more bytes in flight.
        """
        limits, unit, tile = self.limits, self.unit, self.tile
        if fills_ahead(limits) or tile.tall * tile.wide > 1 or unit.threads == 1:
            return 1
        if self.groups > limits.units:
            return 1
        sums = copies(tile.rows, unit.m) * copies(tile.columns, unit.n) * unit.m * unit.n
        parts = sums * unit.out.itemsize * len(self.facts.reductions)
        room = int(limits.shared_bytes * ROOM_OF_PARTS) // parts
        most = min(limits.threads // self.groups, limits.block_wanted) // unit.threads
        return floor_power_of_two(min(most, room, self.steps // depth_of(unit) // LEAST_BLOCKS))

    def beside(self) -> int:
        """Groups whose shared memory should fit on a unit together.

        Asynchronous products continue while threads wait, so one group is enough if the registers
        do not hold a second one.
        """
        if not self.unit.is_described:
            return GROUPS_OF_A_UNIT
        return max(min(self.resident(), GROUPS_OF_A_UNIT), 1)


def tiles_for(unit: MatrixUnit, limits: Limits) -> tuple[Tile, ...]:
    """The tiles to consider for a unit."""
    if unit.threads == 1:
        return (*THREAD_TILES, ONE_TILE)
    return (*LARGE_TILES, *TILES, *WIDE_TILES) if limits.units else TILES


def may_sum(facts: KernelFacts, unit: MatrixUnit) -> bool:
    """False if the types of a kernel's sums rule out a unit.

    A device has units for many types, each in many tiles: this leaves out most of them cheaply.
    """
    return {unit.a, unit.b} <= facts.reduced_types and all(
        total.arg is Op.ADD and total.dtype is unit.out for total in facts.reductions
    )


def loads_of_product(unit: MatrixUnit, tile: Tile) -> float:
    """Words that a group loads per multiply-add, fewer than in any plan without the unit."""
    height, width = tile.block(unit)
    return unit.a.itemsize / WORD_BYTES / height + unit.a.itemsize / WORD_BYTES / width


def registers_of_tile(unit: MatrixUnit, tile: Tile, products: int) -> int:
    """Estimated registers of a thread: accumulators of all products, fragments, addresses."""
    tall, wide = copies(tile.rows, unit.m), copies(tile.columns, unit.n)
    held = {"a": tall, "b": wide, "out": tall * wide * products}
    fragments = ((unit.fragment(name), times) for name, times in held.items())
    sizes = (f.count * f.dtype.itemsize * times // WORD_BYTES for f, times in fragments)
    return sum(sizes) + REGISTERS_OF_ADDRESSES


def use_unit(draft: Draft, product: Product) -> bool:
    """Compute a block of the result per group; False if that exceeds its resources, or if the sum
    is no product of these types."""
    limits = draft.limits
    most = MOST_TURNS if fills_ahead(limits) else 1
    if product.groups <= limits.units and loads_ahead(limits, product.unit):
        most = LEAST_TURNS
    ways = (
        partial(tensorize, product=product, turns=turns, sharers=shared)
        for shared in dict.fromkeys((product.sharers(), 1))
        for turns in range(most, 0, -1)
    )
    return take_first(draft, ways)


def take_first(given: Draft, ways: Iterable[Callable[[Draft], bool]]) -> bool:
    """Apply the first way to tile a product that fits a group; False if none does, or if a unit
    cannot compute the sum."""
    for way in ways:
        draft = given.copy()
        try:
            if way(draft):
                given.become(draft)
                return True
        except ArgumentError:
            return False
    return False


def loads_ahead(limits: Limits, unit: MatrixUnit) -> bool:
    """True if a group that is alone on its unit loads the operands of its next step to registers
    before it computes, and stores them to shared memory afterwards (software pipelining).

    Only on devices that state the shared memory of a unit, which then holds two copies.
    """
    return not limits.copies and limits.unit_shared_bytes > 0 and unit.threads > 1


def fills_ahead(limits: Limits) -> bool:
    """True if groups fill one copy of a stage while they compute from another."""
    return limits.copies is not None and limits.shared_bytes > 0


def tensorize(draft: Draft, product: Product, turns: int, sharers: int) -> bool:
    """Apply the steps of `use_unit` with `turns` copies of each stage; True if they fit.

    Raises ArgumentError if the sum is no product for the unit.
    """
    unit, tile, sides = product.unit, product.tile, product.sides
    steps = longest(tuple(draft.facts.reduced)).extent
    row, column = join_side(draft, sides.rows), join_side(draft, sides.columns)
    joined = draft.facts
    below, down = cut_tile(draft, row, tile.tall, copies(tile.rows, unit.m) * unit.m)
    beside, right = cut_tile(draft, column, tile.wide, copies(tile.columns, unit.n) * unit.n)
    block, share, depth = cut_steps(draft, unit, sharers)
    # A unit of one row or column has no loop along it: the loop of the tile counts whole units.
    step = Tensorize(down if unit.m > 1 else None, right if unit.n > 1 else None, depth, unit)
    draft.do(step)
    down = down if step.m is None else (*step.m, 0)
    right = right if step.n is None else (*step.n, 0)
    depth = (*depth, 0)
    launch_tiles(draft, down, right, depth)
    at = block if draft.present(block) else innermost_group(draft)
    blocks = counter_of(draft.kernel, block).extent if at == block else 1
    turns = min(turns, blocks)
    along = dimension(draft, share, depth, step.number(STEPS))
    for side, subgroups, axis, part in ((row, below, down, ROWS), (column, beside, right, COLUMNS)):
        across = dimension(draft, subgroups, axis, step.number(part))
        inner = steps_are_inner(joined, side, unit, part)
        dimensions = (across, along) if inner else (along, across)
        if not across and not unit.is_described:
            continue  # a single row, which lanes read from memory
        if not across or not stage_side(draft, Stage(at, dimensions, copies=turns), unit, part):
            return False
        if turns > 1 and unit.a.itemsize == 1 and is_turned(draft):
            return False
    if at == block and not is_rounded_apart(draft, unit):
        return False
    if not leaves_room(draft, product, turns, blocks) or not fits_group(draft):
        return False
    order_blocks(draft, row, column, steps, unit.a.itemsize)
    return True


def launch_tiles(draft: Draft, *own: Number | None) -> None:
    """Unroll the loops over the tiles of a subgroup, and launch a group for each step of others."""
    draft.do(*(Bind(n, AxisKind.UNROLL) for n in own if n is not None and draft.present(n)))
    draft.launch()


def steps_are_inner(facts: KernelFacts, side: UOp, unit: MatrixUnit, part: int) -> bool:
    """True if the rows of a staged operand are along the sum, not along its side of the result."""
    load = load_of_side(unit, part)
    if load and load.is_described and load.turned_bytes == unit.a.itemsize:
        return not lies_across(facts, side, unit)
    return unit.fragment("a" if part is ROWS else "b").map.neighbors[0] == "k"


def stage_side(draft: Draft, step: Stage, unit: MatrixUnit, part: int) -> bool:
    """Stage the operand of a side; False if the unit reads it by itself, and not so."""
    operand = unit.fragment("a" if part is ROWS else "b")
    done = len(draft.steps)
    stage_operand(draft, step, operand, load_of_side(unit, part))
    return not unit.is_described or is_described(draft, done)


def leaves_room(draft: Draft, product: Product, turns: int, steps: int) -> bool:
    """True if stages leave shared memory for the groups that should be resident together.

    A group that is resident alone, and fills only one step ahead, waits for memory.
    """
    unit, room = product.unit, draft.limits.shared_bytes // product.beside()
    fits = scratch_bytes(draft.kernel) <= room
    if unit.load and unit.is_described:
        return fits and turns >= min(LEAST_TURNS + unit.load.behind, steps)
    return fits or turns <= LEAST_TURNS


def cut_tile(
    draft: Draft, loop: UOp, subgroups: int, size: int
) -> tuple[Number | None, Number | None]:
    """Split a side into blocks of groups and parts of subgroups.

    Returns the loop over parts, None for a single subgroup, and the loop in a part, None for a part
    of one row.
    """
    number = loop.arg.number
    if subgroups * size == 1:
        return None, None
    draft.do(Split(number, subgroups * size, Tail.GUARD))
    if subgroups == 1:
        return None, (*number, 1)
    draft.do(Split((*number, 1), size), Bind((*number, 1, 0), AxisKind.BLOCK))
    return (*number, 1, 0), (*number, 1, 1)


def cut_steps(draft: Draft, unit: MatrixUnit, sharers: int) -> tuple[Number, Number | None, Number]:
    """Split the reduced loop of a product into stages, and each stage among the sharers.

    Returns the loop over stages, the loop over sharers if there are several, and the innermost one.
    """
    loops = summed_loops(draft.facts, unit)
    number = join_steps(draft, loops)
    steps = -(-math.prod(r.extent for r in loops) // unit.k)
    if unit.is_described:
        steps = ceil_power_of_two(steps)
    depth = min(depth_of(unit), steps * unit.k)
    draft.do(Split(number, depth * sharers, Tail.GUARD))
    block, inner = join_blocks(draft, (*number, 0)), (*number, 1)
    if sharers == 1:
        return block, None, inner
    draft.do(Split(inner, depth), Bind((*inner, 0), AxisKind.GROUP))
    return block, (*inner, 0), (*inner, 1)


def summed_loops(facts: KernelFacts, unit: MatrixUnit) -> list[UOp]:
    """The reduced loops that a unit sums over."""
    return steps_of(facts, inner_loop(facts, unit), depth_of(unit))


def depth_of(unit: MatrixUnit) -> int:
    """Most steps of a sum that are staged at a time."""
    row_bytes = unit.load.row_bytes if unit.load and unit.is_described else DEPTH_BYTES
    return max(row_bytes // unit.a.itemsize, unit.k)


def dimension(draft: Draft, *axes: Number | None) -> Dimension:
    """The dimension of a stage along some loops, the outermost first."""
    parts: list[tuple[Number, int]] = []
    size = 1
    for axis in reversed(axes):
        if axis is not None and draft.present(axis):
            parts.insert(0, (axis, size))
            size *= counter_of(draft.kernel, axis).extent
    return tuple(parts)


def stage_without_conflicts(
    draft: Draft, step: Stage, held: Fragment, load: OperandLoad | None
) -> None:
    """Stage an operand that varies with the loops of the step, its rows in different banks."""
    first = len(arrays_of(draft.kernel))
    inner = step.dimensions[-1]
    row = sum((counter_of(draft.kernel, a).extent - 1) * f for a, f in inner) + 1
    itemsize = held.dtype.itemsize
    piece = piece_of(held, draft.limits)
    if load and load.is_described:
        panel = min(row, load.row_bytes // itemsize)
        pieces = panel * itemsize // ACCESS_BYTES
        step = replace(step, swizzle=pieces, panel=panel if panel < row else 0)
    elif pieces := swizzle_of(row * itemsize, piece):
        step = replace(step, swizzle=pieces, piece_bytes=piece)
    else:
        step = replace(step, padding=padding_of(row * itemsize) // itemsize)
    try:
        draft.do(step)
    except ArgumentError:  # no value varies with these loops: the operand is read from memory
        return
    for number in range(first, len(arrays_of(draft.kernel))):
        deal_out(draft, number, draft.limits.vector_bytes // itemsize)


def stage_operand(draft: Draft, step: Stage, held: Fragment, load: OperandLoad | None) -> None:
    """Stage an operand, in the order of vectors in memory if the unit loads rows in both orders."""
    before = draft.copy()
    stage_without_conflicts(draft, step, held, load)
    if load and load.turned_bytes == held.dtype.itemsize and is_turned(draft):
        draft.become(before)
        stage_without_conflicts(draft, replace(step, dimensions=step.dimensions[::-1]), held, load)


def is_turned(draft: Draft) -> bool:
    """True if the last stage is transposed as it is filled: lanes of a vector go to different rows.

    With bytes, a thread then stores so many lanes that their addresses take registers from the
    accumulators.
    """
    fills = fills_of(draft.kernel)
    if not fills:
        return False
    end = max(fills, key=lambda n: n.src[0].arg).src[1]
    place = stores_of(end)[0].src[0].src[1]
    lanes = [r for r in end.src[1:] if r.arg.kind is AxisKind.VECTOR]
    return any(coefficient(place, lane) != 1 for lane in lanes)


def load_of_side(unit: MatrixUnit, part: int) -> OperandLoad | None:
    """The load of the operand of a side, by a descriptor along the sum alone unless the side fills
    rows: swizzled rows across the sum are read from their beginning on."""
    load, side = unit.load, unit.m if part is ROWS else unit.n
    if load and load.is_described and side * unit.a.itemsize % load.row_bytes:
        return replace(load, turned_bytes=0)
    return load


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


def is_described(draft: Draft, done: int) -> bool:
    """True if a step after the first `done` staged an operand that a unit can read by itself.

    False if threads transpose it: they would store single elements of many rows to the same banks.
    """
    is_staged = any(isinstance(step, Stage) for step in draft.steps[done:])
    return is_staged and not is_turned(draft)


def padding_of(row_bytes: int) -> int:
    """Padding of a row in bytes, so that neighboring rows start in different banks.

    With an odd number of 16-byte pieces per row, 8 rows start in 8 different places: 8 rows by 4
    lanes that read a word each, or 8 threads that move a piece each, have no bank conflicts.
    """
    pieces, rest = divmod(row_bytes, ACCESS_BYTES)
    return ACCESS_BYTES if rest == 0 and pieces % 2 == 0 else 0


def piece_of(held: Fragment, limits: Limits) -> int:
    """Bytes of a row that the lanes of one transaction read, at least one access.

    A transaction of shared memory serves as many lanes as access each bank once.
    """
    along, together = held.map.neighbors
    access = min(together * held.dtype.itemsize, ACCESS_BYTES)
    served = held.map.lanes[: (min(BANKS_BYTES // access, limits.subgroup)).bit_length() - 1]
    beside = sum(bit is not None and bit.axis == along for bit in served)
    return min(max(access << beside, ACCESS_BYTES), BANKS_BYTES // 2)


def swizzle_of(row_bytes: int, piece: int) -> int:
    """Number of pieces of a row that a swizzle permutes; 0 if rows must be padded instead."""
    pieces, rest = divmod(row_bytes, piece)
    found = math.gcd(pieces, BANKS_BYTES // piece)
    return found if rest == 0 and found > 1 else 0


def inner_loop(facts: KernelFacts, unit: MatrixUnit) -> UOp:
    """The reduced loop along which the unit sums: contiguous in most operands, then the longest."""
    read = operand_accesses(facts)

    def suits_unit(loop: UOp) -> tuple[int, int]:
        along = sum(facts.stride(n, loop) == 1 for n in read)
        return along if loop.extent >= unit.k else 0, loop.extent

    return max(reversed(facts.reduced), key=suits_unit)


def copies(size: int, of: int) -> int:
    """Number of tiles of a unit along a side."""
    return max(size // of, 1)
