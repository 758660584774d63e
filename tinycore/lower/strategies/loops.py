"""The strategies for devices that run loops, as a table, and their order: prepare, choose, finish.

Floor 3'. Each strategy is proposed, with its cost, for the loops that lanes suit; the cheapest is
applied. Fused kernels (`fused_rows.py`) plan each of their nests in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from tinycore.lower.borders import peel_borders
from tinycore.lower.cost import (
    LEAST_LANES,
    Cost,
    Lanes,
    Proposal,
    apply_cheapest,
    costs_of_lanes,
    own_proposals,
)
from tinycore.lower.draft import PROPOSAL, Draft, fuse_loops, order_reductions, split_digits
from tinycore.lower.kernel_facts import SMALL_LOOP, KernelFacts
from tinycore.lower.loops import Number, counter_of, loops_of
from tinycore.lower.strategies.dot import MOST_UNROLLED, reduce_with_lanes, sum_in_parts
from tinycore.lower.strategies.elementwise import vectorize
from tinycore.lower.strategies.matrix_product import cut_tiles, wait_for_lines
from tinycore.lower.strategies.matrix_vector import accumulate_rows, wait_for_updates
from tinycore.lower.strategies.transpose import squares_of, transpose_blocks
from tinycore.lower.tile import Bind
from tinycore.render.base import Limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

SCANNED_ROWS: Final = 2
"""Scalar scans beside each other: more would take lines of the same set from the first cache. Of
4096 x 4096 two took 10 ms, eight 57 (Zen 3)."""
SCANNED_VECTORS: Final = 8
"""Vectors of scans that go through rows far apart: whole lines, and several of them."""


class Strategy(NamedTuple):
    """A way to tile loops, which proposes itself for each loop that lanes suit."""

    name: str
    suits: Callable[[KernelFacts, Limits], bool]
    """True for the kernels that it is for."""
    apply: Callable[..., None]
    """Applies it to a draft, along a loop `axis`."""
    is_along_sums: bool | None = False
    """True if lanes run along reduced loops, False along outputs; None for scalars."""
    waits: Callable[[KernelFacts, Limits, UOp], float | None] = lambda *_: 0.0
    """Cycles per access of waiting for memory: none where it is read in its order; None for loops
    that it is not for."""

    def proposals(self, facts: KernelFacts, limits: Limits, lanes: Lanes) -> Iterator[Proposal]:
        """One for each loop."""
        if not self.suits(facts, limits):
            return
        if self.is_along_sums is None:
            yield Proposal(self.name, None, Cost(1.0), self.apply)
            return
        for axis, cycles in lanes.items():
            if (axis.kind is AxisKind.REDUCE) is self.is_along_sums:
                waits = self.waits(facts, limits, axis)
                if waits is not None:
                    apply = partial(self.apply, axis=axis)
                    yield Proposal(self.name, axis, Cost(cycles, waits), apply)


def scan_rows_together(draft: Draft) -> None:
    """Several scalar scans at a time."""
    rows = [r for r in draft.facts.outputs if r.extent >= SCANNED_ROWS]
    if rows:
        draft.cut(rows[-1].number, SCANNED_ROWS, AxisKind.UNROLL)


def has_sums(facts: KernelFacts) -> bool:
    """True for a kernel whose reductions can be cut."""
    return bool(facts.reductions) and facts.is_cuttable


STRATEGIES: Final = (
    Strategy("elementwise", lambda f, _: not (f.has_scan or has_sums(f)), vectorize),
    Strategy(
        "matrix-vector",
        lambda f, _: bool(f.reductions and f.is_fixed and f.reduced),
        accumulate_rows,
        waits=wait_for_updates,
    ),
    Strategy("matrix product", lambda f, _: has_sums(f), cut_tiles, waits=wait_for_lines),
    Strategy("dot", lambda f, _: True, reduce_with_lanes, is_along_sums=True),
    Strategy("scalar sums", lambda f, _: bool(f.reductions), sum_in_parts, is_along_sums=None),
    Strategy(
        "scan",
        lambda f, _: f.has_scan and not has_sums(f),
        # Each step of a scan waits for the step before, so several go beside each other.
        partial(vectorize, vectors=SCANNED_VECTORS),
    ),
    Strategy(
        "scalar scan",
        lambda f, _: f.has_scan and not f.reductions,
        scan_rows_together,
        is_along_sums=None,
    ),
    Strategy("transpose", lambda *f: bool(squares_of(*f)), transpose_blocks, is_along_sums=None),
)
"""Every strategy; of proposals of equal cost the first is taken."""


def plan_loops(draft: Draft) -> None:
    """Plan one nest of loops: lanes, register tiles, packing; not yet threads."""
    order_reductions(draft)
    fuse_loops(draft)
    if draft.lanes() >= LEAST_LANES:
        split_where_cheaper(draft)
        take_cheapest(draft, peel_borders(draft))
    else:
        apply_cheapest(draft, own_proposals(draft.facts, draft.limits))
    unroll_short_reductions(draft)


def split_where_cheaper(draft: Draft) -> None:
    """Split loops that addresses divide, where lanes along their parts are cheaper: along places of
    windows that do not overlap, and inside of one."""
    apart = draft.copy()
    if split_digits(apart) and cost_of_cheapest(apart) < cost_of_cheapest(draft):
        draft.become(apart)


def cost_of_cheapest(draft: Draft) -> Cost:
    """The cost of the cheapest proposal; that of scalars if there is none."""
    found = proposals(draft, costs_of_lanes(draft.facts, draft.limits))
    return min([proposal.cost for proposal in found], default=Cost(1.0))


def take_cheapest(draft: Draft, parts: list[Number]) -> None:
    """Apply the cheapest proposal; if a loop was peeled, one for each part that suits lanes.

    Parts may be missing: at a border the value may be a constant.
    """
    lanes = costs_of_lanes(draft.facts, draft.limits)
    found, own = proposals(draft, lanes), own_proposals(draft.facts, draft.limits)
    best = min(found, key=lambda proposal: proposal.cost, default=None)
    axis = None if best is None or own else best.axis
    is_whole = axis is None or axis.number not in parts
    if is_whole or draft.copy().size(PROPOSAL, 0, least=-1):
        apply_cheapest(draft, own, found)
        return
    for axis in [r for r in draft.facts.loops if r.number in parts and r in lanes]:
        apply_cheapest(draft, proposals(draft, {axis: lanes[axis]}))


def proposals(draft: Draft, lanes: Lanes) -> list[Proposal]:
    """The proposals of each strategy for some loops."""
    facts, limits = draft.facts, draft.limits
    return [found for row in STRATEGIES for found in row.proposals(facts, limits, lanes)]


def unroll_short_reductions(draft: Draft) -> None:
    """Unroll short innermost reduced loops, such as the width of a convolution's window."""
    if any(n.op is Op.MATRIX for n in draft.facts.nodes):
        return  # a unit has few registers for the operands of all steps
    copies = iterations_of(draft.facts.loops_of_kind(AxisKind.UNROLL))
    for node in draft.facts.reductions:
        loops = [r for r in loops_of(node) if r.kind is AxisKind.REDUCE]
        if loops and loops[-1].is_fixed and loops[-1].extent <= SMALL_LOOP:
            number = loops[-1].number
            is_plain = counter_of(draft.kernel, number).kind is AxisKind.REDUCE
            if copies * loops[-1].extent <= MOST_UNROLLED and is_plain:
                draft.do(Bind(number, AxisKind.UNROLL))
