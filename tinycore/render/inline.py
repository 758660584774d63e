"""Inlining: values that are written as part of an expression instead of a named variable.

Floor 2. In: a linear kernel. Out: the places in it whose value a C-like renderer may inline. Always
sound, never needed: naming every value would give the same program with more lines.

A kernel may hold one node at several places (a register is read, written and read again). A node
then stands for what it was at the last place before its use, so everything here is about places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinycore.dtype import dtypes
from tinycore.uop.instruction import Effect
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op

TEXTS: Final = frozenset({Op.CONST, Op.INDEX, Op.PIXEL, Op.AFTER})
"""Ops whose text is repeated at every use."""
MOVING: Final = ALU | {Op.EXTRACT, Op.VECTORIZE}
"""Ops that may move to their only use in the same loop."""
BORDERS: Final = frozenset({Op.RANGE, Op.END})
"""Ops that no value moves past."""
WRITERS: Final = frozenset({Op.STORE, Op.BARRIER})
"""Ops that a LOAD does not move past either; nor past an Effect."""


def is_text(u: UOp) -> bool:
    """True if a node is repeated at every use: a constant, an address, another's name."""
    if u.op is Op.VECTORIZE:
        return u.src[0].op is Op.CONST and len(set(u.src)) == 1
    return u.op in TEXTS


def inlinable(uops: Sequence[UOp]) -> frozenset[int]:
    """The places whose value may be written at its only use.

    Goes through the kernel backwards: what uses a value is known before its place is reached.
    """
    found: set[int] = set()
    uses: dict[UOp, tuple[int, int]] = {}  # how often a value is written, and at which place last
    loop = change = len(uops)
    for place in range(len(uops) - 1, -1, -1):
        u = uops[place]
        if u.op in BORDERS:
            loop = change = place
        elif u.op in WRITERS or isinstance(u.arg, Effect):
            change = place
        count, end = uses.pop(u, (0, place))
        if is_text(u) or (count == 1 and end <= (change if u.op is Op.LOAD else loop) and moves(u)):
            found.add(place)
        else:
            count, end = 1, place
        for source in u.src:
            times, last = uses.get(source, (0, 0))
            uses[source] = times + count, max(last, end)
    return frozenset(found)


def moves(u: UOp) -> bool:
    """True if a value may be written elsewhere. A gate makes a LOAD a statement of its own.

    Halves never move: C computes half expressions in float and rounds only on assignment.
    """
    if u.dtype.scalar() is dtypes.float16:
        return False
    return u.op in MOVING or (u.op is Op.LOAD and len(u.src[0].src) == 2)
