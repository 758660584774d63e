"""Stages in the shared memory of a group: their layout, their copies, and who fills them.

Floor 3'. A group fills its arrays together: each thread moves one vector at a time, and neighboring
threads move adjacent vectors. Rows are padded or swizzled, so that threads that read or store a
column find each bank once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.draft import Draft
from tinycore.lower.legality import lack_of_room
from tinycore.lower.loops import Number, arrays_of, counter_of, fills_of, stores_of, threads_of
from tinycore.lower.packing import fill_of, loads_of, loads_of_elements
from tinycore.lower.predicate import copied_from
from tinycore.lower.steps.split import MASKED, parts
from tinycore.lower.steps.stage import (
    BANKS_BYTES,
    LEAST_PIECE_BYTES,
    WORD_BYTES,
    Dimension,
    Stage,
    staged_values,
)
from tinycore.lower.steps.tensorize import ROWS
from tinycore.lower.strategies.grid_sides import operand_accesses
from tinycore.lower.tile import Bind, Reorder, Split, Step
from tinycore.render.base import Limits
from tinycore.uop.affine import coefficient, iterations_of, stride_ratio
from tinycore.uop.matrix import Fragment, MatrixUnit, OperandLoad
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.symbolic import simplified

SECTOR_BYTES: Final = 32
"""Bytes of a sector, the smallest unit that a cache moves."""
GROUPS_BESIDE: Final = 2
"""Groups that should be resident on a unit together by their shared memory."""


def fits_group(draft: Draft) -> bool:
    """True if the workgroup fits: its threads, the axes of these, and its shared memory."""
    return lack_of_room(draft.kernel, draft.limits) is None


def fills_ahead(limits: Limits) -> bool:
    """True if groups fill one copy of a stage while they compute from another."""
    return limits.copies is not None and limits.shared_bytes > 0


def are_copies(draft: Draft) -> bool:
    """True if every stage copies elements unchanged, of words, which asynchronous copies move."""
    for fill in fills_of(draft.kernel):
        (store,) = stores_of(fill.src[1])
        size = store.src[1].dtype.itemsize
        if size < WORD_BYTES or copied_from(store.src[1]) is None:
            return False
    return True


# --- operands by the loops that they vary with


def stage_operands(
    draft: Draft,
    at: Number | None,
    inner: list[Dimension],
    outer: tuple[Dimension, ...],
    turns: int = 1,
) -> range:
    """Stage the operands of a block of steps and a tile in `turns` copies; the numbers of their
    arrays."""
    return stage_each(draft, stages_of(draft, at, inner, outer), turns)


def stage_each(draft: Draft, stages: Sequence[Stage], copies: int) -> range:
    """Stage the operands that vary with the loops of each stage, in so many copies; the numbers of
    their arrays."""
    first = len(arrays_of(draft.kernel))
    for step in stages:
        if staged_values(draft.kernel, step):
            stage_windows(draft, replace(step, copies=copies))
    return range(first, len(arrays_of(draft.kernel)))


def stages_of(
    draft: Draft, at: Number | None, inner: Sequence[Dimension], outer: Sequence[Dimension]
) -> list[Stage]:
    """A stage for each distinct set of loops of a block and a tile that operands vary with, those
    of most loops first."""
    found = set()
    for place in operand_accesses(draft.facts):
        moving = {r.number for r in place.ranges}
        parts = [
            tuple(d for d in dimensions if any(axis in moving for axis, _ in d))
            for dimensions in (inner, outer)
        ]
        if all(parts):
            found.add((*parts[0], *parts[1]))
    return [Stage(at, d) for d in sorted(found, key=lambda d: (-len(d), d))]


def stage_windows(draft: Draft, step: Stage) -> None:
    """Stage the operands that vary with some loops, each element that windows share only once.

    If a value is not a function of its position in a window, each loop is a separate dimension.
    Arrays that are transposed as they are filled have padded rows, so that threads store to
    different banks.
    """
    loops, given = {r.number: r for r in draft.facts.loops}, step.dimensions
    axes, limits = step.axes, draft.limits
    moving = [
        n.src[1] for n in operand_accesses(draft.facts) if axes <= {r.number for r in n.ranges}
    ]
    step = replace(step, dimensions=with_overlaps(step.dimensions, moving, loops))
    before = draft.copy()
    try:
        made = draft.stage(step)
    except ArgumentError:
        each = tuple(((axis, 1),) for d in given for axis, _ in d)
        draft.do(replace(step, dimensions=each))
        return
    turned = [n for n in made if is_turned_by(fill_of(draft, n), limits)]
    apart = limits.vector_bytes // before.facts.itemsize
    padding = apart if step.copies > 1 and turned else 0
    sharers = iterations_of(draft.facts.loops_of_kind(AxisKind.GROUP))
    if sharers > 1 and limits.units:  # neighbors read vectors of as many rows
        padding = apart if turned else apart * max(BANKS_BYTES // WORD_BYTES // apart // sharers, 1)
    if padding:
        draft.become(before)
        draft.do(replace(step, padding=padding))


def is_turned_by(fill: UOp, limits: Limits) -> bool:
    """True if a fill transposes: elements adjacent in memory are not adjacent in its array."""
    loads = loads_of_elements(fill)
    return is_stored_apart(fill, min(fill.src[1:], key=lambda r: least_stride(loads, r, limits)))


def with_overlaps(
    dimensions: tuple[Dimension, ...], places: list[UOp], loops: dict[Number, UOp]
) -> tuple[Dimension, ...]:
    """The dimensions, with the taps of a window joined to the loop along which it slides."""
    for taps, windows in itertools.permutations(dimensions, 2):
        (tap, one), *others = taps
        strides = {stride_ratio(place, loops[tap], loops[windows[-1][0]]) for place in places}
        stride = strides.pop() if len(strides) == 1 else None
        # Overlapping windows read the same elements at different taps: each is staged once.
        if not others and one == 1 and stride and stride < loops[tap].extent:
            joined = (*((axis, factor * stride) for axis, factor in windows), (tap, 1))
            rest = tuple(joined if d is windows else d for d in dimensions if d is not taps)
            return with_overlaps(rest, places, loops)
    return dimensions


# --- operands of a matrix unit


def stage_side(draft: Draft, step: Stage, unit: MatrixUnit, part: int) -> bool:
    """Stage the operand of a side, in the order of vectors in memory if the unit loads rows in both
    orders. False if the unit reads it by itself, and not so.

    It cannot if threads transpose it: they would store single elements of many rows to the same
    banks.
    """
    held, load = unit.fragment("a" if part is ROWS else "b"), load_of_side(unit, part)
    before = draft.copy()
    is_staged = stage_rows(draft, step, held, load)
    if is_staged and load and load.turned_bytes == held.dtype.itemsize and is_turned(draft):
        draft.become(before)
        turned = replace(step, dimensions=step.dimensions[::-1])
        is_staged = stage_rows(draft, turned, held, load)
    return not unit.is_described or (is_staged and not is_turned(draft))


def stage_rows(draft: Draft, step: Stage, held: Fragment, load: OperandLoad | None) -> bool:
    """Stage an operand with its rows in different banks; False if no value varies with the loops
    of the step, so that lanes read the operand from memory."""
    itemsize, inner = held.dtype.itemsize, step.dimensions[-1]
    row = sum((counter_of(draft.kernel, a).extent - 1) * f for a, f in inner) + 1
    piece = piece_of(held, draft.limits)
    if load and load.is_described:
        panel = min(row, load.row_bytes // itemsize)
        pieces = panel * itemsize // LEAST_PIECE_BYTES
        step = replace(step, swizzle=pieces, panel=panel if panel < row else 0)
    elif (pieces := math.gcd(row * itemsize, BANKS_BYTES) // piece) > 1:
        step = replace(step, swizzle=pieces, piece_bytes=piece)
    elif row * itemsize % (2 * LEAST_PIECE_BYTES) == 0:
        # With an odd number of pieces 8 rows start in 8 places: no two lanes of 8 rows by 4, which
        # read a word each, nor of 8 threads, which move a piece each, read the same bank.
        step = replace(step, padding=LEAST_PIECE_BYTES // itemsize)
    try:
        made = draft.stage(step)
    except ArgumentError:
        return False
    for number in made:
        deal_out(draft, number, draft.limits.vector_bytes // itemsize)
    return True


def is_turned(draft: Draft) -> bool:
    """True if the last stage is transposed as it is filled: lanes of a vector go to different rows.

    With bytes, a thread then stores so many lanes that their addresses take registers from the
    accumulators.
    """
    fills = fills_of(draft.kernel)
    if not fills:
        return False
    end = max(fills, key=lambda n: n.src[0].arg).src[1]
    place = stores_of(end)[0].src[0].src[1]
    lanes = [r for r in end.src[1:] if r.kind is AxisKind.VECTOR]
    return any(coefficient(place, lane) != 1 for lane in lanes)


def piece_of(held: Fragment, limits: Limits) -> int:
    """Bytes of a row that the lanes of one transaction read, at least one access.

    A transaction of shared memory serves as many lanes as access each bank once.
    """
    along, together = held.map.neighbors
    access = min(together * held.dtype.itemsize, LEAST_PIECE_BYTES)
    served = held.map.lanes[: (min(BANKS_BYTES // access, limits.subgroup)).bit_length() - 1]
    beside = sum(bit is not None and bit.axis == along for bit in served)
    return min(max(access << beside, LEAST_PIECE_BYTES), BANKS_BYTES // 2)


def load_of_side(unit: MatrixUnit, part: int) -> OperandLoad | None:
    """The load of the operand of a side, by a descriptor along the sum alone unless the side fills
    rows: swizzled rows across the sum are read from their beginning on."""
    load, side = unit.load, unit.m if part is ROWS else unit.n
    if load and load.is_described and side * unit.a.itemsize % load.row_bytes:
        return replace(load, turned_bytes=0)
    return load


# --- who fills


def threads_of_group(draft: Draft) -> int:
    """The threads of a group."""
    return iterations_of(threads_of(draft.kernel))


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
    names = [r.number for r in loops]
    steps: list[Step] = [Reorder(tuple(names))]
    most = iterations_of(loops) // threads_of_group(draft)
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
    cut = simplified(gate.substitute({loop: place}), "a gate")
    return lane not in cut.ranges


def is_stored_apart(fill: UOp, loop: UOp) -> bool:
    """True if neighboring steps of a loop are not stored to adjacent elements."""
    (store,) = stores_of(fill)
    first, second = (store.src[0].src[1].substitute({loop: UOp.index(n)}) for n in (0, 1))
    return simplified(second - first, "a distance") is not UOp.index(1)


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
    cuts = {n: n.src[0] for n in place.every(Op.MIN) if n.arg == MASKED}
    return simplified(place.substitute(cuts), "a place") if cuts else place
