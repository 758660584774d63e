"""Reductions that the threads of a workgroup do together, through the memory they share.

Floor 3'. A REDUCE over a GROUP loop becomes: every thread folds the steps that are its own and puts
the result into shared memory; a few threads fold what several have left there, once more into
shared memory; of what is left every thread folds all. Two barriers, however many threads there are.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from tinycore.dtype import PointerDType, dtypes
from tinycore.lower.expand import counters_of, without
from tinycore.lower.guard import gate_stores
from tinycore.lower.join import folded
from tinycore.lower.loops import THREADS
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

MOST_PARTS: Final = 16
"""Partial results that every thread folds at the end."""


def threads_of(kernel: UOp) -> list[UOp]:
    """The loops that become threads of a workgroup, the fastest first."""
    found = [n for n in kernel.toposort() if n.op is Op.RANGE and n.arg.kind in THREADS]
    found.sort(key=lambda n: n.arg.number, reverse=True)
    return sorted(found, key=lambda n: THREADS.index(n.arg.kind))


def group_reductions(kernel: UOp) -> UOp:
    """The kernel without REDUCE over GROUP loops; one thread of each group stores the outputs."""
    members = [n for n in kernel.toposort() if n.op is Op.REDUCE and counters_of(n, AxisKind.GROUP)]
    if not members:
        return kernel
    threads = threads_of(kernel)
    numbers = count(sum(n.op is Op.DEFINE_LOCAL for n in kernel.toposort()))
    done: dict[UOp, UOp] = {}
    for member in members:
        done[member] = shared_fold(member.substitute(done), threads, numbers)
    kernel = kernel.substitute(done)
    for counter in threads:
        if counter.arg.kind is AxisKind.GROUP:
            kernel = gate_stores(kernel, counter.eq(0))
    return kernel


def shared_fold(reduce: UOp, threads: list[UOp], numbers: count[int]) -> UOp:
    """The value of a REDUCE over one GROUP loop, of an extent that is a power of two."""
    (mine,) = counters_of(reduce, AxisKind.GROUP)
    others = [c for c in threads if c is not mine]
    parts = left(own_part(reduce), mine, others, mine.extent, numbers)
    few = min(mine.extent, MOST_PARTS)
    if few < mine.extent:
        several = parts.fold(reduce.arg, mine % few, few, mine.extent // few)
        parts = left(several, mine, others, few, numbers)
    return parts.fold(reduce.arg, UOp.index(0), 1, few)


class Parts:
    """Partial results in shared memory: `size` of them for each thread of the `others`."""

    def __init__(self, memory: UOp, start: UOp, number: int) -> None:
        self.memory = memory
        self.start = start
        self.number = number

    def fold(self, op: Op, first: UOp, step: int, times: int) -> UOp:
        """So many of them joined by `op`, a step apart."""
        counter = UOp.range(times, (self.number, Part.FOLD), AxisKind.REDUCE)
        place = self.start + first + counter * step
        index = UOp(Op.INDEX, self.memory.dtype, (self.memory, place))
        assert isinstance(self.memory.dtype, PointerDType)
        value = UOp(Op.LOAD, self.memory.dtype.base, (index,))
        return UOp(Op.REDUCE, value.dtype, (value, counter), op)


def left(value: UOp, mine: UOp, others: list[UOp], size: int, numbers: count[int]) -> Parts:
    """Shared memory, after the first `size` threads along `mine` have left their values there."""
    start, number = UOp.index(0), next(numbers)
    total = size
    for counter in others:
        start, total = start + counter * total, total * counter.extent
    memory = UOp(Op.DEFINE_LOCAL, value.dtype.ptr(total, "local"), (), number)
    gate = (mine < size,) if size < mine.extent else ()
    index = UOp(Op.INDEX, memory.dtype, (memory, start + mine, *gate))
    change = UOp(Op.STORE, dtypes.void, (index, value))
    barrier = UOp(Op.BARRIER, dtypes.void, (change,))
    return Parts(UOp(Op.AFTER, memory.dtype, (memory, barrier)), start, number)


def own_part(reduce: UOp) -> UOp:
    """What one thread folds by itself."""
    rest = without(reduce, counters_of(reduce, AxisKind.GROUP))
    if any(s.op is Op.RANGE for s in rest):
        return reduce.with_src((reduce.src[0], *rest))
    return folded([reduce.src[0], *rest], reduce.arg)
