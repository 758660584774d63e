"""Matrix-vector products, and sums down columns: rows are added to a row of sums in a near cache.

Floor 3'. Sums in a tile of registers would read down the columns of the matrix, one cache line per
vector. With the sums in a buffer (`Accumulate`) whole rows are read, as in the AXPY form of level-2
BLAS. This suits one row of sums, and a few, which would hardly reuse a packed panel.
"""

from __future__ import annotations

from typing import Final

from tinycore.lower.cost import NEAR_CACHE_BYTES, WAKE_OPERATIONS
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import overwrites_what_it_reads
from tinycore.lower.steps.accumulate import Accumulate
from tinycore.lower.strategies.elementwise import output_lanes
from tinycore.lower.strategies.matrix_product import row_loop
from tinycore.lower.tile import Reorder, Split
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Part

ROWS_AT_ONCE: Final = 8
"""Rows added to the sums in one pass over them, each a stream of loads: of 4096 x 4096, 8 take 1.25
ms, 4 1.36 and 16 1.51 (Zen 4)."""
LEAST_HELD: Final = 256
"""Sums below which starting a pass over them shows."""
UPDATE_WAITS: Final = 2 / ROWS_AT_ONCE
"""Loading and storing a vector of sums, for each row that is added to it."""


def wait_for_updates(facts: KernelFacts, limits: Limits, axis: UOp) -> float | None:
    """Cycles that a row waits for its sums; None for loops along which what is reduced are no
    contiguous rows that lie far apart."""
    depth = facts.reduced[-1]
    is_short = axis.extent < LEAST_HELD or depth.extent < 2 * ROWS_AT_ONCE
    if is_short or overwrites_what_it_reads(facts.kernel):
        return None
    along = [n for n in facts.loads if axis in n.ranges]
    moves = [facts.stride(n, depth) for n in along if len(n.src) == 2]
    is_far = (
        len(moves) == len(along) > 0
        and all(m is not None and m >= axis.extent // 2 for m in moves)
        and all(facts.stride(n, axis) == 1 for n in along)
        and facts.are_side_by_side
    )
    return UPDATE_WAITS if is_far else None


def accumulate_rows(draft: Draft, axis: UOp) -> None:
    """Add some rows at a time to a block of sums, and cut everything into lanes."""
    row, width = row_loop(draft.facts, axis), output_lanes(draft, axis)
    reduced, number = draft.facts.reduced, axis.number
    block = sums_held(draft, axis.extent, 1 if row is None else row.extent, width)
    block = width * draft.size("held", block // width) if block % width == 0 else block
    times = draft.size("rows", ROWS_AT_ONCE, reduced[-1].extent, least=2)
    if block < axis.extent:
        draft.do(Split(number, block))
        number = (*number, 1)
    depth = reduced[-1].number
    around = [r.number for r in reduced[:-1]]
    if reduced[-1].extent > times:
        around.append(draft.cut(depth, times, AxisKind.UNROLL))
    held = (number,) if row is None else (row.number, number)
    rest = [r.number for r in draft.facts.outputs if r.number not in held]
    draft.do(Reorder((*rest, *held)), Accumulate(held, tuple(around)))
    for part in ((*number, Part.HELD, 0), (*number, Part.HELD, 1), number):
        draft.cut(part, width, AxisKind.VECTOR)


def sums_held(draft: Draft, columns: int, rows: int, width: int) -> int:
    """Accumulators to hold at a time: a quarter of the near cache, divided evenly among threads."""
    limits = draft.limits
    most = max(NEAR_CACHE_BYTES // 16 // rows, LEAST_HELD)
    if columns <= LEAST_HELD or draft.work < WAKE_OPERATIONS:
        return min(columns, most)
    share = -(-columns // (limits.threads * -(-columns // (limits.threads * most))))
    return max(-(-share // width) * width, LEAST_HELD)
