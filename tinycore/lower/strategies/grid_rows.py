"""Row kernels on a grid: a group reduces a row, then maps over it, as in softmax or layer norm.

Floor 3'. The threads of a group own a row. Each has the same part of it in every fold and in the
outputs, so a row that fits their registers is loaded once; parts of a longer row are loaded again,
from a near cache. `schedule/row_inlining.py` makes such kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.lower.cost import ceil_power_of_two, floor_power_of_two, suits_lanes
from tinycore.lower.draft import Draft, unroll_loop
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.tile import Split, Tail, Unite
from tinycore.render.base import Limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

MOST_HELD: Final = 32
"""Elements of a row that a thread holds in registers."""
MOST_STORED: Final = 8
"""Elements that are stored for each that is folded, where rows are too few for the device."""
LEAST_SHARERS: Final = 8
"""Threads of a row that load vectors side by side: a line of a card's cache."""


@dataclass(frozen=True)
class Rows:
    """The loops over rows, those of their folds, and those over what is stored of each."""

    outer: tuple[UOp, ...]
    folded: tuple[UOp, ...]
    """The innermost loop of each fold."""
    columns: tuple[UOp, ...]
    """None of them where all that is stored are folds of rows."""

    @property
    def along(self) -> tuple[Number, ...]:
        """The loops along a row that threads share, of folds and of what is stored."""
        return tuple([r.number for r in (*self.folded, *self.columns[-1:])])


def rows_of(facts: KernelFacts, limits: Limits) -> Rows | None:
    """The rows of a kernel that folds them, and then stores or folds values made of the results.

    None for a kernel in which each reduction serves a single output.
    """
    is_plain = not (facts.has_order or facts.overwrites or facts.has_scan) and facts.is_fixed
    if not facts.reductions or not is_plain or facts.has_recurrence:
        return None
    inside = frozenset().union(*(n.ranges for n in facts.reductions))
    outer = tuple([r for r in facts.outputs if r in inside])
    columns = tuple([r for r in facts.outputs if r not in inside])
    folded = tuple(facts.innermost)
    is_nested = not inside <= {*outer}
    if is_nested or not {*outer} <= {*facts.launchable} or not {*folded} <= {*facts.reduced}:
        return None
    if any(len({*folded} & {*n.src[1:]}) > 1 for n in facts.reductions):
        return None  # threads have one place in all of these loops, and a fold of two needs two
    steps, stored, terms = (iterations_of(part) for part in (outer, columns, folded))
    if steps * limits.block_threads < limits.threads and stored > MOST_STORED * terms:
        return None
    return Rows(outer, folded, columns) if columns or not facts.are_side_by_side else None


def share_row(draft: Draft, rows: Rows, wanted: int) -> int:
    """Give each row to threads, and to each of these its part of every fold; how many threads."""
    along = [with_lanes(draft, number) for number in rows.along]
    threads = draft.size("threads of a row", threads_of_row(draft, rows, along, wanted))
    parts = [with_thread(draft, number, threads) for number in along]
    if threads > 1:
        draft.do(Unite(tuple(parts)))
    for number, part in zip(along, parts, strict=True):
        unroll(draft, number if threads == 1 else (*number, 0) if part != number else None)
    return threads


def with_lanes(draft: Draft, number: Number) -> Number:
    """Cut a loop into vectors, if all it accesses lies side by side; the loop over these."""
    loop, lanes = counter_of(draft.kernel, number), draft.lanes()
    is_cut = lanes > 1 and loop.extent % lanes == 0 and loop.extent > lanes
    if not is_cut or not suits_lanes(draft.facts, loop):
        return number
    return draft.cut(number, lanes, AxisKind.VECTOR)


def threads_of_row(draft: Draft, rows: Rows, along: list[Number], wanted: int) -> int:
    """Threads that share a row: as many as hold it, and as keep the device busy."""
    limits = draft.limits
    steps = max(counter_of(draft.kernel, number).extent for number in along)
    parts = sum(2 * max(n.dtype.itemsize, 4) for n in draft.facts.reductions)
    room = min(limits.block_threads, limits.block[0], limits.shared_bytes // parts)
    most = floor_power_of_two(min(steps, room))
    busy = -(-limits.threads // iterations_of(rows.outer))
    if wanted == 1 or not limits.sums_are_shared or most == 1:
        return 1
    held = -(-steps // held_vectors(draft))
    if held > most:  # it is not held: what is loaded again is near, however many threads do it
        return min(max(floor_power_of_two(wanted), min(ceil_power_of_two(busy), most)), most)
    return min(
        max(ceil_power_of_two(held), min(ceil_power_of_two(busy), wanted), LEAST_SHARERS), most
    )


def held_vectors(draft: Draft) -> int:
    """Steps of a row that a thread holds in registers."""
    lanes = max((r.extent for r in draft.facts.loops_of_kind(AxisKind.VECTOR)), default=1)
    return max(MOST_HELD // lanes, 1)


def with_thread(draft: Draft, number: Number, threads: int) -> Number:
    """Cut a loop into steps of so many threads; the loop over these threads."""
    if threads == 1 or counter_of(draft.kernel, number).extent == threads:
        return number
    draft.do(Split(number, threads, Tail.GUARD))
    return (*number, 1)


def unroll(draft: Draft, number: Number | None) -> None:
    """Write out the steps of a thread: all that it holds, some of more, whose loads overlap."""
    loops = {r.number: r for r in draft.facts.loops}
    if number is None or number not in loops:
        return
    unroll_loop(draft, loops[number], held_vectors(draft))
