"""A MERGE_AXIS as arithmetic over loop counters: sorted runs merged in pieces that need no other.

Floor 3. Element t of a piece is the first that is left of two runs, of equal ones that of the first
run. How many the first run has given before the piece is found by bisection: O. Green, S. Odeh &
Y. Birk, "Merge path: a visually intuitive approach to parallel merging" (2014). From there on it is
a recurrence.
See docs/decisions/0041-merges.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Merge, Op

Point = tuple[UOp, ...]
Read = Callable[[UOp, Point], UOp]
"""The value of a node at a point."""

GIVEN_COUNT = UOp(Op.STATE, dtypes.index, (), 0)
"""Number of elements that the first run has given."""
FOUND = UOp(Op.STATE, dtypes.index, (), 1)
"""Lower bound of that number."""


def merged(read: Read, node: UOp, point: Point) -> UOp:
    """The value of a MERGE_AXIS at a point, whose last counter is that of a loop in order."""
    keys, values = node.src
    how: Merge = node.arg
    *outer, piece, step = point
    first = piece * how.piece
    pair = Pair(
        read, keys, tuple(outer), first // how.kept * (2 * how.run), first % how.kept, how.run
    )
    start = pair.given_before(len(point)) if how.piece < how.kept else UOp.index(0)
    following = GIVEN_COUNT + pair.takes_first(GIVEN_COUNT, step).cast(dtypes.index)
    given = UOp(Op.RECUR, dtypes.index, (start, following, step), GIVEN_COUNT.arg)
    here, there = pair.in_first(given), pair.in_second(given, step)
    if values is keys:
        return pair.takes_first(given, step).where(pair.key(here), pair.key(there))
    return read(values, (*outer, pair.takes_first(given, step).where(here, there)))


@dataclass(frozen=True)
class Pair:
    """Two sorted runs, the second right after the first; less may be left of the last ones."""

    read: Read
    keys: UOp
    outer: Point
    start: UOp
    """Start of the first run."""
    done: UOp
    """Number of elements of both runs before the piece that is merged."""
    run: int
    """The elements of a run."""

    @property
    def size(self) -> int:
        """The elements of all runs."""
        return self.keys.shape[-1]

    @property
    def length(self) -> UOp:
        """Length of the second run; 0 if there is none."""
        left = UOp.index(self.size - self.run) - self.start
        return left.minimum(self.run).maximum(0)

    def key(self, place: UOp) -> UOp:
        """The key of an element."""
        return self.read(self.keys, (*self.outer, place))

    def inside(self, place: UOp) -> UOp:
        """A place, or that of the last element of all: what is read there counts for nothing."""
        return place.minimum(self.size - 1)

    def in_first(self, given: UOp) -> UOp:
        """The place of an element of the first run; after the last one, of the second run's."""
        return self.start + given

    def in_second(self, given: UOp, step: UOp) -> UOp:
        """The place of the element of the second run that is next when the first has given some."""
        return self.inside(self.start + self.run + self.done + step - given)

    def takes_first(self, given: UOp, step: UOp) -> UOp:
        """True if the next element is the first run's."""
        lesser = self.key(self.in_first(given)) <= self.key(self.in_second(given, step))
        left = given < self.run
        over = self.done + step - given >= self.length
        return over | (left & lesser)

    def given_before(self, number: int) -> UOp:
        """Elements of the first run before the piece, by bisection in a loop of that number."""
        least = (self.done - self.length).maximum(0)
        most = self.done.minimum(self.run)
        halving = UOp.range(self.run.bit_length(), number, AxisKind.ORDERED)
        more = UOp.index(self.run) >> halving
        last = FOUND + more - 1
        other = self.start + self.run + self.done - 1 - last
        lesser = self.key(self.inside(self.start + last)) <= self.key(self.inside(other))
        following = ((last < most) & lesser).where(FOUND + more, FOUND)
        return UOp(Op.ITERATE, dtypes.index, (least, following, halving), FOUND.arg)
