"""Operators that read and write elements at places given by tensors."""

from __future__ import annotations

import numpy

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.values import Data
from tinycore import Tensor, dtypes


def places(call: Call, index: int, length: int) -> Tensor:
    """Places along an axis; negative ones are counted from its end."""
    data = call.data(index)
    if isinstance(data, numpy.ndarray):
        return Tensor(numpy.where(data < 0, data + length, data), device=call.run.device)
    given = call.tensor(index)
    return (given < 0).where(given + length, given)


@operator("Gather")
def gather(call: Call) -> Data:
    """Slices of an axis at the places of a tensor, whose axes replace it."""
    x = call.tensor(0)
    axis = call.axis("axis", x.ndim, 0)
    length = int(x.shape[axis])
    data = call.data(1)
    if isinstance(data, numpy.ndarray) and data.size == 1:
        place = int(data.reshape(())) % length if data.item() >= -length else data.item()
        if not 0 <= place < length:
            raise ValueError(f"there is no place {place} in an axis of {length}")
        taken = x.shrink(tuple((place, place + 1) if a == axis else (0, int(s))
                               for a, s in enumerate(x.shape)))  # fmt: skip
        return taken.reshape(*x.shape[:axis], *data.shape, *x.shape[axis + 1 :])
    where = places(call, 1, length)
    taken = x.index_select(axis, where.reshape(-1))
    return taken.reshape(*x.shape[:axis], *where.shape, *x.shape[axis + 1 :])


@operator("GatherElements")
def gather_elements(call: Call) -> Data:
    """For each place along an axis the element there."""
    x = call.tensor(0)
    axis = call.axis("axis", x.ndim, 0)
    return x.gather(axis, places(call, 1, int(x.shape[axis])))


def flat_places(index: Tensor, sides: list[int]) -> Tensor:
    """Tuples of places in the last axis as places in the flat axes of these sides."""
    flat = None
    for position, side in enumerate(sides):
        place = index[..., position]
        place = (place < 0).where(place + side, place)
        flat = place if flat is None else flat * side + place
    assert flat is not None
    return flat


@operator("GatherND")
def gather_nd(call: Call) -> Data:
    """Slices at tuples of places, which the last axis of the indices holds."""
    x, index = call.tensor(0), call.tensor(1)
    batch = int(call.get("batch_dims", 0))
    depth = int(index.shape[-1])
    front = [int(side) for side in x.shape[:batch]]
    sides = [int(side) for side in x.shape[batch : batch + depth]]
    rest = [int(side) for side in x.shape[batch + depth :]]
    count, size = int(numpy.prod(front)), int(numpy.prod(sides))
    flat = flat_places(index, sides).reshape(count, -1)
    offsets = Tensor.arange(count, device=x.device).cast(flat.dtype).reshape(-1, 1) * size
    taken = x.reshape(count * size, *rest).index_select(0, (flat + offsets).reshape(-1))
    return taken.reshape(*index.shape[:-1], *rest)


@operator("Scatter", "ScatterElements")
def scatter_elements(call: Call) -> Data:
    """A copy with elements replaced, or combined, at places along an axis."""
    x, updates = call.tensor(0), call.tensor(2)
    axis = call.axis("axis", x.ndim, 0)
    where = places(call, 1, int(x.shape[axis]))
    return combined(x, axis, where, updates, call.get("reduction", "none"))


NAMES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def combined(x: Tensor, axis: int, where: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """Elements scattered by a reduction of the standard's name."""
    if reduction == "none":
        return x.scatter(axis, where, updates)
    if reduction not in NAMES:
        raise ValueError(f"there is no reduction {reduction!r}")
    return x.scatter_reduce(axis, where, updates, NAMES[reduction])  # type: ignore[arg-type]


@operator("ScatterND")
def scatter_nd(call: Call) -> Data:
    """A copy with slices replaced, or combined, at tuples of places."""
    x, index, updates = call.tensor(0), call.tensor(1), call.tensor(2)
    depth = int(index.shape[-1])
    sides = [int(side) for side in x.shape[:depth]]
    rest = [int(side) for side in x.shape[depth:]]
    size, width = int(numpy.prod(sides)), int(numpy.prod(rest))
    where = flat_places(index, sides).reshape(-1, 1).expand(-1, width)
    flat = combined(
        x.reshape(size, width), 0, where, updates.reshape(-1, width), call.get("reduction", "none")
    )
    return flat.reshape(*x.shape)


@operator("TensorScatter")
def tensor_scatter(call: Call) -> Data:
    """A cache with new rows written from a place of each batch on, perhaps around its end."""
    cache, update = call.tensor(0), call.tensor(1)
    axis = call.axis("axis", cache.ndim, -2)
    length, count, batch = int(cache.shape[axis]), int(update.shape[axis]), int(cache.shape[0])
    start = call.optional(2)
    if start is None:
        start = Tensor.zeros(batch, dtype=dtypes.int64, device=cache.device)
    shape = [1] * cache.ndim
    shape[0] = batch
    steps = [1] * cache.ndim
    steps[axis] = count
    where = start.reshape(*shape) + Tensor.arange(count, device=cache.device).reshape(*steps)
    if call.get("mode", "linear") == "circular":
        where = where % length
    return cache.scatter(axis, where.expand(*update.shape), update)
