"""Tiles of outputs for a workgroup, and what they read in the memory that the group shares.

Floor 3'. A reduction some of whose operands stand still along some outputs, and others along other
outputs, has rows and columns, by whatever names: a product of matrices, of many, of windows of an
image. A group computes a block of both. The reduction goes in blocks, too; before each, the threads
load together what all of them read, once. Facts only: which address moves with which loop.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

from tinycore.dtype import PointerDType
from tinycore.errors import ArgumentError
from tinycore.lower.dims import launches
from tinycore.lower.group import threads_of
from tinycore.lower.guard import stores_to_buffers
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.stage import Dimension, Stage, shared_size, staged_values
from tinycore.lower.stage_planner import LEAST_REUSE, StagePlanner
from tinycore.lower.tile import Assign, Cover, Reorder, Split, Step, overwrites_what_it_reads
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

REGISTER_TILES: Final = ((4, 4), (4, 2), (2, 2), (1, 2), (1, 1))
"""Columns and rows of outputs that one thread computes, the best first."""
DEPTHS: Final = (16, 8, 4)
"""Steps of the reduction between two fills, roughly, the best first."""
LOADS_OF_A_COPY: Final = 2
"""What the loads of a step cost, in multiply-adds, shared by the copies of a thread."""
LOADS_OF_A_TILE: Final = 8
"""The same for the fill, shared by a row of the tile."""
UNEVEN: Final = 1.05
"""The price of numbers of threads that are no power of two."""

Tile = tuple[int, int]
"""The threads that share a loop, and the copies in each."""


@dataclass(frozen=True)
class Sides:
    """The outputs along which some operand of a reduction stands still, outermost first."""

    rows: tuple[UOp, ...]
    columns: tuple[UOp, ...]


class SharedPlanner(StagePlanner):
    """Adds tiles of groups to a plan, with their operands staged in shared memory."""

    def launched(self) -> list[UOp]:
        """The outputs that may become threads, outermost first: those that every store is in.

        What is stored outside of such a loop would be stored by every thread.
        """
        roots = self.kernel.src
        if len(roots) != 1 or roots[0].op is not Op.END:
            return []
        stores = stores_to_buffers(self.kernel)
        return [
            r
            for r in roots[0].src[1:]
            if r.arg.kind is AxisKind.LOOP
            and r.src[0].op is Op.CONST
            and all(r in n.ranges for n in stores)
        ]

    def outputs_launched(self) -> int:
        """How many threads there would be with one for each step of these loops."""
        return math.prod(r.extent for r in self.launched())

    def has_order(self) -> bool:
        """Whether something is done after something else; of other threads nobody knows when."""
        return any(n.op is Op.AFTER for n in self.kernel.toposort())

    def share_operands(self, wanted: int, sharers: int = 1) -> bool:
        """Give blocks of outputs to groups of `wanted` threads that share what they read.

        Each sum is shared by `sharers` of the threads, which makes up for few outputs. False, with
        the plan as it was, where no operand is shared or what is would not fit.
        """
        sides = self.sides()
        if sides is None or not self.limits.shared_is_near or not self.limits.shared_bytes:
            return False
        outputs = self.outputs_launched() * sharers
        for registers in REGISTER_TILES:
            few = registers == REGISTER_TILES[-1] and outputs >= wanted and sharers == 1
            if few or outputs >= math.prod(registers) * self.limits.threads:
                for depth in DEPTHS:
                    trial = type(self)(self.kernel, self.limits, list(self.steps))
                    if trial.tile_and_stage(sides, wanted // sharers, registers, depth, sharers):
                        self.kernel, self.steps = trial.kernel, trial.steps
                        return True
        return False

    def sides(self) -> Sides | None:
        """The rows and the columns of what is reduced; None where it has not both."""
        launched = self.launched()
        if not self.facts.is_fixed or self.has_order() or launched != self.facts.outputs:
            return None
        if not self.facts.reductions or not self.facts.are_side_by_side:
            return None
        read = self.operands()
        stored = [n.src[0].src[1] for n in stores_to_buffers(self.kernel)]
        inner_first = launched[::-1]
        for column in sorted(inner_first, key=lambda r: [coefficient(p, r) != 1 for p in stored]):
            moving = frozenset().union(*(n.ranges for n in read if column in n.ranges))
            still = frozenset().union(*(n.ranges for n in read if column not in n.ranges))
            columns = tuple(r for r in launched if r in moving and r not in still)
            rows = tuple(r for r in launched if r in still and r not in moving)
            if rows and columns:
                return Sides(rows, columns)
        return None

    def operands(self) -> list[UOp]:
        """Every INDEX at which the innermost step of a reduction reads what a buffer holds."""
        below = UOp.sink(*self.facts.reductions).toposort(lambda n: n.op is not Op.AFTER)
        reduced = set(self.facts.reduced)
        return [n for n in below if n.op is Op.INDEX and not reduced.isdisjoint(n.ranges)]

    # --- a tile

    def tile_and_stage(
        self, sides: Sides, wanted: int, registers: Tile, depth: int, sharers: int
    ) -> bool:
        """A block of outputs for each group, and stages for what it reads. False if none fits."""
        exact = overwrites_what_it_reads(self.kernel)
        wide, tall = registers
        across = 1 << (wanted.bit_length() // 2)
        lanes = self.lanes() >= wide > 1 and self.suits_vectors(sides.columns[-1])
        kind = AxisKind.VECTOR if lanes else AxisKind.UNROLL
        # A side that is short leaves its threads to the other.
        high = tiles_of(sides.rows, wanted // across, tall, exact)
        broad = tiles_of(sides.columns, wanted // threads_in(high), wide, exact)
        high = tiles_of(sides.rows, wanted // threads_in(broad), tall, exact)
        columns = self.cut_side(sides.columns, broad, kind)
        rows = self.cut_side(sides.rows, high, AxisKind.UNROLL)
        if min(self.steps_of(columns), self.steps_of(rows)) < LEAST_REUSE:
            return False
        self.do(*(Assign(counter.arg.number, AxisKind.GRID) for counter in self.launched()))
        at, inner = self.cut_depth(depth)
        if sharers > 1 and not self.share_sums(inner, sharers):
            return False
        return self.stage_all(at, inner, (*rows, *columns)) and self.fits()

    def suits_vectors(self, counter: UOp) -> bool:
        """Whether what is read and stored after the reduction lies side by side along a loop."""
        reduced = {n for total in self.facts.reductions for n in total.toposort()}
        moves = {self.facts.stride(n, counter) for n in self.facts.accesses if n not in reduced}
        return 1 in moves and moves <= {0, 1}

    def cut_side(
        self, loops: tuple[UOp, ...], tiles: list[Tile], kind: AxisKind
    ) -> list[Dimension]:
        """Cut output loops; `kind` is that of the copies of the innermost.

        For each loop how the steps of the tile are counted.
        """
        return [
            self.cut(loop, *tile, kind if loop is loops[-1] else AxisKind.UNROLL)
            for loop, tile in zip(loops, tiles, strict=True)
            if math.prod(tile) > 1
        ]

    def cut(self, loop: UOp, threads: int, copies: int, kind: AxisKind) -> Dimension:
        """Cut a loop into groups, threads and the copies of a thread."""
        number, steps = loop.arg.number, threads * copies
        groups: list[Step] = [Split(number, steps)] if steps < loop.extent else []
        if groups:
            number = (*number, 1)
        if threads == 1 or copies == 1:
            self.do(*groups, Assign(number, AxisKind.BLOCK if copies == 1 else kind))
            return ((number, 1),)
        # Lanes lie side by side. Copies lie apart, so that threads side by side store side by side.
        inner = copies if kind is AxisKind.VECTOR else threads
        order = (AxisKind.BLOCK, kind) if kind is AxisKind.VECTOR else (kind, AxisKind.BLOCK)
        own = (Assign((*number, part), kind) for part, kind in enumerate(order))
        self.do(*groups, Split(number, inner), *own)
        return ((*number, 0), inner), ((*number, 1), 1)

    def steps_of(self, dimensions: list[Dimension]) -> int:
        """How many outputs of a side a tile has."""
        loops = {r.arg.number: r for r in self.facts.loops}
        return math.prod(loops[axis].extent for d in dimensions for axis, _ in d)

    def cut_depth(self, depth: int) -> tuple[Number | None, list[Dimension]]:
        """Cut what is reduced into blocks of about `depth` steps.

        The loop in which there is one block, and the loops of a block.
        """
        inner: list[Dimension] = []
        room = depth
        for loop in reversed(self.facts.reduced):
            number = loop.arg.number
            if loop.extent > 2 * room:
                if room == 1:
                    return number, inner
                by = block_of(loop.extent, room)
                self.do(Cover(number, by))
                return (*number, 0), [(((*number, 1), 1),), *inner]
            inner.insert(0, ((number, 1),))
            room = max(room // loop.extent, 1)
        return self.innermost_group(), inner

    def share_sums(self, inner: list[Dimension], sharers: int) -> bool:
        """Give a loop of a block to threads that share each sum; False if no loop suits."""
        for place, ((axis, _),) in enumerate(inner):
            extent = counter_of(self.kernel, axis).extent
            if extent % sharers == 0 and extent > sharers:
                self.do(Split(axis, sharers), Assign((*axis, 1), AxisKind.GROUP))
                inner[place] = (((*axis, 0), sharers), ((*axis, 1), 1))
                return True
        return False

    def innermost_group(self) -> Number | None:
        """The innermost loop over groups, if there is one."""
        groups = [r.arg.number for r in self.facts.outputs if r.arg.kind is AxisKind.GRID]
        return groups[-1] if groups else None

    # --- stages

    def stage_all(
        self, at: Number | None, inner: list[Dimension], outer: tuple[Dimension, ...]
    ) -> bool:
        """Stage what moves with some steps of a block and of a tile; whether anything does."""
        first = len(self.arrays())
        for dimensions in self.layouts(inner, outer):
            if staged_values(self.kernel, Stage(at, dimensions)):
                self.stage_windows(at, dimensions)
        for number in range(first, len(self.arrays())):
            self.deal_out(number)
        return len(self.arrays()) > first

    def layouts(
        self, inner: list[Dimension], outer: tuple[Dimension, ...]
    ) -> list[tuple[Dimension, ...]]:
        """The loops that operands move with, each way once, those with most loops first."""
        found = set()
        for place in self.operands():
            moving = {r.arg.number for r in place.ranges}
            parts = [
                tuple(d for d in dimensions if any(axis in moving for axis, _ in d))
                for dimensions in (inner, outer)
            ]
            if all(parts):
                found.add((*parts[0], *parts[1]))
        return sorted(found, key=lambda d: (-len(d), d))

    def stage_windows(self, at: Number | None, dimensions: tuple[Dimension, ...]) -> None:
        """Stage what moves with some loops, and what windows have in common once.

        Where a value is no function of its place in them, each loop is a dimension of its own.
        """
        loops = {r.arg.number: r for r in self.facts.loops}
        axes = {axis for dimension in dimensions for axis, _ in dimension}
        moving = [n.src[1] for n in self.operands() if axes <= {r.arg.number for r in n.ranges}]
        try:
            self.do(Stage(at, with_overlaps(dimensions, moving, loops)))
        except ArgumentError:
            self.do(Stage(at, tuple(((axis, 1),) for d in dimensions for axis, _ in d)))

    def arrays(self) -> list[UOp]:
        """Every piece of shared memory."""
        return [n for n in self.kernel.toposort() if n.op is Op.DEFINE_LOCAL]

    def fits(self) -> bool:
        """Whether a group has as much shared memory, and axes for its threads."""
        kinds = [n.dtype for n in self.arrays() if isinstance(n.dtype, PointerDType)]
        size = sum(map(shared_size, kinds))
        if self.facts.loops_of_kind(AxisKind.GROUP):  # each thread leaves its part, some another
            parts = sum(2 * max(n.dtype.itemsize, 4) for n in self.facts.reductions)
            size += parts * self.threads()
        axes = [r.extent for r in threads_of(self.kernel)]
        return launches(axes, "block", self.limits.block) and size <= self.limits.shared_bytes

    def threads(self) -> int:
        """The threads of a group."""
        return math.prod(r.extent for r in threads_of(self.kernel))

    def deal_out(self, number: int) -> None:
        """Give a fill to the threads of a group, neighbors what lies side by side."""
        loads = [n.src[0] for n in self.content(number).toposort() if n.op is Op.LOAD]
        loops = sorted(self.fill_loops(number), key=lambda r: -pitch(loads, r))
        last, lanes = loops[-1], self.lanes()
        names = [r.arg.number for r in loops]
        steps: list[Step] = [Reorder(tuple(names))]
        moves = {self.facts.stride(n, last) for n in loads if len(n.src) == 2}
        busy = self.threads() * lanes <= math.prod(r.extent for r in loops)
        if lanes > 1 and busy and last.extent % lanes == 0 and 1 in moves <= {0, 1}:
            row = names.pop()
            if last.extent == lanes:
                steps.append(Assign(row, AxisKind.VECTOR))
            else:
                steps += [Split(row, lanes), Assign((*row, 1), AxisKind.VECTOR)]
                names.append((*row, 0))
        self.do(*steps, *(Assign(name, AxisKind.FILL) for name in names))


def with_overlaps(
    dimensions: tuple[Dimension, ...], places: list[UOp], loops: dict[Number, UOp]
) -> tuple[Dimension, ...]:
    """Dimensions, two of them joined where steps of both lead to the same place."""
    for taps, windows in itertools.permutations(dimensions, 2):
        (tap, one), *others = taps
        strides = {stride_of(place, loops[tap], loops[windows[-1][0]]) for place in places}
        stride = strides.pop() if len(strides) == 1 else None
        if not others and one == 1 and stride and stride < loops[tap].extent:
            joined = (*((axis, factor * stride) for axis, factor in windows), (tap, 1))
            rest = tuple(joined if d is windows else d for d in dimensions if d is not taps)
            return with_overlaps(rest, places, loops)
    return dimensions


def stride_of(place: UOp, tap: UOp, window: UOp) -> int | None:
    """How many steps of one loop lead as far as a step of the other; None for no whole number."""
    near, far = coefficient(place, tap), coefficient(place, window)
    return far // near if near and far and far % near == 0 and far // near > 0 else None


def pitch(loads: list[UOp], counter: UOp) -> int:
    """How far apart the steps of a loop read, at least; a whole lot where nobody knows."""
    moves = [coefficient(n.src[1], counter) for n in loads]
    return min((abs(m) for m in moves if m), default=1 << 62)


def tiles_of(loops: tuple[UOp, ...], most: int, copies: int, exact: bool) -> list[Tile]:
    """The threads, up to `most` together, and copies of each loop, the innermost filled first."""
    found: list[Tile] = []
    for loop in reversed(loops):
        threads, own = tile_of(loop.extent, most, copies, exact)
        found.insert(0, (threads, own))
        most //= threads
        copies //= own
    return found


def threads_in(tiles: list[Tile]) -> int:
    """The threads of some tiles together."""
    return math.prod(threads for threads, _ in tiles)


def tile_of(extent: int, most: int, copies: int, exact: bool) -> Tile:
    """The threads, at most `most`, and the copies in each that suit a loop best.

    What counts are all outputs computed, those that are computed twice too, and the loads for each.
    With `exact` none may be computed twice.
    """
    best, tile = math.inf, (1, 1)
    for own in (n for n in (4, 2, 1) if n <= copies):
        for threads in range(1, min(most, extent // own) + 1):
            steps = threads * own
            if exact and extent % steps:
                continue
            computed = -(-extent // steps) * steps
            time = computed * (1 + LOADS_OF_A_COPY / own + LOADS_OF_A_TILE / steps)
            if threads & (threads - 1):
                time *= UNEVEN
            if time < best:
                best, tile = time, (threads, own)
    return tile


def block_of(extent: int, wanted: int) -> int:
    """The steps of a block: near what is wanted, and a divisor of the whole if one is near."""
    near = [n for n in range(max(wanted // 2, 2), 2 * wanted + 1) if extent % n == 0]
    return min(near, key=lambda n: abs(n - wanted), default=wanted)
