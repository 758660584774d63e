"""The strategies for devices that run loops, and their order: prepare, choose, finish.

Floor 3'. Each strategy proposes plans with their costs for the loops that lanes suit; the cheapest
is applied. Fused kernels (`fused_rows.py`) plan each of their nests in this way.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.lower.borders import peel_borders
from tinycore.lower.cost import (
    LEAST_LANES,
    Lanes,
    Proposal,
    apply_cheapest,
    costs_of_lanes,
    own_proposals,
)
from tinycore.lower.draft import Draft, fuse_loops, order_reductions
from tinycore.lower.kernel_facts import SMALL_LOOP
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.strategies import (
    dot,
    elementwise,
    matrix_product,
    matrix_vector,
    scan,
    transpose,
)
from tinycore.lower.tile import Bind
from tinycore.uop.op import AxisKind, Op

STRATEGIES: Final = (
    elementwise.propose,
    matrix_vector.propose,
    matrix_product.propose,
    dot.propose,
    scan.propose,
    transpose.propose,
)
"""Every strategy; of proposals of equal cost the first is taken."""
MOST_UNROLLED: Final = 128
"""Copies of a body that unrolling a short loop may lead to."""


def plan_loops(draft: Draft) -> None:
    """Plan one nest of loops: lanes, register tiles, packing; not yet threads."""
    order_reductions(draft)
    fuse_loops(draft)
    if draft.lanes() >= LEAST_LANES:
        take_cheapest(draft, peel_borders(draft))
    else:
        apply_cheapest(draft, own_proposals(draft.facts, draft.limits))
    unroll_short_reductions(draft)


def take_cheapest(draft: Draft, parts: list[Number]) -> None:
    """Apply the cheapest proposal; if a loop was peeled, one for each part that suits lanes.

    Parts may be missing: at a border the value may be a constant.
    """
    lanes = costs_of_lanes(draft.facts, draft.limits)
    found, own = proposals(draft, lanes), own_proposals(draft.facts, draft.limits)
    best = min(found, key=lambda proposal: proposal.cost, default=None)
    axis = None if best is None or own or draft.rank else best.axis
    if axis is None or axis.arg.number not in parts:
        apply_cheapest(draft, own, found)
        return
    for axis in [r for r in draft.facts.loops if r.arg.number in parts and r in lanes]:
        apply_cheapest(draft, proposals(draft, {axis: lanes[axis]}))


def proposals(draft: Draft, lanes: Lanes) -> list[Proposal]:
    """The proposals of each strategy for some loops."""
    facts, limits = draft.facts, draft.limits
    return [found for propose in STRATEGIES for found in propose(facts, limits, lanes)]


def unroll_short_reductions(draft: Draft) -> None:
    """Unroll short innermost reduced loops, such as the width of a convolution's window."""
    if any(n.op is Op.MATRIX for n in draft.facts.nodes):
        return  # a unit has few registers for the operands of all steps
    copies = math.prod(r.extent for r in draft.facts.loops_of_kind(AxisKind.UNROLL))
    for node in draft.facts.reductions:
        loops = [r for r in node.src[1:] if r.op is Op.RANGE and r.arg.kind is AxisKind.REDUCE]
        if loops and loops[-1].is_fixed and loops[-1].extent <= SMALL_LOOP:
            number = loops[-1].arg.number
            is_plain = counter_of(draft.kernel, number).arg.kind is AxisKind.REDUCE
            if copies * loops[-1].extent <= MOST_UNROLLED and is_plain:
                draft.do(Bind(number, AxisKind.UNROLL))
