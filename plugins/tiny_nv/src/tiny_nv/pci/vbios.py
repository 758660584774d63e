"""Video BIOS of a card, read through BAR0: images of a PCI ROM, and the program FWSEC in them.

Linux, Documentation/gpu/nova/core/vbios.rst and fwsec.rst; NVIDIA, BIOS Information Table
specification (open-gpu-doc). Offsets in the BIOS count the images without the one for EFI.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tiny_nv.pci.firmware import SecureImage
from tiny_nv.pci.registers import Registers
from tinycore.errors import DeviceUnavailable

__all__ = ["FRTS_BYTES", "Read", "fwsec_of", "rom_reader"]

Read: TypeAlias = Callable[[int, int], bytes]
"""Bytes of the ROM by their offset and number."""
ROM_AT: Final = 0x300000
ROM_BYTES: Final = 1 << 20
FRTS_BYTES: Final = 1 << 20
_ROM_BLOCK: Final = 512
_IMAGE_SIGNATURES: Final = (0xAA55, 0xBB77, 0x4E56)
_PCI_DATA: Final = (b"PCIR", b"NPDS", b"RGIS")
_PC_AT, _FWSEC = 0x00, 0xE0
_HEAD_BYTES, _PCI_DATA_BYTES = 0x1A, 0x18
_BIT: Final = b"\xff\xb8BIT\0"
_FALCON_DATA, _FALCON_DATA_VERSION = 0x70, 2
_FWSEC_APPLICATION: Final = 0x85
_DESCRIPTOR: Final = struct.Struct("<9IHBBHH")
_SIGNATURE_BYTES: Final = 384
_DMEM_MAPPER: Final = 4
_FRTS_COMMAND: Final = 0x15
_COMMAND_AT, _COMMAND_BUFFER_AT = 44, 8
"""Offsets of init_cmd and cmd_in_buffer_offset in the DMEM mapper."""
_FRTS: Final = struct.Struct("<IIQII IIIII")
_IN_VIDEO_MEMORY: Final = 2
_ROM_OF_CARD: Final = 2
"""Flags of the description of the ROM that FWSEC reads."""


@dataclass(frozen=True)
class _Image:
    """One image of the ROM."""

    kind: int
    content: bytes
    """Its bytes; none of an image that is not needed."""


def rom_reader(registers: Registers) -> Read:
    """Reads of the ROM as BAR0 shows it."""

    def read(at: int, size: int) -> bytes:
        begin, end = ROM_AT + at & -4, ROM_AT + at + size
        words = [registers.read(register) for register in range(begin, end, 4)]
        return struct.pack(f"<{len(words)}I", *words)[at % 4 :][:size]

    return read


def _images(read: Read) -> Iterator[_Image]:
    at = 0
    while at < ROM_BYTES:
        head = read(at, _HEAD_BYTES)
        if int.from_bytes(head[:2], "little") not in _IMAGE_SIGNATURES:
            if at:
                return
            raise DeviceUnavailable(f"the video BIOS begins with {head[:2].hex()}, and no image")
        data = read(at + int.from_bytes(head[0x18:0x1A], "little"), _PCI_DATA_BYTES)
        if data[:4] not in _PCI_DATA:
            raise DeviceUnavailable(f"the image at {at:#x} of the video BIOS has no PCI data")
        size = int.from_bytes(data[0x10:0x12], "little") * _ROM_BLOCK
        if not size:
            raise DeviceUnavailable(f"the image at {at:#x} of the video BIOS is empty")
        kind = data[0x14]
        # The mark of the last image is that of a PC's BIOS, which does not know those of FWSEC.
        yield _Image(kind, read(at, size) if kind in (_PC_AT, _FWSEC) else b"")
        at += size


def fwsec_of(read: Read, frts_at: int) -> SecureImage:
    """The program FWSEC, told to put FRTS data at a physical address of the card's memory.

    Raises DeviceUnavailable for a BIOS without it.
    """
    bios = b"".join(each.content for each in _images(read))
    table = _falcon_table(bios)
    descriptor_at = _application(bios, table)
    program, interface = _program(bios, descriptor_at)
    return replace(program, image=_with_command(program, interface, frts_at))


def _falcon_table(bios: bytes) -> int:
    """Offset of the table of programs, which the BIOS information table tells."""
    at = bios.find(_BIT)
    if at < 0:
        raise DeviceUnavailable("the video BIOS has no BIOS information table")
    header_bytes, token_bytes, count = bios[at + 8], bios[at + 9], bios[at + 10]
    for token in range(at + header_bytes, at + header_bytes + count * token_bytes, token_bytes):
        kind, version, _, data = struct.unpack_from("<BBHH", bios, token)
        if (kind, version) == (_FALCON_DATA, _FALCON_DATA_VERSION):
            return int(struct.unpack_from("<I", bios, data)[0])
    raise DeviceUnavailable("the video BIOS names no programs of falcons")


def _application(bios: bytes, table: int) -> int:
    """Offset of the descriptor of FWSEC."""
    if table + 5 > len(bios):
        raise DeviceUnavailable(f"the table of programs lies at {table:#x}, beyond the video BIOS")
    _, header_bytes, entry_bytes, count = struct.unpack_from("<BBBB", bios, table)
    begin = table + header_bytes
    for entry in range(begin, begin + count * entry_bytes, entry_bytes):
        application, _, offset = struct.unpack_from("<BBI", bios, entry)
        if application == _FWSEC_APPLICATION:
            return int(offset)
    raise DeviceUnavailable("the video BIOS has no program FWSEC")


def _program(bios: bytes, at: int) -> tuple[SecureImage, int]:
    """FWSEC by its descriptor, version 3, and the offset of its interfaces in its data."""
    if at + _DESCRIPTOR.size > len(bios):
        raise DeviceUnavailable(f"the descriptor of FWSEC lies at {at:#x}, beyond the video BIOS")
    found = _DESCRIPTOR.unpack_from(bios, at)
    header, _, patch, interface, _, code_bytes, code_at, _, data_bytes = found[:9]
    engine, program, count, versions, _ = found[9:]
    if header >> 8 & 0xFF != 3:
        raise DeviceUnavailable(
            f"the descriptor of FWSEC has version {header >> 8 & 0xFF}, and NV knows version 3"
        )
    signatures = at + _DESCRIPTOR.size
    begin = at + (header >> 16)
    image = bios[begin : begin + code_bytes + data_bytes]
    if len(image) != code_bytes + data_bytes or not count:
        raise DeviceUnavailable(f"FWSEC has {len(image)} bytes and {count} signatures")
    made = SecureImage(
        image,
        0,
        code_bytes,
        code_at,
        code_bytes,
        data_bytes,
        code_bytes + patch,
        tuple(
            bios[signatures + n * _SIGNATURE_BYTES : signatures + (n + 1) * _SIGNATURE_BYTES]
            for n in range(count)
        ),
        engine,
        program,
        versions=versions,
    )
    return made, interface


def _with_command(program: SecureImage, interface: int, frts_at: int) -> bytes:
    """The image with the command FRTS in the buffer that its DMEM mapper names."""
    image, data = bytearray(program.image), program.data_offset
    mapper = data + _mapper(program.image, data + interface)
    if image[mapper : mapper + 4] != b"DMAP":
        raise DeviceUnavailable(f"FWSEC has {bytes(image[mapper : mapper + 4])!r}, and no DMAP")
    (buffer,) = struct.unpack_from("<I", image, mapper + _COMMAND_BUFFER_AT)
    if data + buffer + _FRTS.size > len(image):
        raise DeviceUnavailable(f"FWSEC's buffer of commands lies at {buffer:#x}, beyond its data")
    struct.pack_into("<I", image, mapper + _COMMAND_AT, _FRTS_COMMAND)
    rom = (1, 24, 0, 0, _ROM_OF_CARD)
    region = (1, 20, frts_at >> 12, FRTS_BYTES >> 12, _IN_VIDEO_MEMORY)
    _FRTS.pack_into(image, data + buffer, *rom, *region)
    return bytes(image)


def _mapper(image: bytes, at: int) -> int:
    """Offset of the DMEM mapper, by the table of interfaces at an offset."""
    if at + 4 <= len(image):
        _, header_bytes, entry_bytes, count = struct.unpack_from("<BBBB", image, at)
        for entry in range(at + header_bytes, at + header_bytes + count * entry_bytes, entry_bytes):
            kind, offset = struct.unpack_from("<II", image, entry)
            if kind == _DMEM_MAPPER:
                return int(offset)
    raise DeviceUnavailable("FWSEC has no DMEM mapper, by which it is told what to do")
