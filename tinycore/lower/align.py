"""Alignment: vector accesses are split to what is provably aligned.

Floor 3'. A device says in `Limits.access_alignment` at what multiple of bytes a vector access must
start. The proof is by the divisors of the index (`affine.divisor`) and the alignment of the memory:
that of a buffer's first byte is promised at the launch, or is that of an element
(`Limits.buffers_aligned`); arrays in workgroup memory are laid out aligned. What cannot be proven
becomes several accesses of the most lanes that can, each behind the gate of the whole. See
docs/floors/lower.md.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import ImageDType
from tinycore.lower.lanes import joined, lanes_of
from tinycore.render.base import Limits, pointer_of
from tinycore.render.facts import is_register
from tinycore.uop.affine import divisor
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rebuilt

WIDEST: Final = 1 << 6
"""Lanes beyond which no alignment is required."""


def align_accesses(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with every vector access aligned as the device needs it."""
    if limits.access_alignment == 1:
        return kernel
    known: dict[UOp, int] = {}

    def change(node: UOp, new: UOp) -> UOp:
        lanes = cut_of(node, limits, known)
        return new if lanes is None else in_parts(new, lanes)

    return rebuilt(kernel, change)


def cut_of(node: UOp, limits: Limits, known: dict[UOp, int]) -> int | None:
    """The lanes that a LOAD or STORE may move at a time; None if it needs no cut."""
    if node.op not in (Op.LOAD, Op.STORE) or node.src[0].op is not Op.INDEX:
        return None
    index = node.src[0]
    value = node.dtype if node.op is Op.LOAD else node.src[1].dtype
    pointer = pointer_of(index)
    if value.count == 1 or is_register(pointer) or isinstance(pointer.dtype, ImageDType):
        return None
    size = value.scalar().itemsize
    aligned = divisor(index.src[1], WIDEST, known) * size
    if pointer.op is Op.DEFINE_GLOBAL and not limits.buffers_aligned:
        aligned = size
    # Powers of two only: cuts of equal size, each aligned as the first.
    lanes = value.count & -value.count
    while lanes > 1 and aligned % min(lanes * size, limits.access_alignment):
        lanes //= 2
    return None if lanes == value.count else lanes


def in_parts(access: UOp, lanes: int) -> UOp:
    """A LOAD or STORE as several of fewer lanes."""
    index, *rest = access.src
    value = access.dtype if access.op is Op.LOAD else rest[0].dtype
    kind = value.scalar().vec(lanes) if access.op is Op.LOAD else access.dtype
    parts = []
    for start in range(0, value.count, lanes):
        place = index.with_src((index.src[0], index.src[1] + start, *index.src[2:]))
        values = (lanes_of(each, range(start, start + lanes)) for each in rest)
        parts.append(UOp(access.op, kind, (place, *values), access.arg))
    return UOp.group(*parts) if access.op is Op.STORE else joined(parts)
