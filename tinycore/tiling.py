"""The API of scheduling and lowering for what a plugin plans itself, for its hardware alone.

Floor 3, above `schedule` and `lower`. `Limits.strategies` names functions of a `KernelFacts` and
the `Limits` of a device. Each yields `Proposal`s: a name, a `Cost`, and a function that applies
steps to a `Draft`. `Limits.layout` names a function of the `Operand`s of a product, which gives
copies of them in another layout, and `Limits.fills` one of a `Filling` of shared memory, which
gives instructions of the plugin's that do it. See docs/write-an-instruction.md and
docs/decisions/0084-families-in-plugins.md.
"""

from __future__ import annotations

from tinycore.lower.cooperative import Filling
from tinycore.lower.cost import (
    FILL_CYCLES,
    LEAST_CHUNKS,
    Cost,
    Proposal,
    cycles_of_loads,
    resident_groups,
)
from tinycore.lower.dims import first_of_grid
from tinycore.lower.draft import Draft
from tinycore.lower.fragments import row_at
from tinycore.lower.kernel_facts import LEAST_REUSE, KernelFacts
from tinycore.lower.loops import Number, arrays_of, counter_of, stores_of
from tinycore.lower.packing import fill_of, loads_of, loads_of_elements, plan_fill
from tinycore.lower.predicate import copied_from, with_gate
from tinycore.lower.steps.split import MASKED
from tinycore.lower.steps.stage import MOST_SCRATCH, Dimension, Stage
from tinycore.lower.steps.tensorize import (
    COLUMNS,
    ROWS,
    STEPS,
    Tensorize,
    factors_of,
    rounded_operand,
)
from tinycore.lower.strategies.grid import launch_outputs, load_rows
from tinycore.lower.strategies.grid_sides import (
    Sides,
    groups_of,
    longest,
    operand_accesses,
    sides_among,
    sides_of,
    tiles_of_sides,
)
from tinycore.lower.strategies.grid_stages import (
    GROUPS_BESIDE,
    SECTOR_BYTES,
    deal_out,
    fits_group,
    least_stride,
    stage_operands,
)
from tinycore.lower.strategies.grid_tiling import (
    cut_depth,
    cut_side,
    dimension,
    innermost_group,
    order_blocks,
    steps_in_tile,
)
from tinycore.lower.strategies.levels import (
    ADDRESSES,
    DEPTHS,
    GroupTile,
    LoopTile,
    RegisterTile,
    threads_in,
    tiles_of,
)
from tinycore.lower.tile import Bind, Fuse, Reorder, Split, Tail
from tinycore.schedule.operand_layout import (
    Operand,
    ProductLoops,
    copies_for_units,
    moves_with,
    own_loop,
)

__all__ = [
    "ADDRESSES",
    "COLUMNS",
    "DEPTHS",
    "FILL_CYCLES",
    "GROUPS_BESIDE",
    "LEAST_CHUNKS",
    "LEAST_REUSE",
    "MASKED",
    "MOST_SCRATCH",
    "ROWS",
    "SECTOR_BYTES",
    "STEPS",
    "Bind",
    "Cost",
    "Dimension",
    "Draft",
    "Filling",
    "Fuse",
    "GroupTile",
    "KernelFacts",
    "LoopTile",
    "Number",
    "Operand",
    "ProductLoops",
    "Proposal",
    "RegisterTile",
    "Reorder",
    "Sides",
    "Split",
    "Stage",
    "Tail",
    "Tensorize",
    "arrays_of",
    "copied_from",
    "copies_for_units",
    "counter_of",
    "cut_depth",
    "cut_side",
    "cycles_of_loads",
    "deal_out",
    "dimension",
    "factors_of",
    "fill_of",
    "first_of_grid",
    "fits_group",
    "groups_of",
    "innermost_group",
    "launch_outputs",
    "least_stride",
    "load_rows",
    "loads_of",
    "loads_of_elements",
    "longest",
    "moves_with",
    "operand_accesses",
    "order_blocks",
    "own_loop",
    "plan_fill",
    "resident_groups",
    "rounded_operand",
    "row_at",
    "sides_among",
    "sides_of",
    "stage_operands",
    "steps_in_tile",
    "stores_of",
    "threads_in",
    "tiles_of",
    "tiles_of_sides",
    "with_gate",
]
