"""Memory hints: non-temporal stores, and prefetching of the next row.

Floor 3'. An ordinary store first reads the cache line that it changes. If a loop fills whole lines
of an array that exceeds the last-level cache and that the kernel does not read, this read is a
third of the traffic, for nothing; the next kernel would not find the array in the cache either.
Such stores are non-temporal.

Kernels that go through each row several times are bound by bandwidth in the first pass, and by
arithmetic later. The pass that computes most, the last of equals, prefetches the next row. Loads
that move on by pages, where prefetching by hardware ends, prefetch what the loop that moves
farthest reads next: transposed copies of 4096 x 4096 take .8 of the time (Xeon).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from tinycore.dtype import PointerDType
from tinycore.lower.steps.stage import LINE_BYTES
from tinycore.lower.strategies.dot import PAGE_BYTES
from tinycore.render.base import STREAM, Limits, pointer_of
from tinycore.uop.affine import interval, iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.rewrite import rebuilt
from tinycore.uop.sums import terms_of

MOST_STREAMS: Final = 4
"""Lines that a loop may fill in parts at a time: processors gather few of them outside of the
caches."""
LEAST_VECTOR_BYTES: Final = 16
"""The narrowest vector that can be stored past the caches: MOVNTPS of SSE."""


def mark_nontemporal(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with large STOREs marked as non-temporal, within these limits."""
    if not limits.stream_bytes:
        return kernel
    order = kernel.toposort()
    read = {pointer_of(n.src[0]) for n in order if n.op is Op.LOAD}
    said: dict[UOp, Any] = {}
    for end in (n for n in order if n.op is Op.END):
        by_array: dict[UOp, list[UOp]] = {}
        for store in (s for s in stores_in(end.src[0]) if len(s.src[0].src) == 2):
            by_array.setdefault(pointer_of(store.src[0]), []).append(store)
        for array, stores in by_array.items():
            if array not in read and is_large(array, limits) and fills(stores, end.src[-1]):
                said |= dict.fromkeys(stores, STREAM)
    return marked(kernel, said)


def marked(kernel: UOp, said: Mapping[UOp, Any]) -> UOp:
    """The kernel with other `arg`s in some nodes, which may be nested."""
    if not said:
        return kernel
    return rebuilt(kernel, lambda old, new: new.replace(arg=said.get(old, new.arg)))


def stores_in(body: UOp) -> Iterator[UOp]:
    """The STOREs of a loop's body that are in no loop inside of it."""
    if body.op is Op.STORE:
        yield body
    elif body.op is Op.GROUP:
        for part in body.src:
            yield from stores_in(part)


def is_large(array: UOp, limits: Limits) -> bool:
    """True if an array in memory is larger than the last-level cache."""
    dtype = array.dtype
    return (
        array.op is Op.DEFINE_GLOBAL
        and isinstance(dtype, PointerDType)
        and dtype.size * dtype.base.size_bytes >= limits.stream_bytes
    )


def fills(stores: list[UOp], counter: UOp) -> bool:
    """True if the stores to one array fill the distance by which each step of a loop moves on."""
    kinds = {s.src[1].dtype for s in stores}
    places = [terms_of_place(s.src[0].src[1]) for s in stores]
    if len(kinds) > 1 or any(terms != places[0][0] for terms, _ in places):
        return False
    (kind,) = kinds
    if kind.kind == "bool" or kind.size_bytes < LEAST_VECTOR_BYTES:
        return False
    terms, first = places[0][0], min(start for _, start in places)
    move = terms.get(counter, 0)
    if move <= 0 or any(base is not counter and counter in base.ranges for base in terms):
        return False
    streams = {(start - first) // move for _, start in places}
    part = max(LINE_BYTES // kind.size_bytes, 1)
    starts = pairwise(start for _, start in places)
    in_turn = all(b - a == kind.count for i, (a, b) in enumerate(starts, 1) if i % part)
    gathered = len(streams) <= MOST_STREAMS or in_turn
    return gathered and len(places) * kind.count == move * len(streams)


def terms_of_place(place: UOp) -> tuple[dict[UOp, int], int]:
    """The terms of an address and its constant, without the shift of the last vector of a row."""
    terms, constant = terms_of(place)
    found: dict[UOp, int] = {}
    for base, factor in terms.items():
        inner, more = terms_of(base.src[0]) if base.op is Op.MIN else ({base: 1}, 0)
        constant += factor * more
        for term, count in inner.items():
            found[term] = found.get(term, 0) + factor * count
    return found, constant


class Pass(NamedTuple):
    """Vectors of an array that loops inside of another read: a row of it in each step of that."""

    array: UOp
    row: UOp
    """The loop over rows."""
    size: int
    """Elements from row to row."""
    inside: frozenset[UOp]
    """The loops over the places of a row."""


def mark_prefetches(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with LOADs marked by how many bytes ahead of them a device should fetch."""
    if not limits.stream_bytes:
        return kernel
    order = kernel.toposort()
    innermost = {
        load: end.src[-1]
        for end in reversed(order)
        if end.op is Op.END
        for load in end.src[0].every(Op.LOAD)
        if load.dtype.count > 1 and load.dtype.kind != "bool" and len(load.src[0].src) == 2
    }
    passes: dict[Pass, list[UOp]] = defaultdict(list)
    said: dict[UOp, int] = {}
    for load, counter in innermost.items():
        if is_large(pointer_of(load.src[0]), limits) and (found := pass_of(load)) is not None:
            passes[found].append(load)
            size = load.dtype.itemsize
            steps = terms_of(load.src[0].src[1])[0]
            if counter in found.inside and steps[counter] * size >= PAGE_BYTES:
                said[load] = found.size * size
    for rows in dict.fromkeys(p[:3] for p in passes):
        alike = [p for p in passes if p[:3] == rows]
        whole = [p for p in alike if reads_all(p, passes[p])]
        if len(alike) > 1 and whole:
            chosen = max(reversed(whole), key=lambda p: computing(order, p) / len(passes[p]))
            ahead = chosen.size * passes[chosen][0].dtype.itemsize
            if ahead <= limits.cache_bytes // 2:
                said |= dict.fromkeys(passes[chosen], ahead)
    return marked(kernel, said)


def pass_of(load: UOp) -> Pass | None:
    """The pass over rows that a LOAD is in; None if its address is not a sum of counters."""
    terms, _ = terms_of(load.src[0].src[1])
    if not terms or any(base.op is not Op.RANGE for base in terms):
        return None
    row = max(terms, key=lambda counter: terms[counter])
    return Pass(pointer_of(load.src[0]), row, terms[row], frozenset(terms) - {row})


def reads_all(found: Pass, loads: list[UOp]) -> bool:
    """True if the vectors read cover a row from end to end."""
    kind, *others = {load.dtype for load in loads}
    loops = (found.row, *found.inside)
    if others or not all(r.is_fixed for r in loops):
        return False
    read = len(loads) * kind.count * iterations_of(found.inside)
    spans = [interval(load.src[0].src[1], (found.row,)) for load in loads]
    whole = max(stop for _, stop in spans) - min(start for start, _ in spans) + kind.count - 1
    return read == whole == found.size


def computing(order: list[UOp], found: Pass) -> int:
    """Number of ALU operations in the innermost loop of a pass."""
    return sum(n.op in ALU and found.inside <= n.ranges for n in order)
