"""Neighbors of a plan in the search space of BEAM.

Floor 3'. A plan has two kinds of neighbors: plans with one step more (a loop is vectorized,
unrolled, blocked or interchanged), and plans with one step changed (another factor of a split,
another kind of loop, or the step left out). `legality.py` says which of them are legal. Nothing is
measured here.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.borders import steps_compared
from tinycore.lower.draft import Draft, fuse_loops
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.legality import PLAIN_KINDS
from tinycore.lower.loops import Number, arrays_of
from tinycore.lower.merge_reductions import loops_of
from tinycore.lower.packing import plan_fill, reduced_dimensions
from tinycore.lower.plan import drafted, plan_for
from tinycore.lower.steps.stage import Dimension, Stage
from tinycore.lower.strategies.grid import launch_outputs
from tinycore.lower.threads import share_among_threads
from tinycore.lower.tile import Bind, Fuse, Peel, Plan, Reorder, Split, Step, Tail, apply_checked
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, AxisKind, Op

COPIES_TRIED: Final = (2, 3, 4, 5, 6, 8)
"""Into how many copies a loop may be written out."""
BLOCKS: Final = (4, 16, 64, 256)
"""Steps of a loop that a block may have."""
GROUP_SIZES: Final = (4, 8, 16, 32, 64, 128, 256)
"""Into how many threads of a group a loop may go."""
PROPOSALS: Final = 3
"""Number of the planner's proposals from which a search starts."""
ACCUMULATORS: Final = (2, 4, 8)
SIZES: Final = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
"""Sizes for a split to try, if close to its own."""
NEAR: Final = 2
"""Number of sizes up and down that are near."""
MOST_CANDIDATE_NODES: Final = 4000
"""Nodes times copies that a candidate may come to: what larger ones win, compiling them costs."""


@dataclass(frozen=True)
class Candidate:
    """A plan, and the kernel as it makes it."""

    plan: Plan
    tiled: UOp


def candidate_of(kernel: UOp, plan: Plan, limits: Limits) -> Candidate | None:
    """A plan with the kernel after it; None if it is illegal or too large."""
    return grown(Candidate((), kernel), plan, limits)


def grown(start: Candidate, more: Plan, limits: Limits) -> Candidate | None:
    """A candidate with more steps; None if one is illegal or the kernel too large."""
    try:
        tiled = apply_checked(start.tiled, more, limits)
    except ArgumentError:
        return None
    fits = nodes_written(tiled) <= MOST_CANDIDATE_NODES
    return Candidate((*start.plan, *more), tiled) if fits else None


def nodes_written(tiled: UOp) -> int:
    """Approximate number of nodes after unrolling."""
    kinds = (AxisKind.UNROLL, AxisKind.PARTIAL)
    total = 0
    for node in tiled.toposort():
        copies = 1
        for counter in node.ranges:
            copies *= counter.extent if counter.arg.kind in kinds else 1
        total += copies
    return total


def starts(kernel: UOp, limits: Limits) -> tuple[Plan, ...]:
    """Starting points of a search: the cheapest proposals, best first, and the fused loops.

    On a grid, the better plan of the other kind is included, too: with or without shared operands.
    """
    fused = Draft(kernel, limits)
    fuse_loops(fused)
    # One byte is no vector, and sums stay shared (`Limits.sums_are_shared`).
    lanes = max(limits.vector_bytes, 1)
    other = replace(limits, shared_is_near=not limits.shared_is_near, vector_bytes=lanes)
    plans = [tuple(drafted(kernel, limits, rank).steps) for rank in range(PROPOSALS)]
    return tuple(dict.fromkeys((*plans, plan_for(kernel, other), tuple(fused.steps))))


def finished(start: Candidate, limits: Limits) -> Candidate:
    """A candidate as it is run, its undecided loops distributed over threads.

    On a CPU these are the outermost loops, if that pays; on a grid all loops that can be launched.
    """
    draft = Draft(start.tiled, limits, list(start.plan))
    if limits.grid is None:
        if not draft.facts.loops_of_kind(AxisKind.PARALLEL):
            share_among_threads(draft)
    else:
        taken = [
            *draft.facts.loops_of_kind(AxisKind.BLOCK),
            *draft.facts.loops_of_kind(AxisKind.GROUP),
        ]
        wanted = min(limits.block_wanted, limits.block_threads)
        launch_outputs(draft, max(wanted // math.prod(r.extent for r in taken), 1))
    plan = tuple(draft.steps)
    return start if plan == start.plan else Candidate(plan, draft.kernel)


def neighbors(kernel: UOp, start: Candidate, limits: Limits, seed: int = 0) -> Iterator[Candidate]:
    """Every legal plan one step away, each making something else, in an order that `seed` mixes."""
    steps: list[tuple[Candidate, Plan]] = [(start, more) for more in grown_by(start.tiled, limits)]
    steps += [(Candidate((), kernel), plan) for plan in revised(start.plan)]
    random.Random(seed).shuffle(steps)
    found = {start.tiled}
    for base, more in steps:
        candidate = grown(base, more, limits)
        if candidate is not None and candidate.tiled not in found:
            found.add(candidate.tiled)
            yield candidate


# --- one step more


def grown_by(tiled: UOp, limits: Limits) -> Iterator[Plan]:
    """The candidate next steps of a plan, legal or not."""
    facts = KernelFacts(tiled, (tiled,), varies=limits.loops_vary)
    loops = [r for r in facts.loops if r.arg.kind in PLAIN_KINDS]
    lanes = limits.vector_bytes // facts.itemsize
    for loop in loops:
        yield from at_levels(loop, lanes)
        if limits.grid is not None:
            yield from among_threads(loop)
    for end in (n for n in tiled.toposort() if n.op is Op.END):
        own = [r for r in end.src[1:] if r.arg.kind is AxisKind.LOOP]
        for loop in own:
            yield from in_blocks(loop, own)
        yield from interchanged(own)
    yield from fused_pairs(tiled)
    if limits.grid is None:
        yield from packed(tiled, limits)
    for loop in loops:
        if at := steps_compared(facts, loop):
            yield (Peel(loop.arg.number, at),)


def levels_of(loop: UOp, lanes: int) -> Iterator[tuple[AxisKind, Iterable[int]]]:
    """The kinds that some steps of a loop may be of, and how many steps: lanes of a register, of
    half and of two; copies, of a short loop also all; and accumulators."""
    yield AxisKind.VECTOR, (lanes, lanes // 2, lanes * 2)
    is_short = loop.extent <= max(COPIES_TRIED) * 2
    yield AxisKind.UNROLL, (*COPIES_TRIED, loop.extent) if is_short else COPIES_TRIED
    if loop.arg.kind is AxisKind.REDUCE:
        yield AxisKind.PARTIAL, ACCUMULATORS


def at_levels(loop: UOp, lanes: int) -> Iterator[Plan]:
    """Candidates that bind the first steps of every block, or a whole loop if it fits."""
    number = loop.arg.number
    for kind, sizes in levels_of(loop, lanes):
        for size in dict.fromkeys(sizes):
            if size == loop.extent > 1:
                yield (Bind(number, kind),)
            elif 1 < size < loop.extent:
                yield Split(number, size), Bind((*number, 1), kind)


def among_threads(loop: UOp) -> Iterator[Plan]:
    """Candidates with a loop given to the threads of a group, in groups of several sizes."""
    number = loop.arg.number
    for size in GROUP_SIZES:
        if loop.arg.kind is AxisKind.REDUCE:
            yield Split(number, size, Tail.GUARD), Bind((*number, 1), AxisKind.GROUP)
        elif size < loop.extent:
            inner = Bind((*number, 1), AxisKind.BLOCK)
            yield Split(number, size, Tail.GUARD), Bind((*number, 0), AxisKind.GRID), inner


def in_blocks(loop: UOp, own: list[UOp]) -> Iterator[Plan]:
    """A loop in blocks, the loop over blocks outermost."""
    number = loop.arg.number
    for size in BLOCKS:
        if size < loop.extent and len(own) > 1:
            others = tuple(r.arg.number for r in own if r is not loop)
            yield Split(number, size), Reorder(((*number, 0), *others, (*number, 1)))


def interchanged(own: list[UOp]) -> Iterator[Plan]:
    """Candidates with one loop moved to the outside or to the inside of the others."""
    numbers = [r.arg.number for r in own]
    for number in numbers:
        others = [n for n in numbers if n != number]
        for order in ([number, *others], [*others, number]):
            if order != numbers:
                yield (Reorder(tuple(order)),)


def fused_pairs(tiled: UOp) -> Iterator[Plan]:
    """Neighboring loops as one."""
    for node in tiled.toposort():
        if node.op in CLOSERS:
            for outer, inner in itertools.pairwise(loops_of(node)):
                yield (Fuse(outer.arg.number, inner.arg.number),)


def packed(tiled: UOp, limits: Limits) -> Iterator[Plan]:
    """Plans that pack the operands of the innermost tile, inside each outer loop or before all."""
    facts = KernelFacts(tiled, (tiled,))
    outputs = [r for r in facts.outputs if r.arg.kind is AxisKind.LOOP]
    for panel in panels(facts.outputs):
        for at in (None, *(r.arg.number for r in outputs)):
            trying = Draft(tiled, limits, known=facts)
            first = len(arrays_of(tiled))
            try:
                trying.do(Stage(at, (*reduced_dimensions(trying), panel)))
                for number in range(first, len(arrays_of(trying.kernel))):
                    plan_fill(trying, number)
            except (ArgumentError, StopIteration, AssertionError):
                continue
            yield tuple(trying.steps)


def panels(outputs: list[UOp]) -> Iterator[Dimension]:
    """The parts of output loops that are written out or lanes, as dimensions of a stage."""
    inner = {r.arg.number: r for r in outputs if r.arg.kind in (AxisKind.UNROLL, AxisKind.VECTOR)}
    for number, loop in inner.items():
        yield ((number, 1),)
        around = (*number[:-1], 0, 1)
        if loop.arg.kind is AxisKind.VECTOR and around in inner:
            yield (around, loop.extent), (number, 1)


# --- one step different


def revised(plan: Plan) -> Iterator[Plan]:
    """The plan with one step changed or removed, along with the steps that depended on it."""
    for place, step in enumerate(plan):
        before, after = plan[:place], plan[place + 1 :]
        for other in (*others_than(step), *stages_elsewhere(step, plan)):
            yield (*before, other, *after)
        yield (*before, *after)
        if isinstance(step, Split):
            yield (*before, *(s for s in after if not inside_of(s, step.axis)))


def others_than(step: Step) -> Iterator[Step]:
    """Steps that differ from one in a number or a kind."""
    if isinstance(step, Split):
        place = sum(size < step.by for size in SIZES)
        near = SIZES[max(place - NEAR, 0) : place + NEAR + 1]
        yield from (replace(step, by=size) for size in near if size != step.by)
    elif isinstance(step, Bind) and step.kind is AxisKind.PARTIAL:
        yield replace(step, kind=AxisKind.UNROLL)
    elif isinstance(step, Bind) and step.kind is AxisKind.UNROLL:
        yield replace(step, kind=AxisKind.PARTIAL)


def stages_elsewhere(step: Step, plan: Plan) -> Iterator[Step]:
    """Variants of a Stage at other loops that the plan names."""
    if isinstance(step, Stage):
        named = (axis for s in plan if isinstance(s, Reorder) for axis in s.axes)
        for at in dict.fromkeys((None, *named)):
            yield replace(step, at=at)


def inside_of(step: Step, axis: Number) -> bool:
    """True if a step names an inner loop, or an order with one."""
    named = step.axes if isinstance(step, Reorder) else (getattr(step, "axis", ()),)
    return any(len(n) > len(axis) and n[: len(axis)] == axis for n in named)
