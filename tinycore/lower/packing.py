"""Packing of operand tiles: profitability, and the loops of the copy.

Floor 3'. `Stage` is the packing of BLIS, `cache_read` of TVM. Facts decide: how often the packed
elements are read again, how many they are, and how their address changes with each loop.
"""

from __future__ import annotations

import math

from tinycore.lower.cost import LEAST_CHUNKS
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import LEAST_REUSE
from tinycore.lower.loops import Number, counter_of
from tinycore.lower.steps.stage import (
    MOST_SCRATCH,
    WITHIN,
    Dimension,
    Stage,
    nest_of,
    staged_values,
)
from tinycore.lower.tile import Bind
from tinycore.uop.affine import coefficient, iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op


def pack_panel(draft: Draft, at: Number | None, panel: Dimension) -> bool:
    """Pack what the tiles below the loop `at` share, reduced loops outside and `panel` inside.

    The panel is read sequentially, which is nearly as fast from a far cache. In a nest over strips
    of rows all panels are packed before the first strip, if that leaves enough work for each
    thread.
    """
    inside = (*dimensions_of(draft, is_pair=False), panel, *dimensions_of(draft, is_pair=True))
    if draft.nest is not None and at is not None and (outer := draft.around[:-1]):
        steps = math.prod(counter_of(draft.kernel, axis).extent for axis in outer)
        every = Stage(outer[-1], (((at, 1),), *inside))
        if steps >= draft.nest.threads * LEAST_CHUNKS and pack(draft, every, MOST_SCRATCH):
            return True
    return pack(draft, Stage(at, inside), min(2 * draft.limits.cache_bytes, MOST_SCRATCH))


def pack_rows(draft: Draft, at: Number, groups: Number, rows: Number, scattered: bool) -> bool:
    """Pack what the rows below the loop `at` read: scattered ones as groups side by side.

    Grouped rows are read as one sequential stream, so they need not fit a near cache. Rows that are
    not scattered keep their layout, and are only computed once for all columns.
    """
    row: Dimension = ((rows, 1),)
    depth, pair = (dimensions_of(draft, is_pair) for is_pair in (False, True))
    inside = (*depth, row) if scattered else (row, *depth)
    return pack(draft, Stage(at, (((groups, 1),), *inside, *pair)), MOST_SCRATCH)


def dimensions_of(draft: Draft, is_pair: bool) -> tuple[Dimension, ...]:
    """Every reduced loop as a dimension: those over the two steps of a pair, or all others."""
    loops = (r for r in draft.facts.reduced if (r.kind is AxisKind.PAIR) is is_pair)
    return tuple(((r.number, 1),) for r in loops)


def pack(draft: Draft, step: Stage, most_bytes: int) -> bool:
    """Add a Stage if it pays for all that it stages, and plan the loops that fill it."""
    if not step.axes <= {r.number for r in draft.facts.loops if r.is_fixed}:
        return False  # some loop has but one step, or any number of them
    values = staged_values(draft.kernel, step)
    if not values or not all(pays(draft, value, step, most_bytes) for value in values):
        return False
    for number in draft.stage(step):
        plan_fill(draft, number)
    return True


def pays(draft: Draft, value: UOp, step: Stage, most_bytes: int) -> bool:
    """True if packing a value is worth its time and its memory."""
    loops = {r.number: r for r in value.ranges}
    size = math.prod(extent_of(dimension, loops) for dimension in step.dimensions)
    inside = loops_inside(draft, step.at)
    again = iterations_of(r for r in inside if r.number not in step.axes)
    return (
        again >= LEAST_REUSE
        and size * value.dtype.itemsize <= most_bytes
        and not has_layout(value, step, loops)
    )


def extent_of(dimension: Dimension, loops: dict[Number, UOp]) -> int:
    """The places along a dimension."""
    return sum((loops[axis].extent - 1) * factor for axis, factor in dimension) + 1


def loops_inside(draft: Draft, at: Number | None) -> list[UOp]:
    """The loops inside of the loop `at` in which no value is written out."""
    own = set(draft.facts.nodes)
    plain = [r for r in nest_of(draft.kernel) if r in own and r.kind not in WITHIN]
    place = next((i for i, r in enumerate(plain) if r.number == at), -1)
    return plain[place + 1 :]


def has_layout(value: UOp, step: Stage, loops: dict[Number, UOp]) -> bool:
    """True if a value is a plain load from memory that already has the layout of the stage."""
    if value.op is not Op.LOAD or len(value.src) > 1:
        return False
    pitch = 1
    for dimension in reversed(step.dimensions):
        for axis, factor in dimension:
            if coefficient(value.src[0].src[1], loops[axis]) != pitch * factor:
                return False
        pitch *= extent_of(dimension, loops)
    return True


# --- the loops that fill a packed array


def plan_fill(draft: Draft, number: int) -> None:
    """Vectors along the rows of an array, loaded as vectors or by transposing squares.

    Elements of the rows may be pairs.
    """
    fill = fill_of(draft, number)
    lanes = draft.limits.vector_bytes // fill.src[0].src[1].dtype.itemsize
    *outer, row = fill.src[1:]
    pair = []
    if dimensions_of(draft, is_pair=True):
        lanes //= 2
        pair, row = [Bind(row.number, AxisKind.PAIR)], outer.pop()
    if row.extent < lanes or lanes < 2:
        return
    draft.cut(row.number, lanes, AxisKind.VECTOR)
    draft.do(*pair)
    # Memory is contiguous across the rows of the array: vectors of as many rows are transposed.
    loads = [] if pair else loads_of(fill)
    across = [r for r in outer if any(coefficient(n.src[1], r) == 1 for n in loads)]
    if across and across[-1].extent >= lanes:
        draft.cut(across[-1].number, lanes, AxisKind.UNROLL)


def fill_of(draft: Draft, number: int) -> UOp:
    """The END of the loops that fill a packed array."""
    arrays = draft.kernel.every(Op.AFTER)
    own = (n for n in arrays if n.src[0].op is Op.DEFINE_LOCAL and n.src[0].arg == number)
    return next(own).src[1]


def loads_of(fill: UOp) -> list[UOp]:
    """The addresses that a fill reads."""
    return [n.src[0] for n in fill.src[0].src[1].toposort() if n.op is Op.LOAD]


def loads_of_elements(fill: UOp) -> list[UOp]:
    """The addresses that move with most loops of a fill: what is read once for a row of elements,
    as a factor of the row, does not decide in which order they are copied."""
    loads = loads_of(fill)
    moving = [len(n.ranges.intersection(fill.src[1:])) for n in loads]
    return [n for n, count in zip(loads, moving, strict=True) if count == max(moving)]
