"""Scans: several at a time, since each step of one waits for the step before.

Floor 3'.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tinycore.lower.cost import Cost, Lanes, Proposal
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.strategies.elementwise import vectorize
from tinycore.lower.tile import Bind, Split
from tinycore.render.base import Limits
from tinycore.uop.op import AxisKind

SCANNED_ROWS: Final = 2
"""Scalar scans beside each other: more would take lines of the same set from the first cache."""
SCANNED_VECTORS: Final = 8
"""Vectors beside each other that go through rows far apart: whole lines, and several of them."""


def propose(facts: KernelFacts, limits: Limits, lanes: Lanes) -> Iterator[Proposal]:
    """Lanes across scans; where these suit none, two scalar scans at a time."""
    if not facts.has_scan or (facts.reductions and facts.is_cuttable):
        return
    for axis, cycles in lanes.items():
        if axis.arg.kind is not AxisKind.REDUCE:
            many = partial(vectorize, axis=axis, vectors=SCANNED_VECTORS)
            yield Proposal("scan", axis, Cost(cycles), many)
    if not facts.reductions:
        yield Proposal("scalar scan", None, Cost(1.0), scan_rows_together)


def scan_rows_together(draft: Draft) -> None:
    """Several scalar scans at a time."""
    rows = [r for r in draft.facts.outputs if r.extent >= SCANNED_ROWS]
    if rows:
        draft.do(Split(number := rows[-1].arg.number, SCANNED_ROWS))
        draft.do(Bind((*number, 1), AxisKind.UNROLL))
