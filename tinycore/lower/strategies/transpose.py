"""Transposed copies: squares of elements, loaded row by row and stored column by column.

Floor 3'. `lower/register_transpose.py` makes the loads of a square and the shuffles in registers.
"""

from __future__ import annotations

from typing import Final

from tinycore.lower.cost import floor_power_of_two
from tinycore.lower.draft import Draft
from tinycore.lower.expand import LONGEST_STRIDE
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.tile import Bind, Reorder, Split
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import TRANSCENDENTAL, AxisKind

LINE_BYTES: Final = 64
"""Bytes of a cache line."""
MOST_AGAIN: Final = 8
"""Accept up to an eighth of redundant copying to read whole cache lines."""


def squares_of(facts: KernelFacts, limits: Limits) -> tuple[UOp, UOp] | None:
    """The first loop along which stores are contiguous, and one along which loads are; None without
    both.

    Each element is loaded, shuffled and stored in vectors; lanes that need no shuffle are cheaper.
    """
    if facts.reductions or facts.has_scan:
        return None
    size = limits.vector_bytes // facts.itemsize
    stored = facts.stored
    loaded = [n for n in facts.accesses if n not in stored]
    outputs = [r for r in facts.outputs if r.is_fixed]
    for column in reversed(outputs):
        if column.extent < size or any(
            facts.stride(n, column) != 1 or len(n.src) > 2 for n in stored
        ):
            continue
        apart = [n for n in loaded if facts.is_far(n, column, LONGEST_STRIDE + 1)]
        rows = [r for r in outputs if r is not column and r.extent >= size]
        row = next((r for r in rows for n in apart if facts.stride(n, r) == 1), None)
        if row is not None:
            return column, row
    return None


def transpose_blocks(draft: Draft) -> None:
    """Cut both loops into squares, and put the loops over squares inside of all others."""
    found = squares_of(draft.facts, draft.limits)
    lanes = floor_power_of_two(draft.size("lanes", draft.lanes(), least=2))
    assert found is not None, "the kernel has squares"  # or else there is no proposal
    column, row = found
    inside, across = column.arg.number, row.arg.number
    tall = squares_of_line(draft.facts, draft.limits, row, lanes)
    draft.do(
        Split(inside, lanes),
        Split(across, draft.size("rows", tall, row.extent, least=2)),
        Bind((*inside, 1), AxisKind.VECTOR),
        Bind((*across, 1), AxisKind.UNROLL),
    )
    outer = ((*across, 0), (*inside, 0))
    loops = [r.arg for r in draft.facts.outputs if r.arg.kind is AxisKind.LOOP]
    others = (axis.number for axis in loops if axis.number not in outer)
    draft.do(Reorder(draft.present(*others, *outer)))


def squares_of_line(facts: KernelFacts, limits: Limits, row: UOp, lanes: int) -> int:
    """Squares along a row whose stores cover whole cache lines: a partial line is soon evicted.

    Rows that are far apart map to few sets of a cache. One square only, if whole lines would copy
    much twice, or if the kernel is bound by arithmetic, for which more elements need more
    registers.
    """
    line = max(LINE_BYTES // facts.itemsize, lanes)
    again = -row.extent % line
    plain = not any(n.op in TRANSCENDENTAL for n in facts.nodes)
    return line if plain and again * MOST_AGAIN <= row.extent else lanes
