"""The container of Qualcomm's OpenCL compiler, read: machine code, registers, argument places.

Offsets were found by others in what the compiler of Adreno 6xx writes; no document states them. All
numbers are little-endian words of 32 bits.
"""

from __future__ import annotations

import struct
from typing import Final

from tiny_qcom.chip import INSTRUCTION_GROUP_BYTES
from tiny_qcom.code import Code, Image, Route
from tinycore.errors import FileFormatError

__all__ = ["read_container"]

CONSTANTS: Final = 0xAC
HAS_CONSTANTS: Final = 0xB0
REGISTERS: Final = 0x34
MACHINE: Final = 0xC0
MACHINE_BYTES: Final = 0x100
DESCRIPTOR: Final = 0x110
FULL_REGISTERS: Final = 0x14
HALF_REGISTERS: Final = 0x18
ENTRY: Final = 0xC4
PRIVATE_BYTES: Final = 0xC8
SHARED_BYTES_AT: Final = 0xD8
SAMPLERS: Final = 0xDC
BRANCH_STACK: Final = 0x108
NAME: Final = 0x158
SAMPLER_RECORD: Final = 8
CONSTANT_RECORD: Final = 40
BUFFER_KIND: Final = 0
TEXTURE_KIND: Final = 1
UAV_KIND: Final = 2
CONSTANT_FILE_BYTES: Final = 2048
"""Arguments and constants lie below; what is above is for descriptors."""


class Words:
    """A binary, read word by word."""

    def __init__(self, binary: bytes, name: str) -> None:
        self.binary = binary
        self.name = name

    def __getitem__(self, offset: int) -> int:
        if not 0 <= offset <= len(self.binary) - 4:
            raise FileFormatError(
                f"{self.name}: the container of Qualcomm's compiler is cut off: it has "
                f"{len(self.binary)} bytes, and a word is at {offset:#x}"
            )
        return int(struct.unpack_from("<I", self.binary, offset)[0])


def read_container(binary: bytes, name: str) -> Code:
    """The kernel in a container. Raises FileFormatError."""
    words = Words(binary, name)
    start, size = words[MACHINE], words[MACHINE_BYTES]
    machine = binary[start : start + size]
    if not size or len(machine) != size:
        raise FileFormatError(f"{name}: the machine code ({size} bytes at {start:#x}) is cut off")
    descriptor, registers = words[DESCRIPTOR], words[REGISTERS]
    samplers = words[descriptor + SAMPLERS]
    arguments = read_arguments(words, descriptor, samplers)
    kinds = {TEXTURE_KIND: Image.READ, UAV_KIND: Image.WRITTEN}
    return Code(
        name,
        Route.BLOB,
        machine + bytes(-size % INSTRUCTION_GROUP_BYTES),
        arguments=tuple(place for place, _ in arguments),
        constants=read_constants(words),
        constant_bytes=CONSTANT_FILE_BYTES,
        entry=words[descriptor + ENTRY],
        full_registers=words[registers + FULL_REGISTERS],
        half_registers=words[registers + HALF_REGISTERS],
        branch_stack=words[descriptor + BRANCH_STACK] // 2,
        private_bytes=words[descriptor + PRIVATE_BYTES],
        shared_bytes=words[descriptor + SHARED_BYTES_AT],
        images=tuple((slot, kinds[k]) for slot, (_, k) in enumerate(arguments) if k in kinds),
        samplers=samplers,
    )


def read_arguments(words: Words, descriptor: int, samplers: int) -> list[tuple[int, int]]:
    """Place in the constant file and kind of every argument, in their order."""
    end = words.binary.find(b"\0", descriptor + NAME)
    if end < 0:
        raise FileFormatError(f"{words.name}: the kernel's name has no end")
    at = -(-end // 4) * 4 + SAMPLER_RECORD * samplers
    found: list[tuple[int, int]] = []
    while (length := words[at]) != 0:
        if length % 4 or length < 32:
            raise FileFormatError(f"{words.name}: an argument's record has {length} bytes")
        place, kind = words[at + 12] * 4, words[at + 28]
        if kind not in (BUFFER_KIND, TEXTURE_KIND, UAV_KIND):
            raise FileFormatError(f"{words.name}: argument {len(found)} is of kind {kind}")
        found.append((place, kind))
        at += length
    return found


def read_constants(words: Words) -> tuple[tuple[int, bytes], ...]:
    """Numbers that the compiler keeps in the constant file: records up to the machine code."""
    if not words[HAS_CONSTANTS]:
        return ()
    first, found = words[CONSTANTS], []
    while first + CONSTANT_RECORD <= words[MACHINE]:
        value, offset, is_word = words[first], words[first + 16], words[first + 24] & 1
        data = struct.pack("<I", value)
        found.append((offset * (2 << is_word), data if is_word else data[:2]))
        first += CONSTANT_RECORD
    return tuple(found)
