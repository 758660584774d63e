"""Matrix units in the interpreter: matrices are put together by the maps of their unit.

Private to the interpreter. What a subgroup holds becomes whole matrices, so a map that is wrong, or
a lane that holds another element than it should, shows in the product. Sums go through k in order,
each step rounded to the type of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy

from tinycore.builtin.access import Access
from tinycore.builtin.arithmetic import Array, computed_as, from_storage
from tinycore.builtin.frame import Axes, Frame, Memory
from tinycore.dtype import to_numpy_dtype
from tinycore.errors import DeviceError
from tinycore.render.base import pointer_of
from tinycore.uop.matrix import Fragment, MatrixDescriptor, MatrixLoad, MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["described_step", "load_step", "matrix_step", "row_of", "shuffle_step"]


def matrix_step(u: UOp, slots: Mapping[UOp, int], axes: Axes) -> Callable[[Frame], None]:
    """The step of a MATRIX."""
    unit: MatrixUnit = u.arg
    target, sources = slots[u], [slots[s] for s in u.src]
    fragments = [unit.fragment(name) for name in ("a", "b", "out")]
    block = tuple(axes.launch[name] for name in axes.threads if name.startswith("block"))
    threads = math.prod(block)
    kind = computed_as(unit.out)
    spots = [places(fragment, unit) for fragment in fragments]
    shapes = [[unit.size(axis) for axis in fragment.axes] for fragment in fragments]

    def multiply(frame: Frame) -> None:
        if threads % unit.threads:
            raise DeviceError(
                f"kernel {frame.kernel}: {unit.name} is for subgroups of {unit.threads} threads, a "
                f"group of {threads} has a part of one"
            )
        held = [frame.values[s] for s in sources]
        outer = numpy.broadcast_shapes(*[x.shape[: x.ndim - 1 - len(block)] for x in held])
        check_together(frame, outer, block, unit.name, unit.threads)
        a, b, total = (
            matrix_of_lanes(
                by_subgroup(x, outer, block, unit.threads), spot, shape, frame.kernel, unit
            )
            for x, spot, shape in zip(held, spots, shapes, strict=True)
        )
        a, b = a.astype(kind), b.astype(kind)
        for step in range(unit.k):
            total = (total + a[..., step : step + 1] * b[..., step : step + 1, :]).astype(kind)
        result = total[(..., *spots[2])]
        frame.values[target] = result.reshape(*outer, *block, result.shape[-1])

    return multiply


def shuffle_step(
    u: UOp, slots: Mapping[UOp, int], axes: Axes, lanes: int
) -> Callable[[Frame], None]:
    """The step of a SHUFFLE among as many lanes as its mask has bits for, or more.

    Raises DeviceError where a lane that another one asks has not got there.
    """
    target, source, mask = slots[u], slots[u.src[0]], int(u.arg)
    block = tuple(axes.launch[name] for name in axes.threads if name.startswith("block"))
    threads = math.prod(block)
    asked = numpy.arange(lanes) ^ mask

    def exchange(frame: Frame) -> None:
        if threads % lanes:
            raise DeviceError(
                f"kernel {frame.kernel}: lanes of a SHUFFLE {mask} apart are asked of a group of "
                f"{threads} threads, which has not all of them"
            )
        value = frame.values[source]
        outer = value.shape[: value.ndim - 1 - len(block)]
        check_together(frame, outer, block, "SHUFFLE", lanes)
        found = by_subgroup(value, outer, block, lanes)[..., asked, :]
        frame.values[target] = found.reshape(*outer, *block, value.shape[-1])

    return exchange


def row_of(u: UOp) -> int:
    """The elements of a row that each lane names for a MATRIX_LOAD; of a descriptor it is one."""
    if isinstance(u.arg, MatrixDescriptor):
        return 1
    return int(u.arg.row_bytes) // u.dtype.scalar().itemsize


def load_step(
    u: UOp, access: Access, slots: Mapping[UOp, int], axes: Axes
) -> Callable[[Frame], None]:
    """The step of a MATRIX_LOAD, whose access is that to the row each thread names."""
    load: MatrixLoad = u.arg
    target, pointer = slots[u], slots[pointer_of(u.src[0])]
    block = tuple(axes.launch[name] for name in axes.threads if name.startswith("block"))
    threads, together = math.prod(block), load.rows * load.tiles
    lanes, elements = numpy.arange(together)[:, None], numpy.arange(u.dtype.count)[None]
    row, column = numpy.broadcast_arrays(*load.place(lanes, elements, u.dtype.scalar().itemsize))
    decoded = computed_as(u.dtype) != to_numpy_dtype(u.dtype)

    def move(frame: Frame) -> None:
        if threads % together:
            raise DeviceError(
                f"kernel {frame.kernel}: {load.name} is for subgroups of {together} threads, a "
                f"group of {threads} has a part of one"
            )
        memory: Memory = frame.values[pointer]
        if (access.index(frame) % access.lanes).any():
            raise DeviceError(
                f"kernel {frame.kernel}: {load.name} reads {memory.label} at an element that is "
                f"no multiple of {access.lanes}, the {load.row_bytes} bytes of a row"
            )
        where = access.places(frame, memory, None)
        outer = where.shape[: where.ndim - 1 - len(block)]
        check_together(frame, outer, block, load.name, together)
        rows = by_subgroup(where, outer, block, together)
        around = rows.shape[: rows.ndim - 3]
        where = rows[..., row, column].reshape(*around, *block, u.dtype.count)
        found = memory.array.take(where)
        if memory.accesses is not None:
            memory.accesses.read(frame, where, None)
        frame.values[target] = from_storage(found, memory.dtype) if decoded else found

    return move


def described_step(
    u: UOp, access: Access, slots: Mapping[UOp, int], axes: Axes
) -> Callable[[Frame], None]:
    """The step of a MATRIX_LOAD that describes an operand: lanes get what the unit's map says.

    The unit reads it by itself, perhaps until the next barrier: that is noted.
    """
    load: MatrixDescriptor = u.arg
    unit, operand = described_operand(u, slots)
    target, pointer = slots[u], slots[pointer_of(u.src[0])]
    block = tuple(axes.launch[name] for name in axes.threads if name.startswith("block"))
    size, count = u.dtype.scalar().itemsize, u.dtype.count
    at = dict(zip(operand.axes, places(operand, unit), strict=True))
    along, (down,) = at.pop("k"), at.values()
    decoded = computed_as(u.dtype) != to_numpy_dtype(u.dtype)

    def move(frame: Frame) -> None:
        memory: Memory = frame.values[pointer]
        first = access.index(frame)
        outer = first.shape[: first.ndim - 1 - len(block)]
        check_together(frame, outer, block, load.name, unit.threads)
        start = by_subgroup(first, outer, block, unit.threads)
        if (start != start[..., :1, :]).any():
            raise DeviceError(f"kernel {frame.kernel}: lanes describe different operands")
        row, column = divmod(start, load.row_bytes // size)
        top, left = (column, row) if load.is_turned else (row, column)
        place = load.place(top + down, left + along, size)
        place = place.reshape(*start.shape[:-3], *block, count)
        if (wrong := (place < 0) | (place >= memory.size)).any():
            access.out_of_bounds(frame, memory, place, wrong)
        where = place if memory.base is None else place + memory.base
        if memory.accesses is not None:
            memory.accesses.read(frame, where, None)
            memory.accesses.is_operand[where] = True
        found = memory.array.take(where)
        frame.values[target] = from_storage(found, memory.dtype) if decoded else found

    return move


def described_operand(u: UOp, slots: Mapping[UOp, int]) -> tuple[MatrixUnit, Fragment]:
    """The unit that reads what a MATRIX_LOAD describes, and as which of its operands."""
    product = next(node for node in slots if node.op is Op.MATRIX and u in node.src[:2])
    unit: MatrixUnit = product.arg
    return unit, unit.fragment("ab"[product.src.index(u)])


def check_together(
    frame: Frame, outer: tuple[int, ...], block: tuple[int, ...], name: str, threads: int
) -> None:
    """Raise DeviceError if part of a subgroup has left the loop that the others are in."""
    if frame.mask is None:
        return
    inside = by_subgroup(frame.mask, outer, block, threads)
    if (inside.any(axis=-2) != inside.all(axis=-2)).any():
        raise DeviceError(
            f"kernel {frame.kernel}: {name} is reached by a part of a subgroup of {threads} threads"
        )


def by_subgroup(
    values: Array, outer: tuple[int, ...], block: tuple[int, ...], threads: int
) -> Array:
    """Values as (..., subgroup, lane, element)."""
    count = values.shape[-1]
    around = numpy.broadcast_shapes(outer, values.shape[: len(outer)])
    wide = numpy.broadcast_to(values, (*around, *block, count))
    return wide.reshape(*around, math.prod(block) // threads, threads, count)


def places(fragment: Fragment, unit: MatrixUnit) -> tuple[Array, Array]:
    """Row and column of each element of each lane."""
    lanes = numpy.arange(unit.threads)[:, None]
    elements = numpy.arange(fragment.count)[None]
    shape = (unit.threads, fragment.count)
    row, column = (
        numpy.broadcast_to(fragment.map.place(axis, lanes, elements), shape)
        for axis in fragment.axes
    )
    return row, column


def matrix_of_lanes(
    values: Array, spots: tuple[Array, Array], shape: list[int], kernel: str, unit: MatrixUnit
) -> Array:
    """The matrix that lanes hold. Raises DeviceError where they hold different elements twice."""
    matrix = numpy.zeros((*values.shape[:-2], *shape), values.dtype)
    matrix[(..., *spots)] = values
    back = matrix[(..., *spots)]
    if not ((back == values) | ((back != back) & (values != values))).all():
        raise DeviceError(
            f"kernel {kernel}: lanes of {unit.name} that hold the same element of a matrix hold "
            "different values"
        )
    return matrix
