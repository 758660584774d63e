"""Resize in all its modes: weights are computed on the host for each axis, pixels on the device.

Source: the operator's page and its formulas for coordinates (ONNX operator Resize-19).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.values import Data
from tinycore import Tensor


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis to be resized."""

    length: int
    result: int
    scale: float
    region: tuple[float, float]

    def coordinates(self, mode: str) -> Any:
        """Coordinates in the input of each element of the result."""
        x = numpy.arange(self.result, dtype=numpy.float64)
        match mode:
            case "half_pixel":
                return (x + 0.5) / self.scale - 0.5
            case "half_pixel_symmetric":
                adjusted = self.result / (self.scale * self.length)
                center = self.length / 2
                return center * (1 - adjusted) + (x + 0.5) / self.scale - 0.5
            case "pytorch_half_pixel":
                return (x + 0.5) / self.scale - 0.5 if self.result > 1 else 0 * x - 0.5 + 0.5
            case "align_corners":
                whole = self.scale * self.length
                return x * (self.length - 1) / (whole - 1) if whole > 1 else 0 * x
            case "asymmetric":
                return x / self.scale
            case "tf_half_pixel_for_nn":
                return (x + 0.5) / self.scale
            case "tf_crop_and_resize":
                begin, end = self.region
                if self.result > 1:
                    step = (end - begin) * (self.length - 1) / (self.result - 1)
                    return begin * (self.length - 1) + x * step
                return 0 * x + 0.5 * (begin + end) * (self.length - 1)
        raise ValueError(f"there is no coordinate_transformation_mode {mode!r}")


ROUNDINGS: Final[dict[str, Callable[[numpy.ndarray], Any]]] = {
    "round_prefer_floor": lambda x: numpy.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: numpy.floor(x + 0.5),
    "floor": numpy.floor,
    "ceil": numpy.ceil,
}
"""Rounding of a coordinate to a whole place, by `nearest_mode`."""


def kernel(distance: numpy.ndarray, mode: str, a: float) -> numpy.ndarray:
    """Weights at distances: a triangle, or the cubic convolution of Keys (1981)."""
    d: numpy.ndarray = numpy.abs(distance)
    if mode == "linear":
        return (1 - d).clip(0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return numpy.where(d <= 1, near, numpy.where(d < 2, far, 0))


@dataclass(frozen=True, slots=True)
class Method:
    """Attributes of a node that say how it interpolates."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    is_smoothed: bool
    ignores_outside: bool
    outside: float

    def taps(self, axis: Axis) -> tuple[numpy.ndarray, numpy.ndarray]:
        """For each element of the result the places that it reads, and their weights."""
        where = axis.coordinates(self.coordinates)
        if self.mode == "nearest":
            if self.nearest not in ROUNDINGS:
                raise ValueError(f"there is no nearest_mode {self.nearest!r}")
            places = ROUNDINGS[self.nearest](where).clip(0, axis.length - 1)[:, None]
            return places.astype(numpy.int64), numpy.ones_like(places)
        shrunk = min(1.0, axis.scale) if self.is_smoothed else 1.0
        reach = (1 if self.mode == "linear" else 2) / shrunk
        first = numpy.floor(where - reach).astype(numpy.int64) + (1 if shrunk == 1 else 0)
        count = int(2 * reach) if shrunk == 1 else math.ceil(2 * reach) + 2
        places = first[:, None] + numpy.arange(count)
        weights = kernel((places - where[:, None]) * shrunk, self.mode, self.cubic)
        if self.ignores_outside:
            weights = numpy.where((places >= 0) & (places < axis.length), weights, 0)
        total = weights.sum(1, keepdims=True)
        if self.is_smoothed or self.ignores_outside:
            weights = weights / numpy.where(total == 0, 1, total)
        return places.clip(0, axis.length - 1), weights


def resized(x: Tensor, axis: int, row: Axis, method: Method) -> Tensor:
    """One axis resized."""
    places, weights = method.taps(row)
    if places.shape[1] > 8:  # a wide kernel is a product with a matrix
        matrix = numpy.zeros((row.result, row.length))
        numpy.add.at(matrix, (numpy.arange(row.result)[:, None], places), weights)
        factors = Tensor(matrix.astype(numpy.float32), device=x.device).cast(x.dtype)
        return x.movedim(axis, -1).matmul(factors.transpose()).movedim(-1, axis)
    shape = [1] * x.ndim
    shape[axis] = -1
    total = None
    for tap in range(places.shape[1]):
        read = x.index_select(axis, Tensor(places[:, tap].astype(numpy.int32), device=x.device))
        if method.mode == "nearest":
            return read
        factor = Tensor(weights[:, tap].astype(numpy.float32), device=x.device).reshape(*shape)
        term = read * factor.cast(x.dtype)
        total = term if total is None else total + term
    assert total is not None
    return total


def sizes(call: Call, sides: Sequence[int], axes: Sequence[int]) -> dict[int, tuple[int, float]]:
    """The new length and the scale of each axis that is resized."""
    if call.has(3) and call.array(3).size:
        wanted = call.ints(3)
        ratios = [size / sides[axis] for size, axis in zip(wanted, axes, strict=True)]
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            return {axis: (math.floor(sides[axis] * ratio + 0.5), ratio) for axis in axes}
        return dict(zip(axes, zip(wanted, ratios, strict=True), strict=True))
    at = 2 if call.version >= 11 else 1
    scales = call.array(at).reshape(-1) if call.has(at) else numpy.array(call.get("scales"))
    return {
        axis: (math.floor(sides[axis] * float(scale)), float(scale))
        for axis, scale in zip(axes, scales, strict=True)
    }


@operator("Resize", "Upsample")
def resize(call: Call) -> Data:
    """Resized axes: elements are interpolated."""
    x = call.tensor(0)
    sides = [int(side) for side in x.shape]
    axes = [axis % x.ndim for axis in call.get("axes", list(range(x.ndim)))]
    is_old = call.version < 11
    method = Method(
        call.get("mode", "nearest"),
        call.get("coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel"),
        call.get("nearest_mode", "floor" if is_old else "round_prefer_floor"),
        call.real("cubic_coeff_a", -0.75),
        bool(call.get("antialias", 0)),
        bool(call.get("exclude_outside", 0)),
        call.real("extrapolation_value", 0.0),
    )
    mode = {"bilinear": "linear"}.get(method.mode, method.mode)
    method = Method(mode, *[getattr(method, name) for name in Method.__slots__[1:]])
    is_cropped = method.coordinates == "tf_crop_and_resize"
    region = call.array(1).reshape(-1) if is_cropped else numpy.zeros(2 * len(axes))
    result = x
    outside: numpy.ndarray | None = None
    for index, axis in enumerate(axes):
        length, scale = sizes(call, sides, axes)[axis]
        row = Axis(sides[axis], length, scale, (region[index], region[index + len(axes)]))
        if is_cropped:
            where = row.coordinates(method.coordinates)
            beyond = (where < 0) | (where > row.length - 1)
            shape = [1] * x.ndim
            shape[axis] = -1
            beyond = beyond.reshape(shape)
            outside = beyond if outside is None else outside | beyond
        if (length, scale) != (sides[axis], 1.0) or is_cropped:
            result = resized(result, axis, row, method)
    if outside is not None and outside.any():
        result = Tensor(outside, device=x.device).where(method.outside, result)
    return result.cast(x.dtype)
