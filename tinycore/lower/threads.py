"""Distribution of the outermost loops over the threads of a processor.

Floor 3'. For devices that run loops; those with a grid launch threads for them.
"""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import Final

from tinycore.lower.cost import WAKE_OPERATIONS
from tinycore.lower.dims import is_known_at_launch
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import work_of
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.steps.bind import COPYING
from tinycore.lower.tile import Bind, Fuse, Reorder, Split
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

CHUNKS_PER_THREAD: Final = 8
"""Pieces of work per thread, so that a slow thread takes fewer of them: a product of 1024 beside
another busy process takes 15 ms instead of 19, and alone no longer (Zen 4)."""
CHUNKS_OF_FILLS: Final = 2
"""Pieces of work per thread if each piece fills an array again."""
MOST_WANTED: Final = 4
"""Multiple of the wanted pieces up to which equal ones are searched for: a loop may have billions
of steps."""


def share_among_threads(draft: Draft) -> None:
    """Distribute the outermost loops over threads, if there is enough work."""
    root, limits = draft.kernel.src[0], draft.limits
    if limits.threads < 2 or root.op is not Op.END or draft.work < WAKE_OPERATIONS:
        return
    loops = [r for r in root.src[1:] if r.kind is AxisKind.LOOP and r.is_fixed]
    repeats = bool(fills_outside(draft))
    wanted = draft.size("chunks of a thread", CHUNKS_OF_FILLS if repeats else CHUNKS_PER_THREAD)
    wanted *= limits.threads
    if share_varying(draft, root.src[1], wanted) or not loops:
        return
    # Threads share the outermost loop. Fixed loops are moved outside of one of varying length, and
    # of copies and lanes, which become innermost wherever they are.
    if (outermost := root.src[1]) is not loops[0]:
        if outermost.is_fixed and outermost.kind not in COPYING:
            return
        draft.do(Reorder(tuple(r.number for r in loops)))
    first = loops[0].number
    behind = {r for before, r in pairwise(root.src[1:]) if not before.is_fixed}
    for inner in takewhile(lambda r: r not in behind, loops[1:]):
        if counter_of(draft.kernel, first).extent >= wanted or is_packed_between(
            draft, first, inner
        ):
            break
        draft.do(Fuse(first, inner.number))
    share_steps(draft, first, wanted if repeats else 0)


def share_steps(draft: Draft, axis: Number, wanted: int) -> None:
    """Distribute a loop over threads in about `wanted` pieces; 0 for pieces of any size."""
    extent = counter_of(draft.kernel, axis).extent
    pieces = even_pieces(extent, wanted) if wanted else extent
    chunks = min(draft.limits.threads * CHUNKS_PER_THREAD, pieces)
    if extent == 1 or not is_worth_repeating(draft, chunks):
        return
    if pieces < extent:
        draft.do(Split(axis, extent // pieces))
        axis = (*axis, 0)
    draft.do(Bind(axis, AxisKind.PARALLEL))


def even_pieces(extent: int, wanted: int) -> int:
    """The least number of equal pieces of a loop that is at least `wanted`; else its steps."""
    counts = range(wanted, min(extent, MOST_WANTED * wanted))
    return next((n for n in counts if extent % n == 0), extent)


def share_varying(draft: Draft, outermost: UOp, wanted: int) -> bool:
    """Distribute the outermost loop over threads, if it has a symbolic length and may be long."""
    if outermost.is_fixed or not is_followed(outermost, draft.limits):
        return False
    # What is packed in each step of it would be packed again in each step of a loop outside of it.
    is_packed = any(outermost in n.src[1].ranges for n in draft.facts.nodes if n.op is Op.AFTER)
    least = draft.limits.threads if is_packed else wanted
    if outermost.extent < least or not is_worth_repeating(draft, wanted):
        return False
    draft.do(Bind(outermost.number, AxisKind.PARALLEL))
    return True


def is_followed(loop: UOp, limits: Limits) -> bool:
    """True if threads can share a loop of symbolic length, which is never empty."""
    size = loop.src[0]
    is_plain = loop.kind is AxisKind.LOOP and int(size.vmin) > 0
    return limits.parallel_varies and is_plain and is_known_at_launch(size)


def is_worth_repeating(draft: Draft, chunks: int) -> bool:
    """True if the fills outside all loops are cheap enough to be repeated in each chunk."""
    outside = fills_outside(draft)
    repeated = work_of(UOp.sink(*outside).toposort()) if outside else 0
    return repeated * (chunks - 1) <= draft.work


def fills_outside(draft: Draft) -> list[UOp]:
    """The loops of fills that are outside all other loops."""
    fills = {n.src[1] for n in draft.facts.nodes if n.op is Op.AFTER and n.src[1].op is Op.END}
    return [n for n in fills if not n.ranges]


def is_packed_between(draft: Draft, outer: Number, inner: UOp) -> bool:
    """True if an operand is packed in each step of one loop for all steps of an inner one."""
    fills = (n.src[1].ranges for n in draft.facts.nodes if n.op is Op.AFTER)
    return any(counter_of(draft.kernel, outer) in r and inner not in r for r in fills)
