"""Folds of a product in its epilogue: maxima and totals of the columns that a thread holds.

Floor 3. The statistics of a softmax would read scores from memory where these have just been
computed. `row_fusion.py` calls it for devices whose products have register tiles of fixed columns
(`lower/strategies/grid_folded.py`): a kernel that folds such columns of a product becomes part of
the product's kernel, with values in place of its LOADs. What is left to fold are the results of
threads, one for `OWN_VECTORS * LANES` columns.

Legality is a question of addresses alone (`inlining.py`): each fold reads every element that the
product stores once, at loops that are digits of those of the product. See
docs/decisions/0068-folds-in-an-epilogue.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Final

from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.render.base import Limits, pointer_of
from tinycore.schedule.access import Launch
from tinycore.schedule.inlining import Inlining, places_of
from tinycore.schedule.limits import device_limits
from tinycore.schedule.operand_layout import TEXTURED
from tinycore.schedule.row_inlining import folds_rows
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.shape import DeviceLike
from tinycore.uop.sums import terms_of
from tinycore.uop.symbolic import simplify

LANES: Final = 4
"""Columns of a thread that lie side by side: a pixel."""
OWN_VECTORS: Final = 4
"""Vectors of a thread: with 8 rows its registers hold 128 sums."""
ACROSS: Final = 8
"""Threads side by side. Vectors of a thread lie apart, so that neighbors store side by side."""
ROWS_OF_A_GROUP: Final = 64
"""Rows of a group, by the same tiles."""
GROUPS_OF_A_UNIT: Final = 2
"""Groups of a unit from which on one computes while another waits for memory."""


class FoldRefusal(Enum):
    """Why a kernel is not joined with the product before it, as DEBUG=3 says it."""

    UNRELATED = "the second does not read what the first, a product, stores"
    LOOPS = "the second does not fold the columns that a thread has of the first, a product"
    OVERWRITTEN = "the second writes what the first reads or writes"


def tiles_of_row(
    device: DeviceLike, dtype: DType, others: int, rows: int, columns: int
) -> tuple[int, int, int, int] | None:
    """The columns of products of a type as tiles, vectors of a thread, threads, and lanes.

    None where no kernel folds such columns, where tiles are too few for the units of a device, and
    where columns are more than rows: the operand of these is then the one that is copied along them
    (`operand_layout.py`).
    """
    limits = device_limits(device)
    if limits is None or dtype not in TEXTURED or columns > rows:
        return None
    if not has_tiles(limits, others, rows, columns):
        return None
    return columns // (OWN_VECTORS * ACROSS * LANES), OWN_VECTORS, ACROSS, LANES


def has_tiles(limits: Limits, others: int, rows: int, columns: int) -> bool:
    """True if products of a size are computed in tiles of such threads."""
    wide = OWN_VECTORS * ACROSS * LANES
    if not (limits.texture_rate and limits.units and limits.shared_bytes) or columns % wide:
        return False
    return others * (rows // ROWS_OF_A_GROUP) * (columns // wide) >= GROUPS_OF_A_UNIT * limits.units


class ProductFolds:
    """A product that is stored, and kernels that fold columns of it."""

    def __init__(self, first: Launch, device: str, limits: Limits) -> None:
        self.device = device
        self.limits = limits
        self.product = first
        self.folds: list[Launch] = []

    @staticmethod
    def begins(launch: Launch, limits: Limits) -> bool:
        """True for a product that is computed in such tiles."""
        reductions = [n for n in launch.nodes if n.op is Op.REDUCE]
        sizes = [r.extent for r in launch.loops]
        return (
            len(sizes) > 1
            and has_tiles(limits, math.prod(sizes[:-2]), *sizes[-2:])
            and len(reductions) == len(launch.by_op[Op.STORE]) == 1
            and reductions[0].arg is Op.ADD
            and not folds_rows(launch)
            and reads_pixels(launch, reductions[0])
        )

    def admit(self, launch: Launch) -> FoldRefusal | None:
        """Add a kernel if it folds what threads have of the product; else say why not."""
        members = [self.product, *self.folds]
        if not self.product.written <= launch.read:
            return FoldRefusal.UNRELATED
        if launch.written & frozenset().union(*(m.touched for m in members)):
            return FoldRefusal.OVERWRITTEN
        if not self.folds_product(launch):
            return FoldRefusal.LOOPS
        self.folds.append(launch)
        return None

    def folds_product(self, launch: Launch) -> bool:
        """True if a kernel folds columns that a thread has of the product, in the rows of the folds
        before it, and reads nothing else than these in its own row."""
        loads = launch.by_op[Op.LOAD]
        read = [n for n in loads if launch.accesses[n.src[0]] in self.product.written]
        if any(len(n.src) > 1 for n in loads) or not all(folds_columns(launch, n) for n in read):
            return False
        folds = [*self.folds, launch]
        shapes = {tuple([r.extent for r in member.loops]) for member in folds}
        whole = self.inlined(folds) if read and len(shapes) == 1 and launch.loops else None
        return whole is not None and launch.read <= whole.stored.keys()

    def inlined(self, folds: Sequence[Launch]) -> Inlining | None:
        """The product, and folds over the rows of the first; None if one reads it otherwise."""
        members = (self.product, *folds)
        last = max(r.arg.number[0] for m in members for r in m.by_op[Op.RANGE])
        whole, rows = Inlining(last, self.product.written), folds[0].loops
        whole.add(self.product, {r: r for r in self.product.loops})
        named = (whole.add(m, dict(zip(m.loops, rows, strict=True))) for m in folds)
        return whole if all(named) else None

    def fuse(self, kept: frozenset[int]) -> Launch:
        """The members as one kernel, which stores what each of them does."""
        whole = self.inlined(self.folds)
        assert whole is not None, "each fold was admitted"
        product, *others = whole.stored
        stores = (self.stored(whole, product), *map(whole.store, others))
        body = UOp(Op.GROUP, dtypes.void, stores)
        end = UOp(Op.END, dtypes.void, (body, *self.folds[0].loops))
        return whole.kernel(rewrite(end, simplify, name="simplify folds"), tuple(whole.stored))

    def stored(self, whole: Inlining, product: int) -> UOp:
        """The store of the product, inside of loops over the columns of a thread."""
        fold, store = self.folds[0], whole.store(product)
        read = next(n for n in fold.by_op[Op.LOAD] if fold.accesses[n.src[0]] == product)
        inside = (r for r in fold.by_op[Op.RANGE] if r not in fold.loops)
        names = {r: whole.fresh(r, AxisKind.LOOP) for r in inside}
        places = places_of(store.src[0].src[1], read.src[0].src[1].substitute(names))
        assert places is not None, "the fold was admitted"
        store = rewrite(store.substitute(places), simplify, name="simplify a product")
        strides, _ = terms_of(store.src[0].src[1])
        inner = sorted({*strides} - {*fold.loops}, key=strides.__getitem__, reverse=True)
        return UOp(Op.END, dtypes.void, (store, *inner))


def reads_pixels(launch: Launch, total: UOp) -> bool:
    """True if all operands that move with the columns of a product are read by whole pixels, as
    texture units do (`grid_textured.suits_textures`)."""
    column = launch.loops[-1]
    for index in (n for n in total.toposort() if n.op is Op.INDEX and column in n.ranges):
        kind, (terms, start) = pointer_of(index).dtype, terms_of(index.src[1])
        is_plain = isinstance(kind, PointerDType) and kind.base in TEXTURED
        if not is_plain or len(index.src) > 2 or terms.get(column) != 1:
            return False
        apart = {base: step for base, step in terms.items() if base is not column}
        if any(column in base.ranges or step % LANES for base, step in apart.items()):
            return False
        if start % LANES:
            return False
    return True


def folds_columns(fold: Launch, load: UOp) -> bool:
    """True if a LOAD moves, beside rows, with the vectors of a thread and their lanes, and these
    are folded in that order."""
    terms, _ = terms_of(load.src[0].src[1])
    inside = {r: n for r, n in terms.items() if r not in fold.loops}
    steps = sorted(((n, r.extent) for r, n in inside.items()), reverse=True)
    order = tuple(sorted(inside, key=inside.__getitem__, reverse=True))
    sums = [n for n in fold.nodes if n.op is Op.REDUCE]
    of_load = [n.src[1:] == order for n in sums if load in n.toposort()]
    shapes = {tuple([r.extent for r in n.src[1:]]) for n in sums}
    is_folded = bool(of_load) and all(of_load) and shapes == {(OWN_VECTORS, LANES)}
    return is_folded and steps == [(ACROSS * LANES, OWN_VECTORS), (1, LANES)]
