"""What the tile language allows: why a step must not be done to a kernel, if it must not.

Floor 3'. Strategies propose legal plans by how they are written. A plan from elsewhere, a search or
the disk, is applied through `checked`, which asks here before every step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tinycore.dtype import PointerDType
from tinycore.errors import ArgumentError
from tinycore.lower.expand import WRITTEN_OUT
from tinycore.lower.guard import stores_to_buffers
from tinycore.lower.loops import Number
from tinycore.lower.packing import MOST_SCRATCH
from tinycore.lower.share import fills_of
from tinycore.lower.stage import THREADS, Stage, shared_size
from tinycore.lower.tile import (
    Assign,
    Cover,
    Merge,
    Overlap,
    Peel,
    Reorder,
    Split,
    Step,
    apply_plan,
)
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, RECURRENCES, AxisKind, Op

PLAIN: Final = (AxisKind.LOOP, AxisKind.REDUCE)
"""Loops that nothing was decided about yet."""
BECOMES: Final = {
    AxisKind.LOOP: {AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.PARALLEL, AxisKind.PAIR},
    AxisKind.REDUCE: {AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.PARTIAL},
}
"""What a loop of a kind may be given to on a device that runs loops."""
LAUNCHED: Final = {
    AxisKind.LOOP: {
        *(AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.GRID, AxisKind.BLOCK, AxisKind.FILL)
    },
    AxisKind.REDUCE: {AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.PARTIAL, AxisKind.GROUP},
}
"""The same on a device that runs a grid."""
MOST_COPIES: Final = 512
"""Copies of a value that steps may ask for, lanes included."""
MOST_PARTS: Final = 5
LONGEST_VECTOR: Final = 64
"""Lanes."""


def checked(kernel: UOp, plan: Iterable[Step], limits: Limits) -> UOp:
    """The kernel with every step of a plan done. Raises ArgumentError for a step that is illegal.

    What a step raises by itself, because its loops are not there, is raised as ArgumentError too.
    """
    for step in plan:
        problem = objection(kernel, step, limits)
        if problem is not None:
            raise ArgumentError(f"{step} cannot be done: {problem}")
        try:
            kernel = apply_plan(kernel, (step,))
        except (StopIteration, AssertionError, KeyError, ValueError) as error:
            raise ArgumentError(f"{step} cannot be done: {error!r}") from error
        most = MOST_SCRATCH if limits.grid is None else limits.shared_bytes
        if isinstance(step, Stage) and (size := scratch_bytes(kernel)) > most:
            raise ArgumentError(f"{step} cannot be done: {size} bytes of scratch are too many")
    return kernel


def scratch_bytes(kernel: UOp) -> int:
    """Bytes of all stages."""
    arrays = (n.dtype for n in kernel.toposort() if n.op is Op.DEFINE_LOCAL)
    return sum(shared_size(d) for d in arrays if isinstance(d, PointerDType))


def objection(kernel: UOp, step: Step, limits: Limits) -> str | None:
    """Why a step must not be done to a kernel; None when it may."""
    check = CHECKS.get(type(step))
    return None if check is None else check(Loops(kernel), step, limits)


@dataclass(frozen=True)
class Loops:
    """The loops of a kernel, asked what may be done to them."""

    kernel: UOp

    @cached_property
    def nodes(self) -> list[UOp]:
        """Every node."""
        return list(self.kernel.toposort())

    @cached_property
    def by_number(self) -> dict[Number, UOp]:
        """Every loop."""
        return {n.arg.number: n for n in self.nodes if n.op is Op.RANGE}

    def closers(self, counter: UOp) -> list[UOp]:
        """What closes a loop."""
        return [n for n in self.nodes if n.op in CLOSERS and counter in n.src[1:]]

    def undecided(self, axis: Number) -> str | None:
        """Why a loop is not free to be changed."""
        counter = self.by_number.get(axis)
        if counter is None:
            return f"there is no loop {axis}"
        if counter.src[0].op is not Op.CONST:
            return f"how often loop {axis} runs is known at launch only"
        if counter.arg.kind not in PLAIN:
            return f"loop {axis} is {counter.arg.kind.value} already"
        return None

    def not_split(self, axis: Number, by: int) -> str | None:
        """Why a Split is illegal."""
        if problem := self.undecided(axis):
            return problem
        extent = self.by_number[axis].extent
        if not 1 < by <= extent:
            return f"steps of {by} do not cut a loop of {extent}"
        if extent % by and self.is_filled_inside(self.by_number[axis]):
            return "scratch memory is filled inside of it, which the rest would share"
        return None

    def not_covered(self, axis: Number, by: int, limits: Limits) -> str | None:
        """Why a Cover is illegal."""
        if limits.grid is None:
            return "a device that runs loops has no use for steps past the end"
        return self.undecided(axis) or (None if by > 1 else f"steps of {by} cut nothing")

    def not_overlapped(self, axis: Number, by: int) -> str | None:
        """Why an Overlap is illegal."""
        if problem := self.not_split(axis, by):
            return problem
        is_sum = all(n.op is Op.REDUCE for n in self.closers(self.by_number[axis]))
        return None if is_sum else f"loop {axis} is none of a sum"

    def not_assigned(self, axis: Number, kind: AxisKind, limits: Limits) -> str | None:
        """Why an Assign is illegal."""
        if problem := self.undecided(axis):
            return problem
        counter = self.by_number[axis]
        allowed = (BECOMES if limits.grid is None else LAUNCHED)[counter.arg.kind]
        if kind not in allowed:
            return f"a loop of kind {counter.arg.kind.value} does not become {kind.value}"
        if kind is AxisKind.PARALLEL:
            return self.not_outermost(counter)
        if kind in (AxisKind.GRID, AxisKind.BLOCK) and axis not in self.launchable:
            return "something is stored outside of it, which every thread would store"
        if kind is AxisKind.PAIR and (axis not in self.filling or counter.extent != 2):
            return "it is not one of two steps that fill scratch memory"
        if kind is AxisKind.FILL and axis not in self.filling:
            return "it fills no memory that a group shares"
        if kind in (*WRITTEN_OUT, AxisKind.VECTOR) and self.is_filled_inside(counter):
            return "scratch memory is filled inside of it, which copies would share"
        if kind in THREADS and any(counter in n.ranges for n in self.fills):
            return "memory of the whole group is filled anew in each of its steps"
        if kind in THREADS and (problem := self.no_threads(counter, kind, limits)):
            return problem
        if kind is AxisKind.VECTOR and (problem := self.no_lanes(counter)):
            return problem
        if kind in (*WRITTEN_OUT, AxisKind.VECTOR) and self.copies_with(counter) > MOST_COPIES:
            return f"{self.copies_with(counter)} copies are too many"
        return None

    def not_outermost(self, counter: UOp) -> str | None:
        """Why threads cannot share a loop."""
        root = self.kernel.src[0]
        alone = len(self.kernel.src) == 1 and root.op is Op.END and root.src[1] is counter
        return None if alone else "threads share the outermost loop of the whole kernel only"

    @cached_property
    def launchable(self) -> set[Number]:
        """The loops that every store is in."""
        root, inside = self.kernel.src[0], stores_to_buffers(self.kernel)
        own = root.src[1:] if len(self.kernel.src) == 1 and root.op is Op.END else ()
        return {r.arg.number for r in own if all(r in n.ranges for n in inside)}

    @cached_property
    def filling(self) -> set[Number]:
        """The loops that fill scratch memory."""
        return {r.arg.number for n in self.fills for r in n.src[1].src[1:]}

    @cached_property
    def fills(self) -> list[UOp]:
        """Scratch memory behind its fill."""
        return fills_of(self.kernel)

    def no_threads(self, counter: UOp, kind: AxisKind, limits: Limits) -> str | None:
        """Why the threads of a group cannot take a loop."""
        threads = [r for r in self.by_number.values() if r.arg.kind in THREADS]
        total = counter.extent * math.prod(r.extent for r in threads)
        if total > limits.block_threads or len(threads) >= len(limits.block):
            return f"{total} threads on {len(threads) + 1} axes are too many for a group"
        if counter.extent > min(limits.block):
            return f"{counter.extent} threads are too many for an axis of a group"
        return self.not_shared(counter, limits) if kind is AxisKind.GROUP else None

    def not_shared(self, counter: UOp, limits: Limits) -> str | None:
        """Why the threads of a group cannot share a sum."""
        members = [n for n in self.closers(counter) if n.op is Op.REDUCE]
        around = {r.arg.number for n in members for r in n.ranges}
        needed = limits.block_threads * sum(max(n.dtype.itemsize, 4) for n in members)
        if counter.extent & (counter.extent - 1) or needed > limits.shared_bytes:
            return f"{counter.extent} threads are no power of two, or share too little memory"
        if any(r.arg.kind is AxisKind.GROUP for n in members for r in n.src[1:]):
            return "its sum is shared already"
        if not around <= self.launchable or any(n.op is Op.AFTER for n in self.nodes):
            return "threads would not come to its barriers together"
        return None

    def is_filled_inside(self, counter: UOp) -> bool:
        """Whether scratch memory is filled anew in each step of a loop."""
        return any(n.op is Op.AFTER and counter in n.ranges for n in self.nodes)

    def no_lanes(self, counter: UOp) -> str | None:
        """Why a loop cannot become lanes."""
        if counter.extent > LONGEST_VECTOR or counter.extent & (counter.extent - 1):
            return f"{counter.extent} lanes are no power of two up to {LONGEST_VECTOR}"
        for node in self.nodes:
            if counter in node.ranges and node.op is Op.VECTORIZE:
                return "its body has vectors already"
            if counter in node.ranges and node.op in RECURRENCES:
                return "its body has a recurrence, in which lanes would go apart"
            if counter in node.ranges and any(
                r.arg.kind is AxisKind.VECTOR for r in node.ranges if r is not counter
            ):
                return "its body moves with lanes of another loop already"
        return None

    def copies_with(self, counter: UOp) -> int:
        """How often the most copied node is made if this loop is written out too."""
        written = (*WRITTEN_OUT, AxisKind.VECTOR)
        around = [n.ranges for n in self.nodes if counter in n.ranges]
        return counter.extent * max(
            (math.prod(r.extent for r in ranges if r.arg.kind in written) for ranges in around),
            default=1,
        )

    def not_reordered(self, axes: tuple[Number, ...]) -> str | None:
        """Why a Reorder is illegal."""
        if missing := [a for a in axes if a not in self.by_number]:
            return f"there is no loop {missing[0]}"
        for end in (n for n in self.nodes if n.op is Op.END):
            before = [r.arg for r in end.src[1:]]
            named = [self.by_number[a].arg for a in axes if self.by_number[a] in end.src[1:]]
            after = [*named, *(a for a in before if a not in named)]
            if before == after:
                continue
            if any(a.kind is AxisKind.ORDERED for a in before):
                return "its steps happen in order"
            if before[0].kind is AxisKind.PARALLEL and after[0] != before[0]:
                return "the loop that threads share stays outermost"
        return None

    def not_merged(self, outer: Number, inner: Number) -> str | None:
        """Why a Merge is illegal."""
        if problem := self.undecided(outer) or self.undecided(inner):
            return problem
        a, b = self.by_number[outer], self.by_number[inner]
        closers = self.closers(a)
        if a.arg.kind is not b.arg.kind or closers != self.closers(b):
            return "the loops are not closed together"
        if any((a, b) not in itertools.pairwise(n.src[1:]) for n in closers):
            return "the loops are not neighbors"
        return None

    def not_peeled(self, axis: Number, at: tuple[int, ...]) -> str | None:
        """Why a Peel is illegal."""
        if problem := self.undecided(axis):
            return problem
        counter = self.by_number[axis]
        edges = (0, *at, counter.extent)
        ascending = all(a < b for a, b in itertools.pairwise(edges))
        if not ascending or not 1 < len(at) + 1 <= MOST_PARTS:
            return f"{at} are no steps between 0 and {counter.extent}, in order"
        if self.is_filled_inside(counter):
            return "scratch memory is filled inside of it, which its parts would share"
        closers = self.closers(counter)
        if len(closers) > 1 and any(c.op is Op.END for c in closers):
            return "several results are written in it"
        return None


CHECKS: Final[dict[type, Callable[[Loops, Any, Limits], str | None]]] = {
    Split: lambda loops, step, limits: loops.not_split(step.axis, step.by),
    Cover: lambda loops, step, limits: loops.not_covered(step.axis, step.by, limits),
    Overlap: lambda loops, step, limits: loops.not_overlapped(step.axis, step.by),
    Assign: lambda loops, step, limits: loops.not_assigned(step.axis, step.kind, limits),
    Reorder: lambda loops, step, limits: loops.not_reordered(step.axes),
    Merge: lambda loops, step, limits: loops.not_merged(step.outer, step.inner),
    Peel: lambda loops, step, limits: loops.not_peeled(step.axis, step.at),
}
"""What is asked before a step. Steps that are not here refuse by themselves what they cannot do."""
