"""Sums whose lanes run along the reduced loop, as in a product with rows on both sides.

Floor 3'. Such a sum reads contiguously, and pays once at its end for adding up its lanes. Several
rows and columns of sums at a time share what they read; where all sums fit a near cache and what
they read does not, they are held there while the outer reduced loops run around them.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

from tinycore.lower.hold import HELD, Hold
from tinycore.lower.loops import Number
from tinycore.lower.planner import SERIAL_WORK
from tinycore.lower.tile import REST, Assign, Overlap, Split
from tinycore.lower.tile_planner import LEAST_CHUNKS, TilePlanner
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

MOST_ROWS: Final = 5
"""Rows and columns of a tile: each is a stream of loads."""
PARTIAL_SUMS: Final = (8, 4, 2)
STREAMS: Final = 4
"""Rows read beside each other: what fetches ahead stops at the end of a page, but not in all."""
MOST_WRITTEN_OUT: Final = 128
"""Copies of a step that a row of a tile is written out in."""
LEAST_LEFT: Final = 4
"""Lanes of the narrowest vector that what is left of a row is worth."""
PAGE: Final = 4096
"""Bytes."""
LEAST_STEPS: Final = 64
"""Elements of a sum in one step of the loops around held sums, so that adding it is little work."""
LEAST_AGAIN: Final = 8
"""How often an operand must be read again for holding sums to pay."""


class DotPlanner(TilePlanner):
    """Gives lanes to reduced loops."""

    def vectorize_reduction(self, axis: UOp, lanes: int) -> None:
        """Lanes along a reduced loop, several accumulators, summed across at the end."""
        size = axis.extent
        width = 1 << (min(lanes, size).bit_length() - 1)
        number = axis.arg.number
        loops = self.hold_outputs(axis) or [r for r in self.facts.outputs if r.extent > 1]
        rows = self.reused_rows(loops)
        stream = None if rows else self.row_of_streams(axis)
        self.cut_row(number, size, width)
        for row, tall in rows:
            self.do(Split(row, tall), Assign((*row, 1), AxisKind.UNROLL))
        steps = size // width
        partial = next((p for p in PARTIAL_SUMS if steps >= 2 * p), 1)
        if stream is not None:
            self.do(Split(stream, STREAMS), Assign((*stream, 1), AxisKind.UNROLL))
            partial = min(partial, PARTIAL_SUMS[0] // STREAMS)
        if rows:
            self.write_out((*number, 0), steps, math.prod(tall for _, tall in rows))
        elif partial > 1:
            self.do(Split((*number, 0), partial), Assign((*number, 0, 1), AxisKind.PARTIAL))
            self.write_out((*number, 0, REST), steps % partial, 1)

    def cut_row(self, number: Number, size: int, width: int) -> None:
        """Cut a reduced loop into lanes, and what is left of it into one vector.

        That has fewer lanes where a vector has just so many; else it begins early.
        """
        left = size % width
        narrow = left >= LEAST_LEFT and left.bit_count() == 1
        cut = Split(number, width) if narrow else Overlap(number, width)
        self.do(cut, Assign((*number, 1), AxisKind.VECTOR))
        if left:
            self.do(Assign((*number, REST), AxisKind.VECTOR))

    def write_out(self, number: Number, steps: int, copies: int) -> None:
        """Write out a short part of a reduced loop, so that nothing is added up apart from it."""
        if 1 < steps <= MOST_WRITTEN_OUT // copies:
            self.do(Assign(number, AxisKind.UNROLL))

    def row_of_streams(self, axis: UOp) -> Number | None:
        """The loop over results whose sums along `axis` read pages of their own, if any."""
        outputs = [r for r in self.facts.outputs if r.extent > 1]
        if not outputs or not self.facts.is_fixed or not self.facts.are_side_by_side:
            return None
        row, least = outputs[-1], STREAMS * max(self.limits.threads, 1)
        loads = [n.src[1] for n in self.facts.loads if axis in n.src[1].ranges]
        moves = [coefficient(place, row) for place in loads if row in place.ranges]
        far = [m is not None and abs(m) * self.facts.itemsize >= PAGE for m in moves]
        return row.arg.number if far and all(far) and row.extent >= least else None

    # --- tiles

    def reused_rows(self, loops: list[UOp]) -> list[tuple[Number, int]]:
        """The two of some loops, and how many steps of each, whose tile shares most of its loads.

        None if no tile shares any. Its sums must fit the registers with the operands of a step.
        """
        loads = self.facts.loads
        best, tile = float(len(loads)), dict[UOp, int]()
        for pair in itertools.combinations(reversed(loops), 2):
            for sizes in itertools.product(range(1, MOST_ROWS + 1), repeat=2):
                tall = dict(zip(pair, sizes, strict=True))
                fits = math.prod(sizes) + min(sizes) + 1 <= self.limits.vector_registers
                fits = fits and all(size <= r.extent for r, size in tall.items())
                if fits and (time := self.time_of(loads, tall)) < best:
                    best, tile = time, tall
        return [(r.arg.number, size) for r, size in tile.items() if size > 1]

    @staticmethod
    def time_of(loads: frozenset[UOp], tall: dict[UOp, int]) -> float:
        """What a multiplication of a tile costs, with those that uneven tiles do twice."""
        size = math.prod(tall.values())
        read = sum(math.prod(t for r, t in tall.items() if r in n.ranges) for n in loads)
        twice = math.prod(-(-r.extent // t) * t / r.extent for r, t in tall.items())
        return (max(size, read) + read / 8) / size * twice

    # --- sums that are held

    def hold_outputs(self, axis: UOp) -> list[UOp]:
        """Hold all sums, if what they read again and again would not stay in a near cache.

        The loops over the held sums; none if they are not held.
        """
        around = self.loops_around(axis)
        if not around or not self.facts.is_fixed or not self.facts.are_side_by_side:
            return []
        if self.facts.overwrites:
            return []
        held = [r.arg.number for r in self.facts.outputs if r.extent > 1]
        first = next(r for r in self.facts.outputs if r.extent > 1)
        share = self.share_of(first)
        if 1 < share < first.extent:
            self.do(Split(first.arg.number, share))
            held[0] = (*held[0], 1)
        elif share == 1:
            del held[0]
        if not held:
            return []
        self.do(Hold(tuple(held), tuple(r.arg.number for r in around)))
        return [r for r in self.facts.loops if r.arg.number[-2:] == (HELD, 1)]

    def share_of(self, first: UOp) -> int:
        """How many steps of the outermost loop hold their sums together: fewer for more threads."""
        if self.limits.threads < 2 or self.work < SERIAL_WORK:
            return first.extent
        return max(first.extent // (self.limits.threads * LEAST_CHUNKS), 1)

    def loops_around(self, axis: UOp) -> list[UOp]:
        """The outer reduced loops that have to run around held sums; none if it would not pay."""
        reduced, cache = self.facts.reduced, self.limits.cache_bytes // 2
        outputs = [r for r in self.facts.outputs if r.extent > 1]
        sums = math.prod(r.extent for r in outputs) * self.facts.itemsize
        if not outputs or axis is not reduced[-1] or sums > cache:
            return []
        for place in range(len(reduced)):
            inside = [*outputs, *reduced[place:]]
            if math.prod(r.extent for r in reduced[place:]) < LEAST_STEPS:
                return []
            if self.spanned(inside) <= cache:
                return reduced[:place]
        return []

    def spanned(self, loops: list[UOp]) -> int:
        """The bytes that some loops read and that are read again, an operand's from end to end."""
        total = 0
        for load in self.facts.loads:
            again = math.prod(r.extent for r in loops if r not in load.ranges)
            moves = [(abs(self.facts.stride(load, r) or 0), r.extent) for r in loops]
            if again >= LEAST_AGAIN:
                total += 1 + sum(move * (extent - 1) for move, extent in moves)
        return total * self.facts.itemsize
