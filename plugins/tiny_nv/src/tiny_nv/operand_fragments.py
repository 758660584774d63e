"""Operands of matrix units in kernels: the rows that lanes name, and descriptors of a layout.

See `operand_loads.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tiny_nv.operand_loads import ATOM_BYTES, MatrixDescriptor, MatrixLoad
from tinycore.dtype import PointerDType
from tinycore.errors import ArgumentError
from tinycore.render.base import pointer_of
from tinycore.tiling import row_at
from tinycore.uop.matrix import Fragment
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

__all__ = ["described", "tiles_of"]

ROW_SIZES: Final = 3
"""Number of row lengths that a descriptor can state: the longest, half and a quarter of it."""


def tiles_of(
    value: UOp, held: Fragment, loops: dict[str, UOp], lane: UOp, load: MatrixLoad
) -> UOp | None:
    """An operand in shared memory loaded by tiles (ldmatrix); None if that is impossible."""
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
                # Bits of the lane above those of rows number the tiles that a load brings.
                at[bit.axis] += lane // (load.rows << place) % 2 * bit.power
            places = {loops[axis]: place for axis, place in at.items()}
            if (row := row_at(value.src[0], places, loops[across], load.row_bytes)) is not None:
                kind = replace(load, is_turned=way)
                return UOp(Op.INSTRUCTION, held.vector, (row,), kind)
    return None


def described(value: UOp, held: Fragment, loops: dict[str, UOp], load: MatrixDescriptor) -> UOp:
    """The address and layout of an operand that a unit reads from shared memory (wgmma).

    Raises ArgumentError if no descriptor states its layout: a plan must have staged it so.
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

    bits = [(1 << bit, 0) for bit in range((down.extent - 1).bit_length())]
    bits += [(0, 1 << bit) for bit in range((along.extent - 1).bit_length())]
    corners = ((0, 0), *bits, (down.extent - 1, along.extent - 1))
    places = {corner: at(*corner) for corner in corners}
    found = {corner: int(p.arg) for corner, p in places.items() if p.op is Op.CONST}
    for form in forms_of(load, found, size) if len(found) == len(places) else ():
        if lies_as(form, found, size):
            place_of_first = index.with_src((index.src[0], first))
            return UOp(Op.INSTRUCTION, held.vector, (place_of_first,), form)
    raise ArgumentError(
        f"{load.name} reads rows of up to {load.row_bytes} bytes that are swizzled; an operand of "
        f"{down.extent} rows does not lie so. NOOPT=1 makes no such plan."
    )


def forms_of(
    load: MatrixDescriptor, found: dict[tuple[int, int], int], size: int
) -> Iterator[MatrixDescriptor]:
    """Candidate layouts of an operand: all that a descriptor can state."""
    for times in range(ROW_SIZES):
        yield replace(load, row_bytes=load.row_bytes >> times)
    if load.turned_bytes == size:
        row = load.row_bytes // size
        distance = (found.get((row, 0), 0) - found[0, 0]) * size
        yield replace(load, panel_bytes=distance if distance > 0 else load.row_bytes)
    distance = (found.get((0, ATOM_BYTES // size), 0) - found[0, 0]) * size
    if distance > ATOM_BYTES and distance % ATOM_BYTES == 0:
        yield replace(load, row_bytes=ATOM_BYTES, panel_bytes=distance)


def lies_as(load: MatrixDescriptor, found: dict[tuple[int, int], int], size: int) -> bool:
    """True if the elements of an operand lie where a descriptor at its first element places them.

    An operand may begin at any row, and if rows lie along k, inside of a row.
    """
    row, column = divmod(found[0, 0], load.row_bytes // size)
    if load.is_turned:
        top, left = column, row
    else:
        top, left = row, column
    return all(
        place == load.place(top + down, left + along, size)
        for (down, along), place in found.items()
    )
