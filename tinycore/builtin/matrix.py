"""MATRIX in the interpreter: fragments are put together by the maps of their unit, and taken apart.

Private to the interpreter. What a subgroup holds becomes whole matrices, so a map that is wrong, or
a lane that holds another element than it should, shows in the product. Sums go through k in order,
each step rounded to the type of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy

from tinycore.builtin.arithmetic import Array, computed_as
from tinycore.builtin.frame import Axes, Frame
from tinycore.errors import DeviceError
from tinycore.uop.matrix import Fragment, MatrixUnit
from tinycore.uop.node import UOp

__all__ = ["matrix_step"]


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
        check_together(frame, outer, block, unit)
        a, b, total = (
            matrix_of_lanes(by_subgroup(x, outer, block, unit), spot, shape, frame.kernel, unit)
            for x, spot, shape in zip(held, spots, shapes, strict=True)
        )
        a, b = a.astype(kind), b.astype(kind)
        for step in range(unit.k):
            total = (total + a[..., step : step + 1] * b[..., step : step + 1, :]).astype(kind)
        result = total[(..., *spots[2])]
        frame.values[target] = result.reshape(*outer, *block, result.shape[-1])

    return multiply


def check_together(
    frame: Frame, outer: tuple[int, ...], block: tuple[int, ...], unit: MatrixUnit
) -> None:
    """Raise DeviceError where a part of a subgroup has left the loop that the others are in."""
    if frame.mask is None:
        return
    inside = by_subgroup(frame.mask, outer, block, unit)
    if (inside.any(axis=-2) != inside.all(axis=-2)).any():
        raise DeviceError(
            f"kernel {frame.kernel}: {unit.name} is reached by a part of a subgroup of "
            f"{unit.threads} threads"
        )


def by_subgroup(
    values: Array, outer: tuple[int, ...], block: tuple[int, ...], unit: MatrixUnit
) -> Array:
    """Values as (..., subgroup, lane, element)."""
    count = values.shape[-1]
    around = numpy.broadcast_shapes(outer, values.shape[: len(outer)])
    wide = numpy.broadcast_to(values, (*around, *block, count))
    return wide.reshape(*around, math.prod(block) // unit.threads, unit.threads, count)


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
