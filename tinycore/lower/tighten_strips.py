"""Tighter loops of fused rows: columns that no row of a strip sees are skipped.

Floor 3'. In causal attention the last keys are hidden from the first strips of queries: their
scores are -inf, and their weights 0. A comparison of indices says so in the nest that computes the
scores. Later nests read the scores from an array of the strip, which holds one value in all columns
from some column on (or up to some). Every nest of the strip skips these columns: they are neither
computed nor read. `tighten.py` does the same within one nest.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tinycore.lower.legality import PLAIN_KINDS
from tinycore.lower.strategies.fused_rows import nests_of
from tinycore.lower.tighten import (
    Excess,
    Value,
    conditions_of,
    excess_of,
    is_neutral,
    tightened,
    value_of,
)
from tinycore.render.base import pointer_of
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, Op
from tinycore.uop.sums import terms_of


class Columns(NamedTuple):
    """The columns that a loop visits: `width` at each step, `length` in a row."""

    width: int
    length: int
    base: UOp
    """The counter of `unit` columns: the loop, or the minimum of its step and a last position."""
    unit: int


class Cut(NamedTuple):
    """A loop of a nest that may skip hidden columns."""

    loop: UOp
    columns: Columns
    excess: Excess | None
    """The steps that a comparison hides; None if arrays that the nest reads have hidden columns."""


class Hidden:
    """The hidden columns of a strip's arrays, which hold a known value, and the loops over them."""

    def __init__(self, nests: Collection[UOp], outside: Collection[UOp]) -> None:
        self.nests = nests
        self.outside = outside
        """The loops over strips."""
        self.arrays: dict[UOp, float] = {}
        """Values of arrays in hidden columns."""
        self.cuts: list[Cut] = []

    def take(self, nest: UOp) -> bool:
        """Find the loop of a nest over hidden columns; False if the nest reads them otherwise."""
        inside = nest.toposort(lambda n: n.op is not Op.AFTER)
        awaited = {s for n in inside if n.op is Op.AFTER for s in n.src[1:] if s not in self.nests}
        if any(map(self.reads_hidden, awaited)):
            return False
        read = [n for n in inside if n.op is Op.LOAD and pointer_of(n.src[0]) in self.arrays]
        stored = [n for n in inside if n.op is Op.STORE]
        loops = [n for n in inside if n.op is Op.RANGE and n.is_fixed and n not in self.outside]
        plain = [n for n in loops if n.arg.kind in PLAIN_KINDS]
        found = [(columns_through([*read, *stored], loop), loop) for loop in plain]
        through = [(columns, loop) for columns, loop in found if columns is not None]
        if not through:
            return not read
        # A loop over rows visits more columns.
        return self.cuts_loop(*min(through, key=lambda pair: pair[0].length), inside, read) or (
            not read
        )

    def reads_hidden(self, fill: UOp) -> bool:
        """True if the copy of an operand reads an array with hidden columns."""
        inside = fill.toposort(lambda n: n.op is not Op.AFTER)
        return any(n.op is Op.LOAD and pointer_of(n.src[0]) in self.arrays for n in inside)

    def cuts_loop(
        self, columns: Columns, loop: UOp, inside: Sequence[UOp], read: Sequence[UOp]
    ) -> bool:
        """Record that a loop can skip hidden steps; False if it cannot."""
        closers = [n for n in inside if n.op in CLOSERS and loop in n.src[1:]]
        folds = [n for n in closers if n.op is Op.REDUCE]
        stores = [n for n in inside if n.op is Op.STORE and loop in n.ranges]
        if not closers or any(pointer_of(n.src[0]).op is not Op.DEFINE_LOCAL for n in stores):
            return False
        if any(loop not in n.src[0].src[1].ranges for n in read):
            return False
        if any(cut.columns.length != columns.length for cut in self.cuts):
            return False
        values = [n.src[1] for n in stores]
        conditions = [*conditions_of((*folds, *values), loop)] if not read else []
        for excess, known in self.reasons(columns.base, conditions, read):
            held = [value_of(v, known) for v in values]
            if all(v is not None for v in held) and all(is_neutral(f, known) for f in folds):
                for store, value in zip(stores, held, strict=True):
                    self.arrays[pointer_of(store.src[0])] = float(value or 0.0)
                self.cuts.append(Cut(loop, columns, excess))
                return True
        return False

    def reasons(
        self, base: UOp, conditions: Sequence[tuple[UOp, bool]], read: Sequence[UOp]
    ) -> list[tuple[Excess | None, dict[UOp, Value]]]:
        """Candidates for hidden columns, with the known values of nodes in them."""
        if read:
            return [(None, {n: self.arrays[pointer_of(n.src[0])] for n in read})]
        found = [(excess_of(c, truth, base, self.outside), c, truth) for c, truth in conditions]
        return [(excess, {c: float(truth)}) for excess, c, truth in found if excess is not None]

    def tighten(self, kernel: UOp) -> UOp:
        """The kernel without the steps that visit hidden columns only."""
        sources = [c for c in self.cuts if c.excess is not None]
        signs = {c.excess.stride < 0 for c in sources if c.excess is not None}
        if len(signs) != 1:
            return kernel
        are_last = signs.pop()
        first, *others = dict.fromkeys(map(border, sources))
        bound = functools.reduce(UOp.maximum if are_last else UOp.minimum, others, first)
        for loop, (width, *_), _ in reversed(self.cuts):
            # Whole tiles: earlier nests have computed all columns that a nest reads.
            steps = (bound + (width - 1)) // width if are_last else bound // width
            kernel = tightened(kernel, loop, steps if are_last else loop.src[0] - steps, are_last)
            bound = steps * width
        return kernel


def border(cut: Cut) -> UOp:
    """The number of columns before the hidden ones, or of the hidden ones if these come first.

    At least one column is always visited: a softmax of hidden scores only is NaN.
    """
    assert cut.excess is not None
    (start, stride), unit = cut.excess, cut.columns.unit
    if stride < 0:
        return (start // -stride + 1).maximum(1) * unit
    return ((start // stride * -1).maximum(0) * unit).minimum(cut.columns.length - 1)


def columns_through(accesses: Sequence[UOp], loop: UOp) -> Columns | None:
    """The columns that a loop visits in all accesses that vary with it; None if unknown."""
    places = [n.src[0].src[1] for n in accesses]
    found = {columns_of(place, loop) for place in places if loop in place.ranges}
    return found.pop() if len(found) == 1 else None


def columns_of(place: UOp, loop: UOp) -> Columns | None:
    """The columns of a row-major array that a loop goes through; None if it does not just that.

    Where the last step begins early, its columns are counted from where it would begin.
    """
    bases, start = terms_of(place)
    moving = {base: times for base, times in bases.items() if loop in base.ranges}
    if len(moving) != 1:
        return None
    ((base, unit),) = moving.items()
    width, length = unit, unit * loop.extent
    if base is not loop:
        if base.op is not Op.MIN or base.src[1].op is not Op.CONST:
            return None
        by, last = coefficient(base.src[0], loop), base.src[1].arg
        if not by or terms_of(base.src[0]) != ({loop: by}, 0):
            return None
        width, length = unit * by, unit * (last + by)
    least = most = start % length if length > 0 else -1
    for other, times in bases.items():
        if other is not base and times % length:
            least += min(int(other.vmin) * times, int(other.vmax) * times)
            most += max(int(other.vmin) * times, int(other.vmax) * times)
    return Columns(width, length, base, unit) if 0 <= least <= most < width else None


def tighten_strips(kernel: UOp) -> UOp:
    """A kernel of fused rows without the columns that no row of a strip sees."""
    nests = nests_of(kernel)
    if len(nests) < 2 or kernel.src[0].op is not Op.END:
        return kernel
    body, *outside = kernel.src[0].src
    written = [pointer_of(n.src[0]) for n in body.toposort() if n.op is Op.STORE]
    hidden = Hidden(body.src, outside)
    if not all(map(hidden.take, body.src)):
        return kernel
    if not hidden.cuts or any(written.count(array) > 1 for array in hidden.arrays):
        return kernel
    return hidden.tighten(kernel)
