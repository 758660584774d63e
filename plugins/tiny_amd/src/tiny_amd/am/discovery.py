"""The table of IP discovery: which blocks a card is made of, their versions, where registers lie.

Its firmware puts it at the end of the card's memory. Linux, drivers/gpu/drm/amd/include/discovery.h
(structures), soc15_hw_ip.h (hardware ids); checksums are sums of bytes, as amdgpu_discovery.c takes
them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tinycore.errors import DeviceUnavailable

__all__ = [
    "DISCOVERY_BYTES",
    "DISCOVERY_FROM_END",
    "Block",
    "Discovery",
    "HardwareId",
    "parse_discovery",
]

DISCOVERY_BYTES: Final = 10 << 10
DISCOVERY_FROM_END: Final = 64 << 10
"""Distance of the table from the end of the card's memory."""
_SIGNATURE: Final = 0x28211407
_BLOCKS_SIGNATURE: Final = 0x53445049
_GRAPHICS_SIGNATURE: Final = 0x4347
_HARVEST_SIGNATURE: Final = 0x56524148
_BINARY_HEADER: Final = struct.Struct("<IHHHH")
_SUMMED_FROM: Final = 10
"""Offset behind the checksum of all, which is that of what follows it."""
_TABLE: Final = struct.Struct("<HHHH")
_TABLES_AT: Final = {1: 12, 2: 16}
"""Offset of the list of tables by major version."""
_BLOCKS, _GRAPHICS, _HARVEST = 0, 1, 2
"""Places of tables in that list."""
_BLOCKS_HEADER: Final = struct.Struct("<IHHIH")
_DIES_AT: Final = 14
_DIE: Final = struct.Struct("<HH")
_MOST_DIES: Final = 16
_WIDE_AT: Final = 78
_BLOCK: Final = struct.Struct("<HBBBBBB")
_HARVEST_ENTRIES: Final = 32
_HARVEST_ENTRY: Final = struct.Struct("<HBB")
_HARVEST_BYTES: Final = 8 + _HARVEST_ENTRIES * _HARVEST_ENTRY.size
_GRAPHICS_HEADER: Final = struct.Struct("<IHHI")
_GRAPHICS_FIELDS: Final = {
    "engines": 12,
    "first_workgroup_processors": 16,
    "second_workgroup_processors": 20,
    "wave": 56,
    "waves_per_simd": 60,
    "scratch_slots_per_unit": 64,
    "arrays_per_engine": 76,
}
"""Offsets of gc_info_v1_0, which later versions of major 1 begin with."""


class HardwareId(enum.IntEnum):
    """Blocks that a compute driver programs."""

    MP1 = 1
    GC = 11
    MMHUB = 34
    OSSSYS = 40
    HDP = 41
    SDMA0 = 42
    NBIF = 108
    MP0 = 255


@dataclass(frozen=True)
class Block:
    """A block of the card."""

    hardware_id: int
    instance: int
    version: tuple[int, int, int]
    bases: tuple[int, ...]
    """Start of each segment of its registers, in words."""


@dataclass(frozen=True)
class Discovery:
    """Facts that the table tells."""

    name: str
    """The card's."""
    blocks: tuple[Block, ...]
    engines: int
    """Shader engines."""
    arrays_per_engine: int
    units_per_array: int
    """Compute units, two of each workgroup processor."""
    waves_per_simd: int
    scratch_slots_per_unit: int
    wave: int
    harvested: frozenset[tuple[int, int]]
    """Hardware id and instance of blocks that are switched off for good."""

    def block(self, hardware_id: int, instance: int = 0) -> Block:
        """A block. Raises DeviceUnavailable where the card has none."""
        for block in self.blocks:
            if (block.hardware_id, block.instance) == (hardware_id, instance):
                return block
        known = hardware_id in set(HardwareId)
        what = HardwareId(hardware_id).name if known else f"block {hardware_id}"
        raise DeviceUnavailable(f"{self.name} has no {what} number {instance}")


class _Reader:
    """The table's bytes, read with a check of every offset."""

    def __init__(self, content: bytes, name: str) -> None:
        self.content, self.name = content, name

    def fail(self, what: str) -> DeviceUnavailable:
        """The error of a table that says something impossible."""
        return DeviceUnavailable(
            f"{self.name}: its table of IP discovery cannot be read: {what}. A card says so whose "
            "memory was not set up, or whose link is bad"
        )

    def unpack(self, layout: struct.Struct, offset: int, what: str) -> tuple[int, ...]:
        """A structure at an offset."""
        if not 0 <= offset <= len(self.content) - layout.size:
            raise self.fail(f"{what} at {offset:#x} is not inside of {len(self.content):,} bytes")
        return layout.unpack_from(self.content, offset)

    def word(self, offset: int, what: str) -> int:
        """A word at an offset."""
        return self.unpack(struct.Struct("<I"), offset, what)[0]

    def verify_sum(self, start: int, size: int, expected: int, what: str) -> None:
        """Raise DeviceUnavailable unless bytes are inside, and add up to a checksum."""
        if start + size > len(self.content):
            raise self.fail(f"{what} has {size:,} bytes at {start:#x} of {len(self.content):,}")
        found = sum(self.content[start : start + size]) & 0xFFFF
        if found != expected:
            raise self.fail(f"the checksum of {what} is {found:#06x} and not {expected:#06x}")


def parse_discovery(content: bytes, name: str) -> Discovery:
    """Read a table; `name` is that of the card. Raises DeviceUnavailable."""
    reader = _Reader(content, name)
    signature, major, _, checksum, size = reader.unpack(_BINARY_HEADER, 0, "its header")
    if signature != _SIGNATURE:
        raise reader.fail(f"it begins with {signature:#010x} and not {_SIGNATURE:#010x}")
    if major not in _TABLES_AT:
        raise reader.fail(f"it has version {major}, and {min(_TABLES_AT)} and 2 are known")
    if size < _SUMMED_FROM:
        raise reader.fail(f"it says that it has {size} bytes")
    reader.verify_sum(_SUMMED_FROM, size - _SUMMED_FROM, checksum, "all of it")
    tables = [
        reader.unpack(_TABLE, _TABLES_AT[major] + _TABLE.size * number, "the list of tables")[:2]
        for number in (_BLOCKS, _GRAPHICS, _HARVEST)
    ]
    graphics = _graphics(reader, *tables[_GRAPHICS])
    processors = graphics.pop("first_workgroup_processors")
    processors += graphics.pop("second_workgroup_processors")
    return Discovery(
        name=name,
        blocks=tuple(_blocks(reader, *tables[_BLOCKS])),
        harvested=_harvested(reader, *tables[_HARVEST]),
        units_per_array=2 * processors,
        **graphics,
    )


def _blocks(reader: _Reader, start: int, checksum: int) -> Iterator[Block]:
    """Blocks of each die, in the table's order."""
    signature, version, size, _, dies = reader.unpack(_BLOCKS_HEADER, start, "the list of blocks")
    if signature != _BLOCKS_SIGNATURE or dies > _MOST_DIES:
        raise reader.fail(f"its list of blocks has signature {signature:#010x} and {dies} dies")
    reader.verify_sum(start, size, checksum, "the list of blocks")
    is_wide = version >= 4 and reader.word(start + _WIDE_AT - 2, "the width of addresses") >> 16 & 1
    for die in range(dies):
        _, at = reader.unpack(_DIE, start + _DIES_AT + _DIE.size * die, "a die")
        _, count = reader.unpack(_DIE, at, f"die {die}")
        at += _DIE.size
        for _ in range(count):
            hardware_id, instance, bases, *numbers, _ = reader.unpack(_BLOCK, at, "a block")
            layout = struct.Struct(f"<{bases}{'Q' if is_wide else 'I'}")
            found = reader.unpack(layout, at + _BLOCK.size, "addresses of a block")
            version_of_block = (numbers[0], numbers[1], numbers[2])
            yield Block(hardware_id, instance, version_of_block, found)
            at += _BLOCK.size + layout.size


def _graphics(reader: _Reader, start: int, checksum: int) -> dict[str, int]:
    """Numbers of the graphics core, by name."""
    signature, major, minor, size = reader.unpack(_GRAPHICS_HEADER, start, "the graphics core")
    if not start or signature != _GRAPHICS_SIGNATURE:
        raise reader.fail(f"its graphics core has signature {signature:#x} at {start:#x}")
    if major != 1:
        raise reader.fail(f"its graphics core has version {major}.{minor}, and 1 is known")
    reader.verify_sum(start, size, checksum, "the graphics core")
    if size <= max(_GRAPHICS_FIELDS.values()):
        raise reader.fail(f"its graphics core has {size} bytes")
    return {field: reader.word(start + offset, field) for field, offset in _GRAPHICS_FIELDS.items()}


def _harvested(reader: _Reader, start: int, checksum: int) -> frozenset[tuple[int, int]]:
    """Blocks that are switched off; none where there is no list of them."""
    if not start:
        return frozenset()
    if (signature := reader.word(start, "the harvest table")) != _HARVEST_SIGNATURE:
        raise reader.fail(f"its harvest table has signature {signature:#010x}")
    reader.verify_sum(start, _HARVEST_BYTES, checksum, "the harvest table")
    places = range(start + 8, start + _HARVEST_BYTES, _HARVEST_ENTRY.size)
    entries = (reader.unpack(_HARVEST_ENTRY, place, "the harvest table") for place in places)
    return frozenset((entry[0], entry[1]) for entry in entries if entry[0])
