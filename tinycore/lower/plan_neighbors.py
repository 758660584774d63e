"""Neighbors of a plan in the search space of BEAM: the planner's own, with one size different.

Floor 3'. What a strategy chooses, from the proposal to the rows of a tile, it asks the `Draft` for
by name (`Draft.size`). A neighbor is the plan that the same strategies make where one of these
sizes is another one near by: there are no other rules. Nothing is measured here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.draft import PROPOSAL
from tinycore.lower.legality import problem_of
from tinycore.lower.plan import drafted
from tinycore.lower.tile import Plan
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

STARTS: Final = (1, 2, -1)
"""The proposals from which a search starts, beside the cheapest, 0: the next, and the last, which
is most different."""
SIZES: Final = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
"""Sizes to try, if close to the planner's."""
NEAR: Final = 2
"""Number of sizes up and down that are near, beside the half, the double, and 1."""
MOST_CANDIDATE_NODES: Final = 4000
"""Nodes times copies that a candidate may come to: what larger ones win, compiling them costs."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Candidate:
    """A plan, and the kernel as it makes it."""

    plan: Plan
    tiled: UOp
    asked: Sizes
    """Sizes that differ from the planner's."""
    sizes: Sizes
    """All sizes of the plan by name."""


def default(kernel: UOp, limits: Limits) -> Candidate:
    """The planner's plan, whatever its size."""
    draft = drafted(kernel, limits)
    return Candidate(tuple(draft.steps), draft.kernel, {}, draft.sizes)


def candidate_by(kernel: UOp, asked: Sizes, limits: Limits) -> Candidate | None:
    """The planner's plan, but for the sizes that are asked for; None if they are impossible, or
    make a kernel that is too large."""
    try:
        draft = drafted(kernel, limits, asked)
        problem = problem_of(draft.kernel, limits)
    except (ArgumentError, AssertionError, KeyError, StopIteration, ValueError):
        return None
    if problem or (asked and nodes_written(draft.kernel) > MOST_CANDIDATE_NODES):
        return None
    return Candidate(tuple(draft.steps), draft.kernel, asked, draft.sizes)


def nodes_written(tiled: UOp) -> int:
    """Approximate number of nodes after unrolling."""
    kinds = (AxisKind.UNROLL, AxisKind.PARTIAL)
    total = 0
    for node in tiled.toposort():
        copies = 1
        for counter in node.ranges:
            copies *= counter.extent if counter.kind in kinds else 1
        total += copies
    return total


def starts(kernel: UOp, limits: Limits) -> list[Candidate | None]:
    """Starting points of a search beside the planner's plan: those of other proposals."""
    return [candidate_by(kernel, {f"{PROPOSAL} 0": rank}, limits) for rank in STARTS]


def neighbors(kernel: UOp, start: Candidate, limits: Limits, seed: int = 0) -> Iterator[Candidate]:
    """Every legal plan of which one size is near, each making something else, in an order that
    `seed` mixes."""
    found, tried = {start.tiled}, list(ways(start))
    random.Random(seed).shuffle(tried)
    for asked in tried:
        candidate = candidate_by(kernel, asked, limits)
        if candidate is not None and candidate.tiled not in found:
            found.add(candidate.tiled)
            yield candidate


def ways(start: Candidate) -> Iterator[Sizes]:
    """The sizes of a candidate, one of them changed. Another proposal has sizes of its own."""
    for name, size in start.sizes.items():
        place = sum(other < size for other in SIZES)
        near = {*SIZES[max(place - NEAR, 0) : place + NEAR + 1], size // 2, 2 * size, 1}
        kept = {} if name.startswith(PROPOSAL) else start.asked
        yield from ({**kept, name: other} for other in sorted(near - {size}))
