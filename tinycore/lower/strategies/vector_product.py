"""Products on a grid by multiply-adds of threads, each of which has a tile of sums in registers.

Floor 3'. The threads of a group compute a block of both sides. Sums are divided into blocks, too;
before each block the threads together load the operands of all of them, once. Where outputs are
few, several threads share each sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from tinycore.lower.cost import cycles_of_shared_tile, cycles_of_thread, resident_groups
from tinycore.lower.draft import Draft, unroll_sums
from tinycore.lower.kernel_facts import LEAST_REUSE, KernelFacts
from tinycore.lower.packing import fill_of
from tinycore.lower.steps.stage import scratch_bytes
from tinycore.lower.steps.tensorize import COLUMNS
from tinycore.lower.strategies.grid_sides import Sides, groups_of, tiles_of_sides
from tinycore.lower.strategies.grid_stages import (
    GROUPS_BESIDE,
    are_copies,
    deal_out,
    is_turned_by,
    stage_each,
    stages_of,
    threads_of_group,
)
from tinycore.lower.strategies.grid_tiling import (
    Cut,
    Tiling,
    cut_depth,
    cut_side,
    keeps_busy,
    order_blocks,
    share_sums,
    steps_in_tile,
)
from tinycore.lower.strategies.levels import ADDRESSES, GroupTile, Level, RegisterTile
from tinycore.render.base import Limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

WORDS_OF_A_FOLD: Final = 2
"""Operations of a lane for each of its sums that it adds to another's: to exchange it, and that."""
VECTOR_ROWS: Final = 4
"""Adjacent rows of a thread, which it loads from shared memory as a vector."""


@dataclass(frozen=True, eq=False)
class VectorProduct(Tiling):
    """A product of which each thread of a group computes a tile, in some depth of stages."""

    facts: KernelFacts
    limits: Limits
    sides: Sides
    level: Level
    tile: RegisterTile
    threads: int
    """Threads of a group."""
    sharers: int
    """Threads that share each sum (split-K)."""
    depth: int = 1
    """Steps of a sum that are staged at a time."""

    def tilings(self) -> Iterator[VectorProduct]:
        """The same by other numbers of threads and sharers, and in each depth that suits them."""
        if self.level.is_large and self.resident() < 2:
            return
        for found in (self, *self.shared_by_lanes()):
            if found.suits():
                yield from (replace(found, depth=depth) for depth in found.depths())

    def depths(self) -> tuple[int, ...]:
        """The depths to try: lanes that share sums have their own part of a stage."""
        first = self.level.depths[0]
        return (first * self.sharers // 2,) if self.by_lanes else self.level.depths

    def __str__(self) -> str:
        by = f" by {self.sharers} of {self.threads}" if self.by_lanes else ""
        return f"grid shared {self.tile.wide}x{self.tile.tall}x{self.depth}{by}"

    @property
    def by_lanes(self) -> bool:
        """True if the lanes of a subgroup share each sum, and add up their parts by shuffles."""
        return self.level.is_large and self.sharers > 1

    @property
    def outputs(self) -> int:
        """Outputs of a thread."""
        return math.prod(self.tile)

    @cached_property
    def tiles(self) -> GroupTile:
        """The block of a group."""
        exact = self.facts.overwrites
        return tiles_of_sides(self.sides, self.threads // self.sharers, self.tile, exact)

    @cached_property
    def groups(self) -> int:
        """Number of groups."""
        return groups_of(self.facts, self.sides, self.tiles)

    def resident(self) -> int:
        """Occupancy: groups that are resident on a unit."""
        operands = 2 * sum(self.tile)
        return resident_groups(self.limits, self.threads, self.outputs + operands + ADDRESSES)

    def shared_by_lanes(self) -> Iterator[VectorProduct]:
        """The same with sums shared by lanes, where large tiles leave units idle."""
        by_lanes = all(n.dtype in self.limits.shuffles for n in self.facts.reductions)
        if self.sharers > 1 or not by_lanes:
            return
        for lanes in self.level.sharers if self.groups < self.limits.units else ():
            for threads in (self.threads, self.threads // 2, self.threads // 4):
                yield replace(self, threads=threads, sharers=lanes)

    def suits(self) -> bool:
        """True if the tiles keep the device busy."""
        outputs = self.facts.outputs_launched * self.sharers
        few = self.outputs == 1 and outputs >= self.threads and self.sharers == 1
        return few or keeps_busy(self.limits, outputs // self.outputs)

    def cycles(self) -> float:
        """Cycles per multiply-add, weighted by idle units."""
        steps = self.depth // self.sharers if self.by_lanes else self.depth
        cycles = cycles_of_shared_tile(*self.tile, steps)
        if not self.limits.shared_is_near:
            cycles += cycles_of_thread()  # it is loaded from the same caches again
        if self.by_lanes:
            folds = math.log2(self.sharers) * self.sharers
            cycles += WORDS_OF_A_FOLD * folds / self.facts.longest_reduction
        return cycles * self.limits.unevenness(self.groups)

    def cut(self, draft: Draft) -> Cut | None:
        """A tile of a thread along both sides, and blocks of the sum."""
        (wide, tall), limits = self.tile, draft.limits
        lanes = 1
        if suits_vectors(draft.facts, self.sides.columns[-1]):
            lanes = min(draft.lanes(), wide)
            lanes = lanes if lanes == wide or limits.units else 1
        kind = AxisKind.VECTOR if lanes > 1 else AxisKind.UNROLL
        columns = cut_side(draft, self.sides.columns, self.tiles.columns, kind, lanes)
        along = min(VECTOR_ROWS, tall) if limits.copies else 1
        rows = cut_side(draft, self.sides.rows, self.tiles.rows, AxisKind.UNROLL, along)
        if min(steps_in_tile(draft, columns), steps_in_tile(draft, rows)) < LEAST_REUSE:
            return None
        draft.launch()
        at, inner = cut_depth(draft, draft.size("depth", self.depth), self.sharers)
        if self.sharers > 1 and not share_sums(draft, inner, self.sharers):
            return None
        if self.by_lanes and threads_of_group(draft) % limits.subgroup:
            return None  # lanes of a part of a subgroup exchange nothing
        stages = [(step, COLUMNS) for step in stages_of(draft, at, inner, (*rows, *columns))]
        own = draft.facts.loops_of_kind(AxisKind.REDUCE)
        blocks = next((r.extent for r in own if r.number == at), None)
        return Cut(stages, blocks, (self.sides.rows[-1], self.sides.columns[-1]))

    def copies(self, cut: Cut) -> Iterable[int]:
        """Most first, if the device has asynchronous copies and there are steps to fill ahead."""
        ahead = self.level.copies if self.limits.copies else 1
        return range(min(ahead, cut.blocks or 1), 0, -1)

    def stage(self, draft: Draft, cut: Cut, copies: int) -> bool:
        """Stage operands, by asynchronous copies during earlier steps, else before each step.

        Those must leave shared memory for a group beside this one.
        """
        made = stage_each(draft, [step for step, _ in cut.stages], copies)
        for number in made:
            is_apart = copies > 1 and is_turned_by(fill_of(draft, number), draft.limits)
            deal_out(draft, number, 1 if is_apart else None)
        room = self.limits.unit_shared_bytes or self.limits.shared_bytes
        fits = GROUPS_BESIDE * scratch_bytes(draft.kernel) <= room
        return bool(made) and (copies == 1 or (fits and are_copies(draft)))

    def finish(self, draft: Draft, cut: Cut) -> None:
        """Order the groups, and unroll a few steps of the sums."""
        steps = iterations_of(self.facts.reduced)
        row, column = cut.sides
        order_blocks(draft, row, column, steps, self.facts.read_itemsize)
        unroll_sums(draft)


def suits_vectors(facts: KernelFacts, loop: UOp) -> bool:
    """True if the epilogue after the reduction loads and stores contiguously along a loop."""
    moves = {facts.stride(n, loop) for n in facts.accesses if n not in facts.loads}
    return 1 in moves and moves <= {0, 1}
