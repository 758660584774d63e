"""Kernels that write an image: whole pixels, four neighboring elements at a time.

Floor 3. An image is written by pixels only, so its kernel has a step for each pixel, which computes
all four channels and stores them as one vector.
"""

from __future__ import annotations

from tinycore.dtype import ImageDType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.schedule.kernel import numel
from tinycore.schedule.ranges import ZERO, Point, RegionReader, flatten, unflatten
from tinycore.uop.node import UOp
from tinycore.uop.op import PARTIAL_WRITES, AxisKind, Op
from tinycore.uop.shape import Shape

PIXEL_CHANNELS = ImageDType.CHANNELS


def pixels_of(node: UOp) -> Point:
    """A counter for each axis of what is stored, the last in steps of a pixel; where that axis is
    not made of whole pixels, one counter of pixels.
    """
    refuse_parts(node)
    shape = node.shape
    whole = has_whole_pixels(shape)
    rest = (*shape[:-1], shape[-1] // PIXEL_CHANNELS) if whole else (numel(node) // PIXEL_CHANNELS,)
    return tuple(
        [UOp.range(n, axis, AxisKind.LOOP) if n != 1 else ZERO for axis, n in enumerate(rest)]
    )


def has_whole_pixels(shape: Shape) -> bool:
    """True if rows along the last axis are whole pixels."""
    return bool(shape) and shape[-1] % PIXEL_CHANNELS == 0


def store_pixel(reader: RegionReader, node: UOp, point: Point, pointer: UOp) -> UOp:
    """The STORE of the pixel at a point of `pixels_of`."""
    value, shape = node.src[1] if node.op is Op.ASSIGN else node, node.shape
    *outer, last = point
    channels = [last * PIXEL_CHANNELS + channel for channel in range(PIXEL_CHANNELS)]
    if has_whole_pixels(shape):
        places: list[Point] = [(*outer, channel) for channel in channels]
        start = flatten(places[0], shape)
    else:
        places = [unflatten(channel, shape) for channel in channels]
        start = channels[0]
    lanes = tuple([reader.read(value, place) for place in places])
    index = UOp(Op.INDEX, pointer.dtype, (pointer, start))
    pixel = UOp(Op.VECTORIZE, lanes[0].dtype.vec(PIXEL_CHANNELS), lanes)
    return UOp(Op.STORE, dtypes.void, (index, pixel))


def refuse_parts(node: UOp) -> None:
    """Raise UnsupportedError for a change of some elements of an image."""
    change = node.src[1] if node.op is Op.ASSIGN else node
    if change.op in PARTIAL_WRITES and change.src[0] is node.src[0]:
        raise UnsupportedError(
            "an image is written as a whole: no part of it can be changed in place. Change a copy "
            "in plain memory, x.clone(), and write all of it: x.assign(copy)"
        )
