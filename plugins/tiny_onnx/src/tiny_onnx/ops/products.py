"""Operators that sum products: matrices, convolutions, Einstein sums, determinants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.sampling import sampled
from tiny_onnx.values import Data
from tiny_onnx.windows import Windows, windows
from tinycore import Tensor, dtypes


@operator("MatMul")
def matmul(call: Call) -> Data:
    """Products of matrices."""
    return call.tensor(0).matmul(call.tensor(1))


@operator("Gemm")
def gemm(call: Call) -> Data:
    """alpha * A @ B + beta * C, with A and B perhaps transposed."""
    first, second = call.tensor(0), call.tensor(1)
    first = first.transpose() if call.get("transA", 0) else first
    second = second.transpose() if call.get("transB", 0) else second
    result = first.matmul(second)
    alpha, beta = call.real("alpha", 1.0), call.real("beta", 1.0)
    result = result if alpha == 1 else (result * alpha).cast(result.dtype)
    if not call.has(2):
        return result
    added = call.tensor(2)
    return result + (added if beta == 1 else (added * beta).cast(added.dtype))


@operator("Einsum")
def einsum(call: Call) -> Data:
    """A sum of products by Einstein's notation."""
    return Tensor.einsum(call.get("equation").replace(" ", ""), *call.tensors())


@operator("Det")
def determinant(call: Call) -> Data:
    """Determinants of matrices."""
    return call.tensor(0).det()


@operator("Conv")
def convolution(call: Call) -> Data:
    """Cross-correlation over any number of axes."""
    x, weight = call.tensor(0), call.tensor(1)
    area = shape_of_windows(call, x, weight)
    count = math.prod(area.counts([int(side) for side in x.shape[2:]], is_ceil=False))
    is_short = count * int(x.shape[0]) <= FEW_WINDOWS and max(area.kernel) > 1
    if is_short and groups(call) == 1 and call.is_fixed(1):
        weight = call.kept("filters last", (1,), lambda: weight.movedim(0, -1).contiguous())
        weight = weight.movedim(-1, 0)
    return convolved(x, weight, call.optional(2), area, groups(call))


FEW_WINDOWS: Final = 8
"""Windows up to which vectors run along the filters, whose weights then lie beside each other."""


def groups(call: Call) -> int:
    """The number of groups of channels."""
    return int(call.get("group", 1))


def shape_of_windows(call: Call, x: Tensor, weight: Tensor) -> Windows:
    """The windows of a convolution."""
    return windows(
        call, [int(side) for side in weight.shape[2:]], [int(side) for side in x.shape[2:]]
    )


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, area: Windows, group_count: int
) -> Tensor:
    """A convolution; uneven padding is added before it."""
    padding: Sequence[int] = [0] * len(area.pads)
    if area.is_even:
        padding = [before for before, _ in area.pads]
    else:
        x = x.pad(((0, 0), (0, 0), *area.pads))
    return x.conv2d(weight, bias, group_count, area.strides, area.dilations, tuple(padding))


@operator("ConvTranspose")
def transposed_convolution(call: Call) -> Data:
    """The gradient of a convolution by its input, as a layer of its own."""
    x, weight = call.tensor(0), call.tensor(1)
    rank = x.ndim - 2
    kernel = call.get("kernel_shape", [int(side) for side in weight.shape[2:]])
    strides = call.get("strides", [1] * rank)
    dilations = call.get("dilations", [1] * rank)
    added = call.get("output_padding", [0] * rank)
    full = [
        stride * (int(side) - 1) + (k - 1) * dilation + 1
        for side, stride, k, dilation in zip(x.shape[2:], strides, kernel, dilations, strict=True)
    ]
    pads = cut(call, full, added, [int(side) for side in x.shape[2:]], strides)
    y = x.conv_transpose2d(weight, None, groups(call), tuple(strides), tuple(dilations))
    y = y.pad(
        ((0, 0), (0, 0), *((-before, extra - after)
                           for (before, after), extra in zip(pads, added, strict=True)))
    )  # fmt: skip
    return y + call.tensor(2).reshape(-1, *[1] * rank) if call.has(2) else y


def cut(
    call: Call, full: list[int], added: list[int], sides: list[int], strides: list[int]
) -> list[tuple[int, int]]:
    """Elements that a transposed convolution removes from the ends of its full result."""
    rank = len(full)
    mode = call.get("auto_pad", "NOTSET") or "NOTSET"
    if "output_shape" not in call.attributes and mode in ("NOTSET", "VALID"):
        flat = call.get("pads", [0] * (2 * rank)) if mode == "NOTSET" else [0] * (2 * rank)
        return [(flat[axis], flat[axis + rank]) for axis in range(rank)]
    even = [side * stride for side, stride in zip(sides, strides, strict=True)]
    wanted = call.get("output_shape", even)[-rank:]
    result = []
    for length, extra, side in zip(full, added, wanted, strict=True):
        total = length + extra - side
        less = max(0, total) // 2
        result.append(
            (less, total - less)
            if mode == "SAME_UPPER"
            else (max(0, total) - less, min(total, less))
        )
    return result


@operator("Col2Im")
def columns_to_image(call: Call) -> Data:
    """Blocks, which are columns, added at their places in an image."""
    x = call.tensor(0)
    image, block = call.ints(1), call.ints(2)
    rank = len(image)
    area = Windows(
        tuple(block),
        tuple(call.get("strides", [1] * rank)),
        tuple(call.get("dilations", [1] * rank)),
        pairs_of(call.get("pads", [0] * (2 * rank))),
    )
    volume = int(numpy.prod(block))
    count, channels = int(x.shape[0]), int(x.shape[1]) // volume
    places = places_in_padded(image, area)
    padded = [side + sum(pair) for side, pair in zip(image, area.pads, strict=True)]
    size = int(numpy.prod(padded))
    index = Tensor(places.reshape(1, -1).astype(numpy.int32), device=x.device)
    flat = x.reshape(count * channels, -1)
    result = Tensor.zeros(count * channels, size, dtype=x.dtype, device=x.device).scatter_reduce(
        1, index.expand(*flat.shape), flat, "sum"
    )
    result = result.reshape(count, channels, *padded)
    return result.pad(((0, 0), (0, 0), *((-before, -after) for before, after in area.pads)))


def pairs_of(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """All ends before, then all after, as one pair for each axis."""
    rank = len(flat) // 2
    return tuple((flat[axis], flat[axis + rank]) for axis in range(rank))


def places_in_padded(image: Sequence[int], area: Windows) -> numpy.ndarray:
    """For each element of the kernel and each window its place in the padded image."""
    counts = area.counts(image, is_ceil=False)
    padded = [side + sum(pair) for side, pair in zip(image, area.pads, strict=True)]
    rank = len(counts)
    place = numpy.zeros([1] * (2 * rank), numpy.int64)
    for axis in range(rank):
        inner = numpy.arange(area.kernel[axis]) * area.dilations[axis]
        outer = numpy.arange(counts[axis]) * area.strides[axis]
        grid = inner[:, None] + outer
        shape = [1] * (2 * rank)
        shape[axis], shape[axis + rank] = grid.shape
        place = place * padded[axis] + grid.reshape(shape)
    return place.reshape(int(numpy.prod(area.kernel)), -1)


@operator("DeformConv")
def deformable_convolution(call: Call) -> Data:
    """A convolution whose windows read where learned offsets say (Dai et al., 2017)."""
    x, weight, offset = call.tensor(0), call.tensor(1), call.tensor(2)
    area = shape_of_windows(call, x, weight)
    if x.ndim != 4:
        raise call.unsupported("deformable convolutions of other than two axes.")
    count, channels = int(x.shape[0]), int(x.shape[1])
    rows, columns = int(offset.shape[2]), int(offset.shape[3])
    shares, size = int(call.get("offset_group", 1)), int(numpy.prod(area.kernel))
    moved = offset.reshape(count, shares, size, 2, rows, columns)
    base = base_places(area, rows, columns, x.device)
    y = moved[:, :, :, 0] + base[0]
    z = moved[:, :, :, 1] + base[1]
    part = x.reshape(count * shares, channels // shares, *x.shape[2:])
    flat = (count * shares, size * rows * columns)
    read = sampled(part, [y.reshape(*flat), z.reshape(*flat)])
    read = read.reshape(count, shares, channels // shares, size, rows, columns)
    if call.has(4):
        read = read * call.tensor(4).reshape(count, shares, 1, size, rows, columns)
    return weighted(
        call, read.reshape(count, channels, size, rows * columns), weight, rows, columns
    )


def base_places(area: Windows, rows: int, columns: int, device: object) -> list[Tensor]:
    """Places of each element of each window without an offset: (kernel, rows, columns)."""
    height, width = area.kernel
    y = (numpy.arange(rows) * area.strides[0] - area.pads[0][0])[None, :, None]
    x = (numpy.arange(columns) * area.strides[1] - area.pads[1][0])[None, None, :]
    down = (numpy.arange(height) * area.dilations[0]).repeat(width)[:, None, None]
    across = numpy.tile(numpy.arange(width) * area.dilations[1], height)[:, None, None]
    y, x = numpy.broadcast_arrays(y + down, x + across)
    y, x = numpy.broadcast_arrays(y, x)
    return [Tensor(each.astype(numpy.float32), device=device) for each in (y, x)]  # type: ignore[arg-type]


def weighted(call: Call, read: Tensor, weight: Tensor, rows: int, columns: int) -> Tensor:
    """The sums over what windows have read: (N, C, kernel, places) by (M, C / group, ...)."""
    count, channels, size, places = (int(side) for side in read.shape)
    group_count, outputs = groups(call), int(weight.shape[0])
    left = weight.reshape(1, group_count, outputs // group_count, -1)
    right = read.reshape(count, group_count, channels // group_count * size, places)
    result = left.matmul(right).reshape(count, outputs, rows, columns)
    return result + call.tensor(3).reshape(-1, 1, 1) if call.has(3) else result


@operator("MatMulInteger")
def matmul_integer(call: Call) -> Data:
    """Products of matrices of bytes, whose zeros are subtracted first, in int32."""
    first, second = call.tensor(0).cast(dtypes.int32), call.tensor(1).cast(dtypes.int32)
    if call.has(2):
        zero = call.tensor(2).cast(dtypes.int32)
        first = first - (zero.unsqueeze(-1) if zero.ndim == 1 and zero.shape[0] > 1 else zero)
    if call.has(3):
        second = second - call.tensor(3).cast(dtypes.int32)
    return first.matmul(second)


@operator("ConvInteger")
def convolution_integer(call: Call) -> Data:
    """Convolutions of bytes, whose zeros are subtracted first, in int32."""
    x, weight = call.tensor(0).cast(dtypes.int32), call.tensor(1).cast(dtypes.int32)
    if call.has(2):
        x = x - call.tensor(2).cast(dtypes.int32)
    if call.has(3):
        zero = call.tensor(3).cast(dtypes.int32)
        weight = weight - (zero.reshape(-1, *[1] * (weight.ndim - 1)) if zero.numel() > 1 else zero)
    return convolved(x, weight, None, shape_of_windows(call, x, weight), groups(call))
