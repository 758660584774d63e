"""The container of Qualcomm's compiler: what is read of it, and what is refused."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from adreno import opencl

from tiny_qcom.code import Code
from tiny_qcom.container import read_container
from tinycore.errors import FileFormatError

NAME = "name_"
TABLE, ENTRY_BYTES = 48, 20
READ = (0, 6, 7, 10, 11)
"""Sections that a launch needs: program, constants, machine code, its size, descriptor."""


@pytest.fixture
def binary() -> bytes:
    """A container: a buffer and a texture, two constants, 64 bytes of shared memory."""
    return opencl.container(NAME, "", [(0, 0x140), (1, 0x148)], 64)


def with_words(binary: bytes, *places: tuple[int, int]) -> bytes:
    """A container with other words at some offsets."""
    made = bytearray(binary)
    for offset, value in places:
        struct.pack_into("<I", made, offset, value)
    return bytes(made)


def descriptor_of(binary: bytes) -> int:
    """Offset of the descriptor of a kernel."""
    return int(struct.unpack_from("<I", binary, 0x110)[0])


def test_a_container_states_what_a_launch_needs(binary: bytes) -> None:
    code = read_container(binary, NAME)

    assert code.arguments == (0x140, 0x148)
    assert code.images == ((1, "read"),)
    assert code.samplers == 1
    assert code.shared_bytes == 64
    assert code.constants == ((64, bytes.fromhex("0000803f")), (34, bytes.fromhex("dec0")))
    assert (code.full_registers, code.half_registers, code.branch_stack) == (12, 3, 2)
    assert code.machine.startswith(opencl.MAGIC)


def test_the_sections_of_a_short_table_are_found_by_their_ids(binary: bytes) -> None:
    entries = [binary[TABLE + ENTRY_BYTES * i :][:ENTRY_BYTES] for i in READ]
    table = b"".join(entries).ljust(ENTRY_BYTES * opencl.SECTIONS, b"\0")
    short = binary[:TABLE] + table + binary[TABLE + len(table) :]

    assert read_container(with_words(short, (24, len(READ))), NAME) == read_container(binary, NAME)


@pytest.mark.parametrize("size", [0, 0x34, 0x110, 0x400, -128])
def test_a_container_that_is_cut_off_is_refused(binary: bytes, size: int) -> None:
    with pytest.raises(FileFormatError, match=r"name_.*cut off"):
        read_container(binary[:size], NAME)


def test_an_argument_of_no_known_kind_is_refused(binary: bytes) -> None:
    descriptor = descriptor_of(binary)
    first = -(-(descriptor + 0x158 + len(NAME)) // 4) * 4 + 8
    with pytest.raises(FileFormatError, match="argument 0 is of kind 3"):
        read_container(with_words(binary, (first + 28, 3)), NAME)
    with pytest.raises(FileFormatError, match="record has 30 bytes"):
        read_container(with_words(binary, (first, 30)), NAME)
    with pytest.raises(FileFormatError, match="8 bytes at 4092 do not fit the 4096"):
        read_container(with_words(binary, (first + 12, 4092 // 4)), NAME)


def test_a_constant_that_lies_outside_is_refused(binary: bytes) -> None:
    constants = struct.unpack_from("<I", binary, 0xAC)[0]
    assert read_container(binary, NAME).constant_bytes == 2048
    beyond = read_container(with_words(binary, (constants + 16, 2048 // 4)), NAME)
    assert beyond.constants[0][0] == 2048
    assert beyond.constant_bytes == 2048 + 64
    with pytest.raises(FileFormatError, match="4 bytes at 4096 do not fit"):
        read_container(with_words(binary, (constants + 16, 4096 // 4)), NAME)


@pytest.mark.parametrize(
    ("offset", "told"),
    [(0xC8, "private_bytes"), (0xDC, "samplers"), (0x108, "branch_stack")],
)
def test_what_no_field_of_a_register_holds_is_refused(
    binary: bytes, offset: int, told: str
) -> None:
    large = with_words(binary, (descriptor_of(binary) + offset, 0x2_0000))
    with pytest.raises(FileFormatError, match=rf"at most \d+ for {told}|cut off"):
        read_container(large, NAME)


@pytest.mark.parametrize("field", ["full_registers", "half_registers", "branch_stack"])
def test_fields_of_six_bits(field: str) -> None:
    def code(number: int) -> Code:
        named: dict[str, Any] = {field: number}
        return Code(NAME, "ir3", bytes(128), (), **named)

    code(63)
    with pytest.raises(FileFormatError, match=f"at most 63 for {field}, and the code states 64"):
        code(64)


def test_damage_raises_nothing_but_the_error_of_a_format(binary: bytes) -> None:
    """Random words at random places; most fall on what is not read."""
    source, refused = random.Random(1), 0
    for _ in range(3000):
        place = source.choice((24, *range(TABLE, 288, 4), source.randrange(0, 2000, 4)))
        value = source.choice((0, 1, 0xFFFF_FFFF, source.getrandbits(32), source.getrandbits(12)))
        try:
            read_container(with_words(binary, (place, value)), NAME)
        except FileFormatError:
            refused += 1
    assert refused > 100
