"""Sides of a product on a grid: the loops over its rows, its columns, and the steps of its sums.

Floor 3'. A reduction of one operand that is invariant along some outputs and another one that is
invariant along others has M and N axes: a matrix product, a batch of them, or a convolution. For a
matrix unit the loops of a side are fused to one where tiles along the longest would exceed it
(im2col): a convolution has the columns (batch, y, x), and sums over (y, x, channels) of a window.
Then a side is cut into whole tiles whatever the size of an image, and the steps of a sum are one
pipeline of fills. That is an implicit GEMM: the rows of its matrix are the windows, and none of
them is stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.predicate import stores_to_buffers
from tinycore.lower.strategies.levels import GroupTile, RegisterTile, threads_in, tiles_of
from tinycore.lower.tile import Fuse, Reorder
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

TILE: Final = 128
"""Rows or columns of a group, for the choice to join loops; the tile is chosen later."""
MOST_LEFT: Final = 1.1
"""Work of whole tiles along one loop, relative to the product's, from which on loops are joined."""
MOST_LEFT_OF_STEPS: Final = 1.25
"""`MOST_LEFT` for the steps of a sum."""


@dataclass(frozen=True)
class Sides:
    """The M and N axes: outputs along which some operand stands still, outermost first."""

    rows: tuple[UOp, ...]
    columns: tuple[UOp, ...]


def sides_of(facts: KernelFacts) -> Sides | None:
    """The M and N axes of the reductions; None unless they have both."""
    if not facts.is_cuttable or facts.has_order or facts.launchable != facts.outputs:
        return None
    return sides_among(facts, [n.src[0] for n in stores_to_buffers(facts.kernel)])


def sides_among(facts: KernelFacts, stored: list[UOp]) -> Sides | None:
    """The same of all loops over outputs, whose results are `stored` at these places."""
    if not facts.reductions or not facts.are_side_by_side:
        return None
    read, loops = operand_accesses(facts), facts.outputs
    inner_first = loops[::-1]
    for column in sorted(inner_first, key=lambda r: [facts.stride(n, r) != 1 for n in stored]):
        moving = frozenset().union(*(n.ranges for n in read if column in n.ranges))
        still = frozenset().union(*(n.ranges for n in read if column not in n.ranges))
        columns = tuple(r for r in loops if r in moving and r not in still)
        rows = tuple(r for r in loops if r in still and r not in moving)
        if rows and columns:
            return Sides(rows, columns)
    return None


def operand_accesses(facts: KernelFacts) -> list[UOp]:
    """Every INDEX at which the innermost step of a reduction reads what a buffer holds."""
    below = UOp.sink(*facts.reductions).toposort(lambda n: n.op is not Op.AFTER)
    reduced = set(facts.reduced)
    return [n for n in below if n.op is Op.INDEX and not reduced.isdisjoint(n.ranges)]


def groups_of(facts: KernelFacts, sides: Sides, tiles: GroupTile) -> int:
    """Number of groups that compute all outputs in tiles of a size."""
    groups, inside = 1, 1
    for loops, along in zip((sides.rows, sides.columns), tiles, strict=True):
        for loop, tile in zip(loops, along, strict=True):
            groups *= -(-loop.extent // math.prod(tile))
            inside *= loop.extent
    return groups * (facts.outputs_launched // inside)


def tiles_of_sides(sides: Sides, wanted: int, registers: RegisterTile, exact: bool) -> GroupTile:
    """The tile of a group of up to `wanted` threads; a short side leaves more to the other side."""
    wide, tall = registers
    across = 1 << (wanted.bit_length() // 2)
    high = tiles_of(sides.rows, wanted // across, tall, exact)
    broad = tiles_of(sides.columns, wanted // threads_in(high), wide, exact)
    return GroupTile(tiles_of(sides.rows, wanted // threads_in(broad), tall, exact), broad)


# --- loops joined to one


def longest(loops: tuple[UOp, ...]) -> UOp:
    """The loop with most steps, the innermost of several."""
    return max(reversed(loops), key=lambda r: r.extent)


def cut_loops(facts: KernelFacts, side: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """The loops of a side along which tiles are cut: all, to be joined, or the longest.

    They are joined if tiles along the longest would exceed it by far; not if an operand is
    contiguous along one of them, since vectors along it would be cut.
    """
    size = longest(side).extent
    read = operand_accesses(facts)
    is_joined = (
        all(r.is_fixed for r in side)
        and -(-size // TILE) * TILE > MOST_LEFT * size
        and not any(facts.stride(n, r) == 1 for n in read for r in side)
    )
    return side if is_joined else (longest(side),)


def length_of(facts: KernelFacts, side: tuple[UOp, ...]) -> int:
    """Steps of a side along which tiles are cut."""
    return iterations_of(cut_loops(facts, side))


def join_side(draft: Draft, side: tuple[UOp, ...]) -> UOp:
    """The loop of a side along which tiles are cut, of several joined ones."""
    own = [r.number for r in cut_loops(draft.facts, side)]
    if len(own) > 1:
        others = [r.number for r in draft.facts.launchable if r.number not in own]
        draft.do(Reorder((*others, *own)))
        join(draft, own)
    return counter_of(draft.kernel, own[0])


def join(draft: Draft, numbers: list[Number]) -> Number:
    """Join neighboring loops to one, which keeps the number of the first."""
    first, *others = numbers
    draft.do(*(Fuse(first, number) for number in others))
    return first


def steps_of(facts: KernelFacts, loop: UOp, depth: int) -> list[UOp]:
    """The reduced loops to join and split into steps of about `depth`, the innermost last.

    These are `loop` and the loops outside it that continue its addresses in every operand. If they
    are too short for whole steps and no operand is contiguous along them, all reduced loops are
    joined; addresses are then quotients of the joined counter.
    """
    read = operand_accesses(facts)
    run, size = [loop], loop.extent

    def continues(outer: UOp) -> bool:
        moves = [(facts.stride(n, outer), facts.stride(n, loop)) for n in read]
        return all(b is not None and a == b * size for a, b in moves)

    others = [r for r in facts.reduced if r is not loop]
    if not all(r.is_fixed for r in facts.reduced):
        return run
    while (outer := next((r for r in others if r not in run and continues(r)), None)) is not None:
        run.insert(0, outer)
        size *= outer.extent
    is_short = -(-size // depth) * depth > MOST_LEFT_OF_STEPS * size
    if is_short and not any(facts.stride(n, r) == 1 for n in read for r in run):
        return [r for r in others if r not in run] + run
    return run


def join_steps(draft: Draft, loops: list[UOp]) -> Number:
    """Move some reduced loops inside all others and join them; returns the joined loop."""
    own = [r.number for r in loops]
    others = [r.number for r in draft.facts.reduced if r not in loops]
    if others or len(own) > 1:
        draft.do(Reorder((*others, *own)))
    return join(draft, own)


def join_blocks(draft: Draft, block: Number) -> Number:
    """Join the loop over blocks of steps with the reduced loops around it, where all are fixed.

    Fills then run ahead from one place of a window to the next, as a pipeline of one loop.
    """
    loops = [r for r in draft.facts.reduced if r.number != (*block[:-1], 1)]
    if not loops or not all(r.is_fixed for r in loops):
        return block
    return join(draft, [r.number for r in loops])
