"""Operators that fold windows of images."""

from __future__ import annotations

import math

import numpy

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, widened
from tiny_onnx.windows import Windows, windows
from tinycore import Tensor, dtypes


def area_of(call: Call, x: Tensor) -> Windows:
    """The windows of a pool."""
    return windows(call, [], [int(side) for side in x.shape[2:]])


def least(x: Tensor) -> float | int:
    """The identity of max: a number below every element."""
    return -math.inf if x.is_floating_point() else int(dtypes.min(x.dtype))


def extended(x: Tensor, area: Windows, value: float, is_ceil: bool) -> Tensor:
    """Padding, and what windows of `ceil_mode` read beyond it."""
    beyond = area.extension([int(side) for side in x.shape[2:]], is_ceil)
    pairs = [
        (before + first, after + last)
        for (before, after), (first, last) in zip(area.pads, beyond, strict=True)
    ]
    return x.pad(((0, 0), (0, 0), *pairs), value=value) if any(map(any, pairs)) else x


@operator("MaxPool")
def max_pool(call: Call) -> Data | tuple[Data, ...]:
    """Maxima of windows, and where they are in the whole tensor."""
    x = call.tensor(0)
    area = area_of(call, x)
    whole = extended(x, area, least(x), bool(call.get("ceil_mode", 0)))
    if not call.wants(1):
        result = whole.max_pool2d(area.kernel, area.strides, area.dilations)
        assert isinstance(result, Tensor)
        return result
    values, places = whole.max_pool2d(
        area.kernel, area.strides, area.dilations, return_indices=True
    )
    return values, in_whole_tensor(call, x, whole, places, area)


def in_whole_tensor(call: Call, x: Tensor, whole: Tensor, places: Tensor, area: Windows) -> Tensor:
    """Places in the padded image as places in the flat input."""
    places = places.cast(dtypes.int64)
    sides = [int(side) for side in x.shape[2:]]
    coordinates = []
    for side, (before, _) in zip(reversed(whole.shape[2:]), reversed(area.pads), strict=True):
        coordinates.append(places % side - before)
        places = places.idiv(side)
    coordinates.reverse()
    order = range(len(sides))
    flat = coordinates[0].zeros_like()
    for axis in reversed(order) if call.get("storage_order", 0) else order:
        flat = flat * sides[axis] + coordinates[axis]
    images = Tensor.arange(int(x.shape[0]) * int(x.shape[1]), device=x.device).cast(dtypes.int64)
    images = images.reshape(x.shape[0], x.shape[1], *[1] * len(sides))
    return flat + images * int(numpy.prod(sides))


@operator("AveragePool")
def average_pool(call: Call) -> Data:
    """Means of windows; what `ceil_mode` reads beyond the padding does not count."""
    x = call.tensor(0)
    area = area_of(call, x)
    is_ceil, counts_pads = bool(call.get("ceil_mode", 0)), bool(call.get("count_include_pad", 0))
    beyond = area.extension([int(side) for side in x.shape[2:]], is_ceil)
    mean = pooled_mean(extended(x, area, 0, is_ceil), area)
    if not any(map(any, beyond)) and (counts_pads or not any(map(any, area.pads))):
        return mean
    ones = numpy.ones([1, 1, *x.shape[2:]], numpy.float32)
    edges = [(0, 0), (0, 0), *area.pads]
    ones = numpy.pad(ones, edges, constant_values=1 if counts_pads else 0)
    ones = numpy.pad(ones, [(0, 0), (0, 0), *beyond])
    shares = pooled_mean(Tensor(ones, device=x.device), area)
    return mean / shares.cast(x.dtype)


def pooled_mean(x: Tensor, area: Windows) -> Tensor:
    """Means over whole windows."""
    return x.avg_pool2d(area.kernel, area.strides, area.dilations)


@operator("LpPool")
def power_pool(call: Call) -> Data:
    """p-norms of windows."""
    x, p = widened(call.tensor(0)), call.get("p", 2)
    area = area_of(call, x)
    whole = extended(x.abs().pow(p), area, 0, bool(call.get("ceil_mode", 0)))
    total = pooled_mean(whole, area) * math.prod(area.kernel)
    return total.pow(1 / p).cast(call.tensor(0).dtype)


@operator("GlobalAveragePool")
def global_average(call: Call) -> Data:
    """The mean of each channel."""
    x = call.tensor(0)
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@operator("GlobalMaxPool")
def global_maximum(call: Call) -> Data:
    """The maximum of each channel."""
    x = call.tensor(0)
    return x.max(tuple(range(2, x.ndim)), keepdim=True)


@operator("GlobalLpPool")
def global_power(call: Call) -> Data:
    """The p-norm of each channel."""
    x, p = widened(call.tensor(0)), call.get("p", 2)
    total = x.abs().pow(p).sum(tuple(range(2, x.ndim)), keepdim=True)
    return total.pow(1 / p).cast(call.tensor(0).dtype)


@operator("MaxUnpool")
def max_unpool(call: Call) -> Data:
    """Elements put back to the places that `MaxPool` gave."""
    x, places = call.tensor(0), call.tensor(1)
    area = area_of(call, x)
    sides = [
        (int(side) - 1) * stride - before - after + k
        for side, stride, (before, after), k in zip(
            x.shape[2:], area.strides, area.pads, area.kernel, strict=True
        )
    ]
    own = [int(x.shape[0]), int(x.shape[1]), *sides]
    size = math.prod(own)
    shape = call.ints(2, default=own)
    flat = Tensor.zeros(size, dtype=x.dtype, device=x.device)
    flat = flat.scatter(0, places.reshape(-1).cast(dtypes.int64), x.reshape(-1))
    image = flat.reshape(*own)
    return image.pad(tuple((0, whole - side) for whole, side in zip(shape, own, strict=True)))
