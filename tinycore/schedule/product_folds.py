"""Folds of a product in its epilogue: maxima and totals of the columns that a thread holds.

Floor 3. The statistics of a softmax would read scores from memory where these have just been
computed. `row_fusion.py` calls it for devices whose products have register tiles of fixed columns
(`lower/strategies/grid_folded.py`): a kernel that folds such columns of a product becomes part of
the product's kernel, with values in place of its LOADs. What is left to fold are the results of
threads, one for `OWN_VECTORS * LANES` columns.

Legality is a question of addresses alone: each fold reads every element that the product stores
once, at loops that are digits of those of the product. See
docs/decisions/0068-folds-in-an-epilogue.md.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.render.base import Limits, pointer_of
from tinycore.schedule.access import Launch
from tinycore.schedule.limits import device_limits
from tinycore.schedule.operand_layout import TEXTURED
from tinycore.schedule.row_inlining import folds_rows
from tinycore.uop.node import Axis, UOp
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

Places = dict[UOp, UOp]
"""Loops of a product as places in the loops of a fold."""


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
        if self.places_in(launch) is None:
            return FoldRefusal.LOOPS
        self.folds.append(launch)
        return None

    @property
    def store(self) -> UOp:
        """The STORE of the product."""
        (store,) = self.product.by_op[Op.STORE]
        return store

    def places_in(self, fold: Launch) -> dict[UOp, Places] | None:
        """For each LOAD of the product, the product's loops as places in those of a fold.

        None if one of them reads otherwise than threads hold columns, or if a fold before is read
        in another row than its own.
        """
        found = {}
        for load in fold.by_op[Op.LOAD]:
            number = fold.accesses[load.src[0]]
            if number in self.product.written:
                places = places_of(self.store.src[0].src[1], load.src[0].src[1])
                if places is None or len(load.src) > 1 or not folds_columns(fold, load):
                    return None
                found[load] = places
            elif len(load.src) > 1 or not self.is_read_in_row(fold, load, number):
                return None
        shapes = {tuple([r.extent for r in member.loops]) for member in (*self.folds, fold)}
        return found if found and len(shapes) == 1 and fold.loops else None

    def is_read_in_row(self, fold: Launch, load: UOp, number: int) -> bool:
        """True if a LOAD reads what a fold before stores in the same step of the rows."""
        before = next((m for m in self.folds if number in m.written), None)
        if before is None or len(before.loops) != len(fold.loops):
            return False
        (store,) = (s for s in before.by_op[Op.STORE] if before.accesses[s.src[0]] == number)
        names = dict(zip(before.loops, fold.loops, strict=True))
        terms, start = terms_of(store.src[0].src[1])
        return terms_of(load.src[0].src[1]) == ({names[r]: n for r, n in terms.items()}, start)

    def fuse(self, kept: frozenset[int]) -> Launch:
        """The members as one kernel, which stores what each of them does."""
        return FoldedProductBuilder(self).build()


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


def places_of(stored: UOp, read: UOp) -> Places | None:
    """The loops of an address that is stored to, as places in the loops of one that is read.

    Each of the former is one of the latter, or several as its digits. None if that is not so.
    """
    (own, begin), (other, start) = terms_of(stored), terms_of(read)
    if begin != start or any(r.op is not Op.RANGE for r in (*own, *other)):
        return None
    found: Places = {}
    digits = sorted(other, key=other.__getitem__, reverse=True)
    for loop in sorted(own, key=own.__getitem__):
        place, size = UOp.index(0), 1
        while size < loop.extent and digits and other[digits[-1]] == own[loop] * size:
            digit = digits.pop()
            place, size = place + digit * size, size * digit.extent
        if size != loop.extent:
            return None
        found[loop] = place
    return None if digits else found


class FoldedProductBuilder:
    """One kernel of a product and of folds, which compute with its values."""

    def __init__(self, group: ProductFolds) -> None:
        self.product, self.folds = group.product, group.folds
        self.places = [found for fold in self.folds if (found := group.places_in(fold))]
        members = [self.product, *self.folds]
        written = [number for m in members for number in sorted(m.written)]
        self.numbers = (*written, *sorted(self.product.read))
        """Memory by slot: outputs first."""
        self.rows = self.folds[0].loops
        self.last = max(r.arg.number[0] for m in members for r in m.by_op[Op.RANGE])
        self.values: dict[int, UOp] = {}
        """Values that folds store, by memory number."""
        summed = self.renamed(self.product, self.product.loops, AxisKind.REDUCE)
        self.store = self.placed(group.store, self.product).substitute(summed)
        """The STORE of the product, at its own loops."""

    def build(self) -> Launch:
        """The kernel: the product is stored inside of the rows, and beside it each fold."""
        folds = zip(self.folds, self.places, strict=True)
        stores = [store for fold, places in folds for store in self.folded(fold, places)]
        body = UOp(Op.GROUP, dtypes.void, (self.stored(), *stores))
        ast = UOp.sink(UOp(Op.END, dtypes.void, (body, *self.rows)))
        return Launch(rewrite(ast, simplify, name="simplify folds"), self.numbers)

    def folded(self, fold: Launch, places: dict[UOp, Places]) -> list[UOp]:
        """The stores of a fold."""
        names = self.renamed(fold, self.rows, AxisKind.REDUCE)
        replaced = dict(names)
        for load in fold.by_op[Op.LOAD]:
            if load in places:
                moved = {r: place.substitute(names) for r, place in places[load].items()}
                replaced[load] = self.store.src[1].substitute(moved)
            else:
                replaced[load] = self.values[fold.accesses[load.src[0]]]
        stores = []
        for store in fold.by_op[Op.STORE]:
            index, value = (n.substitute(replaced) for n in store.src)
            self.values[fold.accesses[store.src[0]]] = value
            stores.append(store.with_src((self.placed(index, fold), value)))
        return stores

    def stored(self) -> UOp:
        """The stores of the product, inside of loops over the columns of a thread."""
        names = self.renamed(self.folds[0], self.rows, AxisKind.LOOP)
        places = next(iter(self.places[0].values()))
        moved = {r: place.substitute(names) for r, place in places.items()}
        store = rewrite(self.store.substitute(moved), simplify, name="simplify a product")
        strides, _ = terms_of(store.src[0].src[1])
        inner = sorted({*strides} - {*self.rows}, key=strides.__getitem__, reverse=True)
        return UOp(Op.END, dtypes.void, (store, *inner))

    def renamed(self, member: Launch, rows: tuple[UOp, ...], kind: AxisKind) -> Places:
        """The loops of a member: those over rows by the names given, others new ones of a kind."""
        names = dict(zip(member.loops, rows, strict=True))
        for loop in member.by_op[Op.RANGE]:
            if loop not in names:
                self.last += 1
                names[loop] = loop.replace(arg=Axis((self.last,), kind))
        return names

    def placed(self, node: UOp, member: Launch) -> UOp:
        """A node of a member with the slots of the kernel."""
        pointers = (n for n in node.toposort() if n.op is Op.DEFINE_GLOBAL)
        slots = {n: self.numbers.index(member.places[n.arg]) for n in pointers}
        return node.substitute({n: n.replace(arg=slot) for n, slot in slots.items()})
