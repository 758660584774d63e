"""Elementwise kernels: lanes along an output loop, one vector at a time.

Floor 3'.
"""

from __future__ import annotations

import math

from tinycore.lower.cost import LEAST_LANES, floor_power_of_two
from tinycore.lower.draft import Draft
from tinycore.lower.loops import Number
from tinycore.lower.steps.stage import Dimension
from tinycore.lower.tile import Bind, Split
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind


def vectorize(draft: Draft, axis: UOp, vectors: int = 1) -> None:
    """Lanes along an output loop, several vectors at a time."""
    if width := output_lanes(draft, axis):
        most = -(-axis.extent // width)
        cut_columns(draft, axis, width, draft.size("vectors", min(vectors, most), most))


def output_lanes(draft: Draft, axis: UOp) -> int:
    """The number of lanes along an output loop; 0 if none divides what may not be computed twice.

    A short loop whose stores interleave with those of the lanes is unrolled.
    """
    facts = draft.facts
    loops = [facts.interleaved(n, axis) for n in facts.stored if axis in n.ranges]
    if loops and loops[0] and all(found == loops[0] for found in loops):
        draft.do(Bind(loops[0][0].number, AxisKind.UNROLL))
    lanes = draft.size("lanes", draft.lanes(), least=LEAST_LANES)
    width = floor_power_of_two(min(axis.extent, lanes))
    if draft.facts.overwrites:
        width = math.gcd(width, axis.extent)
    return width if width >= LEAST_LANES else 0


def cut_columns(draft: Draft, axis: UOp, width: int, wide: int) -> tuple[Number, Dimension]:
    """Cut a loop into panels of `wide` vectors; the loop over panels, and the dimension of a panel.

    If vectors do not divide the extent, the last panel is shifted inwards as a whole.
    """
    number, size = axis.number, axis.extent
    if not axis.is_fixed:
        wide = min(wide, size // width)
    if wide == 1:
        return draft.cut(number, width, AxisKind.VECTOR), (((*number, 1), 1),)
    if (size % width or not axis.is_fixed) and size >= width * wide:
        draft.do(Split(number, width * wide), Split((*number, 1), width))
        outer, inner, lane = (*number, 0), (*number, 1, 0), (*number, 1, 1)
    else:
        draft.do(Split(number, width), Split((*number, 0), wide))
        outer, inner, lane = (*number, 0, 0), (*number, 0, 1), (*number, 1)
    draft.do(Bind(inner, AxisKind.UNROLL), Bind(lane, AxisKind.VECTOR))
    return outer, () if size < width * wide else ((inner, width), (lane, 1))
