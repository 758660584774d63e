"""Workgroup cooperation in shared memory: reductions (split-K within a group) and loads.

Floor 3'. A REDUCE over a GROUP loop is a tree of two levels with two barriers, whatever the number
of threads: each thread reduces its own steps and stores the partial result in shared memory; a few
threads reduce several of those each, again into shared memory; then every thread reduces the rest.

A stage in a kernel with threads belongs to the whole group, whose threads share its FILL loops
(cooperative loads). A barrier follows the fill; if each step of a loop fills the stage again,
another one precedes the fill, so that all threads have read the previous step. Stages that are
filled at the same place share their barriers.

A stage with several copies is multi-buffered, as in the multi-stage pipelines of CUTLASS: each step
of its loop fills the copy that the previous step has read. There is one barrier per step, and the
latency of a fill overlaps the reads of the other copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

from tinycore.dtype import DType, dtypes
from tinycore.lower.dims import taken_apart
from tinycore.lower.expand import counters_of, without
from tinycore.lower.lanes import folded_lanes
from tinycore.lower.loops import (
    THREADS,
    arrays_of,
    closer_of,
    fills_of,
    numbered,
    stores_of,
    threads_of,
)
from tinycore.lower.merge_reductions import fold_balanced
from tinycore.lower.predicate import gate_loads, stores_to_buffers, with_gate
from tinycore.lower.steps.stage import WITHIN
from tinycore.render.base import EARLY, LATE, Limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import Ahead, AxisKind, Op, Part
from tinycore.uop.rewrite import rebuilt, rewrite
from tinycore.uop.symbolic import simplify

MOST_PARTS: Final = 16
"""Most partial results that every thread reduces in the last level."""


def group_reductions(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with REDUCEs over GROUP loops lowered to shared memory.

    Where all threads of a group have a result, one thread of it stores the output.
    """
    members = [n for n in kernel.every(Op.REDUCE) if counters_of(n, AxisKind.GROUP)]
    if not members:
        return kernel
    threads = threads_of(kernel)
    numbers = count(len(arrays_of(kernel)))
    done: dict[UOp, UOp] = {}
    for member in members:
        done[member] = shared_fold(member.substitute(done), threads, numbers, limits)
    kernel = kernel.substitute(done)
    for counter in threads:
        if counter.kind is AxisKind.GROUP:
            kernel = stored_once(kernel, counter)
    return kernel


def stored_once(kernel: UOp, counter: UOp) -> UOp:
    """The kernel in which the first thread does the stores that do not depend on the thread."""
    common = {n for n in stores_to_buffers(kernel) if counter not in n.src[0].ranges}
    return rebuilt(kernel, lambda old, new: gated(new, counter.eq(0)) if old in common else new)


def shared_fold(reduce: UOp, threads: list[UOp], numbers: count[int], limits: Limits) -> UOp:
    """The value of a REDUCE over one GROUP loop, of an extent that is a power of two."""
    (mine,) = counters_of(reduce, AxisKind.GROUP)
    others = [c for c in threads if c is not mine]
    own = own_part(reduce)
    is_whole = iterations_of(threads) % limits.subgroup == 0
    # Neighbors are lanes; each leaves a vector whole where more lanes than those of one fold it.
    is_one = own.dtype.count == 1 or mine.extent <= limits.subgroup
    is_shuffled = is_one and own.dtype.scalar() in limits.shuffles
    if is_whole and is_shuffled and mine is threads[0]:
        return folded_by_lanes(own, reduce.arg, mine, others, numbers, limits.subgroup)
    parts = left(own, mine, others, mine.extent, numbers)
    few = min(mine.extent, MOST_PARTS)
    if few < mine.extent:
        several = parts.fold(reduce.arg, mine % few, few, mine.extent // few)
        parts = left(several, mine, others, few, numbers)
    return parts.fold(reduce.arg, UOp.index(0), 1, few)


def folded_by_lanes(
    own: UOp, op: Op, mine: UOp, others: list[UOp], numbers: count[int], subgroup: int
) -> UOp:
    """Partial results reduced by SHUFFLE within a subgroup, then across subgroups in shared memory.

    A butterfly: in each step lanes whose numbers differ in one bit exchange values, so that all
    lanes end with the result.
    """
    lanes = min(mine.extent, subgroup)
    own = folded_lanes(own, op, lanes - 1)
    if lanes == mine.extent:
        return own
    subgroups = mine.extent // lanes
    parts = left(own, mine // lanes, others, subgroups, numbers, (mine % lanes).eq(0))
    return parts.fold(op, UOp.index(0), 1, subgroups)


class Parts(NamedTuple):
    """Partial results in shared memory: `size` of them for each thread of the `others`."""

    memory: UOp
    start: UOp
    number: int
    kind: DType
    """Type of a result, which may be a vector."""

    def fold(self, op: Op, first: UOp, step: int, times: int) -> UOp:
        """The reduction of every `step`-th partial result from `first` on, `times` of them."""
        counter = UOp.range(times, (self.number, Part.FOLD), AxisKind.REDUCE)
        place = (self.start + first + counter * step) * self.kind.count
        index = self.memory.at(place)
        value = index.load(self.kind)
        return UOp(Op.REDUCE, value.dtype, (value, counter), op)


def left(
    value: UOp,
    mine: UOp,
    others: list[UOp],
    size: int,
    numbers: count[int],
    speaks: UOp | None = None,
) -> Parts:
    """Partial results in shared memory, behind a barrier: the first `size` threads store theirs.

    Where several threads share a slot, those store for which `speaks` holds.
    """
    start, number = UOp.index(0), next(numbers)
    total = size
    for counter in others:
        start, total = start + counter * total, total * counter.extent
    lanes = value.dtype.count
    memory = UOp(Op.DEFINE_LOCAL, value.dtype.scalar().ptr(total * lanes, "local"), (), number)
    gate = (mine < size,) if size <= int(mine.vmax) else ()
    gate = gate if speaks is None else (speaks,)
    index = memory.at((start + mine) * lanes, *gate)
    change = index.store(value)
    barrier = UOp(Op.BARRIER, dtypes.void, (change,))
    return Parts(memory.after(barrier), start, number, value.dtype)


def own_part(reduce: UOp) -> UOp:
    """The reduction of one thread, over the loops that are not divided among the group."""
    rest = without(reduce, counters_of(reduce, AxisKind.GROUP))
    if any(s.op is Op.RANGE for s in rest):
        return reduce.with_src((reduce.src[0], *rest))
    return fold_balanced([reduce.src[0], *rest], reduce.arg)


LAUNCHED_KINDS: Final = (*THREADS, AxisKind.GRID)
MOST_WRITTEN_OUT: Final = 8
"""Most steps of a thread that are unrolled."""
MOST_COPIES_WRITTEN_OUT: Final = 16
"""The same for fills of later steps, whose values no register holds on the way."""

NOT_AROUND: Final = (*LAUNCHED_KINDS, AxisKind.FRAGMENT, *WITHIN)
"""Kinds of loops that no generated code loops over."""


class Turn(NamedTuple):
    """Rotation of the copies of a stage among the steps of a loop."""

    copies: int
    loop: UOp
    outside: tuple[UOp, ...]
    """The loops around it."""


class Filling(NamedTuple):
    """Fills ahead of the steps of a loop which read them, for `Limits.fills`.

    Each fill is an AFTER of its array and of an END of a STORE. What takes its place comes after
    the array and what has filled it for the present step.
    """

    kernel: UOp
    fills: list[UOp]
    copies: int
    """Number of arrays of each, which the steps use in turn."""
    loop: UOp
    outside: tuple[UOp, ...]
    """The loops around it."""
    threads: list[UOp]
    """The loops over the threads of a group."""
    behind: int
    """Steps whose products may be unfinished: fills begin that many steps later."""
    limits: Limits
    numbers: Iterator[int]
    """Numbers of further shared arrays."""


Place = tuple[frozenset[UOp], int, Turn | None]
"""The loops around a fill, its nesting depth among fills, and its rotation."""


def share_fills(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with FILL loops distributed over the threads of a group, and with barriers."""
    kernel, threads = merge_fills(kernel), threads_of(kernel)
    fills = [n for n in fills_of(kernel) if threads or is_dealt(n)]
    places: dict[Place, list[UOp]] = defaultdict(list)
    for fill in fills:
        around = frozenset(r for r in fill.ranges if r.kind not in LAUNCHED_KINDS)
        places[around, fill_depth(fill), turn_of(fill, kernel)].append(fill)
    done: dict[UOp, UOp] = {}
    numbers = count(len(arrays_of(kernel)))
    for (around, _, turn), members in sorted(places.items(), key=lambda item: item[0][1]):
        if turn is None:
            done |= filled_together(members, around, threads, done)
        elif found := filled_by_device(kernel, members, turn, limits, numbers):
            done |= found
        else:
            done |= filled_ahead(members, turn, threads, steps_behind(kernel, turn))
    return kernel.substitute(done)


def filled_by_device(
    kernel: UOp, fills: list[UOp], turn: Turn, limits: Limits, numbers: Iterator[int]
) -> dict[UOp, UOp]:
    """Replacements of fills that a device has (`Limits.fills`); {} where threads fill."""
    if limits.fills is None:
        return {}
    behind = steps_behind(kernel, turn)
    filling = Filling(kernel, fills, *turn, threads_of(kernel), behind, limits, numbers)
    found: dict[UOp, UOp] = limits.fills(filling)
    return found


def merge_fills(kernel: UOp) -> UOp:
    """The kernel with one array for fills that are the same but for the names of their loops.

    An operand of two products is such: keys, and in the gradient what meets weights and slopes.
    """
    first: dict[UOp, UOp] = {}
    fills = [fill for fill in fills_of(kernel) if len(fill.src) == 2]  # accumulators have loops too
    kept = {fill: first.setdefault(canonical_fill(fill), fill) for fill in fills}
    if len(first) == len(fills):
        return kernel
    kernel = kernel.substitute({fill: other for fill, other in kept.items() if fill is not other})
    arrays = sorted(arrays_of(kernel), key=lambda array: int(array.arg))
    return kernel.substitute({a: a.replace(arg=number) for number, a in enumerate(arrays)})


def canonical_fill(fill: UOp) -> UOp:
    """A fill with names of its array and loops that depend on their places alone."""
    array, end = fill.src
    names = {
        loop: loop.replace(arg=Axis((place, Part.FILL), loop.kind))
        for place, loop in enumerate(end.src[1:])
    }
    renamed = end.substitute({**names, array: array.replace(arg=-1)})
    return rewrite(renamed, simplify, name="simplify a fill")


def steps_behind(kernel: UOp, turn: Turn) -> int:
    """Steps whose asynchronous products may be unfinished when the fill of a later step begins.

    0 unless the loop contains only products of a unit that reads shared memory asynchronously, and
    a copy is left to be filled ahead.
    """
    values = [closer.src[0] for closer in closer_of(kernel, turn.loop)]
    if not all(v.op is Op.MATRIX and v.arg.is_described for v in values):
        return 0
    behind = min((v.arg.load.behind for v in values), default=0)
    return behind if turn.copies - 1 - behind > 0 else 0


def turn_of(fill: UOp, kernel: UOp) -> Turn | None:
    """Rotation of the copies of a fill; None if it has one copy or cannot be filled ahead.

    It can if one reduction loop selects the copy, and if the content depends on no other fill.
    """
    (store,) = stores_of(fill.src[1])
    index, value = store.src
    # What is copied ahead cannot wait for another fill of the present step.
    if not isinstance(store.arg, Ahead) or any(n.op is Op.AFTER for n in value.toposort()):
        return None
    own = fill.src[1].src[1:]
    loops = [r for r in index.src[1].ranges if r not in own and r.kind not in LAUNCHED_KINDS]
    if len(loops) != 1 or loops[0].kind is not AxisKind.REDUCE:
        return None
    closers = closer_of(kernel, loops[0])
    outside = {r for n in closers for r in (*n.ranges, *n.src[1 : n.src.index(loops[0])])}
    around = [r for r in outside if r.op is Op.RANGE and r.kind not in NOT_AROUND]
    if any(n.op is not Op.REDUCE for n in closers) or not {*around, *loops} >= {
        r for r in fill.ranges if r.kind not in NOT_AROUND
    }:
        return None
    return Turn(store.arg.copies, loops[0], tuple(sorted(around, key=lambda r: r.number)))


def is_dealt(fill: UOp) -> bool:
    """True if a fill has FILL loops."""
    return bool(counters_of(fill.src[1], AxisKind.FILL))


def fill_depth(fill: UOp) -> int:
    """Nesting depth of a fill; 1 if it reads no other fill."""
    below = (fill_depth(n) for n in fills_of(fill) if n is not fill)
    return 1 + max(below, default=0)


def filled_together(
    fills: list[UOp], around: frozenset[UOp], threads: list[UOp], done: dict[UOp, UOp]
) -> dict[UOp, UOp]:
    """Fills at the same place, with one barrier behind all of their stores."""
    loops = tuple(sorted(around, key=lambda r: r.number))
    start = (UOp(Op.BARRIER, dtypes.void, loops),) if loops else ()
    ends = []
    for fill in fills:
        memory, end = fill.src
        index, value = end.src[0].src
        if start:
            memory = memory.after(*start)
        store = index.with_src((memory, index.src[1])).store(value)
        ends.append(dealt_out(end.with_src((store.substitute(done), *end.src[1:])), threads))
    barrier = UOp(Op.BARRIER, dtypes.void, tuple(ends))
    return {fill: fill.with_src((fill.src[0], barrier)) for fill in fills}


def filled_ahead(
    fills: list[UOp], turn: Turn, threads: list[UOp], behind: int = 0
) -> dict[UOp, UOp]:
    """Fills into several buffers: each step begins the fill for `copies` - 1 steps ahead.

    The prologue begins the first fills before the loop. Each step waits for its own fill, then at a
    barrier: behind it all threads have read the copy of the previous step, which is filled next.
    With asynchronous products of `behind` steps, fills begin that many steps later.
    """
    copies, loop, outside = turn
    ahead = copies - 1 - behind
    start = (UOp(Op.BARRIER, dtypes.void, outside),) if outside else ()
    first = [begun(fills, loop, UOp.index(step), start, threads, EARLY) for step in range(ahead)]
    barrier = UOp(Op.BARRIER, dtypes.void, (loop, *first), behind or None)
    next_fill = begun(fills, loop, loop + ahead, (barrier,), threads, LATE)
    return {fill: fill.with_src((fill.src[0], barrier, next_fill)) for fill in fills}


def begun(
    fills: list[UOp],
    loop: UOp,
    step: UOp,
    after: tuple[UOp, ...],
    threads: list[UOp],
    when: str,
) -> UOp:
    """The fills for a step of a loop, if that step exists, as one GROUP, marked with `when`."""
    done = []
    for fill in fills:
        end = fill.src[1]
        own = {r: numbered(r, Part.AHEAD, step.arg) for r in end.src[1:] if step.op is Op.CONST}
        moved = end.substitute({loop: step, **own})
        (store,) = stores_of(moved)
        index, value = store.src
        memory = fill.src[0].after(*after)
        place = index.with_src((memory, *index.src[1:]))
        exists = step < loop.src[0]
        change = place.store(gate_loads(value, exists), LATE if when == LATE else None)
        filled = moved.with_src((gated(change, exists), *moved.src[1:]))
        done.append(dealt_out(filled, threads, MOST_COPIES_WRITTEN_OUT))
    return UOp(Op.GROUP, dtypes.void, tuple(done), when)


def dealt_out(end: UOp, threads: list[UOp], written_out: int = MOST_WRITTEN_OUT) -> UOp:
    """A fill with its FILL loops flattened; thread t does steps t, t + threads, ... (cyclic)."""
    counters = counters_of(end, AxisKind.FILL)
    if not counters:  # the fill of a custom kernel, which has no threads: the first thread does it
        store = end.src[0]
        for counter in (c for c in threads if c not in store.ranges):
            store = gated(store, counter.eq(0))
        return end.with_src((store, *end.src[1:]))
    total, sharers = (iterations_of(loops) for loops in (counters, threads))
    thread, pitch = UOp.index(0), 1
    for counter in threads:
        thread, pitch = thread + counter * pitch, pitch * counter.extent
    own = thread_steps(counters[0], -(-total // sharers), written_out)
    position = own * sharers + thread
    store = end.src[0]
    if total % sharers:
        store = gated(store, position < total)
        position = position.minimum(total - 1)
    store = store.substitute(taken_apart(position, list(reversed(counters))))
    loops = (*([own] if own.op is Op.RANGE else []), *without(end, counters))
    return end.with_src((store, *loops)) if loops else store


def thread_steps(counter: UOp, steps: int, written_out: int) -> UOp:
    """The loop over the steps of one thread; 0 where that is one."""
    if steps == 1:
        return UOp.index(0)
    kind = AxisKind.UNROLL if steps <= written_out else AxisKind.LOOP
    dealt = numbered(counter, Part.SHARE)
    return UOp.range(steps, dealt.number, kind)


def gated(store: UOp, gate: UOp) -> UOp:
    """A STORE with another gate, in conjunction with its own."""
    index, value = store.src
    return store.with_src((with_gate(index, gate), value))
