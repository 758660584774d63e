"""The best plan of a whole space of tiles, counted like those of the page.

`--space N` plans each product whose columns come by textures with every register tile of up to 20
columns and 16 rows, in groups of up to 128 threads of any shape; the N of least cost by the planner
are lowered and counted. What no plan of the space reaches is no fault of the planner's choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Final

from tiny_qcom.textures import Block, cost_of, suits_textures, tile_textured
from tinycore.lower.cost import Cost, Proposal
from tinycore.lower.draft import Draft, fuse_loops
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.strategies.grid_sides import Sides, sides_of
from tinycore.lower.strategies.levels import DEPTHS, GroupTile, LoopTile
from tinycore.lower.tile import Plan
from tinycore.render.base import Limits
from tinycore.uop.node import UOp

__all__ = ["plans_of_space"]

WIDE: Final = range(4, 21, 4)
"""Columns of a thread: whole pixels."""
TALL: Final = range(1, 17)
"""Rows of a thread."""
MOST_THREADS: Final = 128
LEAST_THREADS: Final = 32


def plans_of_space(kernel: UOp, limits: Limits, count: int) -> tuple[list[Plan], int]:
    """The plans of least cost for a kernel, so many of them, and how many there are."""
    prepared = Draft(kernel, limits)
    fuse_loops(prepared)
    found = sorted(proposals(prepared.facts, limits), key=lambda proposal: proposal.cost)
    plans = []
    for proposal in found[:count]:
        draft = prepared.copy()
        if proposal.apply(draft) is not False:
            plans.append(tuple(draft.steps))
    return plans, len(found)


def proposals(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """Every tile, in every shape of a group."""
    found = sides_of(facts)
    turned = () if found is None else (found, Sides(found.columns, found.rows))
    for sides in (s for s in turned if suits_textures(facts, s)):
        for block, depth in itertools.product(blocks_of(sides), DEPTHS):
            cost = cost_of(facts, limits, sides, block, depth)
            if not math.isinf(cost):
                step = partial(tile_textured, sides=sides, block=block, depth=depth)
                yield Proposal(f"{block}x{depth}", None, Cost(cost), step)


def blocks_of(sides: Sides) -> Iterator[Block]:
    """Every block, but for those that are larger than what there is to compute."""
    (*above, row), (*beside, column) = sides.rows, sides.columns
    for wide, tall in itertools.product(WIDE, TALL):
        for across in range(1, -(-column.extent // wide) + 1):
            most = min(MOST_THREADS // across, -(-row.extent // tall))
            for down in range(-(-LEAST_THREADS // across), most + 1):
                rows = [*(LoopTile(1, 1) for _ in above), LoopTile(down, tall)]
                columns = [*(LoopTile(1, 1) for _ in beside), LoopTile(across, wide)]
                yield Block(wide, GroupTile(rows, columns))
