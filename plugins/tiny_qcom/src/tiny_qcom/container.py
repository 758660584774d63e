"""The container of Qualcomm's OpenCL compiler, read: machine code, registers, argument places.

Offsets were found by others in what the compiler of Adreno 6xx writes; no document states them. All
numbers are little-endian words of 32 bits. A table of sections follows a header of 48 bytes; those
who ran containers on devices took section i to be entry i.
"""

from __future__ import annotations

import struct
from typing import Final

from tiny_qcom.chip import CONSTANT_VECTORS, INSTRUCTION_GROUP_BYTES
from tiny_qcom.code import Code, Image, Route
from tinycore.errors import FileFormatError

__all__ = ["read_container"]

SECTIONS: Final = 24
"""Offset of the number of sections."""
TABLE: Final = 48
ENTRY_BYTES: Final = 20
MOST_SECTIONS: Final = 64
PROGRAM_SECTION: Final = 0
CONSTANT_SECTION: Final = 6
MACHINE_SECTION: Final = 7
CODE_SECTION: Final = 10
DESCRIPTOR_SECTION: Final = 11
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
"""Arguments and constants are said to lie below. Descriptors are put behind all that do."""

MOST_CONSTANT_BYTES: Final = 16 * CONSTANT_VECTORS
CONSTANT_GRANULE: Final = 64
"""Launches state the size of the constant file in four vectors."""
ADDRESS_BYTES: Final = 8


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

    def place(self, place: int, size: int) -> int:
        """A place in the constant file. Raises FileFormatError for one that is outside of it."""
        if place + size > MOST_CONSTANT_BYTES:
            raise FileFormatError(
                f"{self.name}: the container of Qualcomm's compiler is damaged: {size} bytes at "
                f"{place} do not fit the {MOST_CONSTANT_BYTES} of arguments and constants"
            )
        return place

    def section(self, kind: int) -> tuple[int, int]:
        """Offset and size of a section: the entry of its number, or of its id in a short table."""
        count = min(self[SECTIONS], MOST_SECTIONS)
        entries = [TABLE + ENTRY_BYTES * i for i in range(count)]
        found = [entry for entry in entries if self[entry] == kind] if kind >= count else []
        entry = found[0] if found else TABLE + ENTRY_BYTES * kind
        return self[entry + 4], self[entry + 8]


def read_container(binary: bytes, name: str) -> Code:
    """The kernel in a container. Raises FileFormatError."""
    words = Words(binary, name)
    (start, _), (_, size) = words.section(MACHINE_SECTION), words.section(CODE_SECTION)
    machine = binary[start : start + size]
    if not size or len(machine) != size:
        raise FileFormatError(f"{name}: the machine code ({size} bytes at {start:#x}) is cut off")
    descriptor, registers = (words.section(i)[0] for i in (DESCRIPTOR_SECTION, PROGRAM_SECTION))
    samplers = words[descriptor + SAMPLERS]
    arguments = read_arguments(words, descriptor, samplers)
    constants = read_constants(words, start)
    ends = [place + ADDRESS_BYTES for place, kind in arguments if kind == BUFFER_KIND]
    end = max([CONSTANT_FILE_BYTES, *ends, *(place + len(data) for place, data in constants)])
    kinds = {TEXTURE_KIND: Image.READ, UAV_KIND: Image.WRITTEN}
    return Code(
        name,
        Route.BLOB,
        machine + bytes(-size % INSTRUCTION_GROUP_BYTES),
        arguments=tuple(place for place, _ in arguments),
        constants=constants,
        constant_bytes=-(-end // CONSTANT_GRANULE) * CONSTANT_GRANULE,
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
        # Whether the place of an image is one of the constant file is not known; it is not used.
        found.append((words.place(place, ADDRESS_BYTES) if kind == BUFFER_KIND else place, kind))
        at += length
    return found


def read_constants(words: Words, end: int) -> tuple[tuple[int, bytes], ...]:
    """Numbers that the compiler keeps in the constant file: records up to the machine code."""
    first, size = words.section(CONSTANT_SECTION)
    found = []
    while size and first + CONSTANT_RECORD <= end:
        value, offset, is_word = words[first], words[first + 16], words[first + 24] & 1
        data = struct.pack("<I", value)[: 2 << is_word]
        found.append((words.place(offset * len(data), len(data)), data))
        first += CONSTANT_RECORD
    return tuple(found)
