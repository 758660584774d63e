"""The table of IP discovery: what is read of it, and each way in which it can be wrong."""

from __future__ import annotations

import random
import struct

import pytest
from pci_standin.tables import BLOCKS, discovery_table

from tiny_amd.am.discovery import DISCOVERY_BYTES, Block, HardwareId, parse_discovery
from tinycore.errors import DeviceUnavailable


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("wide", [False, True])
def test_a_navi_31(wide: bool, version: int) -> None:
    table = discovery_table(wide=wide, version=version)
    assert len(table) == DISCOVERY_BYTES
    found = parse_discovery(table, "card")
    assert found.blocks == tuple(Block(*block) for block in BLOCKS)
    assert (found.engines, found.arrays_per_engine, found.units_per_array) == (6, 2, 8)
    assert (found.waves_per_simd, found.scratch_slots_per_unit, found.wave) == (16, 32, 32)
    assert found.harvested == {(42, 1)}


def test_bases_of_more_than_32_bits() -> None:
    blocks = [(11, 0, (12, 0, 1), (0x1_2345_6789, 5))]
    assert parse_discovery(discovery_table(blocks, wide=True), "card").blocks[0].bases == (
        0x1_2345_6789,
        5,
    )


def test_workgroup_processors_of_both_kinds_are_counted() -> None:
    assert parse_discovery(discovery_table(graphics={1: 3, 2: 2}), "card").units_per_array == 10


def test_a_block_is_found_by_its_id_and_instance() -> None:
    found = parse_discovery(discovery_table(), "card 03:00")
    assert found.block(HardwareId.GC).version == (11, 0, 0)
    assert found.block(42, 1).instance == 1
    with pytest.raises(DeviceUnavailable, match="card 03:00 has no SDMA0 number 2"):
        found.block(HardwareId.SDMA0, 2)
    with pytest.raises(DeviceUnavailable, match="has no block 77 number 0"):
        found.block(77)


def test_a_table_without_a_list_of_what_is_switched_off() -> None:
    table = bytearray(discovery_table())
    table[28:30] = b"\0\0"
    size = struct.unpack_from("<H", table, 10)[0]
    struct.pack_into("<H", table, 8, sum(table[10:size]) & 0xFFFF)
    assert parse_discovery(bytes(table), "card").harvested == frozenset()


def changed(offset: int, layout: str, value: int, *, summed: bool = True) -> bytes:
    """A table with a number changed, and the checksum of all of it right again."""
    table = bytearray(discovery_table())
    struct.pack_into(layout, table, offset, value)
    if summed:
        size = struct.unpack_from("<H", table, 10)[0]
        struct.pack_into("<H", table, 8, sum(table[10:size]) & 0xFFFF)
    return bytes(table)


BLOCKS_AT = 60
CORE_AT = BLOCKS_AT + 80 + 4 + sum(8 + 4 * len(bases) for *_, bases in BLOCKS)
OFF_AT = CORE_AT + 12 + 19 * 4


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (b"", "its header at 0x0 is not inside of 0 bytes"),
        (b"\xff" * DISCOVERY_BYTES, "it begins with 0xffffffff"),
        (bytes(DISCOVERY_BYTES), "it begins with 0x00000000"),
        (changed(4, "<H", 3), "it has version 3"),
        (changed(10, "<H", 4, summed=False), "says that it has 4 bytes"),
        (changed(10, "<H", 0xFFFF, summed=False), "all of it has .* bytes at"),
        (changed(200, "<B", 0x5A, summed=False), "the checksum of all of it"),
        (changed(12, "<H", 0xFFF0), "the list of blocks at 0xfff0 is not inside"),
        (changed(BLOCKS_AT, "<I", 1), "list of blocks has signature 0x00000001"),
        (changed(BLOCKS_AT + 12, "<H", 17), "and 17 dies"),
        (changed(BLOCKS_AT + 90, "<B", 1), "the checksum of the list of blocks"),
        (changed(CORE_AT, "<I", 7), "graphics core has signature 0x7"),
        (changed(CORE_AT + 4, "<H", 2), "version 2.0, and 1 is known"),
        (changed(CORE_AT + 20, "<I", 99), "the checksum of the graphics core"),
        (changed(20, "<H", 0), "graphics core has signature 0x28211407 at 0x0"),
        (changed(OFF_AT, "<I", 7), "harvest table has signature 0x00000007"),
        (changed(OFF_AT + 12, "<I", 7), "the checksum of the harvest table"),
    ],
)
def test_a_table_that_is_wrong(table: bytes, why: str) -> None:
    with pytest.raises(DeviceUnavailable, match=f"card: its table of IP discovery .*{why}"):
        parse_discovery(table, "card")


def test_a_damaged_table_raises_that_error_and_no_other() -> None:
    draw, whole = random.Random(5), discovery_table()
    for _ in range(300):
        table = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            table[draw.randrange(OFF_AT + 40)] = draw.randrange(256)
        size = struct.unpack_from("<H", table, 10)[0]
        struct.pack_into("<H", table, 8, sum(table[10:size]) & 0xFFFF)
        cut = bytes(table[: draw.choice((len(table), draw.randrange(len(table))))])
        try:
            parse_discovery(cut, "card")
        except DeviceUnavailable:
            continue
