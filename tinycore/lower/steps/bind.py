"""Bind: map a loop to vector lanes, copies, threads or the grid (TVM's vectorize, unroll, bind).

Floor 3'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tinycore.lower.dims import launches
from tinycore.lower.expand import WRITTEN_OUT
from tinycore.lower.legality import Loops
from tinycore.lower.loops import THREADS, Number, counter_of, text_of
from tinycore.render.base import Limits
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import RECURRENCES, AxisKind, Op, Part

ON_LOOPS: Final = {
    AxisKind.LOOP: {AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.PARALLEL, AxisKind.PAIR},
    AxisKind.REDUCE: {AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.PARTIAL},
}
"""Kinds to which a loop of each kind may be bound, on a device that runs loops."""
ON_GRIDS: Final = {
    AxisKind.LOOP: {
        *(AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.GRID, AxisKind.BLOCK, AxisKind.FILL),
        *(AxisKind.LANE, AxisKind.GROUP),
    },
    AxisKind.REDUCE: {AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.PARTIAL, AxisKind.GROUP},
}
"""Kinds of loops on a device that runs a grid."""
COPYING: Final = (*WRITTEN_OUT, AxisKind.VECTOR)
"""Kinds of loops that become copies of their body, or lanes."""
MOST_COPIES: Final = 512
"""Copies of a value, lanes included, that steps of a search or of a plan on disk may create."""
LONGEST_VECTOR: Final = 64
"""Lanes."""


@dataclass(frozen=True)
class Bind:
    """Give a loop its kind: unrolled, lanes of a vector, shared among threads, ..."""

    axis: Number
    kind: AxisKind

    def __str__(self) -> str:
        return f"{self.kind.value}({text_of(self.axis)})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done."""
        counter = counter_of(kernel, self.axis)
        return kernel.substitute({counter: counter.replace(arg=Axis(self.axis, self.kind))})

    def objection(self, loops: Loops, limits: Limits) -> str | None:
        """Why the step is illegal; None if it is legal."""
        varies = self.kind is AxisKind.GRID and limits.grid_varies
        varies |= self.kind is AxisKind.PARALLEL and limits.parallel_varies
        if problem := loops.undecided(self.axis, varies):
            return problem
        axis, kind, counter = self.axis, self.kind, loops.by_number[self.axis]
        allowed = (ON_LOOPS if limits.grid is None else ON_GRIDS)[counter.kind]
        if kind not in allowed:
            return f"a loop of kind {counter.kind.value} does not become {kind.value}"
        if kind is AxisKind.PARALLEL and not loops.is_outermost(counter):
            return "threads share the outermost loop of the whole kernel only"
        if not counter.is_fixed and int(counter.src[0].vmin) < 1:
            return "it may have no step, and a launch has at least one group: split it guarded"
        if (
            kind in (AxisKind.GRID, AxisKind.BLOCK, AxisKind.LANE)
            and axis not in loops.around_stores
        ):
            return "something is stored outside of it, which every thread would store"
        if kind is AxisKind.PAIR and (axis not in loops.filling or counter.extent not in (2, 4)):
            return "it is not one of two or four steps that fill scratch memory"
        if kind is AxisKind.FILL and axis not in loops.filling:
            return "it fills no memory that a group shares"
        if kind in THREADS:
            return not_threads(loops, counter, kind, limits)
        if kind in COPYING:
            return not_copied(loops, counter, kind)
        return None

    def excess(self, loops: Loops) -> str | None:
        """Why the step, legal as it is, is refused in a plan from outside; None if it is not."""
        if self.kind not in COPYING:
            return None
        copies = copies_with(loops, loops.by_number[self.axis])
        return f"{copies} copies are too many" if copies > MOST_COPIES else None


def not_copied(loops: Loops, counter: UOp, kind: AxisKind) -> str | None:
    """Why a loop cannot become copies or lanes."""
    if loops.is_filled_inside(counter):
        return "scratch memory is filled inside of it, which copies would share"
    return not_lanes(loops, counter) if kind is AxisKind.VECTOR else None


def not_lanes(loops: Loops, counter: UOp) -> str | None:
    """Why a loop cannot become lanes."""
    if counter.extent > LONGEST_VECTOR or counter.extent & (counter.extent - 1):
        return f"{counter.extent} lanes are no power of two up to {LONGEST_VECTOR}"
    for node in loops.nodes:
        if counter in node.ranges and node.op is Op.VECTORIZE:
            return "its body has vectors already"
        if counter in node.ranges and node.op in RECURRENCES:
            return "its body has a recurrence, in which lanes would go apart"
        if counter in node.ranges and any(
            r.kind is AxisKind.VECTOR for r in node.ranges if r is not counter
        ):
            return "its body moves with lanes of another loop already"
    return None


def copies_with(loops: Loops, counter: UOp) -> int:
    """Most copies of any node if this loop is unrolled too.

    What a thread holds of a matrix unit is one register, however many elements.
    """
    around = [n.ranges for n in loops.nodes if counter in n.ranges]
    return counter.extent * max(
        (math.prod(r.extent for r in ranges if is_copying(r)) for ranges in around), default=1
    )


def is_copying(loop: UOp) -> bool:
    """True if the body of a loop is written out for each of its steps."""
    return loop.kind in COPYING and Part.UNIT not in loop.number


def not_threads(loops: Loops, counter: UOp, kind: AxisKind, limits: Limits) -> str | None:
    """Why the threads of a group cannot take a loop."""
    if any(counter in n.ranges for n in loops.fills):
        return "memory of the whole group is filled anew in each of its steps"
    threads = [r for r in loops.by_number.values() if r.kind in THREADS]
    total = counter.extent * math.prod(r.extent for r in threads)
    extents = [r.extent for r in (*threads, counter)]
    if total > limits.block_threads or not launches(extents, "block", limits.block):
        return f"{total} threads on {len(extents)} axes are too many for a group"
    shared = [r for r in threads if r.kind is AxisKind.GROUP]
    if kind is AxisKind.GROUP:
        if problem := not_shared_sum(loops, counter):
            return problem
        shared.append(counter)
    members = {n for r in shared for n in loops.closers(r) if n.op is Op.REDUCE}
    needed = total * sum(max(n.dtype.itemsize, 4) for n in members)
    if needed > limits.shared_bytes:
        return f"sums of {total} threads take {needed} bytes of shared memory"
    return None


def not_shared_sum(loops: Loops, counter: UOp) -> str | None:
    """Why the threads of a group cannot share a sum."""
    members = [n for n in loops.closers(counter) if n.op is Op.REDUCE]
    around = {r.number for n in members for r in n.ranges}
    if counter.extent & (counter.extent - 1):
        return f"{counter.extent} threads are no power of two"
    if any(r.kind is AxisKind.GROUP for n in members for r in n.src[1:]):
        return "its sum is shared already"
    if not around <= loops.around_stores or any(n.op is Op.AFTER for n in loops.nodes):
        return "threads would not come to its barriers together"
    return None
