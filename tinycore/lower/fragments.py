"""Fragments: the elements of a matrix unit's operands held by each lane, as vector loads.

Floor 3'. A fragment is a vector: one load where neighboring elements lie side by side in memory, as
the map of the unit says and the address allows, else one for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinycore.dtype import PointerDType
from tinycore.errors import ArgumentError
from tinycore.render.base import pointer_of
from tinycore.uop.affine import coefficient, divisor
from tinycore.uop.matrix import Fragment, MatrixDescriptor, MatrixLoad, MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

Vector = Callable[[UOp, UOp], UOp]
"""The value in all steps of a loop, as lanes of a vector."""


def is_planned(node: UOp) -> bool:
    """True if a MATRIX still has its loops, and no fragments."""
    return node.op is Op.MATRIX and len(node.src) > 3


def added(total: UOp, value: UOp, op: Op) -> UOp:
    """A total with one more value; a matrix unit adds to it by itself."""
    if value.op is Op.MATRIX and op is Op.ADD and value.src[2] is value.const_like(0):
        return value.with_src((*value.src[:2], total, *value.src[3:]))
    return total.alu(op, value)


def multiplied(node: UOp, total: UOp, vector: Vector) -> UOp:
    """A MATRIX of fragments, added to the fragment `total`."""
    unit: MatrixUnit = node.arg
    a, b, _, m, n, k, lane, _ = node.src
    loops = {"m": m, "n": n, "k": k}
    operands = (
        fragment(value, unit.fragment(name), loops, lane, vector, unit.load)
        for value, name in ((a, "a"), (b, "b"))
    )
    return UOp(Op.MATRIX, total.dtype, (*operands, total), unit)


def fragment(
    value: UOp,
    held: Fragment,
    loops: dict[str, UOp],
    lane: UOp,
    vector: Vector,
    load: MatrixLoad | MatrixDescriptor | None = None,
) -> UOp:
    """The fragment of an operand: the elements that a lane holds, by the unit's lane map."""
    if isinstance(load, MatrixDescriptor):
        return described(value, held, loops, load)
    if load is not None and (tiles := tiles_of(value, held, loops, lane, load)) is not None:
        return tiles
    along, most = held.map.neighbors

    def held_from(first: int, turn: UOp | None) -> UOp:
        places = {
            loops[axis]: UOp.index(0) + held.map.place(axis, lane, first)
            for axis in held.axes
            if loops[axis].op is Op.RANGE
        }
        if turn is not None:
            places[loops[along]] += turn
        return rewrite(value.substitute(places), simplify, name="simplify a fragment")

    together, turn = most, None
    for lanes in (most >> times for times in range(most.bit_length() - 1)):
        step = UOp.range(lanes, (*loops[along].arg.number, Part.TURN), AxisKind.VECTOR)
        if lanes == most:
            together, turn = lanes, step
        if lies_together(held_from(0, step), step):  # a swizzle keeps pieces of a row
            together, turn = lanes, step
            break
    parts = []
    for first in range(0, held.count, together):
        part = held_from(first, turn)
        parts.append(part if turn is None else vector(turn, part))
    if len(parts) == 1:
        return parts[0]
    if together == 1:
        return UOp(Op.VECTORIZE, held.vector, tuple(parts))
    return UOp(Op.EXTRACT, held.vector, tuple(parts), tuple(range(held.count)))


def lies_together(value: UOp, turn: UOp) -> bool:
    """True if every address in a value moves by the same with each step of a loop."""
    places = [n.src[1] for n in value.toposort() if n.op is Op.INDEX]
    return all(coefficient(place, turn) is not None for place in places)


def tiles_of(
    value: UOp, held: Fragment, loops: dict[str, UOp], lane: UOp, load: MatrixLoad
) -> UOp | None:
    """The fragment of an operand in shared memory, loaded by tiles; None if that is impossible."""
    is_load = value.op is Op.LOAD and len(value.src) == 1
    if not is_load or pointer_of(value.src[0]).op is not Op.DEFINE_LOCAL:
        return None
    if any(loops[axis].op is not Op.RANGE for axis in held.axes):
        return None
    for columns in held.axes:
        steps = load.tiles_of(held, columns)
        rows = held.axes.replace(columns, "")
        for way in (False, True) if steps is not None else ():
            across, down = (rows, columns) if way else (columns, rows)
            if way and held.dtype.itemsize != load.turned_bytes:
                continue
            at = {across: UOp.index(0), down: lane % load.rows}
            for place, bit in enumerate(steps or ()):
                at[bit.axis] += lane // (load.rows << place) % 2 * bit.power
            places = {loops[axis]: place for axis, place in at.items()}
            if (row := row_at(value.src[0], places, loops[across], load)) is not None:
                kind = replace(load, is_turned=way)
                return UOp(Op.MATRIX_LOAD, held.vector, (row,), kind)
    return None


def described(value: UOp, held: Fragment, loops: dict[str, UOp], load: MatrixDescriptor) -> UOp:
    """The place in shared memory where an operand begins that its unit reads by itself.

    Raises ArgumentError where it does not lie as the descriptor says: a plan must have staged it.
    """
    size, rows = held.dtype.itemsize, held.axes.replace("k", "")
    down, along = loops[rows], loops["k"]
    if not isinstance(value.src[0].dtype if value.src else None, PointerDType):
        raise ArgumentError(f"{load.name} takes an operand in shared memory, not {value.op.name}")
    index = value.src[0]

    def place(row: int, column: int) -> UOp:
        at = {down: UOp.index(row), along: UOp.index(column)}
        return rewrite(index.src[1].substitute(at), simplify, name="simplify a descriptor")

    first = place(0, 0)
    at_zero = {r: UOp.index(0) for r in first.ranges}

    def at(row: int, column: int) -> UOp:
        found = place(row, column).substitute(at_zero)
        return rewrite(found, simplify, name="simplify a descriptor")

    top, left = divmod(int(at(0, 0).arg), load.row_bytes // size)
    bits = [(1 << bit, 0) for bit in range((down.extent - 1).bit_length())]
    bits += [(0, 1 << bit) for bit in range((along.extent - 1).bit_length())]
    for row, column in (*bits, (down.extent - 1, along.extent - 1)):
        if at(row, column) is not UOp.index(load.place(top + row, left + column, size)):
            raise ArgumentError(
                f"{load.name} reads rows of {load.row_bytes} bytes that are swizzled; row {row}, "
                f"column {column} of an operand does not lie so. NOOPT=1 makes no such plan."
            )
    return UOp(Op.MATRIX_LOAD, held.vector, (index.with_src((index.src[0], first)),), load)


def row_at(index: UOp, places: dict[UOp, UOp], across: UOp, load: MatrixLoad) -> UOp | None:
    """The first element of a row of a tile; None unless the row is contiguous and aligned."""
    assert isinstance(index.dtype, PointerDType)
    size = load.row_bytes // index.dtype.base.itemsize
    step = UOp.range(size, (*across.arg.number, Part.TURN), AxisKind.VECTOR)
    inside = {**places, across: places[across] + step}
    whole = rewrite(index.src[1].substitute(inside), simplify, name="simplify a row")
    first = rewrite(whole.substitute({step: UOp.index(0)}), simplify, name="simplify a row")
    if coefficient(whole, step) != 1 or divisor(first, size) % size:
        return None
    return index.with_src((index.src[0], first))
