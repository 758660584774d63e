"""What each lane holds of the operands of a matrix unit, written out.

Floor 3'. A fragment is a vector: one load where neighboring elements lie side by side in memory, as
the map of the unit says and the address allows, else one for each element.
"""

from __future__ import annotations

from collections.abc import Callable

from tinycore.lower.loops import Number
from tinycore.uop.matrix import Fragment, MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

Vector = Callable[[UOp, UOp], UOp]
"""The value in all steps of a loop, as lanes of a vector."""


def is_planned(node: UOp) -> bool:
    """Whether a MATRIX still has its loops, and no fragments."""
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
        fragment(value, unit.fragment(name), loops, lane, vector)
        for value, name in ((a, "a"), (b, "b"))
    )
    return UOp(Op.MATRIX, total.dtype, (*operands, total), unit)


def fragment(value: UOp, held: Fragment, loops: dict[str, UOp], lane: UOp, vector: Vector) -> UOp:
    """What a lane holds of an operand that moves with some loops."""
    along, together = held.map.neighbors
    number: Number = (*loops[along].arg.number, Part.TURN) if together > 1 else ()
    turn = UOp.range(together, number, AxisKind.VECTOR) if together > 1 else UOp.index(0)
    parts = []
    for first in range(0, held.count, together):
        places = {
            loops[axis]: UOp.index(0) + held.map.place(axis, lane, first)
            for axis in held.axes
            if loops[axis].op is Op.RANGE
        }
        if together > 1:
            places[loops[along]] += turn
        part = rewrite(value.substitute(places), simplify, name="simplify a fragment")
        parts.append(vector(turn, part) if together > 1 else part)
    if len(parts) == 1:
        return parts[0]
    if together == 1:
        return UOp(Op.VECTORIZE, held.vector, tuple(parts))
    return UOp(Op.EXTRACT, held.vector, tuple(parts), tuple(range(held.count)))
