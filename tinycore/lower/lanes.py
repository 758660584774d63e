"""Lanes of vectors: taking some out, and putting them side by side.

Floor 3'. What is put together is taken apart without an instruction, so passes need no rule for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinycore.uop.node import UOp
from tinycore.uop.op import Op


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
