"""Distribution of the fills of shared memory over the threads of a group.

Floor 3'. A group fills its arrays together: each thread moves one vector at a time, and neighboring
threads move adjacent vectors.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.lower.draft import Draft
from tinycore.lower.loops import stores_of, threads_of
from tinycore.lower.packing import fill_of, loads_of, loads_of_elements
from tinycore.lower.steps.split import MASKED, parts
from tinycore.lower.tile import Bind, Reorder, Split, Step
from tinycore.render.base import Limits
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

SECTOR_BYTES: Final = 32
"""Bytes of a sector, the smallest unit that a cache moves."""


def threads_of_group(draft: Draft) -> int:
    """The threads of a group."""
    return math.prod(r.extent for r in threads_of(draft.kernel))


def deal_out(draft: Draft, number: int, lanes: int | None = None, is_across: bool = False) -> None:
    """Distribute a fill over the threads of a group, adjacent elements to neighboring threads.

    Each moves `lanes` elements at a time if possible; None for those of the widest value of the
    kernel. Neighboring threads load adjacent vectors; if `is_across`, they store to adjacent rows.
    """
    fill = fill_of(draft, number)
    loads = loads_of(fill)
    elements = loads_of_elements(fill)
    loops = sorted(fill.src[1:], key=lambda r: -least_stride(elements, r, draft.limits))
    last = loops[-1]
    names = [r.arg.number for r in loops]
    steps: list[Step] = [Reorder(tuple(names))]
    most = math.prod(r.extent for r in loops) // threads_of_group(draft)
    asked, wanted = lanes, draft.lanes() if lanes is None else lanes
    lanes = wanted if 0 < wanted <= most and last.extent % wanted == 0 else 1
    whole = [n for n in loads if len(n.src) == 2 or ends_by_vectors(n.src[2], last, lanes)]
    moves = {draft.facts.stride(n, last) for n in whole}
    if lanes > 1 and 1 in moves <= {0, 1}:
        row = names.pop()
        if last.extent == lanes:
            steps.append(Bind(row, AxisKind.VECTOR))
        else:
            steps += [Split(row, lanes), Bind((*row, 1), AxisKind.VECTOR)]
            beside = SECTOR_BYTES // (lanes * stores_of(fill)[0].src[1].dtype.itemsize)
            if asked and is_stored_apart(fill, last) and 0 < beside < last.extent // lanes:
                # Neighboring threads store to adjacent elements, except within a sector.
                names = [(*row, 0, 0), *names, (*row, 0, 1)]
                steps += [Split((*row, 0), beside), Reorder(tuple(names))]
            elif is_across:
                names.insert(0, (*row, 0))
                steps.append(Reorder(tuple(names)))
            else:
                names.append((*row, 0))
    draft.do(*steps, *(Bind(name, AxisKind.FILL) for name in names))


def ends_by_vectors(gate: UOp, loop: UOp, lanes: int) -> bool:
    """True if a gate varies along a loop, but not among the lanes of a vector along it."""
    if loop not in gate.ranges or lanes < 2:
        return False
    _, lane, place = parts(loop, loop.extent // lanes, lanes)
    cut = rewrite(gate.substitute({loop: place}), simplify, name="simplify a gate")
    return lane not in cut.ranges


def is_stored_apart(fill: UOp, loop: UOp) -> bool:
    """True if neighboring steps of a loop are not stored to adjacent elements."""
    (store,) = stores_of(fill)
    first, second = (store.src[0].src[1].substitute({loop: UOp.index(n)}) for n in (0, 1))
    return rewrite(second - first, simplify, name="simplify a distance") is not UOp.index(1)


def least_stride(loads: list[UOp], counter: UOp, limits: Limits) -> int:
    """The least stride of a loop among loads; a huge number if unknown.

    On cards clamps of the index are ignored, by which steps beyond the end read the last element.
    """
    places = [n.src[1] for n in loads]
    if limits.units:
        places = [without_ends(place) for place in places]
    moves = [coefficient(place, counter) for place in places]
    return min((abs(m) for m in moves if m), default=1 << 62)


def without_ends(place: UOp) -> UOp:
    """An index as if no step passed the end of a loop."""
    cuts = {n: n.src[0] for n in place.toposort() if n.op is Op.MIN and n.arg == MASKED}
    return rewrite(place.substitute(cuts), simplify, name="simplify a place") if cuts else place
