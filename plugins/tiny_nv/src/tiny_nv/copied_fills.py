"""Fills of shared memory by asynchronous copies, which overlap with computation.

A STORE of a fill ahead becomes an `AsyncCopy` if its value is a load from a buffer, or zero behind
a gate, in a size that cp.async has. Each GROUP of such fills ends with a `CommitGroup`, and a step
of the loop waits for its own (`WaitGroup`). Other stores stay with their thread. Lanes that go to
separate places are stored immediately: a thread could not hold them all while it computes.
"""

from __future__ import annotations

from tiny_nv.async_copies import SIZES, AsyncCopy, CommitGroup, WaitGroup
from tinycore.dtype import dtypes
from tinycore.render.base import EARLY, LATE, pointer_of
from tinycore.tiling import copied_from
from tinycore.uop.node import UOp
from tinycore.uop.op import COMPOUND, Op
from tinycore.uop.rewrite import rebuilt

__all__ = ["begin_copies"]


def begin_copies(kernel: UOp) -> UOp:
    """The kernel with its fills ahead done by asynchronous copies (`Limits.copies`)."""
    fills = {
        node
        for group in groups_of(kernel)
        for node in group.toposort(lambda n: n.op in COMPOUND)
        if node.op is Op.STORE
    }

    def begun(node: UOp, new: UOp) -> UOp:
        if node not in fills:
            return new
        if (copy := copy_of(new)) is not None:
            return copy
        return new.replace(arg=None) if new.src[1].op is Op.EXTRACT else new

    kernel = rebuilt(kernel, begun) if fills else kernel
    has_copies = any(isinstance(n.arg, AsyncCopy) for n in kernel.toposort())
    return in_groups(kernel) if has_copies else kernel


def groups_of(kernel: UOp) -> set[UOp]:
    """The GROUPs of fills ahead."""
    return {n for n in kernel.toposort() if n.op is Op.GROUP and n.arg in (EARLY, LATE)}


def copy_of(store: UOp) -> UOp | None:
    """The AsyncCopy equivalent to a STORE; None if there is none."""
    to, value = store.src
    source = copied_from(value)
    if source is None or value.dtype.size_bytes not in SIZES:
        return None
    if pointer_of(to).dtype.base is not pointer_of(source).dtype.base:  # type: ignore[attr-defined]
        return None
    return UOp(Op.INSTRUCTION, dtypes.void, (to, source), AsyncCopy(value.dtype.count))


def in_groups(kernel: UOp) -> UOp:
    """The kernel whose groups of copies are committed, and waited for before their barrier: all but
    those that were begun for later steps."""
    groups = groups_of(kernel)

    def change(node: UOp, new: UOp) -> UOp:
        if node in groups:
            return UOp(Op.INSTRUCTION, dtypes.void, new.src, CommitGroup())
        first = [s for s in node.src if s in groups]
        if node.op is not Op.BARRIER or not first:
            return new
        wait = UOp(Op.INSTRUCTION, dtypes.void, new.src, WaitGroup(len(first) - 1))
        return new.with_src((wait,))

    return rebuilt(kernel, change)
