"""The face of scheduling and lowering for what a plugin plans itself, for its hardware alone.

Floor 3, above `schedule` and `lower`. `Limits.strategies` names functions of a `KernelFacts` and
the `Limits` of a device. Each yields `Proposal`s: a name, a `Cost`, and a function that applies
steps to a `Draft`. `Limits.layout` names a function of the `Operand`s of a product, which gives
copies of them in another layout. See docs/write-a-backend.md.
"""

from __future__ import annotations

from tinycore.lower.cost import FILL_CYCLES, Cost, Proposal, resident_groups
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import LEAST_REUSE, KernelFacts
from tinycore.lower.loops import threads_of
from tinycore.lower.packing import fill_of, loads_of_elements
from tinycore.lower.strategies.block_order import order_blocks
from tinycore.lower.strategies.grid import launch_outputs, load_rows
from tinycore.lower.strategies.grid_shared import (
    ADDRESSES,
    DEPTHS,
    GROUPS_BESIDE,
    GroupTile,
    LoopTile,
    RegisterTile,
    Sides,
    cut_depth,
    cut_side,
    fits_group,
    groups_of,
    operand_accesses,
    sides_of,
    stage_operands,
    steps_in_tile,
    threads_in,
    tiles_of,
    tiles_of_sides,
)
from tinycore.lower.strategies.group_fills import SECTOR_BYTES, deal_out, least_stride
from tinycore.lower.tile import Bind, Reorder, Split
from tinycore.schedule.operand_layout import Operand, ProductLoops, moves_with, own_loop

__all__ = [
    "ADDRESSES",
    "DEPTHS",
    "FILL_CYCLES",
    "GROUPS_BESIDE",
    "LEAST_REUSE",
    "SECTOR_BYTES",
    "Bind",
    "Cost",
    "Draft",
    "GroupTile",
    "KernelFacts",
    "LoopTile",
    "Operand",
    "ProductLoops",
    "Proposal",
    "RegisterTile",
    "Reorder",
    "Sides",
    "Split",
    "cut_depth",
    "cut_side",
    "deal_out",
    "fill_of",
    "fits_group",
    "groups_of",
    "launch_outputs",
    "least_stride",
    "load_rows",
    "loads_of_elements",
    "moves_with",
    "operand_accesses",
    "order_blocks",
    "own_loop",
    "resident_groups",
    "sides_of",
    "stage_operands",
    "steps_in_tile",
    "threads_in",
    "threads_of",
    "tiles_of",
    "tiles_of_sides",
]
