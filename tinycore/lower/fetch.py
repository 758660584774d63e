"""Mark the loads that fetch ahead: one pass over a row of a large array fetches the next row.

Floor 3'. A kernel that goes through each row several times waits for memory in the first pass, and
memory for it in the others. The one that computes most, or the one that stores where none does
much, asks for the same place of the next row at each step, which then is in a near cache when it is
wanted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final, NamedTuple

from tinycore.lower.stream import is_large, marked
from tinycore.render.base import Limits, pointer_of
from tinycore.uop.affine import interval
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.sums import terms_of

MUCH: Final = 8
"""Operations on a vector that take longer than reading it from a near cache."""


class Pass(NamedTuple):
    """Vectors of an array that loops inside of another read: a row of it in each step of that."""

    array: UOp
    row: UOp
    """The loop over rows."""
    size: int
    """Elements from row to row."""
    inside: frozenset[UOp]
    """The loops over the places of a row."""


def mark_fetches(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with LOADs marked by how many bytes ahead of them a device should fetch."""
    if not limits.stream_bytes:
        return kernel
    order = kernel.toposort()
    passes: dict[Pass, list[UOp]] = defaultdict(list)
    for load in (n for n in order if n.op is Op.LOAD and len(n.src[0].src) == 2):
        if is_large(pointer_of(load.src[0]), limits) and (found := pass_of(load)) is not None:
            passes[found].append(load)
    said: dict[UOp, int] = {}
    for rows in dict.fromkeys(p[:3] for p in passes):
        alike = [p for p in passes if p[:3] == rows]
        whole = [p for p in alike if reads_all(p, passes[p])]
        if len(alike) > 1 and whole:
            work = {p: computing(order, p) / len(passes[p]) for p in whole}
            most = max(whole, key=lambda p: work[p])
            wanted = [most] if work[most] >= MUCH else [p for p in whole if stores(order, p)]
            chosen = (wanted or [most])[0]
            ahead = chosen.size * passes[chosen][0].dtype.itemsize
            if ahead <= limits.cache_bytes // 2:
                said |= dict.fromkeys(passes[chosen], ahead)
    return marked(kernel, said)


def pass_of(load: UOp) -> Pass | None:
    """The pass over rows that a LOAD is in; None where its place is not a sum over counters."""
    terms, _ = terms_of(load.src[0].src[1])
    if not terms or any(base.op is not Op.RANGE for base in terms):
        return None
    row = max(terms, key=lambda counter: terms[counter])
    return Pass(pointer_of(load.src[0]), row, terms[row], frozenset(terms) - {row})


def reads_all(found: Pass, loads: list[UOp]) -> bool:
    """Whether vectors are read from as many places of a row as it has, and from end to end."""
    kind, *others = {load.dtype for load in loads}
    loops = (found.row, *found.inside)
    if others or kind.count < 2 or kind.kind == "bool" or not all(r.is_fixed for r in loops):
        return False
    read = len(loads) * kind.count * math.prod(r.extent for r in found.inside)
    spans = [interval(load.src[0].src[1], (found.row,)) for load in loads]
    whole = max(stop for _, stop in spans) - min(start for start, _ in spans) + kind.count - 1
    return read == whole == found.size


def stores(order: list[UOp], found: Pass) -> bool:
    """Whether results are stored in the innermost loop of a pass."""
    results = (n for n in order if n.op is Op.STORE)
    outside = (n.src[0] for n in results if pointer_of(n.src[0]).op is Op.DEFINE_GLOBAL)
    return any(found.inside <= place.ranges for place in outside)


def computing(order: list[UOp], found: Pass) -> int:
    """How many operations on values are done in the innermost loop of a pass."""
    return sum(n.op in ALU and found.inside <= n.ranges for n in order)
