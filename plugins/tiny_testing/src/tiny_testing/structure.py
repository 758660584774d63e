"""Reference meaning, with NumPy, of ops that move, fold, pick and place elements.

Half of the reference evaluator, `reference.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy

from tinycore.tensor.runtime import HostArray
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import Op

# --- structure


def skew(node: UOp, x: HostArray) -> HostArray:
    """y[o, k] = x[o*stride + k*dilation, k]."""
    how: Skew = node.arg
    k = numpy.arange(node.shape[how.window_axis])
    o = numpy.arange(how.size)
    moved = numpy.moveaxis(x, (how.axis, how.window_axis), (0, 1))
    found = moved[o[:, None] * how.stride + k * how.dilation, k]
    return numpy.moveaxis(found, (0, 1), (how.axis, how.window_axis))


def unskew(node: UOp, x: HostArray) -> HostArray:
    """y[i, k] = x[(i - k*dilation)/stride, k], or 0."""
    how: Skew = node.arg
    moved = numpy.moveaxis(x, (how.axis, how.window_axis), (0, 1))
    offset = numpy.arange(how.size)[:, None] - numpy.arange(moved.shape[1]) * how.dilation
    valid = (offset >= 0) & (offset % how.stride == 0) & (offset // how.stride < moved.shape[0])
    if not moved.shape[0]:
        found = numpy.zeros((how.size, *moved.shape[1:]), x.dtype)
    else:
        found = moved[numpy.where(valid, offset // how.stride, 0), numpy.arange(moved.shape[1])]
    mask = valid.reshape(valid.shape + (1,) * (moved.ndim - 2))
    return numpy.moveaxis(
        numpy.where(mask, found, numpy.zeros((), x.dtype)), (0, 1), (how.axis, how.window_axis)
    )


NUMPY_FOLDS: Final[dict[Op, Callable[..., Any]]] = {
    Op.ADD: numpy.add.reduce,
    Op.MUL: numpy.multiply.reduce,
    Op.MAX: numpy.maximum.reduce,
    Op.MIN: numpy.minimum.reduce,
}


def reduce_axis(node: UOp, x: HostArray) -> HostArray:
    """Axes folded to size 1. Floats are folded in float64, where rounding is beyond notice."""
    op, axes = node.arg
    exact = op is Op.ADD and x.dtype.kind == "f"
    return numpy.asarray(
        NUMPY_FOLDS[op](
            x.astype(numpy.float64) if exact else x,
            axis=axes,
            keepdims=True,
            dtype=None if exact else x.dtype,
        )
    )


def gather(node: UOp, table: HostArray, index: HostArray) -> HostArray:
    """Rows of the first axis; 0 out of range."""
    valid = (index >= 0) & (index < table.shape[0])
    if not table.shape[0]:
        return numpy.zeros(node.shape, table.dtype)
    found = table[numpy.where(valid, index, 0).astype(numpy.int64)]
    return numpy.where(
        valid.reshape(valid.shape + (1,) * (table.ndim - 1)), found, numpy.zeros((), table.dtype)
    )


def scan(node: UOp, x: HostArray) -> HostArray:
    """Each element folded with those before it."""
    op, axis = node.arg
    result: HostArray = UPDATES[op].accumulate(x, axis=axis, dtype=x.dtype)
    return result


def merge(node: UOp, keys: HostArray, values: HostArray) -> HostArray:
    """Runs joined two by two and sorted, which is stable; the first of each pair are kept."""
    run, kept, _ = node.arg
    pairs = range(0, keys.shape[-1], 2 * run)
    found = []
    for start in pairs:
        order = numpy.argsort(keys[..., start : start + 2 * run], axis=-1, kind="stable")
        here = values[..., start : start + 2 * run]
        found.append(numpy.take_along_axis(here, order[..., :kept], axis=-1))
    return numpy.concatenate(found, axis=-1).reshape(node.shape)


UPDATES: Final[dict[Op | None, Any]] = {
    None: lambda old, new: new,
    Op.ADD: numpy.add,
    Op.MUL: numpy.multiply,
    Op.MAX: numpy.maximum,
    Op.MIN: numpy.minimum,
}


def scatter(node: UOp, x: HostArray, index: HostArray, rows: HostArray) -> HostArray:
    """Elements put one after the other; nothing out of range."""
    op, axis = node.arg
    result = x.copy()
    for point in numpy.ndindex(rows.shape):
        if 0 <= index[point] < x.shape[axis]:
            place = (*point[:axis], int(index[point]), *point[axis + 1 :])
            result[place] = UPDATES[op](result[place], rows[point])
    return result


def insert(node: UOp, x: HostArray, view: HostArray, value: HostArray) -> HostArray:
    """The view taken of the positions of `x` tells where the value goes."""
    whole, shown, _ = node.src
    order: list[UOp] = []
    while shown is not whole:
        order.append(shown)
        shown = shown.src[0]
    places = numpy.arange(x.size).reshape(x.shape)
    for step in reversed(order):
        places = STRUCTURE[step.op](step, places)
    result = x.copy()
    result.reshape(-1)[places] = value
    return result


STRUCTURE: Final[dict[Op, Callable[..., HostArray]]] = {
    Op.CONTIGUOUS: lambda n, x: x,
    Op.CONTIGUOUS_BACKWARD: lambda n, x: x,
    Op.CALL: lambda n, x, *arguments: x,
    Op.DETACH: lambda n, x: x,
    Op.OWN: lambda n, x: x,
    Op.VALUE: lambda n, x: x,
    Op.COPY: lambda n, x: x,
    Op.ASSIGN: lambda n, target, value: value,
    Op.RESHAPE: lambda n, x: x.reshape(n.arg),
    Op.EXPAND: lambda n, x: numpy.broadcast_to(x, n.arg),
    Op.PERMUTE: lambda n, x: x.transpose(n.arg),
    Op.PAD: lambda n, x: numpy.pad(x, n.arg),
    Op.SHRINK: lambda n, x: x[tuple([slice(a, b) for a, b in n.arg])],
    Op.FLIP: lambda n, x: numpy.flip(x, tuple([a for a, reverse in enumerate(n.arg) if reverse])),
    Op.SKEW: skew,
    Op.UNSKEW: unskew,
    Op.REDUCE_AXIS: reduce_axis,
    Op.SCAN_AXIS: scan,
    Op.MERGE_AXIS: merge,
    Op.GATHER: gather,
    Op.SCATTER: scatter,
    Op.INSERT: insert,
}
