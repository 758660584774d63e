"""Shapes, order, joining and repetition.

Floor 6. Nothing here computes or copies, but for `reshape` and joining where that is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from tinycore.array_api._promotion import array, promote_operands
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import Tensor
from tinycore.tensor.checks import (
    broadcast_shapes,
    counter_dtype,
    integer_dtype,
    resolve_axes,
    resolve_axis,
)
from tinycore.uop.shape import Shape

__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis", "permute_dims",
    "repeat", "reshape", "roll", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip

Axes = int | tuple[int, ...]


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """All arrays repeated to their common shape; dtypes stay. Raises ShapeError."""
    shapes = [array("broadcast_arrays", x).shape for x in arrays]
    shape = broadcast_shapes("broadcast_arrays", *shapes) if shapes else ()
    return tuple([x.expand(shape) for x in arrays])


def broadcast_to(x: Tensor, /, shape: Shape) -> Tensor:
    """The array repeated to a shape. Raises ShapeError when that does not fit."""
    if broadcast_shapes("broadcast_to", array("broadcast_to", x).shape, shape) != tuple(shape):
        raise ShapeError(f"broadcast_to: shape {x.shape} cannot be repeated to {shape}")
    return x.expand(tuple(shape))


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Arrays joined along an axis in their common dtype; flat ones when `axis` is None.

    Raises ShapeError unless all other axes agree, DTypeError across kinds.
    """
    first, *rest = promote_operands("concat", "any", *arrays)
    if axis is None:
        return first.reshape(-1).cat(*[x.reshape(-1) for x in rest])
    return first.cat(*rest, dim=axis)


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """A new axis of size 1 at a position. Raises IndexRangeError outside [-ndim - 1, ndim]."""
    return array("expand_dims", x).unsqueeze(axis)


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """The given axes reversed; all of them by default."""
    return array("flip", x).flip(resolve_axes("flip", axis, x.ndim))


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """Axes moved to other places; the others keep their order.

    Raises ArgumentError when one is repeated or the counts differ.
    """
    rank = array("moveaxis", x).ndim
    start, end = [
        [resolve_axis("moveaxis", a, rank) for a in ((axes,) if isinstance(axes, int) else axes)]
        for axes in (source, destination)
    ]
    if len(set(start)) != len(start) or len(set(end)) != len(end) or len(start) != len(end):
        raise ArgumentError(f"moveaxis: {source} to {destination} does not move each axis once")
    order = [axis for axis in range(rank) if axis not in start]
    for place, axis in sorted(zip(end, start, strict=True)):
        order.insert(place, axis)
    return x.permute(order)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Axes reordered: result axis i is axis axes[i]. Raises ShapeError unless a permutation."""
    return array("permute_dims", x).permute(tuple(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element repeated in a row along an axis; over the flat array by default.

    An array of counts is computed, as the shape of the result depends on it. Raises ShapeError
    when it has neither one element nor one for each place, ArgumentError for a negative count.
    """
    if axis is None:
        return repeat(array("repeat", x).reshape(-1), repeats, axis=0)
    place = resolve_axis("repeat", axis, x.ndim)
    if isinstance(repeats, int):
        if repeats < 0:
            raise ArgumentError(f"repeat: a count cannot be negative, got {repeats}")
        return x.repeat_interleave(repeats, place)
    integer_dtype("repeat", array("repeat", repeats).dtype, "array of counts")
    size = x.shape[place]
    if repeats.shape not in ((1,), (size,)):
        raise ShapeError(f"repeat: counts of shape {repeats.shape} for axis {place} of {x.shape}")
    counts = numpy.broadcast_to(repeats.numpy(), (size,)).astype(numpy.int64)
    if (counts < 0).any():
        raise ArgumentError(f"repeat: a count cannot be negative, got {counts.min()}")
    rows = Tensor(numpy.repeat(numpy.arange(size), counts), device=x.device)
    return x[(*[slice(None)] * place, rows.cast(counter_dtype(size)))]


def reshape(x: Tensor, /, shape: Shape, *, copy: bool | None = None) -> Tensor:
    """The elements in row-major order under another shape; -1 is inferred.

    Never needs a copy: `copy=True` makes one. Raises ShapeError when the number of elements
    differs.
    """
    if -1 in shape and not math.prod(n for n in shape if n != -1):
        raise ShapeError(f"reshape: the size for -1 in {tuple(shape)} cannot be inferred")
    result = array("reshape", x).reshape(tuple(shape))
    return result.clone() if copy else result


def roll(x: Tensor, /, shift: Axes, *, axis: Axes | None = None) -> Tensor:
    """Elements moved along axes, those pushed out coming in again; over the flat array by default.

    Raises ArgumentError when shifts and axes are not equally many.
    """
    if axis is None:
        return array("roll", x).roll(shift)
    axes = (axis,) if isinstance(axis, int) else axis
    shifts = (shift,) * len(axes) if isinstance(shift, int) else shift
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    return array("roll", x).roll(shifts, axes)


def squeeze(x: Tensor, /, axis: Axes) -> Tensor:
    """Axes of size 1 removed. Raises ShapeError for one of another size."""
    axes = resolve_axes("squeeze", axis, array("squeeze", x).ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"squeeze: axes {axis} of shape {x.shape} do not all have size 1")
    return x.reshape(tuple([n for a, n in enumerate(x.shape) if a not in axes]))


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Arrays of one shape joined along a new axis in their common dtype.

    Raises ShapeError when shapes differ, DTypeError across kinds.
    """
    first, *rest = promote_operands("stack", "any", *arrays)
    return first.stack(*rest, dim=axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The array repeated along each axis; axes are aligned at the end."""
    counts = tuple(repetitions)
    missing = max(0, array("tile", x).ndim - len(counts))
    return x.repeat((1,) * missing + counts)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which they lack. Raises ShapeError when there is none."""
    if not array("unstack", x).ndim:
        raise ShapeError("unstack: the array has no axes")
    place = resolve_axis("unstack", axis, x.ndim)
    return tuple([x[(*[slice(None)] * place, i)] for i in range(x.shape[place])])
