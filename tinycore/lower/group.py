"""Reductions that the threads of a workgroup do together, through the memory they share.

Floor 3'. A REDUCE over a GROUP loop becomes: every thread folds the steps that are its own, puts
the result into shared memory, and half of the threads at a time fold in what the other half has.
Between two halvings is a barrier. The first element then is the whole, which every thread reads.
"""

from __future__ import annotations

import math

from tinycore.dtype import dtypes
from tinycore.lower.expand import counters_of, folded, without
from tinycore.lower.guard import gate_stores
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, neutral_element

THREADS = (AxisKind.GROUP, AxisKind.BLOCK)
"""The loops that become threads of a workgroup, the fastest first."""


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
    done: dict[UOp, UOp] = {}
    for number, member in enumerate(members):
        done[member] = shared_fold(member.substitute(done), threads, number)
    kernel = kernel.substitute(done)
    for counter in threads:
        if counter.arg.kind is AxisKind.GROUP:
            kernel = gate_stores(kernel, counter.eq(0))
    return kernel


def shared_fold(reduce: UOp, threads: list[UOp], number: int) -> UOp:
    """The value of a REDUCE over one GROUP loop, of an extent that is a power of two."""
    (mine,) = counters_of(reduce, AxisKind.GROUP)
    here, stride = UOp.index(0), 1
    for counter in threads:
        here, stride = here + counter * stride, stride * counter.extent
    distance = math.prod(c.extent for c in threads[: threads.index(mine)])
    memory = UOp(Op.DEFINE_LOCAL, reduce.dtype.ptr(stride, "local"), (), number)
    neutral = reduce.const_like(neutral_element(reduce.arg, reduce.dtype))
    ready = barrier(memory, (here,), own_part(reduce))
    half = mine.extent // 2
    while half:
        now = UOp(Op.AFTER, memory.dtype, (memory, ready))
        gate = mine < half
        own = UOp(Op.LOAD, reduce.dtype, (element(now, here),))
        other = UOp(Op.LOAD, reduce.dtype, (element(now, here + half * distance, gate), neutral))
        ready = barrier(now, (here, gate), own.alu(reduce.arg, other))
        half //= 2
    now = UOp(Op.AFTER, memory.dtype, (memory, ready))
    return UOp(Op.LOAD, reduce.dtype, (element(now, here - mine * distance),))


def own_part(reduce: UOp) -> UOp:
    """What one thread folds by itself."""
    rest = without(reduce, counters_of(reduce, AxisKind.GROUP))
    if any(s.op is Op.RANGE for s in rest):
        return reduce.with_src((reduce.src[0], *rest))
    return folded([reduce.src[0], *rest], reduce.arg)


def element(memory: UOp, *place: UOp) -> UOp:
    """The INDEX of an element of shared memory, where a gate may follow."""
    return UOp(Op.INDEX, memory.dtype, (memory, *place))


def barrier(memory: UOp, place: tuple[UOp, ...], value: UOp) -> UOp:
    """A store to shared memory that all threads of the group have done."""
    change = UOp(Op.STORE, dtypes.void, (element(memory, *place), value))
    return UOp(Op.BARRIER, dtypes.void, (change,))
