"""Sides of a product: several loops over rows, columns or steps of the sum fused to one (im2col).

Floor 3'. A convolution has the columns (batch, y, x), and sums over (y, x, channels) of a window.
Fused to one loop, a side is cut into whole tiles whatever the size of an image, and the steps of a
sum are one pipeline of fills. That is an implicit GEMM: the rows of its matrix are the windows
(im2col), and none of them is stored.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.strategies.grid_shared import operand_accesses
from tinycore.lower.tile import Fuse, Reorder
from tinycore.uop.node import UOp

TILE: Final = 128
"""Rows or columns of a group, for the choice to join loops; the tile is chosen later."""
MOST_LEFT: Final = 1.1
"""Work of whole tiles along one loop, relative to the product's, from which on loops are joined."""
MOST_LEFT_OF_STEPS: Final = 1.25
"""`MOST_LEFT` for the steps of a sum."""


def longest(loops: tuple[UOp, ...]) -> UOp:
    """The loop with most steps, the innermost of several."""
    return max(reversed(loops), key=lambda r: r.extent)


def is_joined(facts: KernelFacts, side: tuple[UOp, ...]) -> bool:
    """True if the loops of a side should be fused: tiles along the longest would exceed it by far.

    Not if an operand is contiguous along one of them, since vectors along it would be cut.
    """
    size = longest(side).extent
    read = operand_accesses(facts)
    return (
        len(side) > 1
        and all(r.is_fixed for r in side)
        and -(-size // TILE) * TILE > MOST_LEFT * size
        and not any(facts.stride(n, r) == 1 for n in read for r in side)
    )


def length_of(facts: KernelFacts, side: tuple[UOp, ...]) -> int:
    """Steps of a side along which tiles are cut."""
    if not is_joined(facts, side):
        return longest(side).extent
    return math.prod(r.extent for r in side)


def join_side(draft: Draft, side: tuple[UOp, ...]) -> UOp:
    """The loop of a side along which tiles are cut: all of its loops joined, or the longest."""
    if not is_joined(draft.facts, side):
        return longest(side)
    own = [r.arg.number for r in side]
    others = [r.arg.number for r in draft.facts.launchable if r.arg.number not in own]
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
    own = [r.arg.number for r in loops]
    others = [r.arg.number for r in draft.facts.reduced if r not in loops]
    if others or len(own) > 1:
        draft.do(Reorder((*others, *own)))
    return join(draft, own)


def join_blocks(draft: Draft, block: Number) -> Number:
    """Join the loop over blocks of steps with the reduced loops around it, where all are fixed.

    Fills then run ahead from one place of a window to the next, as a pipeline of one loop.
    """
    loops = [r for r in draft.facts.reduced if r.arg.number != (*block[:-1], 1)]
    if not loops or not all(r.is_fixed for r in loops):
        return block
    return join(draft, [r.arg.number for r in loops])
