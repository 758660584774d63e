"""Register tiles of a product whose threads also fold the outputs that they hold.

Floor 3'. The schedule (`schedule/product_folds.py`) divides columns into those of a thread and into
threads. The tile is planned as one of the product alone, by `grid_textured.py`. Loops of folds are
unrolled like those over the columns of a thread, so that all of them share the same accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from tinycore.dtype import dtypes
from tinycore.lower.cost import Cost, Proposal
from tinycore.lower.draft import Draft, Nest
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number
from tinycore.lower.strategies.grid_shared import (
    DEPTHS,
    GroupTile,
    LoopTile,
    Sides,
    operand_accesses,
    sides_of,
)
from tinycore.lower.strategies.grid_textured import (
    TEXTURED_TILES,
    Block,
    cost_of,
    suits_textures,
    tile_textured,
)
from tinycore.lower.tile import Bind
from tinycore.render.base import Limits, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

TALL: Final = tuple(dict.fromkeys(tile.tall for tile in TEXTURED_TILES))
"""Rows of a thread."""


class FoldedProduct(NamedTuple):
    """The parts of a kernel that stores a product, and folds of it."""

    store: UOp
    """The STORE of the product."""
    rows: tuple[UOp, ...]
    """Loops around all stores."""
    columns: tuple[UOp, ...]
    """Loops over the columns of a thread."""

    @property
    def alone(self) -> UOp:
        """The kernel of the product without its folds."""
        return UOp.sink(UOp(Op.END, dtypes.void, (self.store, *self.rows, *self.columns)))


def product_of(kernel: UOp) -> FoldedProduct | None:
    """The parts of a kernel; None for one that is no product with folds."""
    whole, *others = kernel.src
    if others or whole.op is not Op.END or whole.src[0].op is not Op.GROUP:
        return None
    inner, *stores = whole.src[0].src
    is_one = inner.op is Op.END and inner.src[0].op is Op.STORE
    if not is_one or any(n.op is not Op.STORE for n in stores):
        return None
    return FoldedProduct(inner.src[0], whole.src[1:], inner.src[1:])


def propose(facts: KernelFacts, limits: Limits, wanted: int) -> Iterator[Proposal]:
    """Blocks for groups of up to `wanted` threads, each of which has the columns of a fold."""
    stated = limits.texture_rate, limits.shared_bytes, limits.units, limits.unit_lanes
    product = product_of(facts.kernel) if all(stated) else None
    if product is None:
        return
    alone = KernelFacts(product.alone, (product.alone,), varies=facts.varies)
    sides = sides_of(alone)
    if sides is None or not {*product.columns} < {*sides.columns}:
        return
    if suits_textures(alone, sides):
        for block in blocks_of(sides, product, limits, wanted):
            for depth in DEPTHS:
                cost = cost_of(alone, limits, sides, block, depth)
                step = partial(tile_folded, sides=sides, wanted=wanted, block=block, depth=depth)
                if not math.isinf(cost):
                    yield Proposal(f"grid folded {block}x{depth}", None, Cost(cost), step)


def blocks_of(sides: Sides, product: FoldedProduct, limits: Limits, wanted: int) -> Iterator[Block]:
    """Blocks whose threads have all columns of a fold, and a few rows."""
    own = frozenset(product.columns)
    across = next(r for r in reversed(sides.columns) if r not in own)
    columns = [
        LoopTile(1, r.extent) if r in own else LoopTile(r.extent if r is across else 1, 1)
        for r in sides.columns
    ]
    wide, (*above, row) = math.prod(r.extent for r in own), sides.rows
    for threads in dict.fromkeys((wanted, min(wanted, limits.subgroup))):
        down = threads // across.extent
        for tall in TALL if down else ():
            rows = [*(LoopTile(1, 1) for _ in above), LoopTile(down, tall)]
            if down * tall <= row.extent:
                yield Block(wide, GroupTile(rows, columns))


def tile_folded(draft: Draft, sides: Sides, wanted: int, block: Block, depth: int) -> bool | None:
    """The tile of the product, after the loops of its folds are unrolled like its columns."""
    product = product_of(draft.kernel)
    assert product is not None
    for loop, kind in loops_of_folds(draft.facts, product):
        draft.do(Bind(loop, kind))
    written = frozenset({pointer_of(product.store.src[0])})
    draft.nest, draft.known = Nest(written, frozenset(), (), draft.limits.threads), None
    found = tile_textured(draft, sides, wanted, block, depth)
    draft.nest, draft.known = None, None
    return found


def loops_of_folds(facts: KernelFacts, product: FoldedProduct) -> Iterator[tuple[Number, AxisKind]]:
    """The loops of folds, lanes where operands of the product lie side by side."""
    own = {n for n in product.alone.toposort() if n.op is Op.RANGE}
    for loop in (r for r in facts.reduced if r not in own):
        is_lane = any(facts.stride(n, loop) == 1 for n in operand_accesses(facts))
        yield loop.arg.number, AxisKind.VECTOR if is_lane else AxisKind.UNROLL
