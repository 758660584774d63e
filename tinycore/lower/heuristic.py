"""A good plan for a kernel, from its addresses and the device's limits alone, without measuring.

Floor 3'. Nothing here knows a matmul from a convolution: what counts is which operand moves with
which loop. An address that moves by 1 with a loop makes that loop a candidate for vector lanes; an
operand that stands still while a loop runs can be kept in registers across it.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

from tinycore.lower.dot_planner import PARTIAL_SUMS, DotPlanner
from tinycore.lower.expand import LONGEST_STRIDE
from tinycore.lower.facts import work_of
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.planner import SERIAL_WORK
from tinycore.lower.stage import LINE_BYTES
from tinycore.lower.tile import (
    Assign,
    Merge,
    Peel,
    Reorder,
    Split,
)
from tinycore.lower.tile_planner import SMALL_LOOP, Tile
from tinycore.trace import Trace
from tinycore.uop.affine import coefficient, repetition
from tinycore.uop.node import UOp
from tinycore.uop.op import TRANSCENDENTAL, AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

trace = Trace("plan")

CHUNKS_PER_THREAD: Final = 8
MOST_REPEATED: Final = 4
"""The part of the work that may be repeated so that threads share the rest: a quarter."""
SCATTERED: Final = -3
"""What an access counts that is neither contiguous (1) nor constant (0) over the lanes."""
PICKED: Final = 0.25
"""What an access costs whose lanes are picked out of two vectors."""
LEAST_LANES: Final = 4
MOST_STEPS: Final = 16
"""Steps of a sum from which on it does not matter more what is done once for all of them."""
SUM_ACROSS: Final = 6
"""What adding up the lanes costs, in steps of the sum."""
MOST_COPIES: Final = 128
"""Copies of a body that unrolling a short loop may lead to."""
MOST_AGAIN: Final = 8
"""The part of a copy that may be copied twice so that lines are read as a whole: an eighth."""
MOST_BORDERS: Final = 4
SCANNED_ROWS: Final = 2
"""Scans beside each other: more would take lines of the same set from the first cache."""
SCANNED_VECTORS: Final = 8
"""Vectors beside each other that go through rows far apart: whole lines, and several of them."""


class LoopPlanner(DotPlanner):
    """What a device that runs loops is given to run: vectors, registers, threads."""

    def plan_loops(self) -> None:
        """A plan for a device that runs loops: lanes, register tiles, threads."""
        lanes = self.lanes()
        if lanes >= LEAST_LANES:
            self.vectorize(lanes)
        self.unroll_small_reductions()
        self.share_among_threads()

    def vectorize(self, lanes: int) -> None:
        """Lanes along the loop that suits best, or along each part of it."""
        parts = self.peel_borders()
        best = self.best_vector_loop()
        if best is None and self.facts.reductions:
            self.sum_in_parts()
        elif best is None and self.facts.has_scan:
            self.scan_rows_together()
        elif best is None:
            self.transpose_blocks(lanes)
        for axis in self.alike(best, parts):
            if axis.arg.kind is AxisKind.REDUCE:
                self.vectorize_reduction(axis, lanes)
            else:
                self.vectorize_output(axis, lanes)

    def peel_borders(self) -> list[Number]:
        """Give the borders of a padded operand loops of their own, so that the rest needs no gates.

        The parts of the loop; none if no loop has borders.
        """
        for counter in reversed(self.loops_with_borders()):
            contiguous = any(self.facts.stride(n, counter) == 1 for n in self.facts.accesses)
            steps = self.steps_compared(counter)
            edges = (0, *steps, counter.extent)
            widest = max(b - a for a, b in itertools.pairwise(edges))
            if contiguous and 1 <= len(steps) <= MOST_BORDERS and widest >= LEAST_LANES:
                self.do(Peel(number := counter.arg.number, steps))
                return [(*number, part) for part in range(len(edges) - 1)]
        return []

    def loops_with_borders(self) -> list[UOp]:
        """The loops to look for borders in: of a sum its own, unless it is just a small window."""
        reduced = self.facts.reduced
        is_window = all(r.extent <= SMALL_LOOP for r in reduced)
        return [*(self.facts.outputs if is_window else ()), *reduced]

    def alike(self, best: UOp | None, parts: list[Number]) -> list[UOp]:
        """The loop that lanes suit best; if it is a part of one, all parts that lanes suit.

        Not all parts need be left: in the border the value may be a constant.
        """
        if best is None or best.arg.number not in parts:
            return [best] if best is not None else []
        left = [n for n in self.facts.loops if n.arg.number in parts]
        return [r for r in left if r.extent >= LEAST_LANES and self.score(r) > 0]

    def sum_in_parts(self) -> None:
        """Several sums where lanes suit none: less waiting for each other, and smaller errors."""
        loops = [r for r in self.facts.reduced if r.extent >= 2 * PARTIAL_SUMS[0]]
        if loops and math.prod(r.extent for r in self.facts.loops_of_kind(AxisKind.UNROLL)) == 1:
            number = loops[-1].arg.number
            self.do(Split(number, PARTIAL_SUMS[0]), Assign((*number, 1), AxisKind.PARTIAL))

    def scan_rows_together(self) -> None:
        """Several scans at a time where lanes suit none: each waits for its last step."""
        rows = [r for r in self.facts.outputs if r.extent >= SCANNED_ROWS]
        if rows:
            self.do(Split(number := rows[-1].arg.number, SCANNED_ROWS))
            self.do(Assign((*number, 1), AxisKind.UNROLL))

    def steps_compared(self, counter: UOp) -> tuple[int, ...]:
        """The steps of a loop from which on a comparison with a constant turns out differently.

        Where short loops move what is compared, too: from which on it does for all of their steps.
        """
        found = set[int]()
        for node in self.facts.nodes:
            if node.op is Op.CMPLT and counter in node.ranges:
                a, b = node.src
                if b.op is Op.CONST:
                    found |= self.steps_reaching(a, counter, b.arg)
                elif a.op is Op.CONST:
                    found |= self.steps_reaching(b, counter, a.arg + 1)
        return tuple(sorted(s for s in found if 0 < s < counter.extent))

    @staticmethod
    def steps_reaching(value: UOp, counter: UOp, bound: int) -> set[int]:
        """The steps of a loop from which on a value may reach a bound, and does for certain."""
        move = coefficient(value, counter) or 0
        others = [r for r in value.ranges if r is not counter]
        if move < 1 or any(not r.is_fixed or r.extent > SMALL_LOOP for r in others):
            return set()
        rest = rewrite(value - counter * move, simplify, name="simplify borders")
        return {-((least - bound) // move) for least in (int(rest.vmin), int(rest.vmax))}

    def best_vector_loop(self) -> UOp | None:
        """The loop whose lanes are contiguous in most accesses, or None if all scatter.

        Short loops count for less, as they leave lanes empty. Of equals an output, which needs no
        sum over its lanes, and of these the innermost.
        """
        if self.facts.has_recurrence:
            return None
        loops = [r for r in (*self.facts.reduced, *self.facts.outputs) if r.extent >= LEAST_LANES]
        scores = {r: self.score(r) * self.filled(r) for r in loops}
        best = max(reversed(loops), key=lambda r: scores[r], default=None)
        return best if best is not None and scores[best] > 0 else None

    def filled(self, counter: UOp) -> float:
        """The part of the work of lanes along a loop that is not waste."""
        lanes, size = self.lanes(), counter.extent
        width = 1 << (min(lanes, size).bit_length() - 1)
        if counter.arg.kind is not AxisKind.REDUCE:
            return size / (-(-size // width) * lanes)
        steps = -(-size // width)
        again = math.prod(r.extent for r in self.facts.reduced) // size
        return size * again / ((steps * again + SUM_ACROSS) * lanes)

    def score(self, counter: UOp) -> float:
        """How well the accesses suit lanes along a loop.

        Where lanes share an operand of a long sum, scattering the sums once counts for little, and
        picking lanes out of longer vectors in every step counts more. An operand that all lanes
        share is as good as one that lies along them.
        """
        total, summed = 0.0, self.facts.loads
        shares = any(counter not in n.src[1].ranges for n in summed)
        rare = self.rare() if shares else 1.0
        stored = set(self.facts.stored)
        for access in self.facts.accesses:
            move = self.facts.stride(access, counter)
            strided = move is not None and 1 < move <= LONGEST_STRIDE
            strided = strided and (
                access not in stored or bool(self.loops_between_steps(access, counter))
            )
            weight = 1 if access in summed else rare
            if move == 1 or (access not in stored and self.can_be_panel(access, counter)):
                total += weight
                total -= PICKED * (shares and access in summed and self.is_shifted(access, counter))
            elif strided:
                total -= PICKED * (1 - rare)
            elif access not in stored and self.is_repeated(access, counter):
                total += 1 - PICKED
            elif move != 0:
                total += SCATTERED * (self.rare(2 * self.lanes()) if access in stored else weight)
            elif shares and access in summed:
                total += 1
            if len(access.src) > 2 and counter in access.src[2].ranges:
                total += SCATTERED
        return total

    def is_shifted(self, access: UOp, counter: UOp) -> bool:
        """Whether lanes along an output loop begin anywhere, as those that windows share do."""
        return self.facts.stride(access, counter) == 1 and self.is_window(access.src[1], counter)

    def is_repeated(self, access: UOp, counter: UOp) -> bool:
        """Whether lanes along a loop read few neighboring elements, each for several of them."""
        again, lanes = repetition(access.src[1], counter), self.lanes()
        return (
            again is not None
            and len(access.src) == 2
            and lanes % again == 0
            and counter.extent % lanes == 0
        )

    def rare(self, times: int = 0) -> float:
        """The part of the steps of the sums in which something outside of them is done.

        What takes `times` as long as a step counts as often.
        """
        lengths = [
            math.prod(r.extent for r in n.src[1:] if r.op is Op.RANGE and r.is_fixed)
            for n in self.facts.reductions
        ]
        longest = max(lengths, default=1)
        return min(1.0, times / longest) if times else 1 / min(longest, MOST_STEPS)

    def loops_between_steps(self, access: UOp, counter: UOp) -> list[UOp]:
        """The short loop whose steps lie between those of another, if there is one."""
        place, move = access.src[1], self.facts.stride(access, counter)
        loops = [r for r in self.facts.outputs if r is not counter and 1 < r.extent <= SMALL_LOOP]
        return [r for r in loops if coefficient(place, r) == 1 and r.extent == move]

    def write_out_between(self, axis: UOp) -> None:
        """Write out a short loop whose steps are stored between those of the lanes."""
        stored = self.facts.stored
        loops = [self.loops_between_steps(n, axis) for n in stored if axis in n.ranges]
        if loops and loops[0] and all(found == loops[0] for found in loops):
            self.do(Assign(loops[0][0].arg.number, AxisKind.UNROLL))

    def vectorize_output(self, axis: UOp, lanes: int) -> None:
        """Lanes along an output loop; with a reduction inside, a tile of registers."""
        self.write_out_between(axis)
        size = axis.extent
        width = 1 << (min(lanes, size).bit_length() - 1)
        if self.facts.overwrites:
            width = math.gcd(width, size)
        if width < LEAST_LANES:
            return
        tiled = bool(self.facts.reductions) and self.facts.is_fixed
        row = self.row_loop(axis) if tiled else None
        if tiled and self.hold_columns(axis, row, width):
            return
        vectors = -(-size // width)
        alone = Tile(1, min(vectors, SCANNED_VECTORS if self.facts.has_scan else 1))
        tile = self.tile_of(axis, row, vectors) if tiled else alone
        column, panel = self.cut_columns(axis, width, tile.wide)
        if row is not None and tile.below is not None:
            line = self.cut_lines(tile.below, tile.lines)
            self.cut_rows(row, tile.tall, [line, column], ())
        elif row is not None and not self.cut_pairs(row, tile.tall, [column], panel):
            self.cut_rows(row, tile.tall, [column], panel)

    def transpose_blocks(self, lanes: int) -> None:
        """Squares of elements, loaded row by row and stored column by column."""
        stored = self.facts.stored
        loaded = [n for n in self.facts.accesses if n not in stored]
        for column in reversed(self.facts.outputs):
            if column.extent < lanes or any(
                self.facts.stride(n, column) != 1 or len(n.src) > 2 for n in stored
            ):
                continue
            apart = [n for n in loaded if self.is_apart(n, column)]
            rows = [r for r in self.facts.outputs if r is not column and r.extent >= lanes]
            row = next((r for r in rows for n in apart if self.facts.stride(n, r) == 1), None)
            if row is not None:
                self.do(Split(column.arg.number, lanes))
                self.do(Split(row.arg.number, self.squares_of_line(row, lanes)))
                self.do(Assign((*column.arg.number, 1), AxisKind.VECTOR))
                self.do(Assign((*row.arg.number, 1), AxisKind.UNROLL))
                outer = ((*row.arg.number, 0), (*column.arg.number, 0))
                loops = [r.arg for r in self.facts.outputs if r.arg.kind is AxisKind.LOOP]
                rest = [axis.number for axis in loops if axis.number not in outer]
                self.do(Reorder((*rest, *outer)))
                return

    def squares_of_line(self, row: UOp, lanes: int) -> int:
        """How many steps along rows take whole lines of them: the other part is soon forgotten.

        Rows far apart are of few sets of a cache. One square where whole lines would do much twice,
        or where computing takes longer than reading, and more of it at a time more registers.
        """
        line = max(LINE_BYTES // self.facts.itemsize, lanes)
        again = -row.extent % line
        plain = not any(n.op in TRANSCENDENTAL for n in self.facts.nodes)
        return line if plain and again * MOST_AGAIN <= row.extent else lanes

    def is_apart(self, access: UOp, counter: UOp) -> bool:
        """Whether the steps of a loop read far from each other, by a constant distance."""
        move = self.facts.stride(access, counter)
        return move is not None and abs(move) > LONGEST_STRIDE and len(access.src) == 2

    def unroll_small_reductions(self) -> None:
        """Write out short innermost reduced loops, such as the width of a convolution's window."""
        instances = math.prod(r.extent for r in self.facts.loops_of_kind(AxisKind.UNROLL))
        for node in self.facts.reductions:
            loops = [r for r in node.src[1:] if r.op is Op.RANGE and r.arg.kind is AxisKind.REDUCE]
            if (
                loops
                and loops[-1].is_fixed
                and loops[-1].extent <= SMALL_LOOP
                and instances * loops[-1].extent <= MOST_COPIES
            ):
                number = loops[-1].arg.number
                if counter_of(self.kernel, number).arg.kind is AxisKind.REDUCE:
                    self.do(Assign(number, AxisKind.UNROLL))

    def share_among_threads(self) -> None:
        """Give the outermost loops to threads, if there is enough to do."""
        root = self.kernel.src[0]
        if self.limits.threads < 2 or root.op is not Op.END or self.work < SERIAL_WORK:
            return
        loops = [r for r in root.src[1:] if r.arg.kind is AxisKind.LOOP and r.is_fixed]
        if not loops:
            return
        if root.src[1] is not loops[0]:
            if root.src[1].is_fixed:
                return
            self.do(Reorder(tuple(r.arg.number for r in loops)))
        wanted = self.limits.threads * CHUNKS_PER_THREAD
        first = loops[0].arg.number
        for inner in loops[1:]:
            if counter_of(self.kernel, first).extent >= wanted or self.is_stage_between(
                first, inner
            ):
                break
            self.do(Merge(first, inner.arg.number))
        counter = counter_of(self.kernel, first)
        if counter.extent > 1 and self.is_worth_repeating(min(wanted, counter.extent)):
            self.do(Assign(first, AxisKind.PARALLEL))

    def is_worth_repeating(self, chunks: int) -> bool:
        """Whether what is filled before all loops may be filled anew for each chunk of steps."""
        fills = {n.src[1] for n in self.facts.nodes if n.op is Op.AFTER and n.src[1].op is Op.END}
        outside = [n for n in fills if not n.ranges]
        repeated = work_of(UOp.sink(*outside).toposort()) if outside else 0
        return repeated * (chunks - 1) * MOST_REPEATED <= self.work

    def is_stage_between(self, outer: Number, inner: UOp) -> bool:
        """Whether something is staged in each step of one loop for all steps of another."""
        fills = (n.src[1].ranges for n in self.facts.nodes if n.op is Op.AFTER)
        return any(counter_of(self.kernel, outer) in r and inner not in r for r in fills)
