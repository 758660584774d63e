"""Textures and stores to images, by their descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy
from emulation.faults import LaunchFault

from adreno.state import bits

if TYPE_CHECKING:
    from adreno.ir3.run import Groups

Array = numpy.ndarray[Any, Any]
BUFFER: Final = 4
"""Type of a texture that is a buffer of texels."""
CHANNELS: Final = {0x82: 4, 0x62: 2}


class Texels:
    """A buffer of texels by its descriptor."""

    def __init__(self, words: Array) -> None:
        self.bytes = CHANNELS.get(bits(words[0], 22, 8), 0)
        self.count = bits(words[1], 0, 30)
        skipped = bits(words[2], 16, 6)
        self.address = (int(words[4]) | bits(words[5], 0, 17) << 32) + 4 * self.bytes * skipped
        wrong = not self.bytes or bits(words[2], 4, 12) != 1 or bits(words[0], 0, 2)
        if wrong or 4 * self.bytes * skipped > 63 or int(words[4]) % 64 or self.count > 1 << 27:
            raise LaunchFault(f"the descriptor {[hex(int(w)) for w in words]} is wrong")

    def places(self, columns: Array, rows: Array) -> tuple[Array, Array]:
        """Addresses of texels, and which of them are inside of the buffer."""
        x = columns.view(numpy.int32)
        inside = (x >= 0) & (x < self.count)
        return (x.astype(numpy.int64) * 4 * self.bytes + self.address).astype(numpy.uint64), inside


class Pixels:
    """Layout of an image by its descriptor."""

    def __init__(self, words: Array) -> None:
        self.bytes = CHANNELS.get(bits(words[0], 22, 8), 0)
        self.width, self.height = bits(words[1], 0, 15), bits(words[1], 15, 15)
        self.pitch = bits(words[2], 7, 22)
        self.address = int(words[4]) | bits(words[5], 0, 17) << 32
        alignment = 64 << bits(words[2], 0, 4)
        wrong = not self.bytes or bits(words[2], 29, 3) != 1 or bits(words[0], 0, 2)
        if wrong or self.pitch % alignment or self.pitch < self.width * 4 * self.bytes:
            raise LaunchFault(f"the descriptor {[hex(int(w)) for w in words]} is wrong")

    def places(self, columns: Array, rows: Array) -> tuple[Array, Array]:
        """Addresses of pixels, and which of them are inside of the image."""
        x, y = columns.view(numpy.int32), rows.view(numpy.int32)
        inside = (x >= 0) & (x < self.width) & (y >= 0) & (y < self.height)
        start = y.astype(numpy.int64) * self.pitch + x.astype(numpy.int64) * 4 * self.bytes
        return (start + self.address).astype(numpy.uint64), inside


def load_pixels(
    groups: Groups, sampler: int, texture: int, columns: Array, rows: Array
) -> list[Array]:
    """The channels of the pixels at columns and rows, as words; zeros outside of the image."""
    launch = groups.launch
    if sampler >= len(launch.samplers):
        raise LaunchFault(f"sampler {sampler} is not there")
    if texture >= len(launch.textures):
        raise LaunchFault(f"texture {texture} is not there")
    words = launch.samplers[sampler]
    if bits(words[0], 5, 9) != 0b011_011_011 or not bits(words[1], 5, 1):
        raise LaunchFault("the sampler does not clamp to the border, in pixels")
    kind = bits(launch.textures[texture][2], 29, 3)
    pixels = (Texels if kind == BUFFER else Pixels)(launch.textures[texture])
    if bits(launch.textures[texture][0], 4, 12) != 0 | 1 << 3 | 2 << 6 | 3 << 9:
        raise LaunchFault("the channels of a texture are not in order")
    addresses, inside = pixels.places(columns, rows)
    results = []
    for part in groups.memory.load(addresses[inside], pixels.bytes, 4):
        value = part.view(numpy.float16 if pixels.bytes == 2 else numpy.float32)
        result = numpy.zeros(len(columns), numpy.float32)
        result[inside] = value
        results.append(result.view(numpy.uint32))
    return results


def store_pixels(
    groups: Groups, number: int, columns: Array, rows: Array, parts: list[Array]
) -> None:
    """Four floats, as words, to the pixels at columns and rows; nothing outside of the image."""
    if number >= len(groups.launch.images):
        raise LaunchFault(f"image {number} is not there")
    pixels = Pixels(groups.launch.images[number])
    addresses, inside = pixels.places(columns, rows)
    if pixels.bytes == 2:
        parts = [p.view(numpy.float32).astype(numpy.float16).view(numpy.uint16) for p in parts]
    groups.memory.store(addresses[inside], pixels.bytes, [p[inside] for p in parts])
