"""Textures and stores to images, by their descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy
from emulation.faults import Fault, LaunchFault

from adreno.ir3.syntax import COMPONENTS
from adreno.state import bits

if TYPE_CHECKING:
    from adreno.ir3.run import Groups
    from adreno.ir3.syntax import Instruction

Array = numpy.ndarray[Any, Any]
CHANNELS: Final = {0x82: 4, 0x62: 2}


class Pixels:
    """What a descriptor says: where pixels are."""

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


def load_pixels(groups: Groups, made: Instruction, which: Any) -> None:
    """isam: the pixel at a column and a row; zeros outside of the image."""
    target, place, sampler, texture = made.operands
    if sampler.number >= len(groups.launch.samplers):
        raise LaunchFault(f"sampler {sampler.number} is not there")
    if texture.number >= len(groups.launch.textures):
        raise LaunchFault(f"texture {texture.number} is not there")
    words = groups.launch.samplers[sampler.number]
    if bits(words[0], 5, 9) != 0b011_011_011 or not bits(words[1], 5, 1):
        raise LaunchFault("the sampler does not clamp to the border, in pixels")
    pixels = Pixels(groups.launch.textures[texture.number])
    if bits(groups.launch.textures[texture.number][0], 4, 12) != 0 | 1 << 3 | 2 << 6 | 3 << 9:
        raise LaunchFault("the channels of a texture are not in order")
    columns, rows = groups.sources_of(place, 2, which, 4)
    addresses, inside = pixels.places(columns, rows)
    found = groups.memory.load(addresses[inside], pixels.bytes, 4)
    written = next(flag.split()[1] for flag in made.flags if flag.startswith("writes "))
    for channel, part in enumerate(found):
        if COMPONENTS[channel] not in written:
            continue  # its register, counted from the target, keeps what it holds
        value = part.view(numpy.float16 if pixels.bytes == 2 else numpy.float32)
        result = numpy.zeros(len(columns), numpy.float32)
        result[inside] = value
        groups.write(target, which, result.view(numpy.uint32), channel)


def store_pixels(groups: Groups, made: Instruction, which: Any) -> None:
    """stib: four floats to the pixel at a column and a row; nothing outside of the image."""
    value, place, slot = made.operands
    number = int(slot.value)
    if number >= len(groups.launch.images):
        raise LaunchFault(f"image {number} is not there")
    if ".f32.4" not in made.name or ".2d" not in made.name:
        raise Fault(f"{made.name} is not known")
    pixels = Pixels(groups.launch.images[number])
    columns, rows = groups.sources_of(place, 2, which, 4)
    addresses, inside = pixels.places(columns, rows)
    parts = groups.sources_of(value, 4, which, 4)
    if pixels.bytes == 2:
        parts = [p.view(numpy.float32).astype(numpy.float16).view(numpy.uint16) for p in parts]
    groups.memory.store(addresses[inside], pixels.bytes, [p[inside] for p in parts])
