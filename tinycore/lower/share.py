"""Fills of shared memory: each thread of a workgroup does some steps, and all meet at barriers.

Floor 3'. A stage in a kernel of threads is one for a whole group, which fills it together where it
has FILL loops. All wait behind the fill, before they read; and where it is filled anew in each step
of a loop, once more before the fill, until the last step has been read. Stages that are filled at
one place share their barriers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

from tinycore.dtype import dtypes
from tinycore.lower.dims import taken_apart
from tinycore.lower.expand import counters_of, without
from tinycore.lower.group import threads_of
from tinycore.lower.loops import THREADS, fills_of, numbered
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

LAUNCHED: Final = (*THREADS, AxisKind.GRID)
MOST_WRITTEN_OUT: Final = 8
"""Steps of a thread up to which they are written out."""

Place = tuple[frozenset[UOp], int]
"""The loops around a fill, and how many fills it waits for one after another."""


def share_fills(kernel: UOp) -> UOp:
    """The kernel with its FILL loops dealt out to the threads of a group, and barriers."""
    threads = threads_of(kernel)
    fills = [n for n in fills_of(kernel) if threads or is_dealt(n)]
    places: dict[Place, list[UOp]] = defaultdict(list)
    for fill in fills:
        around = frozenset(r for r in fill.ranges if r.arg.kind not in LAUNCHED)
        places[around, depth_of(fill)].append(fill)
    done: dict[UOp, UOp] = {}
    for (around, _), members in sorted(places.items(), key=lambda item: item[0][1]):
        done |= filled_together(members, around, threads, done)
    return kernel.substitute(done)


def is_dealt(fill: UOp) -> bool:
    """Whether a fill has FILL loops."""
    return bool(counters_of(fill.src[1], AxisKind.FILL))


def depth_of(fill: UOp) -> int:
    """How many fills there are one below the other, this one among them."""
    below = (depth_of(n) for n in fills_of(fill) if n is not fill)
    return 1 + max(below, default=0)


def filled_together(
    fills: list[UOp], around: frozenset[UOp], threads: list[UOp], done: dict[UOp, UOp]
) -> dict[UOp, UOp]:
    """What becomes of fills at one place: each behind a barrier that is behind all of them."""
    loops = tuple(sorted(around, key=lambda r: r.arg.number))
    start = (UOp(Op.BARRIER, dtypes.void, loops),) if loops else ()
    ends = []
    for fill in fills:
        memory, end = fill.src
        index, value = end.src[0].src
        if start:
            memory = UOp(Op.AFTER, memory.dtype, (memory, *start))
        store = UOp(Op.STORE, dtypes.void, (index.with_src((memory, index.src[1])), value))
        ends.append(dealt_out(end.with_src((store.substitute(done), *end.src[1:])), threads))
    barrier = UOp(Op.BARRIER, dtypes.void, tuple(ends))
    return {fill: fill.with_src((fill.src[0], barrier)) for fill in fills}


def dealt_out(end: UOp, threads: list[UOp]) -> UOp:
    """A fill with its FILL loops as one row of steps, of which thread t does t, t + threads, ..."""
    counters = counters_of(end, AxisKind.FILL)
    if not counters:
        return end
    total, sharers = (math.prod(c.extent for c in loops) for loops in (counters, threads))
    thread, pitch = UOp.index(0), 1
    for counter in threads:
        thread, pitch = thread + counter * pitch, pitch * counter.extent
    own = steps_of(counters[0], -(-total // sharers))
    position = own * sharers + thread
    store = end.src[0]
    if total % sharers:
        store = gated(store, position < total)
        position = position.minimum(total - 1)
    store = store.substitute(taken_apart(position, list(reversed(counters))))
    loops = (*([own] if own.op is Op.RANGE else []), *without(end, counters))
    return end.with_src((store, *loops)) if loops else store


def steps_of(counter: UOp, steps: int) -> UOp:
    """The loop over the steps of one thread; 0 where that is one."""
    if steps == 1:
        return UOp.index(0)
    kind = AxisKind.UNROLL if steps <= MOST_WRITTEN_OUT else AxisKind.LOOP
    dealt = numbered(counter, Part.SHARE)
    return UOp.range(steps, dealt.arg.number, kind)


def gated(store: UOp, gate: UOp) -> UOp:
    """A STORE that is done where a gate holds."""
    index, value = store.src
    return store.with_src((index.with_src((*index.src[:2], gate)), value))
