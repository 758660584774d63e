"""Levels 1 and 2: images, memory of pixels that programs read and write by column and row.

What the claim `image` promises: pixels are kept, a program reads the very pixel it names
and zero outside, writes whole pixels, and tensors in images compute as any others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy

from tiny_testing.kernels import element
from tiny_testing.suite.case import Level, Variant, case
from tiny_testing.suite.kernels import in_line, loaded
from tiny_testing.suite.subject import Array, Subject
from tinycore import Tensor
from tinycore.device.protocols import Handle
from tinycore.dtype import DType, ImageDType, dtypes, image, to_numpy_dtype
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = [
    "test_a_pixel_outside_of_an_image_is_zero",
    "test_a_tensor_is_computed_into_an_image",
    "test_images_keep_their_pixels",
    "test_pixels_are_read_by_column_and_row",
    "test_pixels_are_written_by_column_and_row",
    "test_products_of_operands_in_images",
    "test_tensors_in_images_compute_as_others",
]

PIXEL: Final = dtypes.float32.vec(ImageDType.CHANNELS)
CHANNELS: Final = (Variant("float32", dtypes.float32), Variant("float16", dtypes.float16))
"""Storage of the four floats of a pixel."""
IMAGE_SIZES: Final = ((1, 1), (3, 65), (64, 2), (5, 7))
"""Rows and columns: few and many, and rows that devices fill up."""


def pixels(kind: ImageDType, seed: int = 0) -> Array:
    """Numbers for an image, all of them exact in halves."""
    generator = numpy.random.default_rng(seed + kind.size)
    return generator.integers(-99, 99, kind.shape).astype(to_numpy_dtype(kind.base))


@contextmanager
def in_memory(subject: Subject, kind: ImageDType, content: Array) -> Iterator[Handle]:
    """An image with the given pixels, freed at the end."""
    images = subject.device.ability("image")
    handle = images.image(kind.height, kind.width, kind.itemsize)
    subject.allocator.write(handle, memoryview(content.tobytes()))
    try:
        yield handle
    finally:
        subject.runtime.synchronize()
        subject.allocator.free(handle)


def content_of(subject: Subject, handle: Handle, kind: ImageDType) -> Array:
    """All pixels of an image."""
    data = subject.read(handle, kind.size * kind.itemsize)
    return numpy.frombuffer(data, to_numpy_dtype(kind.base)).reshape(kind.shape)


@case(Level.MEMORY, "image", over=CHANNELS)
def test_images_keep_their_pixels(subject: Subject, base: DType) -> None:
    """Pixels written to an image are read from it, whatever the device pads its rows to."""
    for size in IMAGE_SIZES:
        kind = image(base, size)
        first, second = pixels(kind), pixels(kind, 1)
        with in_memory(subject, kind, first) as a, in_memory(subject, kind, second) as b:
            assert (content_of(subject, a, kind) == first).all(), f"{kind!r} lost its pixels"
            assert (content_of(subject, b, kind) == second).all(), f"{kind!r} lost its pixels"


def pixel(kind: ImageDType, slot: int, column: int, row: int) -> UOp:
    """The PIXEL of the image in a slot."""
    pointer = UOp(Op.DEFINE_GLOBAL, kind, (), slot)
    return UOp(Op.PIXEL, kind, (pointer, UOp.index(column), UOp.index(row)))


def read_at(
    subject: Subject, kind: ImageDType, content: Array, places: list[tuple[int, int]]
) -> Array:
    """The pixels that a program reads at some columns and rows."""
    stores = []
    for number, (column, row) in enumerate(places):
        value = UOp(Op.LOAD, PIXEL, (pixel(kind, 1, column, row),))
        target = element(0, dtypes.float32, 4 * len(places), UOp.index(4 * number))
        stores.append(UOp(Op.STORE, dtypes.void, (target, value)))
    program = loaded(subject, in_line(*stores), 2, "pixels")
    with in_memory(subject, kind, content) as source, subject.memory(16 * len(places)) as found:
        program([found, source], [])
        data = subject.read(found, 16 * len(places))
    return numpy.frombuffer(data, numpy.float32).reshape(-1, 4)


@case(Level.COMPUTE, "image", over=CHANNELS)
def test_pixels_are_read_by_column_and_row(subject: Subject, base: DType) -> None:
    """A program reads four float32 of the pixel it names, columns first."""
    kind = image(base, (5, 7))
    content = pixels(kind)
    places = [(0, 0), (6, 0), (0, 4), (6, 4), (3, 2), (2, 3)]
    found = read_at(subject, kind, content, places)
    for value, (column, row) in zip(found, places, strict=True):
        assert (value == content[row, column]).all(), f"column {column}, row {row} is otherwise"


@case(Level.COMPUTE, "image", over=CHANNELS)
def test_a_pixel_outside_of_an_image_is_zero(subject: Subject, base: DType) -> None:
    """So that no gate is needed where an image ends, nor where its rows are filled up."""
    kind = image(base, (5, 7))
    places = [(7, 0), (0, 5), (-1, 2), (3, -1), (63, 1), (1000, 1000)]
    found = read_at(subject, kind, pixels(kind), places)
    wrong = [place for place, value in zip(places, found, strict=True) if value.any()]
    assert not wrong, f"columns and rows {wrong} are outside, and not zero"


@case(Level.COMPUTE, "image", over=CHANNELS)
def test_pixels_are_written_by_column_and_row(subject: Subject, base: DType) -> None:
    """A program writes the pixel it names, and no other."""
    kind = image(base, (5, 7))
    before = pixels(kind)
    value = UOp(Op.LOAD, PIXEL, (element(1, dtypes.float32, 4, UOp.index(0)),))
    program = loaded(
        subject,
        in_line(UOp(Op.STORE, dtypes.void, (pixel(kind, 0, 6, 3), value))),
        2,
        "one_pixel",
    )
    numbers = numpy.array([1.5, -2, 3, -4], numpy.float32)
    with in_memory(subject, kind, before) as target, subject.memory(numbers.tobytes()) as source:
        program([target, source], [])
        found = content_of(subject, target, kind)
    assert (found[3, 6] == numbers).all(), "column 6 of row 3 is not what was written"
    expected = before.copy()
    expected[3, 6] = numbers
    assert (found == expected).all(), "other pixels were changed"


def kept(subject: Subject, array: Array, base: DType) -> Tensor:
    """A tensor in an image, one row of pixels for each along the last axis."""
    columns = array.shape[-1] // ImageDType.CHANNELS
    size = (array.size // array.shape[-1], columns)
    return subject.tensor(array, base).cast(image(base, size)).realize()


@case(Level.COMPUTE, "image", over=CHANNELS)
def test_tensors_in_images_compute_as_others(subject: Subject, base: DType) -> None:
    """Elements are read in order, out of order, in parts and past borders, and summed."""
    array = numpy.random.default_rng(0).integers(-9, 9, (3, 6, 8)).astype(to_numpy_dtype(base))
    x = kept(subject, array, base)
    assert (x.numpy() == array).all(), "an image reads otherwise"
    assert ((x * 2 + 1).numpy() == array * 2 + 1).all(), "in order"
    assert ((x.permute(2, 0, 1) + 0).numpy() == array.transpose(2, 0, 1)).all(), "out of order"
    assert ((x[:, 1:5, 3:] + 0).numpy() == array[:, 1:5, 3:]).all(), "in parts"
    padded = numpy.pad(array, ((0, 0), (1, 0), (2, 3)))
    assert (x.pad(((0, 0), (1, 0), (2, 3))).numpy() == padded).all(), "past its borders"
    assert (x.sum(2).numpy() == array.sum(2)).all(), "summed along rows"
    assert (x.sum(0).numpy() == array.sum(0)).all(), "summed across rows"


@case(Level.COMPUTE, "image", over=CHANNELS)
def test_a_tensor_is_computed_into_an_image(subject: Subject, base: DType) -> None:
    """Sums, moved elements and shapes of any kind are written, also in place of what is read."""
    array = numpy.random.default_rng(1).integers(-9, 9, (6, 20)).astype(to_numpy_dtype(base))
    x = kept(subject, array, base)
    turned = (x.T + 1).reshape(5, 24).cast(image(base, (3, 10))).realize()
    assert (turned.numpy() == (array.T + 1).reshape(5, 24)).all(), "moved elements"
    ragged = x.reshape(40, 3).flip(0).cast(image(base, (30, 1))).realize()
    assert (ragged.numpy() == array.reshape(40, 3)[::-1]).all(), "rows that are no whole pixels"
    sums = x.sum(0).cast(image(base, (1, 5))).realize()
    assert (sums.numpy() == array.sum(0)).all(), "sums"
    x.assign(x.flip(0) + x).realize()
    assert (x.numpy() == array[::-1] + array).all(), "an image that is read where it is written"


@case(Level.COMPUTE, "image")
def test_products_of_operands_in_images(subject: Subject) -> None:
    """Products and convolutions whose operands are read as images."""
    generator = numpy.random.default_rng(2)
    a, b = (generator.integers(-9, 9, size).astype("f") for size in ((33, 29), (29, 24)))
    x, y = subject.tensor(a, dtypes.float32), subject.tensor(b, dtypes.float32)
    assert (x.image_dot(y).numpy() == a @ b).all(), "a product is otherwise"
    c, d = (generator.integers(-9, 9, size).astype("f") for size in ((2, 4, 6, 7), (8, 4, 3, 3)))
    x, y = subject.tensor(c, dtypes.float32), subject.tensor(d, dtypes.float32)
    plain = x.conv2d(y, padding=1).numpy()
    assert (x.image_conv2d(y, padding=1).numpy() == plain).all(), "a convolution is otherwise"
