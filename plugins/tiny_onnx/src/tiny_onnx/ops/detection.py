"""Regions, grids and boxes; and operators whose results have shapes that depend on their inputs.

The latter run on the host, by `onnx.reference`: there is nothing to compute on a device before the
shape is known, and a kernel needs its shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy

from tiny_onnx.call import Call
from tiny_onnx.reference import evaluated
from tiny_onnx.registry import operator
from tiny_onnx.sampling import sampled, taken
from tiny_onnx.values import Data
from tinycore import Tensor

ON_HOST = (
    "Compress", "NonMaxSuppression", "NonZero", "Unique", "StringConcat", "StringNormalizer",
    "StringSplit", "RegexFullMatch", "TfIdfVectorizer", "ImageDecoder",
)  # fmt: skip
"""Operators of strings, and of results whose shape is only known when they are computed."""


@operator(*ON_HOST)
def on_host(call: Call) -> tuple[Data, ...]:
    """Outputs of the standard's reference implementation."""
    arrays: list[Data] = [
        call.array(index) if call.has(index) else None for index in range(len(call))
    ]
    outputs = evaluated(call.node.proto, arrays, call.version)
    if outputs is None:
        raise call.unsupported("the reference of the standard cannot compute it.")
    return tuple(outputs)


@operator("GridSample", since=16)
def grid_sample(call: Call) -> Data:
    """Images read at places of a grid, which are given from -1 to 1 over each side."""
    x, grid = call.tensor(0), call.tensor(1)
    sides = [int(side) for side in x.shape[2:]]
    mode = call.get("mode", "linear").removeprefix("bi")
    outside, aligned = call.get("padding_mode", "zeros"), bool(call.get("align_corners", 0))
    places = []
    for axis, side in enumerate(sides):  # the grid names the last axis first
        given = grid[..., len(sides) - 1 - axis].reshape(x.shape[0], -1)
        places.append((given + 1) / 2 * (side - 1) if aligned else ((given + 1) * side - 1) / 2)

    def within(places: list[Tensor]) -> list[Tensor]:
        return [kept(p, s, outside, aligned) for p, s in zip(places, sides, strict=True)]

    if mode == "cubic":
        read = cubic(x, places, within)
    elif mode == "nearest":
        read = taken(x, within([place.round() for place in places]))
    else:
        read = sampled(x, within(places))
    return read.reshape(x.shape[0], x.shape[1], *grid.shape[1:-1]).cast(x.dtype)


def kept(place: Tensor, side: int, mode: str, aligned: bool) -> Tensor:
    """Places brought into an image: clamped to its border, reflected there, or left outside."""
    if mode == "border":
        return place.clip(0, side - 1)
    if mode == "zeros":
        return place
    low, high = (0.0, side - 1.0) if aligned else (-0.5, side - 0.5)
    span = high - low
    if span == 0:
        return place.zeros_like()
    away = (place - low).abs()
    turns = (away / span).floor()
    rest = away - turns * span
    odd = turns - 2 * (turns / 2).floor()
    return ((odd == 0).where(rest, span - rest) + low).clip(0, side - 1)


def cubic(x: Tensor, places: list[Tensor], within: Callable[..., list[Tensor]]) -> Tensor:
    """Images of two sides at places, by cubic convolution (Keys, 1981; a = -0.75); `within` brings
    places into the image.
    """
    if len(places) != 2:
        raise ValueError("cubic sampling is defined for two sides")
    bases = [place.floor() for place in places]
    parts = [place - base for place, base in zip(places, bases, strict=True)]
    total = None
    for down in range(-1, 3):
        for across in range(-1, 3):
            pixels = taken(x, within([bases[0] + down, bases[1] + across]))
            weight = cubic_weight(parts[0] - down) * cubic_weight(parts[1] - across)
            term = pixels * weight.unsqueeze(1)
            total = term if total is None else total + term
    assert total is not None
    return total


def cubic_weight(distance: Tensor, a: float = -0.75) -> Tensor:
    """The weight of a pixel at a distance."""
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return (d <= 1).where(near, (d < 2).where(far, 0))


MOST_POINTS: Final = 1 << 26
"""Points of a region at which an image is read, or of a grid."""
MOST_CELLS: Final = 1 << 16
"""Cells of a region, each of which is a kernel's part."""


@operator("RoiAlign")
def region_align(call: Call) -> Data:
    """Regions of images at a fixed size: means or maxima of points between pixels (He, 2017)."""
    x, regions, batch = call.tensor(0), call.array(1), call.array(2).reshape(-1)
    height, width = call.get("output_height", 1), call.get("output_width", 1)
    halved = call.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    aligned = halved and call.version >= 16
    scale, offset = call.real("spatial_scale", 1.0), 0.5 if aligned else 0.0
    boxes = regions.astype(numpy.float64) * scale - offset
    channels, mode = int(x.shape[1]), call.get("mode", "avg")
    results = []
    for (left, top, right, bottom), image in zip(boxes, batch, strict=True):
        wide, tall = right - left, bottom - top
        if not aligned:
            wide, tall = max(wide, 1.0), max(tall, 1.0)
        ratio = call.get("sampling_ratio", 0)
        down = ratio or math.ceil(tall / height)
        across = ratio or math.ceil(wide / width)
        if height * max(down, 1) * width * max(across, 1) > MOST_POINTS:
            raise MemoryError(f"{height * down} x {width * across} points of a region")
        rows = top + (numpy.arange(height * down) + 0.5) * tall / height / down
        columns = left + (numpy.arange(width * across) + 0.5) * wide / width / across
        read = points(x[int(image) : int(image) + 1], rows, columns, mode)
        read = read.reshape(channels, height, down, width, across)
        results.append(read.max((2, 4)) if mode == "max" else read.mean((2, 4)))
    if not results:
        return Tensor.zeros(0, channels, height, width, dtype=x.dtype, device=x.device)
    return Tensor.stack(*results).cast(x.dtype)


def points(image: Tensor, rows: numpy.ndarray, columns: numpy.ndarray, mode: str) -> Tensor:
    """One image (1, C, H, W) at a grid of points. Points more than one pixel outside are zero.

    For maxima the largest of the four weighted pixels is taken, as the standard's operator does.
    """
    channels, height, width = map(int, image.shape[1:])
    y, x = (each.reshape(-1) for each in numpy.meshgrid(rows, columns, indexing="ij"))
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clip(0, height - 1), x.clip(0, width - 1)
    low_y, low_x = numpy.floor(y).astype(int), numpy.floor(x).astype(int)
    flat = image.reshape(channels, height * width)
    total = None
    for down in (0, 1):
        for across in (0, 1):
            weight = (y - low_y if down else 1 - (y - low_y)) * (
                x - low_x if across else 1 - (x - low_x)
            )
            at = (low_y + down).clip(0, height - 1) * width + (low_x + across).clip(0, width - 1)
            index = Tensor(at.astype(numpy.int32), device=image.device)
            factor = Tensor((weight * inside).astype(numpy.float32), device=image.device)
            term = flat.index_select(1, index) * factor
            if total is None:
                total = term
            else:
                total = total.maximum(term) if mode == "max" else total + term
    assert total is not None
    return total


@operator("MaxRoiPool")
def region_pool(call: Call) -> Data:
    """Maxima of the cells of regions (Girshick, 2015)."""
    x, regions = call.tensor(0), call.array(1)
    height, width = call.get("pooled_shape")
    if height * width * len(regions) > MOST_CELLS:
        raise MemoryError(f"{len(regions)} regions of {height} x {width} cells")
    scale = call.real("spatial_scale", 1.0)
    channels, rows, columns = map(int, x.shape[1:])
    results = []
    for image, *box in regions:
        left, top, right, bottom = (math.floor(each * scale + 0.5) for each in box)
        tall, wide = max(bottom - top + 1, 1) / height, max(right - left + 1, 1) / width
        cells = []
        for down in range(height):
            first = min(max(math.floor(down * tall) + top, 0), rows)
            last = min(max(math.ceil((down + 1) * tall) + top, 0), rows)
            for across in range(width):
                begin = min(max(math.floor(across * wide) + left, 0), columns)
                end = min(max(math.ceil((across + 1) * wide) + left, 0), columns)
                part = x[int(image), :, first:last, begin:end]
                is_empty = last <= first or end <= begin
                cells.append(
                    Tensor.zeros(channels, dtype=x.dtype, device=x.device)
                    if is_empty else part.max((1, 2))
                )  # fmt: skip
        results.append(Tensor.stack(*cells, dim=1).reshape(channels, height, width))
    return Tensor.stack(*results)


@operator("AffineGrid")
def affine_grid(call: Call) -> Data:
    """Places of a grid from -1 to 1, moved by an affine map of each image."""
    theta, size = call.tensor(0), call.ints(1)
    sides = size[2:]
    if math.prod(sides) > MOST_POINTS:
        raise MemoryError(f"a grid of {sides}")
    lines = []
    for side in sides:
        if call.get("align_corners", 0):
            lines.append(numpy.linspace(-1, 1, side) if side > 1 else numpy.zeros(1))
        else:
            lines.append((numpy.arange(side) * 2 + 1) / side - 1)
    mesh = numpy.meshgrid(*lines, indexing="ij")
    columns = [*reversed(mesh), numpy.ones_like(mesh[0])]
    grid = numpy.stack(columns, -1).reshape(-1, len(sides) + 1)
    base = Tensor(grid.astype(numpy.float32), device=theta.device).cast(theta.dtype)
    return base.matmul(theta.transpose(1, 2)).reshape(size[0], *sides, len(sides))
