"""Register tiles: rows and vectors of sums that are kept in registers together.

Floor 3'. Columns are cut into panels of a few vectors and rows into groups that share each vector;
what many groups read of a panel is staged, and so are blocks of rows that lie scattered.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final, NamedTuple

from tinycore.lower.expand import LONGEST_STRIDE
from tinycore.lower.hold import HELD, Hold
from tinycore.lower.loops import Number
from tinycore.lower.order_planner import OrderPlanner
from tinycore.lower.pair import Pair, is_paired
from tinycore.lower.planner import SERIAL_WORK
from tinycore.lower.stage import Dimension
from tinycore.lower.stage_planner import LEAST_REUSE, MOST_SCRATCH
from tinycore.lower.tile import Assign, Reorder, Split, overwrites_what_it_reads
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import COMPOUND, AxisKind, Op

MOST_ROWS: Final = 8
ENOUGH_ROWS: Final = 6
"""Rows from which on a loop has enough of them for any tile, so that the innermost is taken."""
MOST_WIDE: Final = 4
"""Vectors in a row of the widest tile, roughly."""
ENOUGH_ACCUMULATORS: Final = 8
"""Independent sums that hide the latency of fused multiply-add."""
SPARE_REGISTERS: Final = 1
"""Registers a tile leaves to the compiler; a tile that spills is slower than a smaller one."""
SPARE_FOR_WINDOWS: Final = 2
"""More of them where a body holds several taps of a window, whose loads the compiler mixes."""
SPARE_FOR_SHARED: Final = 1
"""And more where the rows themselves share taps, which then stay in registers."""
SMALL_LOOP: Final = 4
COMPILERS_WRITE_OUT: Final = 8
"""Steps of a loop that a compiler writes out by itself."""
FEWER_LINES: Final = 0.75
"""The part of the time of a wide tile that lines may take; it reads whole cache lines."""
ROWS_AT_ONCE: Final = 8
"""Rows added to held sums in one pass over them."""
MOST_HELD: Final = 2048
LEAST_HELD: Final = 256
MOST_SHORT: Final = 24
"""Rows of sums that are held together."""
LEAST_CHUNKS: Final = 4
"""Pieces of work per thread below which rows are cut, too."""


class Tile(NamedTuple):
    """Accumulators kept in registers: `tall` rows of `wide` vectors, or of `lines` of one vector.

    `below` is the loop whose steps are the lines.
    """

    tall: int
    wide: int
    below: Number | None = None
    lines: int = 1


class TilePlanner(OrderPlanner):
    """Cuts the columns and the rows of a reduction into tiles."""

    def row_loop(self, axis: UOp) -> UOp | None:
        """An output loop over which a load along `axis` stands still: its rows share the load."""
        inside = [n for n in self.facts.loads if axis in n.src[1].ranges]
        others = [r for r in self.nest_of(axis) if r is not axis and r.extent > 1]
        still = [r for r in others if any(r not in n.src[1].ranges for n in inside)]
        return max(still, key=lambda r: (min(r.extent, ENOUGH_ROWS), r.arg.number), default=None)

    def nest_of(self, axis: UOp) -> list[UOp]:
        """The output loops around a loop or inside of it, and not in another part of a loop."""
        ends = [n for n in self.facts.nodes if n.op is Op.END and axis in n.src[1:]]
        inner = [n for e in ends for n in e.src[0].toposort(lambda n: n.op in COMPOUND)]
        found = {r for e in ends for r in (*e.src[1:], *e.ranges)}
        found |= {r for n in inner if n.op is Op.END for r in n.src[1:]}
        return [r for r in self.facts.outputs if r in found]

    def hold_columns(self, axis: UOp, row: UOp | None, width: int) -> bool:
        """Add rows of a matrix to rows of sums, if the sums would read down its columns.

        Done for one row of sums, and for a few, which hardly share what a panel would hold.
        """
        reduced, number = self.facts.reduced, axis.arg.number
        if not reduced or axis.extent < LEAST_HELD or not self.reads_down(axis, reduced[-1]):
            return False
        rows = 1 if row is None else row.extent
        if rows > MOST_SHORT or (rows > 1 and self.lies_near(axis, reduced)):
            return False
        block = self.held_columns(axis.extent, rows, width)
        if block < axis.extent:
            self.do(Split(number, block))
            number = (*number, 1)
        depth = reduced[-1].arg.number
        around = [r.arg.number for r in reduced[:-1]]
        if reduced[-1].extent > ROWS_AT_ONCE:
            self.do(Split(depth, ROWS_AT_ONCE), Assign((*depth, 1), AxisKind.UNROLL))
            around.append((*depth, 0))
        held = (number,) if row is None else (row.arg.number, number)
        rest = [r.arg.number for r in self.facts.outputs if r.arg.number not in held]
        self.do(Reorder((*rest, *held)), Hold(held, tuple(around)))
        for part in ((*number, HELD, 0), (*number, HELD, 1), number):
            self.do(Split(part, width), Assign((*part, 1), AxisKind.VECTOR))
        return True

    def lies_near(self, axis: UOp, reduced: list[UOp]) -> bool:
        """Whether all that is read along `axis` in the loops of a sum fits the near cache."""
        size = axis.extent * math.prod(r.extent for r in reduced) * self.facts.itemsize
        return size <= self.limits.cache_bytes

    def held_columns(self, columns: int, rows: int, width: int) -> int:
        """How many sums to hold at a time: a near cache full, but as much for every thread."""
        most = max(MOST_HELD // rows, LEAST_HELD)
        if columns <= LEAST_HELD or self.work < SERIAL_WORK:
            return min(columns, most)
        threads = self.limits.threads
        share = -(-columns // (threads * -(-columns // (threads * most))))
        return max(-(-share // width) * width, LEAST_HELD)

    def reads_down(self, axis: UOp, depth: UOp) -> bool:
        """Whether what is folded over `depth` are vectors along `axis` that lie far apart."""
        if depth.extent < 2 * ROWS_AT_ONCE or overwrites_what_it_reads(self.kernel):
            return False
        along = [n for n in self.facts.loads if axis in n.ranges]
        moves = [self.facts.stride(n, depth) for n in along if len(n.src) == 2]
        return (
            len(moves) == len(along) > 0
            and all(m is not None and m >= axis.extent // 2 for m in moves)
            and all(self.facts.stride(n, axis) == 1 for n in along)
            and self.facts.are_side_by_side
        )

    def can_be_panel(self, access: UOp, counter: UOp) -> bool:
        """Whether what a load reads along an output loop will be staged, whatever its stride."""
        place, outputs = access.src[1], self.facts.outputs
        if (
            not self.facts.is_fixed
            or counter not in outputs
            or not place.ranges.intersection(self.facts.reduced)
        ):
            return False
        rows = [r for r in outputs if r not in place.ranges]
        again = math.prod(r.extent for r in rows)
        others = [r for r in outputs if r in place.ranges and r is not counter]
        # It is staged right outside of the rows, where each loop that it moves with is open.
        if others and rows and outputs.index(others[-1]) > outputs.index(rows[-1]):
            return False
        depth = math.prod(r.extent for r in self.facts.reduced) * self.limits.vector_bytes
        return (
            coefficient(place, counter) not in (0, None)
            and len(access.src) == 2
            and not self.is_window(place, counter)
            and again >= MOST_ROWS * LEAST_REUSE
            and MOST_WIDE * depth <= 2 * self.limits.cache_bytes
        )

    def is_window(self, place: UOp, counter: UOp) -> bool:
        """Whether sums of neighboring steps read the same elements, each at another of its steps.

        A panel would hold each of them several times.
        """
        move = abs(coefficient(place, counter) or 0) or math.inf
        steps = [(abs(coefficient(place, r) or 0), r.extent - 1) for r in self.facts.reduced]
        return any(step < move * counter.extent and step * last >= move for step, last in steps)

    def tile_of(self, axis: UOp, row: UOp | None, vectors: int) -> Tile:
        """The tile with the least estimated time for the whole.

        It is as wide as some vectors along `axis`, or as some steps of another loop over which
        the rows stand still: for windows of an image, lines of it that lie below each other.
        """
        rows = 1 if row is None else row.extent
        below = None if row is None else self.loop_beside(axis, row)
        room = self.room_for_tile(row)
        time, tall, wide = self.register_tile(rows, vectors, room)
        if below is not None:
            other, taller, lines = self.register_tile(rows, below.extent, room)
            bound = time * below.extent * (1 if self.lines_overlap(axis, below) else FEWER_LINES)
            if lines > 1 and other * vectors <= bound:
                return Tile(taller, 1, below.arg.number, lines)
        return Tile(tall, wide)

    def lines_overlap(self, axis: UOp, below: UOp) -> bool:
        """Whether lines below each other read the same elements, as windows of an image do."""
        for place in (n.src[1] for n in self.facts.accesses if axis in n.src[1].ranges):
            apart = coefficient(place, below)
            for r in self.facts.reduced:
                step = coefficient(place, r)
                if apart and step and apart % step == 0 and abs(apart) < abs(step) * r.extent:
                    return True
        return False

    def loop_beside(self, axis: UOp, row: UOp) -> UOp | None:
        """An output loop that moves what is read along `axis`, and nothing that rows read."""
        places = [n.src[1] for n in self.facts.loads]
        along = [p for p in places if axis in p.ranges]
        across = [p for p in places if row in p.ranges]
        if set(along) & set(across):
            return None
        for loop in reversed(self.nest_of(axis)):
            if loop not in (axis, row) and loop.extent > 1:
                moves = all(loop in p.ranges for p in along)
                if moves and not any(loop in p.ranges for p in across):
                    return loop
        return None

    def register_tile(self, rows: int, columns: int, room: int) -> tuple[float, int, int]:
        """The time of the best tile, and its rows and columns of accumulators.

        A step of the reduction costs the larger of its multiply-adds and its loads, of which two
        each are begun in a cycle; too few accumulators wait for each other. All must fit in `room`
        registers with the operands. What overwrites what it reads can do nothing twice: its tiles
        come out even.
        """
        best, tile, sums = math.inf, (1, 1), self.sums_at_once()
        even = self.facts.overwrites
        for wide in range(1, min(columns, self.limits.vector_registers) + 1):
            for tall in range(1, min(rows, MOST_ROWS) + 1):
                if tall * wide * sums + wide + 1 > room:
                    break
                if even and (rows % tall or columns % wide):
                    continue
                tiles = -(-rows // tall) * -(-columns // wide)
                work, loads = tall * wide * sums, (tall + wide) * sums
                step = max(work, ENOUGH_ACCUMULATORS, loads) + loads / 8
                if tiles * step < best:
                    best, tile = tiles * step, (tall, wide)
        return best, *tile

    def sums_at_once(self) -> int:
        """How many sums the same loops fold, whose accumulators take registers at the same time."""
        return max(Counter(node.src[1:] for node in self.facts.reductions).values(), default=1)

    def room_for_tile(self, row: UOp | None) -> int:
        """The registers a tile may take."""
        room = self.limits.vector_registers - SPARE_REGISTERS
        if not self.has_short_reduction():
            return room
        read = [n.src[1] for n in self.facts.loads]
        shared = row is not None and any(self.is_window(p, row) for p in read if row in p.ranges)
        return room - SPARE_FOR_WINDOWS - SPARE_FOR_SHARED * shared

    def has_short_reduction(self) -> bool:
        """Whether an innermost reduced loop is short enough to be written out, if by compilers."""
        return any(r.extent <= COMPILERS_WRITE_OUT for r in self.facts.reduced[-1:])

    def cut_columns(self, axis: UOp, width: int, wide: int) -> tuple[Number, Dimension]:
        """Cut a loop into panels of `wide` vectors: the loop over panels, and places in a panel.

        Where vectors do not divide the extent, the last panel as a whole starts early.
        """
        number, size = axis.arg.number, axis.extent
        if wide == 1:
            self.do(Split(number, width), Assign((*number, 1), AxisKind.VECTOR))
            return (*number, 0), (((*number, 1), 1),)
        if size % width and size >= width * wide:
            self.do(Split(number, width * wide), Split((*number, 1), width))
            outer, inner, lane = (*number, 0), (*number, 1, 0), (*number, 1, 1)
        else:
            self.do(Split(number, width), Split((*number, 0), wide))
            outer, inner, lane = (*number, 0, 0), (*number, 0, 1), (*number, 1)
        self.do(Assign(inner, AxisKind.UNROLL), Assign(lane, AxisKind.VECTOR))
        return outer, () if size < width * wide else ((inner, width), (lane, 1))

    def cut_lines(self, number: Number, lines: int) -> Number:
        """Cut the loop beside the columns, whose steps in a tile share the rows."""
        self.do(Split(number, lines), Assign((*number, 1), AxisKind.UNROLL))
        return (*number, 0)

    def cut_pairs(self, row: UOp, tall: int, columns: list[Number], panel: Dimension) -> bool:
        """Cut the rows with steps of the sums in pairs, if columns can be staged as such."""
        before = self.kernel, len(self.steps)
        loop = self.loop_of_pairs()
        if not panel or loop is None:
            return False
        self.do(Pair(loop.arg.number))
        if self.cut_rows(row, tall, columns, panel):
            return True
        self.undo(*before)
        return False

    def loop_of_pairs(self) -> UOp | None:
        """The reduced loop whose neighboring steps one instruction can fold, if there is any."""
        if self.limits.pair_bytes < self.limits.vector_bytes or not self.facts.reductions:
            return None
        if not all(map(is_paired, self.facts.reductions)) or not self.facts.are_side_by_side:
            return None
        loops = self.facts.reduced
        even = [r for r in loops if r.extent % 2 == 0 or len(loops) == 1]
        return max(reversed(even), key=lambda r: r.extent > 2, default=None)

    def cut_rows(self, row: UOp, tall: int, columns: list[Number], panel: Dimension) -> bool:
        """Cut the loop over rows, put it inside of the panels, and stage what pays.

        Whether the columns were staged.
        """
        number, order = row.arg.number, [r.arg.number for r in self.facts.outputs]
        place = min(order.index(n) for n in (number, *columns) if n in order)
        scattered = tall > 1 and self.is_scattered(row)
        panels = math.prod(r.extent for r in self.facts.outputs if r.arg.number in columns)
        narrow = panels >= LEAST_REUSE and self.is_narrow(row, self.facts.outputs[:place])
        copied = scattered or (tall > 1 and narrow)
        between = [] if copied else self.loops_between(columns, row)
        if panel and not copied:
            between = [*self.loops_outside(place, row, between), *between]
        outside = [n for n in order[:place] if n not in between]
        around = [r.extent for r in self.facts.outputs if r.arg.number in (*outside, *columns)]
        block = self.block_of_rows(row, tall, math.prod(around), copied)
        front = columns
        place = min(order.index(n) for n in (order[place], *between))
        if block < row.extent and (pieces := self.pieces_of(between, -(-row.extent // block))):
            self.do(pieces)
            front, between[0] = [(*pieces.axis, 0), *columns], (*pieces.axis, 1)
        elif block < row.extent:
            self.do(Split(number, block))
            front, number, between = [(*number, 0), *columns], (*number, 1), []
        if tall > 1:
            self.do(Split(number, tall), Assign((*number, 1), AxisKind.UNROLL))
        front = [*front, *between, (*number, 0) if tall > 1 else number]
        # The rows of a tile outside of its columns: each number is read for one row at a time.
        self.to_front(place, [*front, (*number, 1)] if tall > 1 else front)
        if copied and block < row.extent:
            self.stage_rows(front[0], front[-1], (*number, 1), scattered)
        around_panel = self.loop_before([*between, front[-1]][0])
        return bool(panel) and self.stage_panel(around_panel, panel)

    def is_scattered(self, row: UOp) -> bool:
        """Whether what the rows of a tile read lies far apart along the innermost reduced loop."""
        inner = self.facts.reduced[-1]
        for access in self.facts.loads:
            move = self.facts.stride(access, inner)
            if row in access.src[1].ranges and (move is None or abs(move) > LONGEST_STRIDE):
                return True
        return False

    def is_narrow(self, row: UOp, around: list[UOp]) -> bool:
        """Whether what rows read is widened before it is multiplied: better once than each time.

        Not where it moves with other loops inside of those around the rows.
        """
        loads = [n for r in self.facts.reductions for n in self.facts.below(r) if n.op is Op.LOAD]
        read = [n for n in loads if row in n.ranges]
        inside = {r for r in self.facts.outputs if r is not row and r not in around}
        return any(n.dtype.itemsize < self.facts.itemsize for n in read) and all(
            inside.isdisjoint(n.ranges) for n in read
        )

    def block_of_rows(self, row: UOp, tall: int, panels: int, copied: bool) -> int:
        """How many rows to run before the next panel.

        All, as a rule; few enough for scratch memory if rows are staged, and fewer where there
        are not enough panels to occupy all threads.
        """
        blocks = 1
        if copied:
            depth = math.prod(r.extent for r in self.facts.reduced) * self.facts.itemsize
            most = max(MOST_SCRATCH // depth // tall, LEAST_REUSE) * tall
            blocks = max(-(-row.extent // most), 2 * self.limits.threads)
        elif self.limits.threads > 1 and self.work >= SERIAL_WORK:
            blocks = max(blocks, -(-self.limits.threads * LEAST_CHUNKS // panels))
        groups = max(-(-row.extent // (blocks * tall)), LEAST_REUSE)
        return min(groups * tall, row.extent)
