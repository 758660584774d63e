"""Operands of matrix units in the interpreter: what the loads of `operand_loads.py` do there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from tiny_nv.box_steps import Frame, MakeAccess, Memory, Step
from tiny_nv.operand_loads import MatrixDescriptor, MatrixLoad
from tinycore.errors import DeviceError
from tinycore.render.base import pointer_of
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["described_step", "load_step"]


def load_step(u: UOp, make: MakeAccess) -> Step:
    """The step of a MatrixLoad: each thread names a row."""
    load: MatrixLoad = u.arg
    size = u.dtype.scalar().itemsize
    access = make(u.src[0], load.row_bytes // size, "reads")
    target, pointer = u, pointer_of(u.src[0])
    together = load.rows * load.tiles
    lanes, elements = numpy.arange(together)[:, None], numpy.arange(u.dtype.count)[None]
    row, column = numpy.broadcast_arrays(*load.place(lanes, elements, size))

    def move(frame: Frame) -> None:
        memory: Memory = frame.values[pointer]
        if (access.index(frame) % access.lanes).any():
            raise DeviceError(
                f"kernel {frame.kernel}: {load.name} reads {memory.label} at an element that is "
                f"no multiple of {access.lanes}, the {load.row_bytes} bytes of a row"
            )
        rows = frame.by_subgroup(access.places(frame, memory, None), together, load.name)
        frame.values[target] = memory.read(frame, frame.by_thread(rows[..., row, column]))

    return move


def described_step(u: UOp, make: MakeAccess, program: Sequence[UOp]) -> Step:
    """The step of a MatrixDescriptor: lanes get what the unit's map says.

    The unit reads it by itself, perhaps until the next barrier: that is noted.
    """
    load: MatrixDescriptor = u.arg
    product = next(node for node in program if node.op is Op.MATRIX and u in node.src[:2])
    unit: MatrixUnit = product.arg
    held = unit.fragment("ab"[product.src.index(u)])
    access = make(u.src[0], 1, "reads")
    target, pointer = u, pointer_of(u.src[0])
    size = u.dtype.scalar().itemsize
    lanes, elements = numpy.arange(unit.threads)[:, None], numpy.arange(u.dtype.count)[None]
    rows = held.axes.replace("k", "")
    down, along = (held.map.place(axis, lanes, elements) for axis in (rows, "k"))

    def move(frame: Frame) -> None:
        memory: Memory = frame.values[pointer]
        start = frame.by_subgroup(access.index(frame), unit.threads, load.name)
        if (start != start[..., :1, :]).any():
            raise DeviceError(f"kernel {frame.kernel}: lanes describe different operands")
        row, column = divmod(start, load.row_bytes // size)
        top, left = (column, row) if load.is_turned else (row, column)
        place = frame.by_thread(load.place(top + down, left + along, size))
        if (wrong := (place < 0) | (place >= memory.size)).any():
            access.out_of_bounds(frame, memory, place, wrong)
        where = place if memory.base is None else place + memory.base
        if memory.accesses is not None:
            memory.accesses.is_operand[where] = True
        frame.values[target] = memory.read(frame, where)

    return move
