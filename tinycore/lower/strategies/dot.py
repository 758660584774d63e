"""Dot products and sums of rows: lanes run along the reduced loop, and are added up at its end.

Floor 3'. Several rows and columns of sums at a time share their loads. If all sums fit a near cache
and their operands do not, the sums are accumulated in a buffer, inside of the outer reduced loops.
Sums that do not suit lanes get several scalar accumulators.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

from tinycore.lower.cost import (
    NEAR_CACHE_BYTES,
    cycles_of_step,
    floor_power_of_two,
    pieces_wanted,
)
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import PLAIN_KINDS, Number
from tinycore.lower.steps.accumulate import Accumulate
from tinycore.lower.steps.split import REST
from tinycore.lower.tile import Bind, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Part

LONGEST_SIDE: Final = 5
"""Rows and columns of a tile: each is a stream of loads."""
PARTIAL_SUMS: Final = (8, 4, 2)
"""Accumulators of one sum: they hide the latency of additions, and round less."""
STREAMS: Final = 4
"""Rows read concurrently: hardware prefetching stops at the end of a page, but not in all."""
MOST_UNROLLED: Final = 128
"""Copies of a step that a row of a tile is unrolled into: from rows of 7 to 56 elements, on Zen
3."""
LEAST_STEPS: Final = 64
"""Elements of a sum in one step of the loops around held sums, so that adding it is little work."""
PAGE_BYTES: Final = 4096
"""Bytes of a page; hardware prefetching ends where a page does."""


def sum_in_parts(draft: Draft) -> None:
    """Several scalar accumulators for one sum."""
    facts = draft.facts
    loops = [r for r in facts.reduced if r.extent >= 2 * PARTIAL_SUMS[0]]
    if loops and all(r.extent == 1 for r in facts.loops_of_kind(AxisKind.UNROLL)):
        parts = draft.size("accumulators", PARTIAL_SUMS[0], loops[-1].extent // 2, least=2)
        draft.cut(loops[-1].number, parts, AxisKind.PARTIAL)


def reduce_with_lanes(draft: Draft, axis: UOp) -> None:
    """Lanes along a reduced loop, several accumulators, summed across at the end."""
    size, number = axis.extent, axis.number
    width = floor_power_of_two(min(size, draft.size("lanes", draft.lanes(), least=2)))
    if not axis.is_fixed:
        cut_varying_row(draft, axis, width)
        return
    outputs = [r for r in draft.facts.outputs if r.extent > 1 and r.kind in PLAIN_KINDS]
    loops = hold_outputs(draft, axis) or outputs
    tile = reused_rows(draft.facts, draft.limits, loops)
    rows = tile or row_beside(draft.facts, draft.limits, axis)
    # What is left of a row is a whole vector that starts early. A narrower one has a sum of its
    # own: with 8 left of 40 columns of float32, a greatest takes 1.35 of the time (AVX-512).
    draft.cut(number, width, AxisKind.VECTOR, Tail.SHIFT)
    if size % width:
        draft.do(Bind((*number, REST), AxisKind.VECTOR))
    rows = [(row, draft.size("rows", tall, least=2 if tile else 1)) for row, tall in rows]
    for row, tall in rows:
        if tall > 1:
            draft.cut(row, tall, AxisKind.UNROLL)
    copies = math.prod(tall for _, tall in rows)
    steps = size // width
    partial = next((p for p in PARTIAL_SUMS if steps >= 2 * p), 1)
    partial = draft.size("accumulators", partial, max(steps // 2, 1))
    if tile:
        unroll(draft, (*number, 0), steps, copies)
        return
    if copies > 1:
        partial = min(partial, PARTIAL_SUMS[0] // copies)
    if partial > 1:
        draft.cut((*number, 0), partial, AxisKind.PARTIAL)
        unroll(draft, (*number, 0, REST), steps % partial, 1)


def cut_varying_row(draft: Draft, axis: UOp, width: int) -> None:
    """Cut a reduced loop of symbolic length into lanes and accumulators; its rest is scalar."""
    number, steps = draft.cut(axis.number, width, AxisKind.VECTOR), axis.extent // width
    if partial := next((p for p in PARTIAL_SUMS[1:] if steps >= 2 * p), 0):
        draft.cut(number, partial, AxisKind.PARTIAL)


def unroll(draft: Draft, number: Number, steps: int, copies: int) -> None:
    """Unroll a short remainder of a reduced loop, so that it needs no accumulators of its own."""
    if 1 < steps <= MOST_UNROLLED // copies:
        draft.do(Bind(number, AxisKind.UNROLL))


def row_beside(facts: KernelFacts, limits: Limits, axis: UOp) -> list[tuple[Number, int]]:
    """The innermost loop over results, and how many of their sums go beside each other: several
    where each reads pages of its own."""
    outputs = [r for r in facts.outputs if r.extent > 1]
    if not outputs or not facts.is_fixed or not facts.are_side_by_side:
        return []
    row, least = outputs[-1], STREAMS * max(limits.threads, 1)
    loads = [n for n in facts.loads if {axis, row} <= n.src[1].ranges]
    moves = [facts.stride(n, row) for n in loads]
    far = [m is not None and abs(m) * facts.itemsize >= PAGE_BYTES for m in moves]
    is_apart = far and all(far) and row.extent >= least
    return [(row.number, STREAMS if is_apart else 1)]


# --- tiles


def reused_rows(facts: KernelFacts, limits: Limits, loops: list[UOp]) -> list[tuple[Number, int]]:
    """The two loops, with the number of steps of each, whose tile shares most of its loads.

    Empty if no tile shares any. The sums of a tile and the operands of a step must fit the
    registers.
    """
    best, tile = float(len(facts.loads)), dict[UOp, int]()
    for pair in itertools.combinations(reversed(loops), 2):
        for sizes in itertools.product(range(1, LONGEST_SIDE + 1), repeat=2):
            tall = dict(zip(pair, sizes, strict=True))
            fits = math.prod(sizes) + min(sizes) + 1 <= limits.vector_registers
            fits = fits and all(size <= r.extent for r, size in tall.items())
            if fits and (cycles := cycles_of_tile(facts.loads, tall)) < best:
                best, tile = cycles, tall
    return [(r.number, size) for r, size in tile.items() if size > 1]


def cycles_of_tile(loads: frozenset[UOp], tall: dict[UOp, int]) -> float:
    """Cycles per multiplication of a tile, with the repeated work of uneven tiles."""
    size = math.prod(tall.values())
    read = sum(math.prod(t for r, t in tall.items() if r in n.ranges) for n in loads)
    twice = math.prod(-(-r.extent // t) * t / r.extent for r, t in tall.items())
    return cycles_of_step(size, read) / size * twice


# --- sums that are accumulated in a buffer


def hold_outputs(draft: Draft, axis: UOp) -> list[UOp]:
    """Accumulate all sums in a buffer, if repeatedly read operands would leave the near cache.

    Returns the loops over the sums in the buffer; empty if there is none.
    """
    facts = draft.facts
    around = loops_around_sums(facts, draft.limits, axis)
    if not around or not facts.is_fixed or not facts.are_side_by_side or facts.overwrites:
        return []
    outputs = [r for r in facts.outputs if r.extent > 1]
    held, first = [r.number for r in outputs], outputs[0]
    share = max(first.extent // pieces_wanted(draft), 1)
    if 1 < share < first.extent:
        draft.do(Split(first.number, share))
        held[0] = (*held[0], 1)
    elif share == 1:
        del held[0]
    if not held:
        return []
    loops = [r.number for r in around]
    if (steps := steps_at_once(facts, draft.limits, around)) > 1:
        draft.do(Split(loops[-1], steps))
        loops[-1] = (*loops[-1], 0)
    draft.do(Accumulate(tuple(held), tuple(loops)))
    return [r for r in draft.facts.loops if r.number[-2:] == (Part.HELD, 1)]


def steps_at_once(facts: KernelFacts, limits: Limits, around: list[UOp]) -> int:
    """Steps of the innermost loop around held sums that are summed before lanes are added up.

    What they read for all sums must fit the cache behind the nearest one, and the rows of a tile
    the nearest one.
    """
    outputs = [r for r in facts.outputs if r.extent > 1]
    inside = facts.reduced[len(around) :]
    each = facts.footprint([*outputs, *inside])
    rows = LONGEST_SIDE * iterations_of(inside) * facts.itemsize
    most = min(limits.cache_bytes // 2 // max(each, 1), NEAR_CACHE_BYTES // rows)
    most = min(most, around[-1].extent // 2)
    return max((n for n in range(1, most + 1) if around[-1].extent % n == 0), default=1)


def loops_around_sums(facts: KernelFacts, limits: Limits, axis: UOp) -> list[UOp]:
    """The outer reduced loops that have to run around held sums; none if it would not pay."""
    reduced, cache = facts.reduced, limits.cache_bytes // 2
    outputs = [r for r in facts.outputs if r.extent > 1]
    sums = iterations_of(outputs) * facts.itemsize
    if not outputs or axis is not reduced[-1] or sums > cache:
        return []
    for place in range(len(reduced)):
        if iterations_of(reduced[place:]) < LEAST_STEPS:
            return []
        if facts.footprint([*outputs, *reduced[place:]]) <= cache:
            return reduced[:place]
    return []
