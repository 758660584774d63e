"""Sides of a product: its rows, columns and steps, each as one loop where they are several.

Floor 3'. A convolution has the columns (batch, y, x), and sums over (y, x, channels) of a window.
As one loop a side is cut into whole tiles whatever the size of an image is, and the steps of a sum
into one pipeline of fills: the product is that of a matrix whose rows are the windows (im2col), of
which nothing is stored.
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
"""The rows or columns of a group, as far as the choice to join loops is concerned."""
MOST_LEFT: Final = 1.1
"""Work of the tiles along one loop, as a multiple of the product's, from which loops are joined."""

MOST_LEFT_OF_STEPS: Final = 1.25
"""The same for steps of a sum."""


def longest(loops: tuple[UOp, ...]) -> UOp:
    """The loop with most steps, the innermost of several."""
    return max(reversed(loops), key=lambda r: r.extent)


def is_joined(facts: KernelFacts, side: tuple[UOp, ...]) -> bool:
    """True if the loops of a side are better one: tiles of the longest would pass its end by far.

    An operand that lies along one of them is read by vectors along it, which would be cut.
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
    """The loop of a side along which tiles are cut: of all its loops, or the longest."""
    if not is_joined(draft.facts, side):
        return longest(side)
    own = [r.arg.number for r in side]
    others = [r.arg.number for r in draft.facts.launchable if r.arg.number not in own]
    draft.do(Reorder((*others, *own)))
    join(draft, own)
    return counter_of(draft.kernel, own[0])


def join(draft: Draft, numbers: list[Number]) -> Number:
    """Join neighboring loops to one, which has the number of the first."""
    first, *others = numbers
    draft.do(*(Fuse(first, number) for number in others))
    return first


def steps_of(facts: KernelFacts, loop: UOp, depth: int) -> list[UOp]:
    """The reduced loops that are cut as one into steps of about `depth`: a loop and those before.

    They are those that every operand sees as one with it. Where these are short and no operand lies
    along them they are all, whose steps are told apart by quotients.
    """
    read = operand_accesses(facts)
    run, size = [loop], loop.extent

    def goes_on(outer: UOp) -> bool:
        moves = [(facts.stride(n, outer), facts.stride(n, loop)) for n in read]
        return all(b is not None and a == b * size for a, b in moves)

    others = [r for r in facts.reduced if r is not loop]
    if not all(r.is_fixed for r in facts.reduced):
        return run
    while (outer := next((r for r in others if r not in run and goes_on(r)), None)) is not None:
        run.insert(0, outer)
        size *= outer.extent
    is_short = -(-size // depth) * depth > MOST_LEFT_OF_STEPS * size
    if is_short and not any(facts.stride(n, r) == 1 for n in read for r in run):
        return [r for r in others if r not in run] + run
    return run


def join_steps(draft: Draft, loops: list[UOp]) -> Number:
    """Reorder the reduced loops, of which the given are joined and become the innermost."""
    own = [r.arg.number for r in loops]
    others = [r.arg.number for r in draft.facts.reduced if r not in loops]
    if others or len(own) > 1:
        draft.do(Reorder((*others, *own)))
    return join(draft, own)


def join_blocks(draft: Draft, block: Number) -> Number:
    """Join the reduced loops around the blocks of another to one with these, where all are fixed.

    Fills of one loop are begun steps ahead, from one place of a window to the next.
    """
    loops = [r for r in draft.facts.reduced if r.arg.number != (*block[:-1], 1)]
    if not loops or not all(r.is_fixed for r in loops):
        return block
    return join(draft, [r.arg.number for r in loops])
