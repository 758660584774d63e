"""Images of the interpreter: rows of pixels that begin at multiples of 64, as on graphics cards.

Private to the interpreter. What is read outside of an image is zero, as a sampler that clamps to a
border has it; a write outside is an error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy

from tinycore.builtin.arithmetic import Array
from tinycore.builtin.frame import Frame
from tinycore.dtype import ImageDType, to_numpy_dtype
from tinycore.errors import DeviceError
from tinycore.uop.node import UOp

__all__ = ["Image", "Pixel", "load_pixel", "of_slot", "store_pixel"]

Step = Callable[[Frame], None]


class Image:
    """Pixels in memory of this process, rows of them by a pitch."""

    def __init__(self, memory: Array, height: int, width: int, channel_bytes: int) -> None:
        kind = numpy.float32 if channel_bytes == 4 else numpy.float16
        self.memory = memory
        rows: Array = memory.view(kind).reshape(height, -1, ImageDType.CHANNELS)
        self.pixels = rows[:, :width]

    def __repr__(self) -> str:
        height, width, _ = self.pixels.shape
        return f"<Image of {height} rows of {width} pixels, {self.pixels.dtype}>"

    def fill(self, content: memoryview) -> None:
        """Write all pixels from host bytes."""
        self.pixels[...] = numpy.frombuffer(content, self.pixels.dtype).reshape(self.pixels.shape)

    def content(self) -> Array:
        """All pixels as bytes, row by row."""
        found: Array = numpy.ascontiguousarray(self.pixels).view(numpy.uint8).reshape(-1)
        return found


def of_slot(node: UOp, handle: Image | Array, kernel: str) -> Image:
    """The image behind a DEFINE_GLOBAL. Raises DeviceError for another one, or plain memory."""
    kind = node.dtype
    assert isinstance(kind, ImageDType)
    if (
        not isinstance(handle, Image)
        or handle.pixels.shape != kind.shape
        or handle.pixels.dtype != to_numpy_dtype(kind.base)
    ):
        raise DeviceError(f"kernel {kernel} takes {kind!r} in slot {node.arg}, not {handle!r}")
    return handle


class Pixel:
    """The coordinates of one LOAD or STORE."""

    def __init__(self, node: UOp) -> None:
        _, self.column, self.row, *gate = node.src
        self.gate = gate[0] if gate else None

    def places(self, frame: Frame) -> tuple[Array, Array]:
        """Columns and rows, of like shape, without the axis of lanes."""
        found = numpy.broadcast_arrays(frame.values[self.column], frame.values[self.row])
        return found[0][..., 0], found[1][..., 0]


def in_bounds(image: Image, column: Array, row: Array) -> Array:
    """Mask of coordinates that are those of a pixel."""
    height, width, _ = image.pixels.shape
    found: Array = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    return found


def load_pixel(pixel: Pixel, pointer: UOp, target: UOp) -> Step:
    """The step of a LOAD."""

    def load(frame: Frame) -> None:
        image: Image = frame.values[pointer]
        column, row = pixel.places(frame)
        there = in_bounds(image, column, row)
        found = image.pixels[numpy.where(there, row, 0), numpy.where(there, column, 0)]
        frame.values[target] = numpy.where(there[..., None], found, 0).astype(numpy.float32)

    return load


def store_pixel(pixel: Pixel, pointer: UOp, source: UOp) -> Step:
    """The step of a STORE, for the threads that take part."""

    def store(frame: Frame) -> None:
        image: Image = frame.values[pointer]
        column, row = pixel.places(frame)
        values = frame.values[source]
        gate = None if pixel.gate is None else frame.values[pixel.gate]
        active = frame.active(gate)
        shape = numpy.broadcast_shapes(column.shape, values.shape[:-1])
        taking = numpy.broadcast_to(True if active is None else active[..., 0], shape)
        column, row = numpy.broadcast_to(column, shape), numpy.broadcast_to(row, shape)
        if not in_bounds(image, column, row)[taking].all():
            raise DeviceError(
                f"kernel {frame.kernel} writes outside of an image {image.pixels.shape}"
            )
        wide = numpy.broadcast_to(values, (*shape, ImageDType.CHANNELS))
        image.pixels[row[taking], column[taking]] = wide[taking]

    return store
