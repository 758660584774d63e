"""Chains of two products on a matrix unit, with row reductions between them: attention.

Floor 3'. In attention the rows of a product are reduced, and weights computed from them are an
operand of the next product (T. Dao et al., "FlashAttention", 2022). A subgroup has some rows, and
iterates over the columns of the first product in blocks. Operands that all subgroups of a group
read are staged; the operand of the rows stays in registers. `schedule/product_chains.py` fuses such
kernels, and `render/chains.py` decides which tiles they may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tinycore.lower.cost import Proposal, resident_groups
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import counter_of
from tinycore.lower.steps.chain import COLUMNS_AFTER, STEPS_AFTER, Chain
from tinycore.lower.steps.stage import WORD_BYTES, Stage
from tinycore.lower.steps.tensorize import COLUMNS, STEPS
from tinycore.lower.strategies.grid_stages import GROUPS_BESIDE, fills_ahead, stage_side
from tinycore.lower.strategies.grid_tiling import (
    Cut,
    Tiling,
    cut_tile,
    dimension,
    innermost_group,
    launch_tiles,
)
from tinycore.lower.tile import Split, Tail
from tinycore.render.base import Limits
from tinycore.render.chains import ChainTile, Products, chain_tiles, products_of, units_of
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.op import Part

CHAIN_COPIES: Final = 2
"""Copies of a stage where a block of scores is computed while the next is filled."""
MOST_FILLED: Final = 32
"""Registers of a lane that a fill may use beside the counted ones: with twice as many, for 128
features, LLVM spills 7 registers on gfx1201."""
CYCLES: Final = 1 / 64
"""Estimated words loaded per multiply-add: fewer than by any plan that computes the first product
again for each column of the second."""
REGISTERS_OF_MASK: Final = 16
"""Registers of a lane for an operand that is read per score, such as a mask: 15 by ptxas."""
CYCLES_OF_FEW: Final = 4 * CYCLES
"""Added cost where some units of the device get no tile of rows: other units have smaller tiles."""


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """The chain of products of a kernel, on each unit and in each tile that suits it."""
    if facts.has_order or facts.overwrites or not facts.is_cuttable:
        return
    for unit in units_of(limits):
        found = products_of(facts.kernel, facts.launchable, unit)
        if isinstance(found, str):
            continue
        masks = sum({found.m, found.between} <= n.ranges for n in facts.loads)
        for place, tile in enumerate(chain_tiles(limits, unit, found.sizes)):
            tiling = ChainTiling(limits, unit, found, tile, place)
            if not unit.is_described or tiling.resident(masks * REGISTERS_OF_MASK):
                yield tiling.proposal()


@dataclass(frozen=True, eq=False)
class ChainTiling(Tiling):
    """A chain of products on a unit, of which each subgroup computes some rows."""

    limits: Limits
    unit: MatrixUnit
    found: Products
    tile: ChainTile
    place: int
    """Place of the tile among those of the unit, the best first."""

    def __str__(self) -> str:
        rows = self.tile.rows
        return f"chain of {self.unit.name} {rows.subgroups} x {rows.tiles}"

    def cycles(self) -> float:
        """Words loaded per multiply-add; less for a described unit with more subgroups resident."""
        if not self.unit.is_described:
            return CYCLES * (self.place + 1)
        others, rows = self.found.sizes[:2]
        tiles = -(-rows // self.unit.m) * others
        is_enough = rows >= self.unit.m and tiles >= self.limits.units
        return CYCLES / (1 + self.resident()) + (0 if is_enough else CYCLES_OF_FEW)

    @property
    def registers(self) -> int:
        """Registers of a lane for the products."""
        tile, sizes = self.tile, self.found.sizes
        columns = [n // tile.parts for n in sizes.columns]
        return self.unit.registers_of_chain(columns, sizes.steps, tile.block, tile.rows.tiles)

    def resident(self, more: int = 0) -> int:
        """Occupancy: subgroups that are resident on a unit, whose lanes need `more` registers
        beside those of the products."""
        subgroups = self.tile.rows.subgroups
        return subgroups * self.groups_resident(subgroups, more)

    def groups_resident(self, subgroups: int, more: int = 0) -> int:
        """Groups of so many subgroups that are resident on a unit."""
        threads = subgroups * self.unit.threads
        return resident_groups(self.limits, threads, self.registers + more)

    def subgroups(self) -> int:
        """Subgroups of a group: as many as possible without leaving a unit idle.

        A group that is resident alone waits for its own fills, if threads do them.
        """
        limits, unit, (others, rows, *_) = self.limits, self.unit, self.found.sizes
        most, own = self.tile.rows.subgroups, self.tile.rows.tiles * unit.m
        if not unit.is_described:
            most = min(most, limits.block_wanted // unit.threads)
            while (
                most > 1 and not fills_ahead(limits) and self.groups_resident(most) < GROUPS_BESIDE
            ):
                most //= 2
        while most > 1 and (
            most * own >= 2 * rows or -(-rows // (most * own)) * others < max(limits.units, 1)
        ):
            most //= 2
        return max(most, 1)

    def block_for(self, subgroups: int) -> int:
        """Columns of a block of scores: fewer where threads copy them through too many registers
        of a lane."""
        sizes, unit, block = self.found.sizes, self.unit, self.tile.block
        each = (sum(sizes.steps) + sum(sizes.columns)) * unit.b.itemsize
        room = WORD_BYTES * subgroups * unit.threads * (MOST_FILLED + 1)
        while not fills_ahead(self.limits) and block > unit.k and block * each >= room:
            block //= 2
        return block

    def cut(self, draft: Draft) -> Cut | None:
        """Subgroups of rows, and blocks of scores. Raises ArgumentError if the unit cannot compute
        the products."""
        unit, found, parts = self.unit, self.found, self.tile.parts
        subgroups = self.subgroups()
        block = self.block_for(subgroups)
        _, down = cut_tile(draft, found.m, subgroups, self.tile.rows.tiles * unit.m)
        assert down is not None, f"{unit.name} has rows"  # or else its sums are no operand
        n, between = found.n.arg.number, found.between.arg.number
        k = tuple(loop.arg.number for loop in found.k)
        if parts > 1:
            draft.do(Split(n, found.n.extent // parts))
            n = (*n, 1)
        is_split = block < found.between.extent or not found.between.is_fixed
        if is_split:
            is_whole = found.between.is_fixed and found.between.extent % block == 0
            draft.do(Split(between, block, Tail.AUTO if is_whole else Tail.GUARD))
            between = (*between, 1)
        step = Chain(down, n, between, k, unit)
        draft.do(step)
        launch_tiles(draft, *((*axis, 0) for axis in (down, n, *k, between)))
        blocks = (*found.between.arg.number, 0, Part.ONLINE)
        at = blocks if is_split and draft.present(blocks) else None
        columns = dimension(draft, (*between, 0), step.tiles, step.number(COLUMNS))
        sides = [
            (columns, dimension(draft, (*axis, 0), step.number(STEPS, product)))
            for product, axis in enumerate(k)
        ]
        after = dimension(draft, (*n, 0), step.number(COLUMNS_AFTER))
        sides.append((after, dimension(draft, (*between, 0), step.number(STEPS_AFTER))))
        # Columns and steps in the order in which lanes load vectors.
        turn = 1 if unit.fragment("b").map.neighbors[0] == "k" else -1
        place = at or innermost_group(draft)
        stages = [(Stage(place, side[::turn]), COLUMNS) for side in sides]
        return Cut(stages, None if at is None else counter_of(draft.kernel, at).extent)

    def copies(self, cut: Cut) -> Iterable[int]:
        """Most first; without any, lanes read operands from memory."""
        most = CHAIN_COPIES if fills_ahead(self.limits) and cut.blocks is not None else 1
        return range(most, 0 if self.unit.is_described else -1, -1)

    def stage(self, draft: Draft, cut: Cut, copies: int) -> bool:
        """Stage the second operands of all products; False if the unit cannot read their layout."""
        steps = [replace(step, copies=copies) for step, _ in cut.stages] if copies else []
        return all(stage_side(draft, step, self.unit, COLUMNS) for step in steps)
