"""Kernels on a grid: outputs mapped to groups, threads and registers; split-K within a group.

Floor 3'. Every output is a step of a thread. Where there are few outputs and long sums, the threads
of a group share each sum; where an operand stands still over an output, a thread computes a tile of
outputs, and loads it once for all of them. `grid_shared.py` shares operands in a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tinycore.lower.cost import (
    WORD_BYTES,
    Cost,
    Proposal,
    apply_cheapest,
    ceil_power_of_two,
    cycles_of_outputs,
    cycles_of_sharers,
    cycles_of_thread,
    cycles_of_word,
    floor_power_of_two,
    suits_lanes,
)
from tinycore.lower.draft import Draft, fuse_loops
from tinycore.lower.kernel_facts import LEAST_REUSE, KernelFacts
from tinycore.lower.loops import fills_of
from tinycore.lower.steps.split import may_be_empty
from tinycore.lower.strategies import (
    grid_folded,
    grid_rows,
    grid_shared,
    grid_textured,
    grid_transpose,
    matrix_chain,
    matrix_unit,
    matrix_window,
)
from tinycore.lower.strategies.group_fills import SECTOR_BYTES
from tinycore.lower.tile import Bind, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

SHORTEST_SHARED: Final = 32
"""Steps of a sum from which on sharing it pays."""
ROWS_OF_A_THREAD: Final = 4
"""Outputs of a register tile beside its lanes."""
UNROLLED_MORE: Final = 8
"""The same where units are stated, whose groups are few: a thread has so many loads under way."""
CARD_LINE_BYTES: Final = 128
"""Bytes of a line of a card's cache."""
BYTES_UNDER_WAY: Final = 40 << 10
"""Bytes of memory that a unit waits for at once: less does not reach the rate of an H100's."""
MOST_UNEVEN: Final = 1.25
"""Work of the unit with most groups, as a multiple of the average's, from which on groups are too
few."""
LONG_ROW: Final = 256
"""Steps of a sum from which on lanes share it that exchange no values of its type."""
UNROLLED: Final = 4
"""Steps of a sum that are unrolled."""
TILES_ALONG_SUM: Final = ((4, 4), (2, 4), (1, 4), (2, 2), (1, 2))
"""Columns and rows of a thread that reads both sides by pixels along the sum."""
MOST_LANES: Final = 64
"""Sums of a thread there, times the lanes of each."""


def plan_grid(draft: Draft) -> None:
    """Threads and groups for the outputs; loops that cannot be launched stay loops."""
    fuse_loops(draft)
    if draft.limits.units:
        split_digits(draft)
    wanted = min(draft.limits.block_wanted, draft.limits.block_threads)
    apply_cheapest(draft, propose_grid(draft.facts, draft.limits, wanted))


def split_digits(draft: Draft) -> None:
    """Cut output loops that every address takes apart by one size, as heads and their features.

    Strides along the two loops are known, and were along neither of them.
    """
    for loop in draft.facts.launchable:
        digits = (Op.FLOORDIV, Op.FLOORMOD)
        apart = [n for n in draft.facts.nodes if n.op in digits and n.src[0] is loop]
        sizes = {n.src[1].arg if n.src[1].op is Op.CONST else 0 for n in apart}
        size = sizes.pop() if len(sizes) == 1 else 0
        if loop.is_fixed and 1 < size < loop.extent and loop.extent % size == 0:
            draft.do(Split(loop.arg.number, size))


def propose_grid(facts: KernelFacts, limits: Limits, wanted: int) -> Iterator[Proposal]:
    """The proposals of each strategy for workgroups of some threads."""
    if limits.matrix:
        yield from matrix_unit.propose(facts, limits)
        yield from matrix_window.propose(facts, limits)
        yield from matrix_chain.propose(facts, limits)
    if wanted > 1:
        yield from grid_folded.propose(facts, limits, wanted)
    if (rows := grid_rows.rows_of(facts, limits)) is not None:
        steps = partial(rows_each, rows=rows, wanted=wanted)
        yield Proposal("grid rows", None, Cost(cycles_of_thread(wanted)), steps)
        return
    yield from grid_transpose.propose(facts, limits)
    shared = shared_sum(facts, limits) if wanted > 1 else None
    if shared is None:
        outputs = outputs_of_thread(facts, limits, wanted)
        groups = -(-facts.outputs_launched // (outputs * wanted))
        cost = Cost(cycles_of_outputs(limits, outputs) * limits.unevenness(groups))
        yield Proposal("grid", None, cost, partial(thread_each, wanted=wanted))
    else:
        is_many = facts.outputs_launched >= limits.threads
        threads = limits.subgroup if is_many else wanted
        groups = -(-facts.outputs_launched * threads // wanted)
        steps_of_sum = max(shared.extent, 1)
        cost = Cost(cycles_of_sharers(limits, wanted, steps_of_sum) * limits.unevenness(groups))
        steps = partial(group_each, loop=shared, wanted=wanted, threads=threads)
        yield Proposal("grid of groups", shared, cost, steps)
    yield from tiles_along_sum(facts, limits, wanted)
    sharers = 1 if shared is None else sharers_of(facts, limits, wanted)
    if wanted > 1 and (shared is None or sharers > 1):
        for proposal in grid_shared.propose(facts, limits, grid_shared.Group(wanted, sharers)):
            yield proposal._replace(apply=partial(with_unrolled_sums, apply=proposal.apply))
    if wanted > 1:
        yield from grid_textured.propose(facts, limits, wanted)


def outputs_of_thread(facts: KernelFacts, limits: Limits, wanted: int) -> int:
    """Outputs that a thread computes: more than one where there are many."""
    if wanted == 1 or facts.outputs_launched < limits.threads:
        return 1
    lanes = 1 if loop_of_lanes(facts, limits) is None else lanes_of_thread(facts, limits)
    tile = tile_of_rows(facts, limits, facts.outputs_launched // lanes)
    apart = loop_apart(facts, limits) if tile is None else None
    return lanes * next((found[1] for found in (tile, apart) if found is not None), 1)


def thread_each(draft: Draft, wanted: int) -> None:
    """A thread for each output, or for a tile of them where there are many."""
    if wanted > 1 and draft.facts.outputs_launched >= draft.limits.threads:
        apart = loop_apart(draft.facts, draft.limits)
        give_lanes(draft)
        tile_rows(draft, apart)
        load_rows(draft)
        unroll_sums(draft)
    launch_outputs(draft, wanted)


def rows_each(draft: Draft, rows: grid_rows.Rows, wanted: int) -> None:
    """Threads for each row, that fold it and then store it, and groups of such rows."""
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
    """The loop of a sum along memory that lanes of a subgroup share, though outputs are many.

    A row for each thread would be a line of the cache for each; lanes read lines together. Measured
    on an H200: 131,072 rows of 1,024 floats by a thread each are read at a quarter of its rate.
    Only where no operand is read again for other outputs, which a thread or a group would keep.
    """
    innermost = {n.src[-1] for n in facts.reductions}
    loop = next(iter(innermost)) if len(innermost) == 1 else None
    if loop is None or not limits.units or not facts.is_fixed or loop not in facts.reduced:
        return None
    widest = max((n.dtype.itemsize for n in facts.loads), default=1)
    lanes = max(limits.vector_bytes // widest, 1)
    steps = loop.extent // lanes
    is_short = steps >= 2 and loop.extent == steps * lanes and not steps & (steps - 1)
    folds = all(n.dtype in limits.shuffles for n in facts.reductions)
    # Other types are folded in shared memory, which long rows are worth.
    least = 2 * limits.subgroup if folds else LONG_ROW
    fits = loop.extent >= least or (is_short and folds)
    if not (fits and suits_lanes(facts, loop)):
        return None
    return loop if grid_shared.sides_of(facts) is None else None


def sharers_of(facts: KernelFacts, limits: Limits, wanted: int) -> int:
    """Threads of a group that share a sum where the group also shares operands."""
    short = -(-limits.threads // facts.outputs_launched)
    return min(ceil_power_of_two(short), floor_power_of_two(wanted // LEAST_REUSE**2))


def contiguous_accesses(facts: KernelFacts, loop: UOp) -> int:
    """Number of accesses that have stride 1 along a loop."""
    return sum(facts.stride(n, loop) == 1 for n in facts.accesses)


def group_each(draft: Draft, loop: UOp, wanted: int, threads: int) -> None:
    """Up to so many threads of a group for each sum, or for as many as fill a piece of a cache."""
    beside, longest = 1, loop.extent
    if suits_lanes(draft.facts, loop):
        copies = 1
        if draft.limits.units and not draft.facts.has_recurrence:
            longest = max(longest // draft.lanes(), 1)
    elif draft.limits.units:
        copies, beside = give_line(draft, wanted)
        wanted //= beside
    else:
        copies = give_piece(draft)
    members = [n for n in draft.facts.reductions if loop in n.src[1:]]
    # Each thread leaves a part there, and some leave another.
    part = sum(2 * max(n.dtype.itemsize, 4) for n in members) * copies
    most = draft.limits.shared_bytes // (part * beside)
    threads = floor_power_of_two(min(threads, wanted, most, longest, draft.limits.block[0]))
    outputs = wanted // threads
    if beside > 1:
        threads, outputs = shared_by_few(draft, longest, threads, beside)
    if threads > 1:
        share(draft, loop, threads, is_short=beside > 1)
    launch_outputs(draft, min(outputs, wanted // threads))


def shared_by_few(draft: Draft, steps: int, threads: int, beside: int) -> tuple[int, int]:
    """Threads for each sum of some steps, up to so many, and the outputs of a group.

    Threads exchange parts in shared memory, all of which each of them then adds up. A few steps of
    a thread are under way at once as well as those of several: sums that each take a few are shared
    by fewer, while units have a subgroup each. Of two groups one adds up while another waits.
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
    while (
        threads < most and own > 1 and -(-outputs // own) < grid_shared.GROUPS_BESIDE * limits.units
    ):
        own //= 2
    return threads, own


def give_line(draft: Draft, wanted: int) -> tuple[int, int]:
    """Lanes of a thread, and threads side by side that read a line of rows together; how many.

    As many as a line has room for, if there are still groups for each unit; half of these where
    units would have too few bytes under way. Measured on an H100: 8,192 columns of bfloat16 by
    groups of a line, with 8 bytes a thread, are read at .67 of the rate of those of float32.
    """
    widest = max((n.dtype.itemsize for n in draft.facts.loads), default=1)
    given = given_lanes(draft, draft.limits.vector_bytes // widest)
    if given is None:
        return 1, 1
    lanes, loop, narrow = given
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
    outer = loop.arg.number
    draft.do(Split(outer, beside), Bind((*outer, 1), AxisKind.LANE))
    return lanes, beside


def give_piece(draft: Draft) -> int:
    """Outputs side by side for a thread that reads rows; how many.

    A cache reads whole pieces: of one that a thread uses in part, the rest is read again by the
    group beside it.
    """
    given = given_lanes(draft)
    if given is None:
        return 1
    lanes, loop, narrow = given
    count = SECTOR_BYTES // (lanes * narrow)
    if loop is None or count < 2 or loop.extent % count:
        return lanes
    outer = loop.arg.number
    draft.do(Split(outer, count), Bind((*outer, 1), AxisKind.UNROLL))
    return lanes * count


def given_lanes(draft: Draft, wanted: int | None = None) -> tuple[int, UOp | None, int] | None:
    """Lanes of a thread, after `give_lanes`; the loop around them; bytes of the narrowest lane.

    None where the thread gets none.
    """
    before = {r.arg.number for r in draft.facts.loops_of_kind(AxisKind.VECTOR)}
    give_lanes(draft, wanted)
    given = [r for r in draft.facts.loops_of_kind(AxisKind.VECTOR) if r.arg.number not in before]
    if not given:
        return None
    outer = (*given[0].arg.number[:-1], 0)
    loop = next((r for r in draft.facts.launchable if r.arg.number == outer), None)
    narrow = min(n.dtype.itemsize for n in draft.facts.loads if given[0] in n.ranges)
    return given[0].extent, loop, narrow


def share(draft: Draft, loop: UOp, threads: int, is_short: bool = False) -> None:
    """Share the steps of a sum among threads, which load vectors where it runs along memory.

    Several steps are unrolled: their loads are under way at once, which memory far away needs; all
    of a sum that `is_short`, if these are few.
    """
    number, steps = loop.arg.number, loop.extent
    lanes = 1 if draft.facts.has_recurrence else draft.lanes()
    multiple = lanes if draft.limits.units else lanes * threads
    fits = loop.is_fixed and lanes > 1 and steps % multiple == 0
    if fits and suits_lanes(draft.facts, loop):
        draft.do(Split(number, lanes), Bind((*number, 1), AxisKind.VECTOR))
        number, steps = (*number, 0), steps // lanes
    draft.do(Split(number, threads, Tail.GUARD), Bind((*number, 1), AxisKind.GROUP))
    rounds = steps // threads
    if is_short and loop.is_fixed and steps % threads == 0 and 1 < rounds <= UNROLLED_MORE:
        draft.do(Bind((*number, 0), AxisKind.UNROLL))
        return
    for times in (UNROLLED_MORE, UNROLLED) if draft.limits.units else (UNROLLED,):
        if loop.is_fixed and steps % threads == 0 and rounds % times == 0 and rounds > times:
            draft.do(Split((*number, 0), times), Bind((*number, 0, 1), AxisKind.UNROLL))
            return


# --- several outputs to a thread


def give_lanes(draft: Draft, wanted: int | None = None) -> None:
    """Lanes along an output that every access moves along, or not at all: so many, or as suits."""
    loop = loop_of_lanes(draft.facts, draft.limits, wanted)
    if loop is not None:
        number, lanes = loop.arg.number, lanes_of_thread(draft.facts, draft.limits, wanted)
        draft.do(Split(number, lanes), Bind((*number, 1), AxisKind.VECTOR))


def lanes_of_thread(facts: KernelFacts, limits: Limits, wanted: int | None = None) -> int:
    """Lanes along an output.


    Where nothing is folded as many as the widest access has: of halves that are computed in float32
    a thread of a card else has half as many bytes under way.
    """
    lanes = 1 if facts.has_recurrence else limits.vector_bytes // facts.itemsize
    if lanes < 2:
        return 1
    if limits.units and not facts.reductions:
        return limits.vector_bytes // facts.moved_itemsize
    return lanes if wanted is None else wanted


def loop_of_lanes(facts: KernelFacts, limits: Limits, wanted: int | None = None) -> UOp | None:
    """The innermost output that lanes of a thread fit; None where there is none."""
    lanes = lanes_of_thread(facts, limits, wanted)
    if lanes < 2:
        return None
    loops = (r for r in reversed(facts.launchable) if r.is_fixed and r.extent % lanes == 0)
    return next((loop for loop in loops if suits_lanes(facts, loop)), None)


def loop_apart(facts: KernelFacts, limits: Limits) -> tuple[UOp, int] | None:
    """A loop of whose steps a thread of a card takes several where it has no lanes, and how many.

    As many bytes are under way at once as with lanes. Neighboring threads access memory side by
    side, so it is not the innermost loop.
    """
    is_copy = not facts.reductions and len(facts.accesses) > len(facts.stored)
    if not limits.units or not is_copy or facts.has_recurrence:
        return None
    if facts.has_order or loop_of_lanes(facts, limits) is not None:
        return None
    most = limits.vector_bytes // facts.moved_itemsize
    while most > 1 and facts.outputs_launched // most >= limits.threads:
        for loop in facts.launchable[:-1]:
            if loop.is_fixed and loop.extent % most == 0:
                return loop, most
        most //= 2
    return None


def tile_rows(draft: Draft, apart: tuple[UOp, int] | None) -> None:
    """Several outputs to a thread along a loop over which a load stands still, or a loop given."""
    found = tile_of_rows(draft.facts, draft.limits, draft.facts.outputs_launched) or apart
    if found is not None:
        loop, tall = found
        number = loop.arg.number
        draft.do(Split(number, tall), Bind((*number, 1), AxisKind.UNROLL))


def tile_of_rows(facts: KernelFacts, limits: Limits, outputs: int) -> tuple[UOp, int] | None:
    """The loop along which a thread has several of so many outputs, and how many."""
    fixed = [r for r in facts.launchable if r.is_fixed]
    rows = [r for r in fixed if any(r not in n.ranges for n in facts.loads)]
    if not rows or not any(rows[0] in n.ranges for n in facts.loads):
        return None
    extent = rows[0].extent
    tall = next((t for t in (ROWS_OF_A_THREAD, 2) if extent % t == 0), 1)
    if extent > 2 * ROWS_OF_A_THREAD and not facts.overwrites:
        tall = ROWS_OF_A_THREAD
    return (rows[0], tall) if tall > 1 and outputs // tall >= limits.threads else None


def tiles_along_sum(facts: KernelFacts, limits: Limits, wanted: int) -> Iterator[Proposal]:
    """Tiles of threads that read both sides of a product by pixels along the sum, by textures: a
    few rows times a matrix that lies so, which is not worth a copy that lies otherwise."""
    sides = grid_shared.sides_of(facts) if limits.texture_rate and wanted > 1 else None
    loop = grid_textured.loop_of_pixels(facts, limits) if sides is not None else None
    if sides is None or loop is None or facts.overwrites:
        return
    row, column = sides.rows[-1], sides.columns[-1]
    size = min(n.dtype.itemsize for n in facts.loads)
    lanes = limits.vector_bytes // size
    for wide, tall in TILES_ALONG_SUM:
        is_whole = row.extent % tall == 0 and column.extent % wide == 0
        groups = facts.outputs_launched // (wide * tall * wanted)
        if not is_whole or wide * tall * lanes > MOST_LANES or groups < limits.units:
            continue
        textured = (1 / wide + 1 / tall) * cycles_of_word(limits, limits.texture_rate)
        pieces = max(SECTOR_BYTES // (lanes * size), 1)
        far = pieces * size / WORD_BYTES / tall * cycles_of_word(limits, limits.l2_rate)
        cost = Cost((1 + max(textured, far)) * limits.unevenness(groups))
        steps = partial(pixels_each, sides=(row, column), tile=(wide, tall), wanted=wanted)
        yield Proposal(f"grid along sum {wide}x{tall}", loop, cost, steps)


def pixels_each(draft: Draft, sides: tuple[UOp, UOp], tile: tuple[int, int], wanted: int) -> None:
    """Some rows and columns for each thread, which reads vectors along the sum. Its columns lie
    apart: neighboring threads have neighboring ones."""
    (row, column), (wide, tall) = (r.arg.number for r in sides), tile
    if tall > 1:
        draft.do(Split(row, tall), Bind((*row, 1), AxisKind.UNROLL))
    if wide > 1:
        draft.do(Split(column, sides[1].extent // wide), Bind((*column, 0), AxisKind.UNROLL))
    load_rows(draft)
    launch_outputs(draft, wanted)


def load_rows(draft: Draft) -> None:
    """Vectors along a sum that runs along memory, in threads of a card that have rows of their own.

    Neighboring threads read different lines then, and each load asks for all of them: as many bytes
    of a line are taken at once as there can be.
    """
    facts, limits = draft.facts, draft.limits
    innermost = {n.src[-1] for n in facts.reductions if n.src[-1].op is Op.RANGE}
    loop = next(iter(innermost)) if len(innermost) == 1 else None
    if loop is None or not limits.units or not loop.is_fixed or facts.has_recurrence:
        return
    if loop.arg.kind is not AxisKind.REDUCE or facts.loops_of_kind(AxisKind.VECTOR):
        return
    lanes = limits.vector_bytes // min(n.dtype.itemsize for n in facts.loads)
    if lanes > 1 and loop.extent % lanes == 0 and suits_lanes(facts, loop):
        number = loop.arg.number
        draft.do(Split(number, lanes), Bind((*number, 1), AxisKind.VECTOR))


def with_unrolled_sums(draft: Draft, apply: grid_shared.Apply) -> bool | None:
    """Apply a proposal, and unroll sums if that can be done."""
    if apply(draft) is False:
        return False
    unroll_sums(draft)
    return None


def unroll_sums(draft: Draft) -> None:
    """Unroll a few steps of the innermost loop of a sum."""
    innermost = dict.fromkeys(n.src[-1] for n in draft.facts.reductions if n.src[-1].op is Op.RANGE)
    for loop in innermost:  # in the order of the kernel, which is the same in every process
        number = loop.arg.number
        if loop.arg.kind is not AxisKind.REDUCE or not loop.is_fixed:
            continue
        if loop.extent <= UNROLLED:
            draft.do(Bind(number, AxisKind.UNROLL))
        elif loop.extent % UNROLLED == 0:
            draft.do(Split(number, UNROLLED), Bind((*number, 1), AxisKind.UNROLL))


# --- the launch


def launch_outputs(draft: Draft, wanted: int, loops: list[UOp] | None = None) -> None:
    """Groups of up to `wanted` threads, filled from the innermost output on.

    Of some of the outputs, or of all that can be launched.
    """
    taken = (AxisKind.GROUP, AxisKind.LANE)
    room = list(draft.limits.block[sum(len(draft.facts.loops_of_kind(k)) for k in taken) :])
    for loop in reversed(draft.facts.launchable if loops is None else loops):
        number, extent = loop.arg.number, loop.extent
        most = min(wanted, room[0]) if room and not is_filled_inside(draft, loop) else 1
        threads = extent if extent <= most else floor_power_of_two(most)
        wanted //= threads
        room = room[1:] if threads > 1 else room
        if threads == 1 and not may_be_empty(loop):
            draft.do(Bind(number, AxisKind.GRID))
        elif threads == extent and loop.is_fixed:
            draft.do(Bind(number, AxisKind.BLOCK))
        else:
            draft.do(
                Split(number, threads, Tail.GUARD),
                Bind((*number, 0), AxisKind.GRID),
                Bind((*number, 1), AxisKind.BLOCK),
            )


def is_filled_inside(draft: Draft, loop: UOp) -> bool:
    """True if a group's shared memory is filled again in each step of a loop."""
    return any(loop in n.ranges for n in fills_of(draft.kernel))
