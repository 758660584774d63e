"""Operators that fold axes: sums, maxima, places of maxima, running sums, largest elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, widened
from tinycore import Tensor, dtypes


def _log_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return widened(x).sum(axes, keepdim=keep).log()


def _largest(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _extreme(x, axes, keep, Tensor.max, is_upper=False)


def _least(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _extreme(x, axes, keep, Tensor.min, is_upper=True)


def _extreme(
    x: Tensor, axes: tuple[int, ...], keep: bool, fold: Callable[..., Tensor], is_upper: bool
) -> Tensor:
    """A maximum or minimum; of no elements the least or greatest number there is."""
    if any(x.shape[axis] == 0 for axis in axes):
        shape = [1 if axis in axes else side for axis, side in enumerate(x.shape)]
        bound = dtypes.max(x.dtype) if is_upper else dtypes.min(x.dtype)
        kept = Tensor.full(tuple(shape), bound, dtype=x.dtype, device=x.device)
        return kept if keep else kept.reshape(*[s for a, s in enumerate(x.shape) if a not in axes])
    return fold(x, axes, keepdim=keep)


FOLDS: dict[str, Callable[[Tensor, tuple[int, ...], bool], Tensor]] = {
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: widened(x).square().sum(axes, keepdim=keep).sqrt(),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": lambda x, axes, keep: x.logsumexp(axes, keepdim=keep),
    "ReduceMax": _largest,
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceMin": _least,
    "ReduceProd": lambda x, axes, keep: x.prod(axes, keepdim=keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keepdim=keep),
}
"""Folds of axes, which are given and may be kept with length one."""


def _fold(function: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> Callable[[Call], Data]:
    def fold(call: Call) -> Data:
        x = call.tensor(0)
        axes = tuple(sorted(axis % x.ndim for axis in call.ints(1, "axes", []))) if x.ndim else ()
        if not axes and call.get("noop_with_empty_axes", 0):
            return x if function not in ELEMENTWISE else function(x.unsqueeze(0), (0,), False)
        every = tuple(range(x.ndim))
        return function(x, axes or every, bool(call.get("keepdims", 1))).cast(x.dtype)

    return fold


ELEMENTWISE = {FOLDS[name] for name in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")}
"""Folds that change a single element; they are applied also where no axis is folded."""

for _name, _function in FOLDS.items():
    operator(_name)(_fold(_function))


@operator("ArgMax", "ArgMin")
def place_of_extreme(call: Call) -> Data:
    """The place of the largest or least element, the first or last of equal ones."""
    x = call.tensor(0)
    axis = call.axis("axis", x.ndim, 0)
    if x.dtype in (dtypes.uint8, dtypes.int8, dtypes.uint16, dtypes.int16, dtypes.bool):
        x = x.cast(dtypes.int32)
    is_last = bool(call.get("select_last_index", 0))
    given = x.flip(axis) if is_last else x
    found = (
        given.argmax(axis, keepdim=True)
        if call.node.op == "ArgMax"
        else given.argmin(axis, keepdim=True)
    )
    found = found.cast(dtypes.int64)
    found = x.shape[axis] - 1 - found if is_last else found
    return found if call.get("keepdims", 1) else found.squeeze(axis)


@operator("CumSum", "CumProd")
def running(call: Call) -> Data:
    """Sums or products of all elements up to each, perhaps without itself, perhaps from the end."""
    x, axis = call.tensor(0), int(call.number(1))
    axis %= x.ndim
    unit = 0 if call.node.op == "CumSum" else 1
    x = x.flip(axis) if call.get("reverse", 0) else x
    if call.get("exclusive", 0):
        pairs = [(0, 0)] * x.ndim
        pairs[axis] = (1, -1)
        x = x.pad(tuple(pairs), value=unit)
    result = x.cumsum(axis) if unit == 0 else x.cumprod(axis)
    return (result.flip(axis) if call.get("reverse", 0) else result).cast(x.dtype)


@operator("TopK")
def top(call: Call) -> Data | tuple[Data, ...]:
    """The largest or least elements of an axis with their places, sorted."""
    x = call.tensor(0)
    count = int(call.number(1)) if call.has(1) else int(call.get("k"))
    axis = call.axis("axis", x.ndim, -1)
    values, places = x.topk(count, axis, largest=bool(call.get("largest", 1)))
    return values, places.cast(dtypes.int64)


@operator("Hardmax")
def hardmax(call: Call) -> Data:
    """1 at the first maximum of an axis, 0 elsewhere."""
    x = call.tensor(0)
    if call.version < 13:
        axis = call.axis("axis", x.ndim, 1)
        flat = x.reshape(int(numpy.prod(x.shape[:axis])), -1)
        return flat.argmax(-1).one_hot(int(flat.shape[-1])).cast(x.dtype).reshape(*x.shape)
    axis = call.axis("axis", x.ndim, -1)
    places = x.argmax(axis).one_hot(int(x.shape[axis])).cast(x.dtype)
    return places.movedim(-1, axis)


@operator("Softmax", "LogSoftmax")
def softmax(call: Call) -> Data:
    """Exponentials divided by their sum; before version 13 over all axes from one on."""
    x = call.tensor(0)
    function = Tensor.softmax if call.node.op == "Softmax" else Tensor.log_softmax
    if call.version < 13:
        axis = call.axis("axis", x.ndim, 1)
        rows = int(numpy.prod(x.shape[:axis]))
        return function(x.reshape(rows, -1), -1).reshape(*x.shape)
    return function(x, call.axis("axis", x.ndim, -1))
