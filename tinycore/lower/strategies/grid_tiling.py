"""`Tiling`: how a kernel is cut into the levels of a grid, and the one way to apply that.

Floor 3'. Loops are cut into groups, threads and parts of a unit; operands are staged where groups
share them, in as many copies as fit. `vector_product.py`,
`unit_product.py`, `matrix_chain.py` and `transpose.py` say
which loops and which operands; `levels.py` which sizes; `cost.py` chooses.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tinycore.errors import ArgumentError
from tinycore.lower.cost import Cost, Proposal
from tinycore.lower.draft import Draft
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.steps.stage import Dimension, Stage
from tinycore.lower.strategies.grid_stages import fits_group
from tinycore.lower.strategies.levels import LoopTile, block_of
from tinycore.lower.tile import Bind, Reorder, Split, Tail
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

LEAST_FILLED: Final = 4
"""Divisor of `Limits.threads`: tiles that keep fewer threads busy than the quotient are not
proposed. Only for devices that state their units, for which the cost of idle units is known."""

EACH_APART: Final = (AxisKind.UNROLL, 1)
"""Kind and lanes of copies of which no two are adjacent."""


class Cut(NamedTuple):
    """A kernel that was cut into the blocks of groups, and what groups have in shared memory."""

    stages: list[tuple[Stage, int]]
    """Each with the side of a unit's product that it is for (`steps/tensorize.py`)."""
    blocks: int | None = None
    """Steps of a sum in each of which stages are filled; None if they are filled once."""
    sides: tuple[UOp, ...] = ()
    """The loops whose blocks are the rows and columns of a product."""


class Tiling(ABC):
    """A division of a kernel among the levels of a grid, applied level by level."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def cycles(self) -> float:
        """The estimated cost."""

    @abstractmethod
    def cut(self, draft: Draft) -> Cut | None:
        """Cut the loops and launch groups; None if that is impossible."""

    @abstractmethod
    def stage(self, draft: Draft, cut: Cut, copies: int) -> bool:
        """Stage operands in so many copies; False if that is impossible, or does not pay."""

    def copies(self, cut: Cut) -> Iterable[int]:
        """Numbers of copies of each stage, the best first."""
        return (1,)

    def finish(self, draft: Draft, cut: Cut) -> None:  # noqa: B027  most have nothing to do
        """Do what is left for a tiling that fits."""

    def apply(self, draft: Draft) -> bool:
        """Apply the first way that fits a group; False if none does, or if a unit cannot compute
        the kernel."""
        given = draft.copy()
        try:
            if (cut := self.cut(draft)) is not None:
                whole = draft.copy()
                for copies in self.copies(cut):
                    if self.stage(draft, cut, copies) and fits_group(draft):
                        self.finish(draft, cut)
                        return True
                    draft.become(whole.copy())
        except ArgumentError:
            pass
        draft.become(given)
        return False

    def proposal(self) -> Proposal:
        """Proposal of the tiling, with its cost."""
        return Proposal(str(self), None, Cost(self.cycles()), self.apply)


def keeps_busy(limits: Limits, threads: int) -> bool:
    """True if so many threads keep a device busy, or nearly."""
    return threads >= limits.threads // (LEAST_FILLED if limits.units else 1)


# --- cuts of loops into levels, the outermost first


def cut_side(
    draft: Draft, loops: tuple[UOp, ...], tiles: list[LoopTile], kind: AxisKind, lanes: int = 1
) -> list[Dimension]:
    """Split output loops into tiles; the dimension of the tile along each loop.

    `kind` is the kind of the innermost loop's copies, of which `lanes` are adjacent.
    """
    return [
        cut_loop(draft, loop, *tile, *((kind, lanes) if loop is loops[-1] else EACH_APART))
        for loop, tile in zip(loops, tiles, strict=True)
        if math.prod(tile) > 1
    ]


def cut_loop(
    draft: Draft, loop: UOp, threads: int, copies: int, kind: AxisKind, lanes: int = 1
) -> Dimension:
    """Split a loop into groups, threads, and the copies of a thread, `lanes` of them adjacent."""
    number, steps = loop.number, threads * copies
    tail = Tail.AUTO if loop.is_fixed else Tail.GUARD
    if steps < loop.extent or not loop.is_fixed:
        draft.do(Split(number, steps, tail))
        number = (*number, 1)
    own, block = (copies, kind), (threads, AxisKind.BLOCK)
    # Lanes lie side by side. Copies lie apart, so that threads side by side store side by side.
    levels = [block, own] if lanes > 1 else [own, block]
    if 1 < lanes < copies:  # several vectors to a thread
        levels = [(copies // lanes, AxisKind.UNROLL), block, (lanes, kind)]
    return cut_levels(draft, number, [level for level in levels if level[0] > 1])


def cut_levels(draft: Draft, number: Number, levels: Sequence[tuple[int, AxisKind]]) -> Dimension:
    """Split a loop into levels, the outermost first: the steps of each, and their kind."""
    (_, kind), *inside = levels
    if not inside:
        draft.do(Bind(number, kind))
        return ((number, 1),)
    size = math.prod(steps for steps, _ in inside)
    draft.do(Split(number, size), Bind((*number, 0), kind))
    return ((*number, 0), size), *cut_levels(draft, (*number, 1), inside)


def steps_in_tile(draft: Draft, dimensions: list[Dimension]) -> int:
    """Outputs of a tile along one side."""
    loops = {r.number: r for r in draft.facts.loops}
    return math.prod(loops[axis].extent for d in dimensions for axis, _ in d)


def cut_depth(draft: Draft, depth: int, sharers: int = 1) -> tuple[Number | None, list[Dimension]]:
    """Split the reduced loops into blocks of about `depth` steps, divisible among the sharers.

    Returns the loop whose steps are blocks, and the dimensions of a block.
    """
    inner: list[Dimension] = []
    room = depth
    for loop in reversed(draft.facts.reduced):
        number = loop.number
        if loop.extent > 2 * room or not loop.is_fixed:
            if room == 1:
                return number, inner
            by = min(block_of(loop.extent, room, sharers), loop.extent)
            draft.do(Split(number, by, Tail.GUARD))
            number = (*number, 1)
            if by < loop.extent:
                return (*number[:-1], 0), [((number, 1),), *inner]
            # At its longest it is one block: the loop over blocks has one step, and is dropped.
        inner.insert(0, ((number, 1),))
        room = max(room // loop.extent, 1)
    return innermost_group(draft), inner


def share_sums(draft: Draft, inner: list[Dimension], sharers: int) -> bool:
    """Give a loop of a block to threads that share each sum; False if no loop suits."""
    for place, ((axis, _),) in enumerate(inner):
        extent = counter_of(draft.kernel, axis).extent
        if extent % sharers == 0 and extent > sharers:
            draft.cut(axis, sharers, AxisKind.GROUP)
            inner[place] = (((*axis, 0), sharers), ((*axis, 1), 1))
            return True
    return False


def innermost_group(draft: Draft) -> Number | None:
    """The innermost loop over groups, if there is one."""
    groups = [r.number for r in draft.facts.outputs if r.kind is AxisKind.GRID]
    return groups[-1] if groups else None


def cut_tile(
    draft: Draft, loop: UOp, subgroups: int, size: int
) -> tuple[Number | None, Number | None]:
    """Split a side into blocks of groups and parts of subgroups.

    Returns the loop over parts, None for a single subgroup, and the loop in a part, None for a part
    of one row.
    """
    number = loop.number
    if subgroups * size == 1:
        return None, None
    draft.do(Split(number, subgroups * size, Tail.GUARD))
    if subgroups == 1:
        return None, (*number, 1)
    draft.do(Split((*number, 1), size), Bind((*number, 1, 0), AxisKind.BLOCK))
    return (*number, 1, 0), (*number, 1, 1)


def launch_tiles(draft: Draft, *own: Number | None) -> None:
    """Unroll the loops over the tiles of a subgroup, and launch a group for each step of others."""
    draft.do(*(Bind(n, AxisKind.UNROLL) for n in own if n is not None and draft.present(n)))
    draft.launch()


def dimension(draft: Draft, *axes: Number | None) -> Dimension:
    """The dimension of a stage along some loops, the outermost first."""
    parts: list[tuple[Number, int]] = []
    size = 1
    for axis in reversed(axes):
        if axis is not None and draft.present(axis):
            parts.insert(0, (axis, size))
            size *= counter_of(draft.kernel, axis).extent
    return tuple(parts)


# --- the order of groups
#
# A device starts groups in the order of their numbers, one wave at a time. In row-major order a
# wave reads few rows of one operand and all columns of the other; in bands of several rows of
# blocks it reads about as much of both, which is the minimum (threadblock swizzling of CUTLASS).
# The order matters if the operands do not fit in L2 together.


def order_blocks(draft: Draft, row: UOp, column: UOp, depth: int, itemsize: int) -> None:
    """Order the groups of a product of `depth` steps in bands, if that saves reads from memory."""
    operands = (row.extent + column.extent) * depth * itemsize
    limits = draft.limits
    # In any order, operands that fit L2 are read from memory once.
    if not (limits.units and 0 < limits.l2_bytes < operands):
        return
    grid = [r for r in draft.facts.outputs if r.kind is AxisKind.GRID]
    below = [r for r in grid if is_part(r, row.number)]
    beside = [r for r in grid if is_part(r, column.number)]
    if not len(below) == len(beside) == 1:
        return
    (down,), (across,) = below, beside
    if not (down.is_fixed and across.is_fixed):
        return
    tall, wide = row.extent / down.extent, column.extent / across.extent
    band = band_of(down.extent, across.extent, limits.units, tall, wide)
    if band is None:
        return
    number, beside_it = down.number, across.number
    others = [r.number for r in grid if r not in (down, across)]
    draft.do(Split(number, band), Reorder((*others, (*number, 0), beside_it, (*number, 1))))


def band_of(down: int, across: int, wave: int, tall: float, wide: float) -> int | None:
    """The height of a band in blocks; None if row-major order is as good.

    A block has `tall` rows and `wide` columns.
    """

    def read_in(band: int) -> float:
        rows, columns = band * math.ceil(wave / (band * across)), wave / band
        return min(rows, down) * tall + min(columns, across) * wide

    heights = [n for n in range(1, down) if down % n == 0]
    best = min(heights, key=read_in, default=1)
    return best if best > 1 else None


def is_part(loop: UOp, number: Number) -> bool:
    """True if a loop has a number, or was split from the loop that has it."""
    return bool(loop.number[: len(number)] == number)
