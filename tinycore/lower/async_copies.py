"""Asynchronous copies: fills of shared memory that overlap with computation.

Floor 3'. A STORE to shared memory that is marked EARLY or LATE becomes an ASYNC_COPY if its value
is a load from a buffer, or zero behind a gate, in a size of `Limits.async_bytes`. Other stores stay
with their thread; if no store became a copy, COMMIT and WAIT are removed. On devices that have such
copies lanes that go to separate places are stored immediately: a thread could not hold them all
while it computes. On others registers hold what a step has loaded until it has computed.
"""

from __future__ import annotations

from tinycore.dtype import PointerDType, dtypes
from tinycore.lower.predicate import with_gate
from tinycore.render.base import EARLY, LATE, Limits, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rebuilt


def begin_copies(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with its fills done by asynchronous copies, as far as the device has them."""
    if not limits.shared_bytes:
        return kernel
    if not any(n.op is Op.COMMIT for n in kernel.toposort()):
        return kernel

    def change(node: UOp, new: UOp) -> UOp:
        if node.op is not Op.STORE or node.arg not in (EARLY, LATE):
            return new
        if (copy := copy_of(new, limits)) is not None:
            return copy
        at_once = node.arg == EARLY or (new.src[1].op is Op.EXTRACT and bool(limits.async_bytes))
        return new.replace(arg=None) if at_once else new

    kernel = rebuilt(kernel, change)
    has_copies = any(n.op is Op.ASYNC_COPY for n in kernel.toposort())
    return kernel if has_copies else without_groups(kernel)


def copy_of(store: UOp, limits: Limits) -> UOp | None:
    """The ASYNC_COPY equivalent to a STORE; None if there is none."""
    to, value = store.src
    source = copied_from(value)
    dtype = value.dtype
    aligned = dtype.count == 1 or limits.access_alignment >= dtype.size_bytes
    if source is None or dtype.size_bytes not in limits.async_bytes or not aligned:
        return None
    ends = (pointer_of(to).dtype, pointer_of(source).dtype)
    if len({d.base for d in ends if isinstance(d, PointerDType)}) > 1:
        return None
    return UOp(Op.ASYNC_COPY, dtypes.void, (to, source), dtype.count)


def copied_from(value: UOp) -> UOp | None:
    """Place in a buffer that a value is loaded from, gated where it is else 0; None for others."""
    if value.op is Op.WHERE and is_zero(value.src[2]) and value.src[0].dtype.count == 1:
        inner = copied_from(value.src[1])
        return None if inner is None else with_gate(inner, value.src[0])
    if value.op is not Op.LOAD or not all(map(is_zero, value.src[1:])):
        return None
    index = value.src[0]
    of_buffer = index.op is Op.INDEX and pointer_of(index).op is Op.DEFINE_GLOBAL
    return index if of_buffer else None


def is_zero(value: UOp) -> bool:
    """True if a value is 0 in every lane."""
    lanes = value.src if value.op is Op.VECTORIZE else (value,)
    return all(lane.op is Op.CONST and not lane.arg and str(lane.arg)[0] != "-" for lane in lanes)


def without_groups(kernel: UOp) -> UOp:
    """The kernel without COMMIT and WAIT."""

    def change(node: UOp, new: UOp) -> UOp:
        if node.op is Op.BARRIER:
            found = [s.src if s.op is Op.WAIT else (s,) for s in new.src]
            return new.with_src(tuple(s for sources in found for s in sources))
        return UOp(Op.GROUP, dtypes.void, new.src) if node.op is Op.COMMIT else new

    return rebuilt(kernel, change)
