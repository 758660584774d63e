"""Which values of a kernel may be written where they are used, instead of getting a name.

Floor 2. In: a linear kernel. Out: the places in it whose value a C-like renderer may inline. Always
sound, never needed: naming every value would give the same program with more lines.

A kernel may hold one node at several places (a register is read, written and read again). A node
then stands for what it was at the last place before its use, so everything here is about places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from tinycore.dtype import dtypes
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPOUND, Op


def is_text(u: UOp) -> bool:
    """Whether a node is written anew at every use: a constant, an address, another's name."""
    if u.op is Op.VECTORIZE:
        return u.src[0].op is Op.CONST and len(set(u.src)) == 1
    return u.op in (Op.CONST, Op.INDEX, Op.PIXEL, Op.AFTER)


def inlinable(uops: Sequence[UOp]) -> frozenset[int]:
    """The places whose value may be written at its only use.

    That use is in the same loop body, and for a LOAD nothing writes to the same memory in between.
    """
    users, loops = uses_of(uops)
    writes = writes_of(uops)
    counts = [0] * len(uops)
    """How often the text of each value would be written."""
    emitted = list(range(len(uops)))
    """Where the text of each value ends up."""
    texts = [is_text(u) for u in uops]
    found: set[int] = set()
    for place in range(len(uops) - 1, -1, -1):
        count, last, loop, together = 0, place, loops[place], True
        for p in users[place]:
            count += counts[p] if texts[p] else 1
            last = max(last, emitted[p])
            together = together and loops[p] == loop
        counts[place] = count
        if texts[place] or (count == 1 and together and may_move(uops[place], place, last, writes)):
            emitted[place] = last
            found.add(place)
    return frozenset(found)


def uses_of(uops: Sequence[UOp]) -> tuple[list[list[int]], list[int]]:
    """For each place, the places that use its value, and the place of the loop it is in."""
    users: list[list[int]] = [[] for _ in uops]
    loops: list[int] = []
    latest: dict[UOp, int] = {}
    open_loops = [-1]
    for place, u in enumerate(uops):
        if u.op is Op.END:
            open_loops.pop()
        loops.append(open_loops[-1])
        if u.op is Op.RANGE:
            open_loops.append(place)
        for source in written_sources(u):
            if source in latest:
                users[latest[source]].append(place)
        latest[u] = place
    return users, loops


def written_sources(u: UOp) -> tuple[UOp, ...]:
    """The sources whose text is part of this node's; the others only say what comes first."""
    if u.op is Op.AFTER:
        return u.src[:1]
    return () if u.op is Op.BARRIER or u.op in COMPOUND else u.src


def writes_of(uops: Sequence[UOp]) -> dict[UOp | None, list[int]]:
    """The places of the stores to each pointer; under None those of the barriers."""
    writes: dict[UOp | None, list[int]] = defaultdict(list)
    for place, u in enumerate(uops):
        if u.op is Op.STORE:
            writes[pointer_of(u.src[0])].append(place)
        elif u.op is Op.BARRIER:
            writes[None].append(place)
    return writes


def may_move(u: UOp, start: int, end: int, writes: dict[UOp | None, list[int]]) -> bool:
    """Whether a node at place `start` has the same value just before `end`.

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
