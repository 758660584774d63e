"""Fragments: the elements of a matrix unit's operands held by each lane, as vector loads.

Floor 3'. The lane map of a unit states which elements a lane holds. A fragment is one vector load
where these are contiguous in memory and the address is aligned, else one load per element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.lower.lanes import folded_lanes, joined, lane_of, lanes_of, vector_of
from tinycore.lower.merge_reductions import fold_balanced
from tinycore.uop.affine import coefficient, divisor
from tinycore.uop.matrix import Fragment, MatrixUnit, OperandLoad, powers
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.symbolic import simplified

UNSIGNED_BY_SIZE: Final = {
    d.itemsize: d for d in (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
}
"""Integers of bits, by bytes."""
Vector = Callable[[UOp, UOp], UOp]
"""Function of a loop and a value: the vector of the values in all steps of the loop."""
Fragments = dict[tuple[Any, ...], UOp]
"""Fragments of a kernel, by operand: its name, unit and value, the unit's loops and its lane."""


def is_planned(node: UOp) -> bool:
    """True if the operands of a MATRIX are still values in loops, not fragments."""
    return node.op is Op.MATRIX and len(node.src) > 3


def added(total: UOp, value: UOp, op: Op) -> UOp:
    """An accumulator combined with a value; a matrix unit takes the accumulator as its operand."""
    if value.op is Op.MATRIX and op is Op.ADD and value.src[2] is value.const_like(0):
        return value.with_src((*value.src[:2], total, *value.src[3:]))
    return total.alu(op, value)


def multiplied(
    node: UOp, total: UOp, vector: Vector, made: Sequence[UOp] = (), known: Fragments | None = None
) -> UOp:
    """A MATRIX of fragments with the accumulator `total`.

    `made` are accumulators of another product, which then are the first operand. `known` has the
    fragments of other products: a row of tiles shares those of one operand, a column the other's.
    """
    unit: MatrixUnit = node.arg
    a, b, _, m, n, k, lane = node.src[:7]
    loops = {"m": m, "n": n, "k": k}
    known = {} if known is None else known

    def held(value: UOp, name: str) -> UOp:
        key = (name, unit, value, m, n, k, lane)
        if (found := known.get(key)) is None:
            found = fragment(value, unit.fragment(name), loops, lane, vector, unit.load_of(name))
            known[key] = found
        return found

    left, right = operand_of_sums(made, unit, lane) if made else held(a, "a"), held(b, "b")
    if unit.is_turned:
        left, right, unit = right, left, unit.turned
    return UOp(Op.MATRIX, total.dtype, (left, right, total), unit)


def operands_of_sums(node: UOp) -> tuple[UOp, ...]:
    """The tiles of accumulators that are the first operand of a planned MATRIX; () for others."""
    return (node.src[0], *node.src[8:]) if node.src[7] in node.src[0].ranges else ()


def operand_of_sums(made: Sequence[UOp], unit: MatrixUnit, lane: UOp) -> UOp:
    """The fragment of operand `a`, assembled from adjacent tiles of accumulators."""
    way = unit.sums_as_operand
    assert way is not None, f"{unit.name} holds sums otherwise than its operand"
    for mask in way.masks:
        made = exchange_lanes(made, unit.out, mask, (lane // mask % 2).eq(0))
    return UOp(Op.EXTRACT, unit.fragment("a").vector, tuple(made), way.places)


def exchange_lanes(held: Sequence[UOp], word: DType, mask: int, is_first: UOp) -> list[UOp]:
    """Elements of a lane and of the one `mask` apart, first those of the one without that bit.

    Narrow elements are exchanged in words of the type `word`.
    """
    kind, together = held[0].dtype.scalar(), word.itemsize // held[0].dtype.scalar().itemsize
    count = held[0].dtype.count
    values = [lane_of(vector, e) for vector in held for e in range(count)]
    bits = UNSIGNED_BY_SIZE[word.itemsize]
    firsts, seconds = [], []
    for start in range(0, len(values), together):
        own = packed(values[start : start + together], bits)
        other = UOp(Op.SHUFFLE, word, (own.bitcast(word),), mask).bitcast(bits)
        firsts += unpacked(is_first.where(own, other), kind, together)
        seconds += unpacked(is_first.where(other, own), kind, together)
    lanes = [*firsts, *seconds]
    return [vector_of(lanes[start : start + count]) for start in range(0, len(lanes), count)]


def packed(values: Sequence[UOp], bits: DType) -> UOp:
    """The bits of some values, the first the lowest."""
    size = values[0].dtype.itemsize
    wide = [value.bitcast(UNSIGNED_BY_SIZE[size]).cast(bits) for value in values]
    return functools.reduce(
        lambda word, at: word | wide[at] << 8 * size * at, range(1, len(wide)), wide[0]
    )


def unpacked(word: UOp, kind: DType, count: int) -> list[UOp]:
    """The values whose bits a word holds."""
    size = kind.itemsize
    parts = [word >> 8 * size * at if at else word for at in range(count)]
    return [part.cast(UNSIGNED_BY_SIZE[size]).bitcast(kind) for part in parts]


def unit_of(fold: UOp, columns: UOp) -> MatrixUnit:
    """The unit whose accumulators are reduced along the columns of its tiles."""
    found = (n for n in fold.toposort() if is_planned(n) and n.src[4] is columns)
    unit: MatrixUnit = next(found).arg
    return unit


def folded_rows(values: list[UOp], loops: tuple[UOp, ...], op: Op, unit: MatrixUnit) -> UOp:
    """Row reductions of tiles of accumulators, and over some loops; each lane gets its rows'.

    A lane reduces the elements that it holds, then with the lanes that hold other columns of the
    row. Sums are combined across lanes once, after the loops; other reductions in each step,
    since later values of that step may read them.
    """
    held = unit.fragment("out").map
    values, factor = without_factor(values) if op is Op.MAX else (values, None)
    rows, total = held.rows, fold_balanced(values, op)
    columns = [[e for e, at in enumerate(rows) if at == row] for row in sorted(set(rows))]
    parts = [lanes_of(total, [found[e] for found in columns]) for e in range(len(columns[0]))]
    own = fold_balanced(parts, op)
    others = sum(1 << at for at, bit in enumerate(held.lanes) if bit and bit.axis == "n")
    if op is not Op.ADD:
        own = folded_lanes(own, op, others)
    if factor is not None:
        own *= own.const_like(factor)
    if loops:
        own = UOp(Op.REDUCE, own.dtype, (own, *loops), op)
    if op is Op.ADD:
        own = folded_lanes(own, op, others)
    return lanes_of(own, rows)  # for each element the value of its row


def without_factor(values: list[UOp]) -> tuple[list[UOp], float | None]:
    """Values without their common positive factor, and that factor; None if there is none.

    The maximum of products is the product of the maximum: rounding is monotonic.
    """
    factors = {constant_of(v.src[1]) if v.op is Op.MUL else None for v in values}
    factor = factors.pop()
    if factors or factor is None or not 0 < factor < math.inf:
        return values, None
    return [v.src[0] for v in values], factor


def constant_of(value: UOp) -> float | None:
    """The constant that all lanes of a value have; None for other values."""
    lanes = set(value.src) if value.op is Op.VECTORIZE else {value}
    lane = lanes.pop()
    return None if lanes or lane.op is not Op.CONST else float(lane.arg)


def fragment(
    value: UOp,
    held: Fragment,
    loops: dict[str, UOp],
    lane: UOp,
    vector: Vector,
    load: OperandLoad | None = None,
) -> UOp:
    """The fragment of an operand: the elements that a lane holds, by the lane map of the unit."""
    if load is not None and (given := load.operand(value, held, loops, lane)) is not None:
        return given
    if not held.map.lanes and (whole := whole_tile(value, held, loops)) is not None:
        return whole
    along, most = held.map.neighbors

    def held_from(first: int, turn: UOp | None) -> UOp:
        places = {
            loops[axis]: UOp.index(0) + held.map.place(axis, lane, first)
            for axis in held.axes
            if loops[axis].op is Op.RANGE
        }
        if turn is not None:
            places[loops[along]] += turn
        return simplified(value.substitute(places), "a fragment")

    turn, start = None, None
    for lanes in (most >> times for times in range(most.bit_length() - 1)):
        step = UOp.range(lanes, (*loops[along].number, Part.TURN), AxisKind.VECTOR)
        value_of_lanes = held_from(0, step)
        is_together = lies_together(value_of_lanes, step)
        if turn is None or is_together:
            turn, start = step, value_of_lanes
        if is_together:  # a swizzle keeps pieces of a row contiguous
            break
    start = held_from(0, None) if start is None else start
    together = most if turn is None else turn.extent
    values = [start, *(held_from(first, turn) for first in range(together, held.count, together))]
    return joined([part if turn is None else vector(turn, part) for part in values])


def whole_tile(value: UOp, held: Fragment, loops: dict[str, UOp]) -> UOp | None:
    """One load of an operand that a single thread holds; None unless memory has its order."""
    is_load = value.op is Op.LOAD and len(value.src) == 1 and len(value.src[0].src) == 2
    if not is_load or any(loops[axis].op is not Op.RANGE for axis in held.axes):
        return None
    index = value.src[0]

    def place(element: int) -> UOp:
        at = {loops[a]: UOp.index(int(held.map.place(a, 0, element))) for a in held.axes}
        return simplified(index.src[1].substitute(at), "a fragment")

    first = place(0)
    # A place is a sum of what each bit adds, as long as all bits together add up, too.
    for element in (*powers(1, held.count), held.count - 1):
        apart = simplified(place(element) - first, "a fragment")
        if apart is not UOp.index(element):
            return None
    return index.with_src((index.src[0], first)).load(held.vector)


def lies_together(value: UOp, turn: UOp) -> bool:
    """True if all addresses in a value have a constant stride along a loop."""
    places = [n.src[1] for n in value.every(Op.INDEX)]
    return all(coefficient(place, turn) is not None for place in places)


def row_at(index: UOp, places: dict[UOp, UOp], across: UOp, row_bytes: int) -> UOp | None:
    """The first element of a row at places of loops; None unless it is contiguous and aligned."""
    assert isinstance(index.dtype, PointerDType)
    size = row_bytes // index.dtype.base.itemsize
    step = UOp.range(size, (*across.number, Part.TURN), AxisKind.VECTOR)
    inside = {**places, across: places[across] + step}
    whole = simplified(index.src[1].substitute(inside), "a row")
    first = simplified(whole.substitute({step: UOp.index(0)}), "a row")
    if coefficient(whole, step) != 1 or divisor(first, size) % size:
        return None
    return index.with_src((index.src[0], first))
