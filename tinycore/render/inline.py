"""Inlining: values that are written as part of an expression instead of a named variable.

Floor 2. In: a linear kernel. Out: the places in it whose value a C-like renderer may inline. Always
sound, never needed: naming every value would give the same program with more lines.

A kernel may hold one node at several places (a register is read, written and read again). A node
then stands for what it was at the last place before its use, so everything here is about places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tinycore.dtype import dtypes
from tinycore.render.base import pointer_of
from tinycore.uop.instruction import Effect, reads_memory, states_order
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPOUND, Op

TEXTS: Final = frozenset({Op.CONST, Op.INDEX, Op.PIXEL, Op.AFTER})
"""Ops whose text is repeated at every use."""
WRITERS: Final = frozenset({Op.STORE, Op.BARRIER})
"""Ops that a LOAD does not move past; nor past an Effect on memory."""
UNWRITTEN: Final = COMPOUND | {Op.AFTER, Op.BARRIER, Op.INSTRUCTION}
"""Ops that may have sources whose text is no part of theirs."""


def is_text(u: UOp) -> bool:
    """True if a node is repeated at every use: a constant, an address, another's name."""
    if u.op is Op.VECTORIZE:
        return u.src[0].op is Op.CONST and len(set(u.src)) == 1
    return u.op in TEXTS


Uses = tuple[int, int, int | None]
"""The uses of a value after one of its places, as far as they are known: the number of places where
its text would be written, the last place that its text would end up at, and the loop that all of
them are in, by the place of its END (None where that is not one). A plain tuple: kernels have
thousands of them."""

OUTSIDE: Final = -1
"""The loop of nodes outside of all loops."""
NO_USES: Final[Uses] = (0, 0, None)


def inlinable(uops: Sequence[UOp]) -> frozenset[int]:
    """The places whose value may be written at its only use.

    That use is in the same loop body, and for a LOAD nothing writes to the same memory in between.
    Goes through the kernel backwards: what uses a value is known before its place is reached.
    """
    writes = writes_of(uops)
    found: set[int] = set()
    uses: dict[UOp, Uses] = {}
    loops = [OUTSIDE]
    for place in range(len(uops) - 1, -1, -1):
        u = uops[place]
        op = u.op
        if op is Op.RANGE:
            loops.pop()
        loop = loops[-1]
        if op is Op.END:
            loops.append(place)
        count, last, together = uses.pop(u, NO_USES)
        last = max(last, place)
        written, end = 1, place
        if op in TEXTS or (op is Op.VECTORIZE and is_text(u)):
            written, end = count, last
            found.add(place)
        elif count == 1 and together == loop and may_move(u, place, last, writes):
            end = last
            found.add(place)
        for source in written_sources(u) if op in UNWRITTEN else u.src:
            if (others := uses.get(source)) is None:
                uses[source] = (written, end, loop)
            else:
                times, until, around = others
                same = loop if around == loop else None
                uses[source] = (times + written, until if until > end else end, same)
    return frozenset(found)


def written_sources(u: UOp) -> tuple[UOp, ...]:
    """The sources whose text is part of this node's; the others only state an order."""
    if u.op is Op.AFTER:
        return u.src[:1]
    return () if u.op in COMPOUND or states_order(u) else u.src


def writes_of(uops: Sequence[UOp]) -> dict[UOp | None, list[int]]:
    """The places of the stores to each pointer; under None those of the barriers."""
    writes: dict[UOp | None, list[int]] = defaultdict(list)
    for place, u in enumerate(uops):
        if u.op in WRITERS or (isinstance(u.arg, Effect) and u.arg.places and not reads_memory(u)):
            writes[None if u.op is Op.BARRIER else pointer_of(u.src[0])].append(place)
    return writes


def may_move(u: UOp, start: int, end: int, writes: dict[UOp | None, list[int]]) -> bool:
    """True if a node at place `start` has the same value just before `end`.

    Halves never move: C computes half expressions in float and rounds only on assignment.
    """
    if u.dtype.scalar() is dtypes.float16:
        return False
    if u.op is Op.LOAD:
        if len(u.src[0].src) == 3:  # a gate makes it a statement of its own
            return False
        stores = (writes[pointer_of(u.src[0])], writes[None])
        return all(bisect_right(w, start) == bisect_right(w, end - 1) for w in stores)
    return u.op in ALU or u.op in (Op.EXTRACT, Op.VECTORIZE)
