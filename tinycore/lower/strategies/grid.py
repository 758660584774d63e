"""Kernels on a grid: outputs mapped to groups, threads and registers; split-K within a group.

Floor 3'. Every output is computed by a thread. If there are few outputs and long sums, the threads
of a group share each sum. If an operand is invariant along an output loop, a thread computes a tile
of outputs, and loads the operand once for all of them. `vector_product.py` stages operands for a
group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Final

from tinycore.lower.cost import (
    Cost,
    Proposal,
    apply_cheapest,
    ceil_power_of_two,
    cycles_of_thread,
    floor_power_of_two,
    own_proposals,
    suits_lanes,
)
from tinycore.lower.draft import UNROLLED, Draft, fuse_loops, split_digits, unroll_sums
from tinycore.lower.kernel_facts import LEAST_REUSE, KernelFacts
from tinycore.lower.loops import Number, fills_of
from tinycore.lower.steps.split import may_be_empty
from tinycore.lower.strategies import grid_rows, matrix_chain, transpose
from tinycore.lower.strategies.grid_sides import sides_of
from tinycore.lower.strategies.grid_stages import GROUPS_BESIDE
from tinycore.lower.strategies.levels import RegisterTile, levels_of
from tinycore.lower.strategies.unit_product import UnitProduct, units_for
from tinycore.lower.strategies.vector_product import VectorProduct
from tinycore.lower.tile import Bind, Tail
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

SHORTEST_SHARED: Final = 32
"""Fewest steps of a sum for which sharing it among threads pays."""
ROWS_OF_A_THREAD: Final = 4
"""Rows of a register tile of a thread."""
UNROLLED_MORE: Final = 8
"""Steps of a sum that are unrolled on devices that state their units: with few groups, a thread
needs that many loads in flight."""
CARD_LINE_BYTES: Final = 128
"""Bytes of a line of a card's cache."""
BYTES_UNDER_WAY: Final = 40 << 10
"""Bytes per unit that must be in flight to reach the memory rate of an H100."""
MOST_UNEVEN: Final = 1.25
"""Largest acceptable `Limits.unevenness`."""
LONG_ROW: Final = 256
"""Fewest steps of a sum that lanes share through shared memory, for types without shuffles."""


def plan_grid(draft: Draft) -> None:
    """Map the outputs to threads and groups; loops that cannot be launched stay loops."""
    fuse_loops(draft)
    if draft.limits.units:
        split_digits(draft)
    facts, limits = draft.facts, draft.limits
    wanted = min(limits.block_wanted, limits.block_threads)
    wanted = draft.size("threads", wanted, limits.block_threads)
    apply_cheapest(draft, own_proposals(facts, limits), propose_grid(facts, limits, wanted))


def propose_grid(facts: KernelFacts, limits: Limits, wanted: int) -> Iterator[Proposal]:
    """The proposals of each strategy for workgroups of `wanted` threads."""
    rows = grid_rows.rows_of(facts, limits)
    shared = shared_sum(facts, limits) if wanted > 1 and rows is None else None
    sharers = 1 if shared is None else sharers_of(facts, limits, wanted)
    is_staged = rows is None and wanted > 1 and (shared is None or sharers > 1)
    yield from propose_products(facts, limits, wanted, sharers if is_staged else 0)
    yield from matrix_chain.propose(facts, limits)
    if rows is not None:
        steps = partial(rows_each, rows=rows, wanted=wanted)
        yield Proposal("grid rows", None, Cost(cycles_of_thread(wanted)), steps)
        return
    yield from transpose.propose(facts, limits)
    if shared is None:
        outputs = math.prod(by for _, by, _ in tiles_of_thread(facts, limits, wanted))
        groups = -(-facts.outputs_launched // (outputs * wanted))
        cost = Cost(cycles_of_thread() * limits.unevenness(groups))
        yield Proposal("grid", None, cost, partial(thread_each, wanted=wanted))
    else:
        is_many = facts.outputs_launched >= limits.threads
        threads = limits.subgroup if is_many else wanted
        groups = -(-facts.outputs_launched * threads // wanted)
        cost = Cost(cycles_of_thread(wanted) * limits.unevenness(groups))
        steps = partial(group_each, loop=shared, wanted=wanted, threads=threads)
        yield Proposal("grid of groups", shared, cost, steps)


def propose_products(
    facts: KernelFacts, limits: Limits, threads: int, sharers: int
) -> Iterator[Proposal]:
    """A product on each unit of the device, in the tiles that suit its size; and on vectors.

    There by groups of so many threads, of which `sharers` share each sum; 0 if it has other plans.
    """
    units: list[MatrixUnit | None] = [*units_for(facts, limits)]
    if sharers and limits.shared_bytes:
        units.append(None)
    sides = sides_of(facts) if units else None
    if sides is None:
        return
    for unit in units:
        for level, tile in levels_of(limits, unit):
            if unit is None:
                own = RegisterTile(tile.columns, tile.rows)
                found = VectorProduct(facts, limits, sides, level, own, threads, sharers)
                yield from (tiling.proposal() for tiling in found.tilings())
            elif (product := UnitProduct(facts, limits, sides, unit, level, tile)).suits():
                yield product.proposal()


def tiles_of_thread(
    facts: KernelFacts, limits: Limits, wanted: int
) -> list[tuple[Number, int, AxisKind]]:
    """The loops of which a thread takes several steps where outputs are many: how many, and how."""
    if wanted == 1 or facts.outputs_launched < limits.threads:
        return []
    column, lanes = vector_loop(facts, limits) or (None, 1)
    found = [] if column is None else [(column.number, lanes, AxisKind.VECTOR)]
    tile = tile_of_rows(facts, limits, facts.outputs_launched // lanes) or loop_apart(facts, limits)
    if tile is not None:
        row, tall = tile
        number = (*row.number, 0) if row is column else row.number
        found.append((number, tall, AxisKind.UNROLL))
    return found


def thread_each(draft: Draft, wanted: int) -> None:
    """A thread for each output, or for a tile of them where there are many."""
    is_many = wanted > 1 and draft.facts.outputs_launched >= draft.limits.threads
    for number, by, kind in tiles_of_thread(draft.facts, draft.limits, wanted):
        draft.cut(number, draft.size("of a thread", by, least=2), kind)
    if is_many:
        load_rows(draft)
        unroll_sums(draft)
    launch_outputs(draft, wanted)


def rows_each(draft: Draft, rows: grid_rows.Rows, wanted: int) -> None:
    """Give each row to threads that reduce it and then store it; a group has one or more rows."""
    threads = grid_rows.share_row(draft, rows, wanted)
    outer = [r for r in draft.facts.launchable if r in rows.outer]
    launch_outputs(draft, max(wanted // threads, 1), outer)


# --- threads of a group share a sum


def shared_sum(facts: KernelFacts, limits: Limits) -> UOp | None:
    """The loop of a sum to share among the threads of a group: the one along memory."""
    if not limits.sums_are_shared or facts.has_order:
        return None
    if facts.outputs_launched >= limits.threads:
        return sum_of_lanes(facts, limits)
    launched = set(facts.launchable)
    loops = [
        r
        for r in facts.reduced
        if r.extent >= SHORTEST_SHARED
        and all(n.ranges <= launched for n in facts.reductions if r in n.src[1:])
    ]
    return max(loops, key=lambda r: (contiguous_accesses(facts, r), r.extent), default=None)


def sum_of_lanes(facts: KernelFacts, limits: Limits) -> UOp | None:
    """The loop of a sum along memory that the lanes of a subgroup share although outputs are many.

    With a row per thread, each lane reads another cache line; lanes that share a row read lines
    together. On an H200, 131,072 rows of 1,024 floats by one thread each are read at a quarter of
    the memory rate. None if an operand is reused by other outputs, as a tile then saves more.
    """
    if len(facts.innermost) != 1 or not limits.units or not facts.is_cuttable:
        return None
    (loop,), lanes = facts.innermost, max(limits.vector_bytes // facts.read_itemsize, 1)
    steps = loop.extent // lanes
    is_short = steps >= 2 and loop.extent == steps * lanes and not steps & (steps - 1)
    folds = all(n.dtype in limits.shuffles for n in facts.reductions)
    # Other types are reduced in shared memory, which pays for long rows only.
    least = 2 * limits.subgroup if folds else LONG_ROW
    fits = loop.extent >= least or (is_short and folds)
    if not (fits and suits_lanes(facts, loop)):
        return None
    return loop if sides_of(facts) is None else None


def sharers_of(facts: KernelFacts, limits: Limits, wanted: int) -> int:
    """The threads that share each sum in a group that also stages operands."""
    short = -(-limits.threads // facts.outputs_launched)
    return min(ceil_power_of_two(short), floor_power_of_two(wanted // LEAST_REUSE**2))


def contiguous_accesses(facts: KernelFacts, loop: UOp) -> int:
    """Number of accesses that have stride 1 along a loop."""
    return sum(facts.stride(n, loop) == 1 for n in facts.accesses)


def group_each(draft: Draft, loop: UOp, wanted: int, threads: int) -> None:
    """Give each sum to `threads` of a group at most, or as many adjacent sums as fill a sector."""
    beside, longest = 1, loop.extent
    if suits_lanes(draft.facts, loop):
        copies = 1
        if draft.limits.units and not draft.facts.has_recurrence:
            longest = max(longest // draft.lanes(), 1)
    else:
        copies, beside = give_line(draft, wanted)
        wanted //= beside
    members = [n for n in draft.facts.reductions if loop in n.src[1:]]
    # Each thread stores one partial result in shared memory, and some threads another.
    part = sum(2 * max(n.dtype.itemsize, 4) for n in members) * copies
    most = draft.limits.shared_bytes // (part * beside)
    most = min(wanted, most, longest, draft.limits.block[0])
    threads = floor_power_of_two(draft.size("sharers", min(threads, most), most))
    outputs = wanted // threads
    if beside > 1:
        threads, outputs = shared_by_few(draft, longest, threads, beside)
    if threads > 1:
        share(draft, loop, threads, is_short=beside > 1)
    launch_outputs(draft, min(outputs, wanted // threads))


def shared_by_few(draft: Draft, steps: int, threads: int, beside: int) -> tuple[int, int]:
    """Threads for each sum of some steps, at most `threads`, and the outputs of a group.

    Threads add up the parts of a sum through shared memory. Loads of a few steps of one thread are
    in flight together, as are those of several threads, so short sums take fewer threads as long as
    every unit has a subgroup. Two groups per unit overlap: one adds up while the other loads.
    """
    limits, outputs = draft.limits, draft.facts.outputs_launched
    most = threads
    while (
        threads > 1
        and 2 * steps <= threads * UNROLLED_MORE
        and outputs * beside * threads >= 2 * limits.units * limits.subgroup
    ):
        threads //= 2
    own = max(limits.block_wanted // (beside * threads), 1)
    while threads < most and own > 1 and -(-outputs // own) < GROUPS_BESIDE * limits.units:
        own //= 2
    return threads, own


def give_line(draft: Draft, wanted: int) -> tuple[int, int]:
    """Vectorize, and let adjacent threads read a cache line of rows together.

    Returns the lanes of a thread, and the number of such threads: as many as fill a line, if every
    unit still has a group; half of them if units would have too few bytes in flight. On an H100,
    8,192 columns of bfloat16 by groups that read whole lines, 8 bytes per thread, are read at .67
    of the rate of float32.
    """
    wide = draft.limits.vector_bytes // draft.facts.read_itemsize
    found = vector_loop(draft.facts, draft.limits, wide)
    if found is None:
        return 1, 1
    column, lanes = found
    vectors_of = draft.cut(column.number, lanes, AxisKind.VECTOR)
    vector = (*column.number, 1)
    moving = (n for n in draft.facts.loads if any(r.number == vector for r in n.ranges))
    narrow = min(n.dtype.itemsize for n in moving)
    loop = next((r for r in draft.facts.launchable if r.number == vectors_of), None)
    vectors = draft.facts.outputs_launched
    beside = CARD_LINE_BYTES // (lanes * narrow)
    while beside > 1 and draft.limits.unevenness(-(-vectors // beside)) > MOST_UNEVEN:
        beside //= 2
    under_way = vectors // beside * wanted * UNROLLED_MORE * lanes * narrow
    is_whole_line = beside * lanes * narrow == CARD_LINE_BYTES
    if is_whole_line and under_way < BYTES_UNDER_WAY * draft.limits.units:
        beside //= 2
    if loop is None or beside < 2 or loop.extent % beside:
        return lanes, 1
    draft.cut(loop.number, beside, AxisKind.LANE)
    return lanes, beside


def share(draft: Draft, loop: UOp, threads: int, is_short: bool = False) -> None:
    """Share the steps of a sum among threads, which load vectors if the sum runs along memory.

    Several steps are unrolled, so that their loads are in flight together; if `is_short`, all steps
    of a thread, as far as they are few.
    """
    number, steps = loop.number, loop.extent
    lanes = 1 if draft.facts.has_recurrence else draft.lanes()
    multiple = lanes if draft.limits.units else lanes * threads
    fits = loop.is_fixed and lanes > 1 and steps % multiple == 0
    if fits and suits_lanes(draft.facts, loop):
        number, steps = draft.cut(number, lanes, AxisKind.VECTOR), steps // lanes
    number = draft.cut(number, threads, AxisKind.GROUP, Tail.GUARD)
    rounds = steps // threads
    if is_short and loop.is_fixed and steps % threads == 0 and 1 < rounds <= UNROLLED_MORE:
        draft.do(Bind(number, AxisKind.UNROLL))
        return
    for times in (UNROLLED_MORE, UNROLLED) if draft.limits.units else (UNROLLED,):
        if loop.is_fixed and steps % threads == 0 and rounds % times == 0 and rounds > times:
            draft.cut(number, times, AxisKind.UNROLL)
            return


# --- several outputs to a thread


def vector_loop(
    facts: KernelFacts, limits: Limits, wanted: int | None = None
) -> tuple[UOp, int] | None:
    """The innermost output loop that can be vectorized, and its lanes; None if there is none.

    All accesses along it are contiguous or invariant. It has `wanted` lanes; None for as many as
    suit the types. Without a reduction, as many as fill the widest access: halves that are computed
    in float32 would otherwise leave half as many bytes in flight.
    """
    lanes = 1 if facts.has_recurrence else limits.vector_bytes // facts.itemsize
    if lanes > 1 and limits.units and not facts.reductions:
        lanes = limits.vector_bytes // facts.moved_itemsize
    elif lanes > 1 and wanted is not None:
        lanes = wanted
    if lanes < 2:
        return None
    loops = (r for r in reversed(facts.launchable) if r.is_fixed and r.extent % lanes == 0)
    return next(((loop, lanes) for loop in loops if suits_lanes(facts, loop)), None)


def loop_apart(facts: KernelFacts, limits: Limits) -> tuple[UOp, int] | None:
    """A loop of which a thread that cannot be vectorized takes several steps, and how many.

    As many bytes are in flight as with vectors. It is not the innermost loop, so that neighboring
    threads access adjacent memory.
    """
    is_copy = not facts.reductions and len(facts.accesses) > len(facts.stored)
    if not limits.units or not is_copy or facts.has_recurrence:
        return None
    if facts.has_order or vector_loop(facts, limits) is not None:
        return None
    most = limits.vector_bytes // facts.moved_itemsize
    while most > 1 and facts.outputs_launched // most >= limits.threads:
        for loop in facts.launchable[:-1]:
            if loop.is_fixed and loop.extent % most == 0:
                return loop, most
        most //= 2
    return None


def tile_of_rows(facts: KernelFacts, limits: Limits, outputs: int) -> tuple[UOp, int] | None:
    """The loop along which a thread computes several outputs, and how many; None without one."""
    fixed = [r for r in facts.launchable if r.is_fixed]
    rows = [r for r in fixed if any(r not in n.ranges for n in facts.loads)]
    if not rows or not any(rows[0] in n.ranges for n in facts.loads):
        return None
    extent = rows[0].extent
    tall = next((t for t in (ROWS_OF_A_THREAD, 2) if extent % t == 0), 1)
    if extent > 2 * ROWS_OF_A_THREAD and not facts.overwrites:
        tall = ROWS_OF_A_THREAD
    return (rows[0], tall) if tall > 1 and outputs // tall >= limits.threads else None


def load_rows(draft: Draft) -> None:
    """Load vectors along a sum that runs along memory, if each thread of a card has its own row.

    Neighboring threads then read different cache lines, so each load should use as many bytes of
    its line as possible.
    """
    facts, limits = draft.facts, draft.limits
    if len(facts.innermost) != 1 or not limits.units or facts.has_recurrence:
        return
    (loop,) = facts.innermost
    is_plain = loop.is_fixed and loop.kind is AxisKind.REDUCE
    if not is_plain or facts.loops_of_kind(AxisKind.VECTOR):
        return
    lanes = limits.vector_bytes // min(n.dtype.itemsize for n in facts.loads)
    if lanes > 1 and loop.extent % lanes == 0 and suits_lanes(facts, loop):
        draft.cut(loop.number, lanes, AxisKind.VECTOR)


# --- the launch


def launch_outputs(draft: Draft, wanted: int, loops: list[UOp] | None = None) -> None:
    """Launch output loops in groups of at most `wanted` threads, filled from the innermost loop.

    `loops` are the loops to launch; None for all that can be.
    """
    taken = (AxisKind.GROUP, AxisKind.LANE)
    room = list(draft.limits.block[sum(len(draft.facts.loops_of_kind(k)) for k in taken) :])
    for loop in reversed(draft.facts.launchable if loops is None else loops):
        number, extent = loop.number, loop.extent
        most = min(wanted, room[0]) if room and not is_filled_inside(draft, loop) else 1
        threads = extent if extent <= most else floor_power_of_two(most)
        wanted //= threads
        room = room[1:] if threads > 1 else room
        if threads == 1 and not may_be_empty(loop):
            draft.do(Bind(number, AxisKind.GRID))
        elif threads == extent and loop.is_fixed:
            draft.do(Bind(number, AxisKind.BLOCK))
        else:
            draft.cut(number, threads, AxisKind.BLOCK, Tail.GUARD, AxisKind.GRID)


def is_filled_inside(draft: Draft, loop: UOp) -> bool:
    """True if a group's shared memory is filled again in each step of a loop."""
    return any(loop in n.ranges for n in fills_of(draft.kernel))
