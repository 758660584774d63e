"""Image access: element numbers become columns, rows and channels of pixels.

Floor 3'. Before this pass an image is an array of elements, four to a pixel. A device reads and
writes whole pixels, as four float32 numbers whatever the image stores. A load becomes loads of the
pixels that hold its elements, and a selection of channels. Pixels outside of the image read as
zero, so a gate is needed only for another alternative. Stores must be of whole pixels.
"""

from __future__ import annotations

from tinycore.dtype import ImageDType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.lower.dtypes import ROUNDED
from tinycore.lower.lanes import lane_of, lanes_of, vector_of
from tinycore.render.base import Renderer, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import RuleSet, node, var
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplified, simplify

PIXEL_CHANNELS = ImageDType.CHANNELS
PIXEL = dtypes.float32.vec(PIXEL_CHANNELS)


def lower_images(kernel: UOp, renderer: Renderer) -> UOp:
    """The kernel with PIXELs for its images. Raises UnsupportedError on devices without images."""
    found = [n.dtype for n in kernel.every(Op.DEFINE_GLOBAL)]
    kinds = [kind for kind in found if isinstance(kind, ImageDType)]
    if not kinds:
        return kernel
    if renderer.limits.image is None:
        raise UnsupportedError(
            f"{renderer.name} has no images, and a kernel has {kinds[0]!r}. Keep its tensors in "
            "plain memory: leave out .cast(dtypes.imagef(...))"
        )
    return rewrite(kernel, images + simplify, name="images")


def in_image(index: UOp) -> bool:
    """True if an INDEX is into an image."""
    return isinstance(pointer_of(index).dtype, ImageDType)


images = RuleSet("images")


@images.rule(node(Op.LOAD, node(Op.INDEX, when=in_image), rest=var(), name="root"))
def load_pixels(root: UOp) -> UOp:
    """image[i] == channel i % 4 of pixel i // 4."""
    index = root.src[0]
    place, count = index.src[1], root.dtype.count
    channel = simplified(place % PIXEL_CHANNELS, "a channel")
    if channel.op is Op.CONST:
        value = elements(index, place - channel, channel.arg, count)
    else:
        value = vector_of(element(index, place + lane) for lane in range(count))
    value = value.cast(root.dtype)
    return value if len(root.src) == 1 else index.src[2].where(value, root.src[1])


@images.rule(node(Op.STORE, node(Op.INDEX, name="index", when=in_image), var("value")))
def store_pixels(index: UOp, value: UOp) -> UOp:
    """A store of four elements from a multiple of four on == the store of a pixel."""
    place, count = index.src[1], value.dtype.count
    channel = simplified(place % PIXEL_CHANNELS, "a channel")
    if count % PIXEL_CHANNELS or not (channel.op is Op.CONST and channel.arg == 0):
        raise UnsupportedError(
            f"an image is written by whole pixels, not {count} of its elements at a time. Write "
            "plain memory, and make an image of it: x.cast(image)"
        )
    exact = UOp(Op.CAST, dtypes.float32.vec(count), (value,), ROUNDED)
    wide = value if value.dtype.scalar() is dtypes.float32 else exact
    stores = []
    for first in range(0, count, PIXEL_CHANNELS):
        lanes = range(first, first + PIXEL_CHANNELS)
        part = wide if count == PIXEL_CHANNELS else lanes_of(wide, lanes)
        stores.append(pixel(index, place + first, *index.src[2:]).store(part))
    return UOp.group(*stores)


def pixel(index: UOp, place: UOp, *gate: UOp) -> UOp:
    """The PIXEL that holds the element at a place."""
    kind = pointer_of(index).dtype
    assert isinstance(kind, ImageDType)
    number = place // PIXEL_CHANNELS
    column, row = number % kind.width, number // kind.width
    return UOp(Op.PIXEL, kind, (index.src[0], column, row, *gate))


def elements(index: UOp, start: UOp, first: int, count: int) -> UOp:
    """Elements from channel `first` of the pixel at `start` on."""
    pixels = -(-(first + count) // PIXEL_CHANNELS)
    places = (start + number * PIXEL_CHANNELS for number in range(pixels))
    loads = tuple([pixel(index, place).load(PIXEL) for place in places])
    if first == 0 and count == PIXEL_CHANNELS:
        return loads[0]
    lanes = tuple(range(first, first + count))
    return UOp(Op.EXTRACT, dtypes.float32.vec(count), loads, lanes)


def element(index: UOp, place: UOp) -> UOp:
    """The element at a place whose channel is known when the kernel runs."""
    whole = pixel(index, place).load(PIXEL)
    channel = place % PIXEL_CHANNELS
    *others, found = (lane_of(whole, n) for n in range(PIXEL_CHANNELS))
    for number, value in enumerate(others):
        found = channel.eq(number).where(value, found)
    return found
