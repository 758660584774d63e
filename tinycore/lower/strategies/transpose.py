"""Transposed copies: squares of elements, loaded row by row and stored column by column.

Floor 3'. Where stores are contiguous along one loop and loads along another, either are far apart.
Loops copy squares in registers (`lower/register_transpose.py` makes the loads and the shuffles), a
grid in shared memory, whose rows are padded, so that a column is in different banks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tinycore.lower.cost import Proposal, floor_power_of_two
from tinycore.lower.draft import Draft
from tinycore.lower.expand import LONGEST_STRIDE
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number
from tinycore.lower.steps.stage import (
    LINE_BYTES,
    WORD_BYTES,
    Dimension,
    Stage,
    staged_values,
)
from tinycore.lower.steps.tensorize import COLUMNS
from tinycore.lower.strategies.grid_stages import SECTOR_BYTES, deal_out
from tinycore.lower.strategies.grid_tiling import Cut, Tiling, innermost_group
from tinycore.lower.tile import Bind, Reorder, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import TRANSCENDENTAL, AxisKind

BLOCK: Final = (4, 2)
"""Squares of a block along rows and columns: neighbors share pairs of lines, which processors fetch
together. Copies of 256 x 256 to 4096 x 4096 float32 and float16 take .4 to .85 of the time without
blocks on a Xeon with AVX-512; 2 x 2 and 8 x 8 squares differ little."""
MOST_AGAIN: Final = 8
"""Accept up to an eighth of redundant copying to read whole cache lines."""
SIDE: Final = 32
"""Elements of a side of a tile; along columns as many words."""
ROWS: Final = 4
"""Rows of a tile that a thread copies."""
LEAST_EXTENT: Final = 16
"""Least extent of both loops from which tiles in shared memory pay."""


def turned_loops(
    facts: KernelFacts, loops: Iterable[UOp], least: int, distance: int, gated: bool = False
) -> tuple[UOp, UOp] | None:
    """The innermost loop of at least so many steps along which stores are contiguous, and one along
    which loads are that lie a distance apart along the first, not those of borders unless `gated`;
    None without both."""
    long = [r for r in loops if r.extent >= least]
    stored = facts.stored
    loaded = [n for n in facts.accesses if n not in stored and (gated or len(n.src) == 2)]
    for column in reversed(long):
        if any(facts.stride(n, column) != 1 or len(n.src) > 2 for n in stored):
            continue
        far = [n for n in loaded if abs(facts.stride(n, column) or 0) >= distance]
        row = next((r for r in long for n in far if facts.stride(n, r) == 1), None)
        if row is not None and row is not column:
            return column, row
    return None


# --- loops


def squares_of(facts: KernelFacts, limits: Limits) -> tuple[UOp, UOp] | None:
    """The loops of columns and rows; None for a kernel that is no transposed copy.

    Each element is loaded, shuffled and stored in vectors; lanes that need no shuffle are cheaper.
    """
    if facts.reductions or facts.has_scan:
        return None
    fixed = [r for r in facts.outputs if r.is_fixed]
    return turned_loops(facts, fixed, limits.vector_bytes // facts.itemsize, LONGEST_STRIDE + 1)


def transpose_blocks(draft: Draft) -> None:
    """Cut both loops into squares, and put the loops over squares inside of all others."""
    found = squares_of(draft.facts, draft.limits)
    lanes = floor_power_of_two(draft.size("lanes", draft.lanes(), least=2))
    assert found is not None, "the kernel has squares"  # or else there is no proposal
    column, row = found
    inside, across = column.number, row.number
    tall, wide = block_of_lines(draft.facts, draft.limits, row, column, lanes)
    draft.do(
        Split(inside, draft.size("columns", wide, column.extent, least=2)),
        Split(across, draft.size("rows", tall, row.extent, least=2)),
    )
    lane: Number = (*inside, 1)
    if wide > lanes:
        draft.do(Split(lane, lanes), Bind((*lane, 0), AxisKind.UNROLL))
        lane = (*lane, 1)
    draft.do(Bind(lane, AxisKind.VECTOR), Bind((*across, 1), AxisKind.UNROLL))
    over, along = (*across, 0), (*inside, 0)
    loops = {r.number: r for r in draft.facts.outputs if r.kind is AxisKind.LOOP}
    order = [n for n in loops if n not in (over, along)]
    for number, most in zip((over, along), BLOCK, strict=True):
        # A single square has no loop.
        count = loops[number].extent if number in loops else 1
        if (by := math.gcd(count, draft.size("squares", most))) > 1:
            draft.do(Split(number, by))
        order += number, (*number, 0)
    draft.do(Reorder(draft.present(*order, (*over, 1), (*along, 1))))


def block_of_lines(
    facts: KernelFacts, limits: Limits, row: UOp, column: UOp, lanes: int
) -> tuple[int, int]:
    """Elements along a row and along a column that are copied at once: those of whole cache lines,
    since a partial line is soon evicted. Rows that are far apart map to few sets of a cache.

    Lines of both, if both loops are whole lines: stores fill each line in turn and may go past the
    caches. Copies of 512 x 512 to 4096 x 4096 of 1 to 8 bytes take .45 to 1.05 of the time with
    AVX2, .4 to 1 with SSE (EPYC). One square, if whole lines would copy much twice, or if the
    kernel is bound by arithmetic, for which more elements need more registers.
    """
    line = max(LINE_BYTES // facts.itemsize, lanes)
    again = -row.extent % line
    if again * MOST_AGAIN > row.extent or any(n.op in TRANSCENDENTAL for n in facts.nodes):
        return lanes, lanes
    whole = limits.stream_bytes and not again and column.extent % line == 0
    return line, line if whole else lanes


# --- a grid


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """Tiles in shared memory, on cards."""
    threads = SIDE * SIDE // ROWS
    if not limits.units or limits.block_threads < threads or not limits.shared_bytes:
        return
    if facts.reductions or facts.has_order or facts.overwrites or not facts.is_cuttable:
        return
    distance = SECTOR_BYTES // facts.itemsize
    if found := turned_loops(facts, facts.launchable, LEAST_EXTENT, distance, gated=True):
        yield Squares(*found).proposal()


@dataclass(frozen=True, eq=False)
class Squares(Tiling):
    """A tile for each group, whose threads store along columns and load along rows."""

    column: UOp
    row: UOp

    def __str__(self) -> str:
        return "grid transpose"

    def cycles(self) -> float:
        """A cost below that of any plan that loads with strides."""
        return 1.0

    def cut(self, draft: Draft) -> Cut | None:
        """Squares of words; None if nothing can be staged, such as values of bool."""
        row, column = self.row, self.column
        lanes = max(WORD_BYTES // draft.facts.moved_itemsize, 1)
        lanes = 1 if column.extent % lanes or column.extent < SIDE * lanes else lanes
        across: Number = (*column.number, 1)
        along: Number = (*row.number, 1)
        draft.do(
            Split(column.number, SIDE * lanes, Tail.GUARD),
            Split(row.number, SIDE, Tail.GUARD),
            Split(along, SIDE // ROWS),
        )
        columns: Dimension = ((across, 1),)
        if lanes > 1:
            draft.do(Split(across, lanes))
            columns = (((*across, 0), lanes), ((*across, 1), 1))
        rows: Dimension = (((*along, 0), SIDE // ROWS), ((*along, 1), 1))
        inside = {number for number, _ in (*columns, *rows)}
        outer = [r.number for r in draft.facts.launchable if r.number not in inside]
        draft.do(*(Bind(number, AxisKind.GRID) for number in outer))
        # Rows of an odd number of elements: those of lanes side by side start in different banks.
        stage = Stage(innermost_group(draft), (columns, rows), padding=1)
        draft.do(
            Bind((*along, 0), AxisKind.UNROLL),
            Bind((*along, 1), AxisKind.BLOCK),
            Bind(columns[0][0], AxisKind.BLOCK),
        )
        if lanes > 1:
            draft.do(Bind((*across, 1), AxisKind.VECTOR))
        return Cut([(stage, COLUMNS)]) if staged_values(draft.kernel, stage) else None

    def stage(self, draft: Draft, cut: Cut, copies: int) -> bool:
        """Stage what is loaded, which threads fill element by element."""
        for step, _ in cut.stages:
            for number in draft.stage(step):
                deal_out(draft, number, 1)
        return True
