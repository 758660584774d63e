"""Tiled transposes on a grid: square tiles in shared memory, loaded by rows and stored by columns.

Floor 3'. In a transposed copy threads whose stores are contiguous load elements that are far apart,
each from another sector of memory. With a tile in shared memory both are contiguous; its rows are
padded, so that a column is in different banks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tinycore.lower.cost import Proposal
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number
from tinycore.lower.steps.stage import WORD_BYTES, Dimension, Stage, staged_values
from tinycore.lower.steps.tensorize import COLUMNS
from tinycore.lower.strategies.grid_stages import SECTOR_BYTES, deal_out
from tinycore.lower.strategies.grid_tiling import Cut, Tiling, innermost_group
from tinycore.lower.tile import Bind, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

SIDE: Final = 32
"""Elements of a side of a tile; along columns as many words."""
ROWS: Final = 4
"""Rows of a tile that a thread copies."""
LEAST_EXTENT: Final = 16
"""Least extent of both loops from which tiles pay."""


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """Tiles along the loop in which stores are contiguous, and one in which loads are."""
    threads = SIDE * SIDE // ROWS
    if not limits.units or limits.block_threads < threads or not limits.shared_bytes:
        return
    if facts.reductions or facts.has_order or facts.overwrites or not facts.is_cuttable:
        return
    loaded = [n for n in facts.accesses if n not in facts.stored]
    long = [r for r in facts.launchable if r.extent >= LEAST_EXTENT]
    for column in reversed(long):
        if any(facts.stride(n, column) != 1 for n in facts.stored):
            continue
        far = [n for n in loaded if is_far(facts, n, column)]
        row = next((r for r in long for n in far if facts.stride(n, r) == 1), None)
        if row is not None and row is not column:
            yield Squares(row, column).proposal()
        return


def is_far(facts: KernelFacts, load: UOp, column: UOp) -> bool:
    """True if the stride of a load along a loop is a sector or more."""
    stride = facts.stride(load, column)
    return stride is not None and abs(stride) * facts.itemsize >= SECTOR_BYTES


@dataclass(frozen=True, eq=False)
class Squares(Tiling):
    """A tile for each group, whose threads store along columns and load along rows."""

    row: UOp
    column: UOp

    def __str__(self) -> str:
        return "grid transpose"

    def cycles(self) -> float:
        """A cost below that of any plan that loads with strides."""
        return 1.0

    def cut(self, draft: Draft, sharers: int) -> Cut | None:
        """Squares of words; None if nothing can be staged, such as values of bool."""
        row, column = self.row, self.column
        lanes = max(WORD_BYTES // draft.facts.moved_itemsize, 1)
        lanes = 1 if column.extent % lanes or column.extent < SIDE * lanes else lanes
        across: Number = (*column.arg.number, 1)
        along: Number = (*row.arg.number, 1)
        draft.do(
            Split(column.arg.number, SIDE * lanes, Tail.GUARD),
            Split(row.arg.number, SIDE, Tail.GUARD),
            Split(along, SIDE // ROWS),
        )
        columns: Dimension = ((across, 1),)
        if lanes > 1:
            draft.do(Split(across, lanes))
            columns = (((*across, 0), lanes), ((*across, 1), 1))
        rows: Dimension = (((*along, 0), SIDE // ROWS), ((*along, 1), 1))
        inside = {number for number, _ in (*columns, *rows)}
        outer = [r.arg.number for r in draft.facts.launchable if r.arg.number not in inside]
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
