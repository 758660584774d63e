"""Tiles in shared memory on a grid: operands are staged per group; its threads may split K.

Floor 3'. A reduction of one operand that is invariant along some outputs and another one that is
invariant along others has M and N axes: a matrix product, a batch of them, or a convolution. A
group computes a block of both. K is divided into blocks, too; before each block the threads
together load the operands of all of them, once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tinycore.errors import ArgumentError
from tinycore.lower.cost import Cost, Proposal, cycles_of_shared_tile, resident_groups
from tinycore.lower.dims import launches
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import LEAST_REUSE, KernelFacts
from tinycore.lower.loops import Number, arrays_of, counter_of, fills_of, stores_of, threads_of
from tinycore.lower.packing import fill_of, loads_of_elements
from tinycore.lower.predicate import copied_from, stores_to_buffers
from tinycore.lower.steps.stage import WORD_BYTES, Dimension, Stage, scratch_bytes, staged_values
from tinycore.lower.strategies.block_order import order_blocks
from tinycore.lower.strategies.group_fills import (
    deal_out,
    is_stored_apart,
    least_stride,
    threads_of_group,
)
from tinycore.lower.tile import Bind, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.affine import stride_ratio
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op


class RegisterTile(NamedTuple):
    """The outputs of one thread, whose sums stay in its registers."""

    wide: int
    """Columns."""
    tall: int
    """Rows."""


class LoopTile(NamedTuple):
    """The part of an output loop that one group computes."""

    threads: int
    """Threads that share the loop."""
    copies: int
    """Steps of each thread."""


class GroupTile(NamedTuple):
    """The block of outputs that one group computes, by loops."""

    rows: list[LoopTile]
    columns: list[LoopTile]


class Group(NamedTuple):
    """The threads of a group, and how many of them share each sum (split-K)."""

    threads: int
    sharers: int


REGISTER_TILES: Final = tuple(
    itertools.starmap(RegisterTile, ((4, 4), (4, 2), (2, 2), (1, 2), (1, 1)))
)
"""Register tiles, the best first."""
LARGE_REGISTER_TILES: Final = (RegisterTile(8, 8), RegisterTile(8, 4))
"""Register tiles for devices that state their registers, and have enough of them."""
SHARERS: Final = (2, 4, 8)
"""Lanes that share the sums of a large register tile."""
WORDS_OF_A_FOLD: Final = 2
"""Operations of a lane for each of its sums that it adds to another's: to exchange it, and that."""
ADDRESSES: Final = 24
"""Registers of a thread beside its sums and operands."""
LEAST_FILLED: Final = 4
"""Divisor of `Limits.threads`: tiles that keep fewer threads busy than the quotient are not
proposed. Only for devices that state their units, for which the cost of idle units is known."""
DEPTHS: Final = (16, 8, 4)
"""Steps of the reduction between two fills, approximately."""
LOADS_OF_A_COPY: Final = 2
"""Cost of a step's loads in multiply-adds, divided among the copies of a thread."""
LOADS_OF_A_TILE: Final = 8
"""Cost of a step's fill in multiply-adds, divided among a row of the tile."""
UNEVEN: Final = 1.05
"""Cost factor of a number of threads that is not a power of two."""

VECTOR_ROWS: Final = 4
"""Adjacent rows of a thread."""
EACH_APART: Final = (AxisKind.UNROLL, 1)
"""Kind and lanes of copies of which no two are adjacent."""
TURNS: Final = (3, 2)
"""Numbers of buffers to try where asynchronous copies fill one while another is read."""
GROUPS_BESIDE: Final = 2
"""Groups that should be resident on a unit together by their shared memory."""
BANKS: Final = 32
"""Banks of shared memory, a word each."""

Apply = Callable[[Draft], bool | None]


@dataclass(frozen=True)
class Sides:
    """The M and N axes: outputs along which some operand stands still, outermost first."""

    rows: tuple[UOp, ...]
    columns: tuple[UOp, ...]


def propose(facts: KernelFacts, limits: Limits, group: Group) -> Iterator[Proposal]:
    """Blocks of outputs for groups whose threads share their operands.

    Where outputs are few, several threads share each sum, which keeps the device busy.
    """
    found = sides_of(facts)
    if found is None or not limits.shared_is_near or not limits.shared_bytes:
        return
    least = limits.threads // (LEAST_FILLED if limits.units else 1)
    for tile in register_tiles(limits, group.threads):
        for division in divisions(facts, limits, found, group, tile):
            outputs, copies = facts.outputs_launched * division.sharers, math.prod(tile)
            few = copies == 1 and outputs >= group.threads and division.sharers == 1
            if few or outputs >= copies * least:
                yield from proposals_of(facts, limits, found, division, tile)


def divisions(
    facts: KernelFacts, limits: Limits, sides: Sides, group: Group, tile: RegisterTile
) -> Iterator[Group]:
    """The groups to try for a register tile.

    Where large tiles leave units idle, the lanes of a subgroup share each sum. They add up their
    parts by shuffles, without shared memory.
    """
    yield group
    wanted, sharers = group
    by_lanes = all(n.dtype in limits.shuffles for n in facts.reductions)
    if sharers > 1 or tile not in LARGE_REGISTER_TILES or not by_lanes:
        return
    alone = groups_of(facts, sides, tiles_of_sides(sides, wanted, tile, facts.overwrites))
    for lanes in SHARERS if alone < limits.units else ():
        yield from (Group(threads, lanes) for threads in (wanted, wanted // 2, wanted // 4))


def proposals_of(
    facts: KernelFacts, limits: Limits, sides: Sides, group: Group, tile: RegisterTile
) -> Iterator[Proposal]:
    """The proposals for one group and one register tile, by the depth of a fill."""
    (threads, sharers), (wide, tall) = group, tile
    tiles = tiles_of_sides(sides, threads // sharers, tile, facts.overwrites)
    uneven = limits.unevenness(groups_of(facts, sides, tiles))
    is_shared = tile in LARGE_REGISTER_TILES and sharers > 1
    for depth in DEPTHS[:1] if is_shared else DEPTHS:
        depth = depth * sharers // SHARERS[0] if is_shared else depth
        steps = depth // sharers if is_shared else depth
        cycles = cycles_of_shared_tile(wide, tall, steps)
        if is_shared:
            cycles += WORDS_OF_A_FOLD * math.log2(sharers) * sharers / facts.longest_reduction
        apply = partial(
            tile_and_stage,
            sides=sides,
            wanted=threads // sharers,
            registers=tile,
            depth=depth,
            sharers=sharers,
        )
        by = f" by {sharers} of {threads}" if is_shared else ""
        yield Proposal(f"grid shared {wide}x{tall}x{depth}{by}", None, Cost(cycles * uneven), apply)


def register_tiles(limits: Limits, threads: int) -> tuple[RegisterTile, ...]:
    """The tiles of a thread whose sums, operands and addresses fit the registers of a device."""
    large = (
        tile
        for tile in LARGE_REGISTER_TILES
        if resident_groups(limits, threads, math.prod(tile) + 2 * sum(tile) + ADDRESSES) > 1
    )
    return (*large, *REGISTER_TILES) if limits.unit_registers else REGISTER_TILES


def sides_of(facts: KernelFacts) -> Sides | None:
    """The M and N axes of the reductions; None unless they have both."""
    if not facts.is_cuttable or facts.has_order or facts.launchable != facts.outputs:
        return None
    return sides_among(facts, [n.src[0] for n in stores_to_buffers(facts.kernel)])


def sides_among(facts: KernelFacts, stored: list[UOp]) -> Sides | None:
    """The same of all loops over outputs, whose results are `stored` at these places."""
    if not facts.reductions or not facts.are_side_by_side:
        return None
    read, loops = operand_accesses(facts), facts.outputs
    inner_first = loops[::-1]
    for column in sorted(inner_first, key=lambda r: [facts.stride(n, r) != 1 for n in stored]):
        moving = frozenset().union(*(n.ranges for n in read if column in n.ranges))
        still = frozenset().union(*(n.ranges for n in read if column not in n.ranges))
        columns = tuple(r for r in loops if r in moving and r not in still)
        rows = tuple(r for r in loops if r in still and r not in moving)
        if rows and columns:
            return Sides(rows, columns)
    return None


def operand_accesses(facts: KernelFacts) -> list[UOp]:
    """Every INDEX at which the innermost step of a reduction reads what a buffer holds."""
    below = UOp.sink(*facts.reductions).toposort(lambda n: n.op is not Op.AFTER)
    reduced = set(facts.reduced)
    return [n for n in below if n.op is Op.INDEX and not reduced.isdisjoint(n.ranges)]


def tile_and_stage(
    draft: Draft,
    sides: Sides,
    wanted: int,
    registers: RegisterTile,
    depth: int,
    sharers: int,
) -> bool:
    """Compute a block of outputs per group, with its operands staged; False if none fits."""
    wide, tall = registers
    steps = math.prod(r.extent for r in draft.facts.reduced)
    lanes = min(draft.lanes(), wide) if suits_vectors(draft.facts, sides.columns[-1]) else 1
    lanes = lanes if lanes == wide or draft.limits.units else 1
    kind = AxisKind.VECTOR if lanes > 1 else AxisKind.UNROLL
    tiles = tiles_of_sides(sides, wanted, registers, draft.facts.overwrites)
    columns = cut_side(draft, sides.columns, tiles.columns, kind, lanes)
    # Values of rows side by side are loaded from shared memory as a vector.
    along = min(VECTOR_ROWS, tall) if draft.limits.copies else 1
    rows = cut_side(draft, sides.rows, tiles.rows, AxisKind.UNROLL, along)
    if min(steps_in_tile(draft, columns), steps_in_tile(draft, rows)) < LEAST_REUSE:
        return False
    draft.launch()
    at, inner = cut_depth(draft, depth, sharers)
    if sharers > 1 and not share_sums(draft, inner, sharers):
        return False
    if (
        sharers > 1
        and registers in LARGE_REGISTER_TILES
        and threads_of_group(draft) % draft.limits.subgroup
    ):
        return False  # lanes of a part of a subgroup exchange nothing
    if not stage_ahead(draft, at, inner, (*rows, *columns)):
        return False
    widest = max(n.dtype.itemsize for n in draft.facts.loads)
    order_blocks(draft, sides.rows[-1], sides.columns[-1], steps, widest)
    return True


def suits_vectors(facts: KernelFacts, loop: UOp) -> bool:
    """True if the epilogue after the reduction loads and stores contiguously along a loop."""
    moves = {facts.stride(n, loop) for n in facts.accesses if n not in facts.loads}
    return 1 in moves and moves <= {0, 1}


def cut_side(
    draft: Draft, loops: tuple[UOp, ...], tiles: list[LoopTile], kind: AxisKind, lanes: int = 1
) -> list[Dimension]:
    """Split output loops into tiles; the dimension of the tile along each loop.

    `kind` is the kind of the innermost loop's copies, of which `lanes` are adjacent.
    """
    return [
        cut_loop(draft, loop, *tile, *((kind, lanes) if loop is loops[-1] else EACH_APART))
        for loop, tile in zip(loops, tiles, strict=True)
        if math.prod(tile) > 1
    ]


def cut_loop(
    draft: Draft, loop: UOp, threads: int, copies: int, kind: AxisKind, lanes: int = 1
) -> Dimension:
    """Split a loop into groups, threads, and the copies of a thread, `lanes` of them adjacent."""
    number, steps = loop.arg.number, threads * copies
    tail = Tail.AUTO if loop.is_fixed else Tail.GUARD
    if steps < loop.extent or not loop.is_fixed:
        draft.do(Split(number, steps, tail))
        number = (*number, 1)
    own, block = (copies, kind), (threads, AxisKind.BLOCK)
    # Lanes lie side by side. Copies lie apart, so that threads side by side store side by side.
    levels = [block, own] if lanes > 1 else [own, block]
    if 1 < lanes < copies:  # several vectors to a thread
        levels = [(copies // lanes, AxisKind.UNROLL), block, (lanes, kind)]
    return cut_levels(draft, number, [level for level in levels if level[0] > 1])


def cut_levels(draft: Draft, number: Number, levels: Sequence[tuple[int, AxisKind]]) -> Dimension:
    """Split a loop into levels, the outermost first: the steps of each, and their kind."""
    (_, kind), *inside = levels
    if not inside:
        draft.do(Bind(number, kind))
        return ((number, 1),)
    size = math.prod(steps for steps, _ in inside)
    draft.do(Split(number, size), Bind((*number, 0), kind))
    return ((*number, 0), size), *cut_levels(draft, (*number, 1), inside)


def steps_in_tile(draft: Draft, dimensions: list[Dimension]) -> int:
    """Outputs of a tile along one side."""
    loops = {r.arg.number: r for r in draft.facts.loops}
    return math.prod(loops[axis].extent for d in dimensions for axis, _ in d)


def cut_depth(draft: Draft, depth: int, sharers: int = 1) -> tuple[Number | None, list[Dimension]]:
    """Split the reduced loops into blocks of about `depth` steps, divisible among the sharers.

    Returns the loop whose steps are blocks, and the dimensions of a block.
    """
    inner: list[Dimension] = []
    room = depth
    for loop in reversed(draft.facts.reduced):
        number = loop.arg.number
        if loop.extent > 2 * room or not loop.is_fixed:
            if room == 1:
                return number, inner
            by = min(block_of(loop.extent, room, sharers), loop.extent)
            draft.do(Split(number, by, Tail.GUARD))
            number = (*number, 1)
            if by < loop.extent:
                return (*number[:-1], 0), [((number, 1),), *inner]
            # At its longest it is one block: the loop over blocks has one step, and is dropped.
        inner.insert(0, ((number, 1),))
        room = max(room // loop.extent, 1)
    return innermost_group(draft), inner


def share_sums(draft: Draft, inner: list[Dimension], sharers: int) -> bool:
    """Give a loop of a block to threads that share each sum; False if no loop suits."""
    for place, ((axis, _),) in enumerate(inner):
        extent = counter_of(draft.kernel, axis).extent
        if extent % sharers == 0 and extent > sharers:
            draft.cut(axis, sharers, AxisKind.GROUP)
            inner[place] = (((*axis, 0), sharers), ((*axis, 1), 1))
            return True
    return False


def innermost_group(draft: Draft) -> Number | None:
    """The innermost loop over groups, if there is one."""
    groups = [r.arg.number for r in draft.facts.outputs if r.arg.kind is AxisKind.GRID]
    return groups[-1] if groups else None


def stage_ahead(
    draft: Draft, at: Number | None, inner: list[Dimension], outer: tuple[Dimension, ...]
) -> bool:
    """Stage operands, by asynchronous copies during earlier steps if the device has them, else
    before each step; False if the group does not fit."""
    limits, before = draft.limits, draft.copy()
    loop = next((r for r in draft.facts.reduced if r.arg.number == at), None)
    if limits.copies and loop is not None and loop.arg.kind is AxisKind.REDUCE:
        for turns in (n for n in TURNS if n <= loop.extent):
            if stage_all(draft, at, inner, outer, turns) and are_copies(draft):
                size = scratch_bytes(draft.kernel)
                room = limits.unit_shared_bytes or limits.shared_bytes
                if fits_group(draft) and GROUPS_BESIDE * size <= room:
                    return True
            draft.become(before)
            before = draft.copy()
    return stage_all(draft, at, inner, outer) and fits_group(draft)


def are_copies(draft: Draft) -> bool:
    """True if every stage copies elements unchanged, of words, which asynchronous copies move."""
    for fill in fills_of(draft.kernel):
        (store,) = stores_of(fill.src[1])
        size = store.src[1].dtype.itemsize
        if size < WORD_BYTES or copied_from(store.src[1]) is None:
            return False
    return True


def stage_all(
    draft: Draft,
    at: Number | None,
    inner: list[Dimension],
    outer: tuple[Dimension, ...],
    turns: int = 1,
) -> bool:
    """Stage the operands that vary with a block and a tile, each in `turns` buffers, and deal out
    their fills; False if no operand does."""
    made = stage_operands(draft, at, inner, outer, turns)
    for number in made:
        is_apart = turns > 1 and is_turned_by(fill_of(draft, number), draft.limits)
        deal_out(draft, number, 1 if is_apart else None)
    return bool(made)


def stage_operands(
    draft: Draft,
    at: Number | None,
    inner: list[Dimension],
    outer: tuple[Dimension, ...],
    turns: int = 1,
) -> range:
    """Stage the operands that vary with a block and a tile; the numbers of their arrays."""
    first = len(arrays_of(draft.kernel))
    for dimensions in layouts(draft, inner, outer):
        if staged_values(draft.kernel, Stage(at, dimensions)):
            stage_windows(draft, at, dimensions, turns)
    return range(first, len(arrays_of(draft.kernel)))


def is_turned_by(fill: UOp, limits: Limits) -> bool:
    """True if a fill transposes: elements adjacent in memory are not adjacent in its array."""
    loads = loads_of_elements(fill)
    return is_stored_apart(fill, min(fill.src[1:], key=lambda r: least_stride(loads, r, limits)))


def layouts(
    draft: Draft, inner: list[Dimension], outer: tuple[Dimension, ...]
) -> list[tuple[Dimension, ...]]:
    """The distinct sets of loops that operands vary with, those of most loops first."""
    found = set()
    for place in operand_accesses(draft.facts):
        moving = {r.arg.number for r in place.ranges}
        parts = [
            tuple(d for d in dimensions if any(axis in moving for axis, _ in d))
            for dimensions in (inner, outer)
        ]
        if all(parts):
            found.add((*parts[0], *parts[1]))
    return sorted(found, key=lambda d: (-len(d), d))


def stage_windows(
    draft: Draft, at: Number | None, dimensions: tuple[Dimension, ...], turns: int = 1
) -> None:
    """Stage the operands that vary with some loops, each element that windows share only once.

    If a value is not a function of its position in a window, each loop is a separate dimension.
    Arrays that are transposed as they are filled have padded rows, so that threads store to
    different banks.
    """
    loops = {r.arg.number: r for r in draft.facts.loops}
    axes, limits = {axis for dimension in dimensions for axis, _ in dimension}, draft.limits
    moving = [
        n.src[1] for n in operand_accesses(draft.facts) if axes <= {r.arg.number for r in n.ranges}
    ]
    found = with_overlaps(dimensions, moving, loops)
    step = Stage(at, found, copies=turns)
    before, first = draft.copy(), len(arrays_of(draft.kernel))
    try:
        draft.do(step)
    except ArgumentError:
        each = tuple(((axis, 1),) for d in dimensions for axis, _ in d)
        draft.do(replace(step, dimensions=each))
        return
    made = range(first, len(arrays_of(draft.kernel)))
    turned = [n for n in made if is_turned_by(fill_of(draft, n), limits)]
    apart = limits.vector_bytes // before.facts.itemsize
    padding = apart if turns > 1 and turned else 0
    sharers = math.prod(r.extent for r in draft.facts.loops_of_kind(AxisKind.GROUP))
    if sharers > 1 and limits.units:  # neighbors read vectors of as many rows
        padding = apart if turned else apart * max(BANKS // apart // sharers, 1)
    if padding:
        draft.become(before)
        draft.do(replace(step, padding=padding))


def fits_group(draft: Draft) -> bool:
    """True if the workgroup fits: its shared memory, and the axes of its threads."""
    size = scratch_bytes(draft.kernel)
    if draft.facts.loops_of_kind(AxisKind.GROUP):  # each thread leaves its part, some another
        parts = sum(2 * max(n.dtype.itemsize, 4) for n in draft.facts.reductions)
        size += parts * threads_of_group(draft)
    axes = [r.extent for r in threads_of(draft.kernel)]
    return launches(axes, "block", draft.limits.block) and size <= draft.limits.shared_bytes


def with_overlaps(
    dimensions: tuple[Dimension, ...], places: list[UOp], loops: dict[Number, UOp]
) -> tuple[Dimension, ...]:
    """The dimensions, with the taps of a window joined to the loop along which it slides."""
    for taps, windows in itertools.permutations(dimensions, 2):
        (tap, one), *others = taps
        strides = {stride_ratio(place, loops[tap], loops[windows[-1][0]]) for place in places}
        stride = strides.pop() if len(strides) == 1 else None
        # Overlapping windows read the same elements at different taps: each is staged once.
        if not others and one == 1 and stride and stride < loops[tap].extent:
            joined = (*((axis, factor * stride) for axis, factor in windows), (tap, 1))
            rest = tuple(joined if d is windows else d for d in dimensions if d is not taps)
            return with_overlaps(rest, places, loops)
    return dimensions


def tiles_of_sides(sides: Sides, wanted: int, registers: RegisterTile, exact: bool) -> GroupTile:
    """The tile of a group of up to `wanted` threads; a short side leaves more to the other side."""
    wide, tall = registers
    across = 1 << (wanted.bit_length() // 2)
    high = tiles_of(sides.rows, wanted // across, tall, exact)
    broad = tiles_of(sides.columns, wanted // threads_in(high), wide, exact)
    return GroupTile(tiles_of(sides.rows, wanted // threads_in(broad), tall, exact), broad)


def groups_of(facts: KernelFacts, sides: Sides, tiles: GroupTile) -> int:
    """Number of groups that compute all outputs in tiles of a size."""
    groups, inside = 1, 1
    for loops, along in zip((sides.rows, sides.columns), tiles, strict=True):
        for loop, tile in zip(loops, along, strict=True):
            groups *= -(-loop.extent // math.prod(tile))
            inside *= loop.extent
    return groups * (facts.outputs_launched // inside)


def tiles_of(loops: tuple[UOp, ...], most: int, copies: int, exact: bool) -> list[LoopTile]:
    """The tile of each loop, innermost filled first; at most `most` threads in total."""
    found: list[LoopTile] = []
    for loop in reversed(loops):
        tile = loop_tile(loop.extent, most, copies, exact)
        found.insert(0, tile)
        most //= tile.threads
        copies //= tile.copies
    return found


def threads_in(tiles: list[LoopTile]) -> int:
    """The total threads of some tiles."""
    return math.prod(threads for threads, _ in tiles)


def loop_tile(extent: int, most: int, copies: int, exact: bool) -> LoopTile:
    """The tile of a loop with the least work, of at most `most` threads and `copies` per thread.

    Work counts every output computed, including those computed twice at the end of the loop, and
    the loads of each. If `exact`, none may be computed twice.
    """
    best, tile = math.inf, LoopTile(1, 1)
    for own in (n for n in (16, 8, 4, 2, 1) if n <= copies):
        for threads in range(1, min(most, extent // own) + 1):
            steps = threads * own
            if exact and extent % steps:
                continue
            computed = -(-extent // steps) * steps
            time = computed * (1 + LOADS_OF_A_COPY / own + LOADS_OF_A_TILE / steps)
            if threads & (threads - 1):
                time *= UNEVEN
            if time < best:
                best, tile = time, LoopTile(threads, own)
    return tile


def block_of(extent: int, wanted: int, of: int = 1) -> int:
    """The steps of a block: the divisor of the extent nearest to `wanted` that is a multiple of
    `of`, else `wanted`."""
    near = [n for n in range(max(wanted // 2, 2), 2 * wanted + 1) if extent % n == n % of == 0]
    return min(near, key=lambda n: abs(n - wanted), default=wanted)
