"""Tiles whose columns texture units read, beside rows in shared memory.

Floor 3'. Where texture units have a cache of their own, as on Adrenos, the two sides of a product
come from two places at once: rows are staged for the group, and each thread reads the columns of
its tile itself, by whole pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tinycore.dtype import PointerDType, dtypes
from tinycore.lower.cost import Cost, Proposal, cycles_of_textured_tile, resident_groups, unevenness
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.strategies.grid_shared import (
    ADDRESSES,
    DEPTHS,
    Sides,
    Tile,
    operand_accesses,
    sides_of,
    tile_and_stage,
)
from tinycore.lower.tile import Bind, Split
from tinycore.render.base import Limits, pointer_of
from tinycore.uop.op import AxisKind, Op

TEXTURED_TILES: Final = ((16, 8), (8, 8), (8, 4), (4, 4))
"""Columns and rows of outputs that one thread computes, the best first."""
TEXTURED: Final = (dtypes.float32, dtypes.float16)
"""Types that texture units give as float32."""
UNROLLED_TEXTURED: Final = 2
"""Steps of a block that are unrolled there."""
TEXEL: Final = 4
"""Numbers of a pixel."""


def propose(facts: KernelFacts, limits: Limits, wanted: int) -> Iterator[Proposal]:
    """Blocks of outputs for groups of `wanted` threads."""
    sides = sides_of(facts) if limits.texture_rate and limits.shared_bytes else None
    if sides is None or not suits_textures(facts, sides):
        return
    for wide, tall in TEXTURED_TILES:
        registers = wide * tall + wide + tall + ADDRESSES
        if not resident_groups(limits, wanted, registers):
            continue
        groups = -(-facts.outputs_launched // (wide * tall * wanted))
        for depth in DEPTHS:
            apply = partial(
                tile_textured, sides=sides, wanted=wanted, registers=(wide, tall), depth=depth
            )
            cycles = cycles_of_textured_tile(limits, wide, tall, depth)
            cost = Cost(cycles * unevenness(limits, groups))
            yield Proposal(f"grid textured {wide}x{tall}x{depth}", None, cost, apply)


def tile_textured(
    draft: Draft, sides: Sides, wanted: int, registers: Tile, depth: int
) -> bool | None:
    """A block of outputs for each group, stages for its rows, and a few steps unrolled."""
    if not tile_and_stage(draft, sides, wanted, registers, depth, sharers=1, is_textured=True):
        return False
    unroll_textured(draft)
    return None


def suits_textures(facts: KernelFacts, sides: Sides) -> bool:
    """True if all that moves with the columns of a tile is read by whole pixels."""
    column, written = sides.columns[-1], {pointer_of(n) for n in facts.stored}
    for index in (n for n in operand_accesses(facts) if column in n.ranges):
        pointer = pointer_of(index)
        assert isinstance(pointer.dtype, PointerDType)
        is_read = pointer.op is Op.DEFINE_GLOBAL and pointer not in written
        if not is_read or pointer.dtype.base not in TEXTURED or len(index.src) > 2:
            return False
        apart = [facts.stride(index, r) for r in index.ranges if r is not column]
        if facts.stride(index, column) != 1 or column.extent % TEXEL:
            return False
        if any(stride is None or stride % TEXEL for stride in apart):
            return False
    return True


def unroll_textured(draft: Draft) -> None:
    """Unroll a few steps of a block: of more, operands would not fit the registers beside sums."""
    (loop,) = dict.fromkeys(n.src[-1] for n in draft.facts.reductions)
    if loop.arg.kind is AxisKind.REDUCE and loop.extent % UNROLLED_TEXTURED == 0:
        number = loop.arg.number
        draft.do(Split(number, UNROLLED_TEXTURED), Bind((*number, 1), AxisKind.UNROLL))
