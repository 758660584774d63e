"""Matrix units in the interpreter: matrices are put together by the maps of their unit.

Private to the interpreter. What a subgroup holds becomes whole matrices, so a map that is wrong, or
a lane that holds another element than it should, shows in the product. Sums go through k in order,
each step rounded to the type of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy

from tinycore.builtin.arithmetic import Array, computed_as
from tinycore.builtin.frame import Frame
from tinycore.errors import DeviceError
from tinycore.uop.matrix import Fragment, MatrixUnit
from tinycore.uop.node import UOp

__all__ = ["matrix_step", "shuffle_step"]


def matrix_step(u: UOp) -> Callable[[Frame], None]:
    """The step of a MATRIX."""
    unit: MatrixUnit = u.arg
    fragments = [unit.fragment(name) for name in ("a", "b", "out")]
    kind = computed_as(unit.out)
    spots = [places(fragment, unit) for fragment in fragments]
    shapes = [[unit.size(axis) for axis in fragment.axes] for fragment in fragments]

    def multiply(frame: Frame) -> None:
        held = [frame.by_subgroup(frame.values[s], unit.threads, unit.name) for s in u.src]
        a, b, total = (
            matrix_of_lanes(x, spot, shape, frame.kernel, unit)
            for x, spot, shape in zip(held, spots, shapes, strict=True)
        )
        a, b = a.astype(kind), b.astype(kind)
        for step in range(unit.k):
            total = (total + a[..., step : step + 1] * b[..., step : step + 1, :]).astype(kind)
        frame.values[u] = frame.by_thread(total[(..., *spots[2])])

    return multiply


def shuffle_step(u: UOp, lanes: int) -> Callable[[Frame], None]:
    """The step of a SHUFFLE among as many lanes as its mask has bits for, or more.

    Raises DeviceError where a lane that another one asks has not got there.
    """
    mask = int(u.arg)
    asked = numpy.arange(lanes) ^ mask

    def exchange(frame: Frame) -> None:
        if (threads := math.prod(frame.block)) % lanes:
            raise DeviceError(
                f"kernel {frame.kernel}: lanes of a SHUFFLE {mask} apart are asked of a group of "
                f"{threads} threads, which has not all of them"
            )
        found = frame.by_subgroup(frame.values[u.src[0]], lanes, "SHUFFLE")
        frame.values[u] = frame.by_thread(found[..., asked, :])

    return exchange


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
