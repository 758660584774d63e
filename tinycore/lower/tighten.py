"""Tighter loops: steps that a mask hides are skipped, as in causal attention.

Floor 3'. In causal attention, a block of keys that no row of a group sees adds nothing: its scores
are all -inf, and their weights 0. The same holds for any fold whose value is its neutral element
whenever a comparison of indices is true, or is false. The trip count of such a loop becomes an
expression of the loops over groups, so that all threads of a group execute the same steps.

In fused rows the comparison is in the nest that computes the scores. Later nests read these from an
array of the strip, which holds one value in all columns from some column on (or up to some). Every
nest of the strip skips these columns: they are neither computed nor read.

Products with 0 are taken as 0, as if the other factor were finite: a hidden infinity or NaN has no
effect in a step that is skipped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from tinycore.dtype import dtypes
from tinycore.lower.dims import is_known_at_launch
from tinycore.lower.loops import PLAIN_KINDS, closer_of, with_other_loops
from tinycore.lower.steps.split import MASKED
from tinycore.lower.strategies.fused_rows import nests_of
from tinycore.render.base import pointer_of
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, AxisKind, Op, neutral_element
from tinycore.uop.rewrite import rewrite
from tinycore.uop.sums import terms_of
from tinycore.uop.symbolic import simplify

Value = float | None
"""The value of a node under a condition, where that alone decides it."""


class Excess(NamedTuple):
    """A step changes nothing in a whole group if `start` + `stride` * step < 0."""

    start: UOp
    stride: int


class Columns(NamedTuple):
    """The columns that a loop visits: `width` at each step, `length` in a row."""

    width: int
    length: int
    base: UOp
    """The counter of `unit` columns: the loop, or the minimum of its step and a last position."""
    unit: int


class Cut(NamedTuple):
    """A loop that may skip hidden columns."""

    loop: UOp
    columns: Columns
    excesses: Sequence[Excess]
    """The steps that comparisons hide; none if arrays that a nest reads have hidden columns."""


Known = dict[UOp, Value]
Reason = tuple[Excess | None, Known]
"""The steps that a comparison hides, if one does, and the values of nodes in hidden ones."""


def tighten(kernel: UOp) -> UOp:
    """A kernel without steps that change nothing: of reductions over matrix products, and of nests
    over the rows of a strip."""
    nodes = kernel.toposort()
    if any(n.op is Op.MATRIX for n in nodes):
        groups = [n for n in nodes if n.op is Op.RANGE and n.kind is AxisKind.GRID]
        for loop in (n for n in nodes if n.op is Op.RANGE and n.kind is AxisKind.REDUCE):
            kernel = without_hidden(kernel, [cut_of_fold(kernel, loop, groups)])
    if len(nests_of(kernel)) < 2 or kernel.src[0].op is not Op.END:
        return kernel
    body, *outside = kernel.src[0].src
    written = [pointer_of(n.src[0]) for n in body.every(Op.STORE)]
    hidden = Hidden(body.src, outside)
    if not all(map(hidden.take, body.src)) or any(written.count(n) > 1 for n in hidden.arrays):
        return kernel
    return without_hidden(kernel, hidden.cuts)


def cut_of_fold(kernel: UOp, loop: UOp, groups: Collection[UOp]) -> Cut:
    """A loop of reductions, and the steps of it at one end that change none of them."""
    folds = [n for n in closer_of(kernel, loop) if n.op is Op.REDUCE]
    found = dict.fromkeys(e for e, _ in idle(folds, (), hiding(folds, loop, loop, groups)) if e)
    # At its start, if there are some at both.
    are_last = any(e.stride < 0 for e in found)
    excesses = [e for e in found if (e.stride < 0) is are_last]
    return Cut(loop, Columns(1, int(loop.src[0].vmax), loop, 1), excesses)


def without_hidden(kernel: UOp, cuts: Sequence[Cut]) -> UOp:
    """The kernel without the steps of some loops that visit hidden columns only.

    At least one column is always visited: a softmax of hidden scores only is NaN.
    """
    signs = {e.stride < 0 for cut in cuts for e in cut.excesses}
    if len(signs) != 1:
        return kernel
    are_last = signs.pop()
    one, all_ = (UOp.minimum, UOp.maximum) if are_last else (UOp.maximum, UOp.minimum)
    borders = [[border(e, cut.columns.unit) for e in cut.excesses] for cut in cuts if cut.excesses]
    least = [functools.reduce(one, dict.fromkeys(found)) for found in borders]
    bound = functools.reduce(all_, dict.fromkeys(least))
    bound = bound.maximum(1) if are_last else bound.maximum(0).minimum(cuts[0].columns.length - 1)
    for loop, (width, *_), _ in reversed(cuts):
        # Whole tiles: earlier nests have computed all columns that a nest reads.
        steps = (bound + (width - 1)) // width if are_last else bound // width
        kernel = tightened(kernel, loop, steps if are_last else loop.src[0] - steps, are_last)
        bound = steps * width
    return kernel


def border(excess: Excess, unit: int) -> UOp:
    """The number of columns before the hidden ones, or of the hidden ones if these come first; the
    counter is of `unit` columns."""
    start, stride = excess
    return (start // -stride + 1 if stride < 0 else start // stride * -1) * unit


def hiding(
    values: Iterable[UOp], loop: UOp, counter: UOp, outside: Collection[UOp]
) -> list[Reason]:
    """The comparisons below some values, true or false, that hide steps of a loop, which are
    counted by `counter`."""
    found: list[Reason] = [
        (excess_of(n, truth, counter, outside), {n: float(truth)})
        for n in UOp.sink(*values).toposort()
        if n.op is Op.CMPLT and loop in n.ranges and n.src[0].dtype is dtypes.index
        for truth in (True, False)
    ]
    return [reason for reason in found if reason[0]]


def idle(folds: Iterable[UOp], values: Iterable[UOp], reasons: Iterable[Reason]) -> list[Reason]:
    """The reasons for which a step changes no fold, and all its values are known."""
    return [
        (excess, known)
        for excess, known in reasons
        if all(value_of(v, known) is not None for v in values)
        and all(is_neutral(fold, known) for fold in folds)
    ]


def excess_of(condition: UOp, truth: bool, counter: UOp, outside: Collection[UOp]) -> Excess | None:
    """The steps of a loop in which a comparison is `truth` for all steps of other loops.

    None if unknown. The `counter` is the loop, or an expression that counts its steps; the loops
    `outside` are those over groups or strips. The comparison a < b is true for all other loops if
    the greatest value of a - b is below 0.
    """
    less, more = condition.src
    # Steps beyond the end of a loop store and add nothing, so clamps of indices do not matter.
    unclamped = {n: n.src[0] for n in condition.every(Op.MIN) if n.arg == MASKED}
    difference = (less - more).substitute(unclamped) if unclamped else less - more
    bases, start = terms_of(rewrite(difference, simplify, name="simplify a difference"))
    sign, start = (1, start) if truth else (-1, -1 - start)
    first, stride, apart = UOp.index(0), 0, frozenset(outside)
    for base, times in bases.items():
        times *= sign
        if base is counter:
            stride = times
        elif not counter.ranges.isdisjoint(base.ranges):
            return None
        elif is_known_at_launch(base) or (base.ranges and base.ranges <= apart):
            first = first + base * times
        else:
            start += max(int(base.vmin) * times, int(base.vmax) * times)
    return Excess(first + start, stride) if stride else None


def is_neutral(fold: UOp, known: dict[UOp, Value]) -> bool:
    """True if a step does not change a fold, given the known values of some nodes."""
    neutral = neutral_element(fold.arg, fold.dtype)
    return all(value_of(s, known) == neutral for s in fold.src if s.op is not Op.RANGE)


def value_of(node: UOp, known: dict[UOp, Value]) -> Value:
    """The value of a node, given the known values of others; None if these do not decide it."""
    for n in node.toposort():
        if n not in known:
            known[n] = decided(n, [known[s] for s in n.src])
    return known[node]


def decided(node: UOp, values: list[Value]) -> Value:
    """The value of one node, from those of its sources."""
    match node.op:
        case Op.CONST if node.dtype.kind == "float":
            return float(node.arg)
        case Op.WHERE:
            if values[0] is not None:
                return values[1] if values[0] else values[2]
            return values[1] if values[1] == values[2] else None
        case Op.ADD if -math.inf in values:
            return -math.inf
        case Op.SUB if values[0] == -math.inf:
            return -math.inf
        case Op.MUL | Op.MATRIX if 0.0 in values[:2]:
            return 0.0
        case Op.FDIV if values[0] == 0.0:
            return 0.0
        case Op.MUL if values[0] is not None and values[1] is not None:
            return values[0] * values[1]
        case Op.EXP | Op.EXP2 if values[0] == -math.inf:
            return 0.0
        case Op.CAST if node.dtype.kind == "float":
            return values[0]
        case Op.REDUCE if values[0] == neutral_element(node.arg, node.dtype):
            return values[0]
    return None


def tightened(kernel: UOp, loop: UOp, steps: UOp, are_first: bool) -> UOp:
    """The kernel with a loop limited to its first steps, or to its last ones.

    For the last ones the loop runs backwards, so that only one of its bounds is an expression.
    """
    end = rewrite(steps.maximum(0).minimum(loop.src[0]), simplify, name="simplify a bound")
    shorter = loop.replace(src=(end,))
    place = shorter if are_first else loop.src[0] - 1 - shorter
    return with_other_loops(kernel, {loop: (shorter,)}, {loop: place})


# --- fused rows


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
        accesses = read + [n for n in inside if n.op is Op.STORE]
        loops = [n for n in inside if n.op is Op.RANGE and n.is_fixed and n not in self.outside]
        plain = {n for n in loops if n.kind in PLAIN_KINDS}.intersection(
            *(n.src[0].src[1].ranges for n in read)
        )
        found = [(columns_through(accesses, n), n) for n in loops if n in plain]
        through = [(columns, loop) for columns, loop in found if columns is not None]
        # A loop over rows visits more columns.
        least = min(through, key=lambda pair: pair[0].length, default=None)
        return bool(least and self.cuts_loop(*least, inside, read)) or not read

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
        if (
            not closers
            or any(pointer_of(n.src[0]).op is not Op.DEFINE_LOCAL for n in stores)
            or any(cut.columns.length != columns.length for cut in self.cuts)
        ):
            return False
        values = [n.src[1] for n in stores]
        reasons: list[Reason] = [(None, {n: self.arrays[pointer_of(n.src[0])] for n in read})]
        if not read:
            reasons = hiding((*folds, *values), loop, columns.base, self.outside)
        for excess, held in idle(folds, values, reasons)[:1]:
            for store in stores:
                self.arrays[pointer_of(store.src[0])] = float(value_of(store.src[1], held) or 0.0)
            self.cuts.append(Cut(loop, columns, [excess] if excess else []))
            return True
        return False


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
