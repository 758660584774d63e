"""Lanes of vectors: taking some out, putting them side by side, and arithmetic lane by lane.

Floor 3'. What is put together is taken apart without an instruction, so passes need no rule for it.
Arithmetic is on lanes for languages that only move vectors, and instructions of plugins are for all
languages, as their templates are of scalars: loads, stores and variables keep their vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tinycore.dtype import DType
from tinycore.uop.instruction import Instruction
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.pattern import RuleSet, node


def vector_of(lanes: Iterable[UOp]) -> UOp:
    """Scalars side by side; one alone is itself."""
    first, *others = src = tuple(lanes)
    return UOp(Op.VECTORIZE, first.dtype.vec(len(src)), src) if others else first


def lanes_of(vector: UOp, numbers: Iterable[int]) -> UOp:
    """Some lanes, in the order given; a scalar is the same in all."""
    chosen = tuple(numbers)
    if vector.dtype.count == 1:
        return vector_of([vector] * len(chosen))
    if vector.op is Op.VECTORIZE:
        return vector_of([vector.src[n] for n in chosen])
    return UOp(Op.EXTRACT, vector.dtype.vec(len(chosen)), (vector,), chosen)


def lane_of(vector: UOp, number: int) -> UOp:
    """One lane."""
    return lanes_of(vector, (number,))


def joined(parts: Sequence[UOp]) -> UOp:
    """Vectors of equal length, or scalars, one after another."""
    kind, count = parts[0].dtype, parts[0].dtype.count * len(parts)
    if len(parts) == 1 or kind.count == 1:
        return vector_of(parts)
    return UOp(Op.EXTRACT, kind.scalar().vec(count), tuple(parts), tuple(range(count)))


def folded_lanes(value: UOp, op: Op, bits: int) -> UOp:
    """Butterfly reduction over lanes of a subgroup whose numbers differ in some bits.

    In each step lanes whose numbers differ in one of these exchange values, each element of a
    vector (see SHUFFLE), so that all lanes end with the result.
    """
    for bit in (1 << at for at in range(bits.bit_length()) if bits >> at & 1):
        own = [lane_of(value, number) for number in range(value.dtype.count)]
        value = value.alu(op, vector_of(UOp(Op.SHUFFLE, x.dtype, (x,), bit) for x in own))
    return value


# --- scalarization

scalars: Final = RuleSet("scalars")
instructions: Final = RuleSet("instructions")


def is_vector(u: UOp) -> bool:
    """True if a value has several lanes."""
    return u.dtype.count > 1


def is_arithmetic(u: UOp) -> bool:
    """True if a value of several lanes is computed lane by lane."""
    return is_vector(u) and isinstance(u.arg, Instruction)


@instructions.rule(node(Op.INSTRUCTION, name="root", when=is_arithmetic))
@scalars.rule(node(ALU, name="root", when=is_vector))
def lane_by_lane(root: UOp) -> UOp:
    """op(a, b) == (op(a[0], b[0]), op(a[1], b[1]), ...)."""
    scalar: DType = root.dtype.scalar()
    return vector_of(
        UOp(root.op, scalar, tuple([lane_of(s, lane) for s in root.src]), root.arg)
        for lane in range(root.dtype.count)
    )


@scalars.rule(node(Op.EXTRACT, name="root"))
def extracted_lanes(root: UOp) -> UOp | None:
    """(a, b, c)[1] == b; several lanes of any vectors == each of them side by side."""
    count = root.src[0].dtype.count
    if root.dtype.count == 1 and root.src[0].op is not Op.VECTORIZE:
        return None
    return vector_of(lane_of(root.src[lane // count], lane % count) for lane in root.arg)
