"""Firmware and a video BIOS: the headers of NVIDIA's files around bytes that mean nothing.

Linux, nouveau's include/nvfw/fw.h and hs.h, Documentation/gpu/nova/core/vbios.rst and fwsec.rst.
"""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass, field
from functools import cache
from typing import Final

__all__ = [
    "BOOTER",
    "BOOTLOADER",
    "FMC",
    "FORMS",
    "FUSE",
    "FWSEC",
    "IMAGE",
    "SIGNED",
    "FmcForm",
    "Program",
    "firmware",
    "rom",
]

FUSE: Final = 3
"""Versions up to it are revoked, in bits: the oldest one allowed is 3."""
MAPPER, BUFFER = 0x140, 0x200
"""Offsets of FWSEC's DMEM mapper and of its buffer of commands in its data."""


def noise(name: str, size: int) -> bytes:
    """Bytes that are the same for a name."""
    return random.Random(name).randbytes(size)


@dataclass(frozen=True)
class Program:
    """A program that was signed: code, data, and where its signature and address belong."""

    name: str
    number: int
    engine_mask: int
    code_at: int
    patch: int
    """Offset of the signature in its data."""
    code_bytes: int
    data_bytes: int
    may_change: tuple[slice, ...] = field(default=())
    """Parts of its data that the host writes."""

    @property
    def code(self) -> bytes:
        """Its code."""
        return noise(f"code of {self.name}", self.code_bytes)

    @property
    def data(self) -> bytes:
        """Its data as signed."""
        data = bytearray(noise(f"data of {self.name}", self.data_bytes))
        data[self.patch : self.patch + 384] = bytes(384)
        if self.name == "fwsec":
            interfaces = struct.pack("<BBBBIIII", 1, 4, 8, 2, 1, 0x300, 4, MAPPER)
            data[0x100 : 0x100 + len(interfaces)] = interfaces
            head = struct.pack("<4sHHIIII", b"DMAP", 3, 64, BUFFER, 0x100, 0x380, 0x40)
            data[MAPPER : MAPPER + 64] = head.ljust(64, b"\0")
            data[BUFFER : BUFFER + 0x100] = bytes(0x100)
        return bytes(data)

    def signature(self, version: int) -> bytes:
        """The signature of a version."""
        return noise(f"signature {version} of {self.name}", 384)


FWSEC: Final = Program(
    "fwsec",
    9,
    0x400,
    0x1000,
    0x400,
    0x900,
    0x800,
    (slice(MAPPER, MAPPER + 64), slice(BUFFER, BUFFER + 0x100), slice(0x400, 0x400 + 384)),
)
BOOTER: Final = Program("booter", 3, 1, 0x100, 0x10, 0x600, 0x500, (slice(0x10, 0x10 + 384),))
VERSIONS: Final = 0b1101
"""FWSEC has signatures of versions 0, 2 and 3."""
IMAGE: Final = noise("image", (2 << 20) + 3 * 4096 + 100)
"""The GSP's firmware: so large that its page table has two tables of pages."""
SIGNED: Final = noise("signature of the image", 4096)
BOOTLOADER: Final = noise("bootloader", 0x3000)
BOOT_OFFSETS: Final = (0x1000, 0x2000, 0x2800)
"""Offsets of code, data and manifest in the bootloader."""
BOOT_VERSION: Final = 0x1234
FMC: Final = noise("first program", 0x5000 + 24)
"""The program that a security processor starts on the GSP."""


@dataclass(frozen=True)
class FmcForm:
    """A chain of trust, and the memory that it has to leave."""

    signature_name: str
    version: int
    key: bytes
    signature: bytes
    open_heap: int
    pmu: int
    free: int
    """Bytes behind what is protected."""
    digest: bytes = noise("digest", 48)


FORMS: Final = {
    0x18: FmcForm("gh100", 1, noise("key", 384), noise("trust", 384), 2 << 20, 0, 2 << 20),
    0x1A: FmcForm("gb10x", 2, noise("key", 97), noise("trust", 96), 2 << 20, 0x1820000, 28 << 20),
    0x1B: FmcForm("gb20x", 2, noise("key", 97), noise("trust", 96), 0x220000, 0x1820000, 28 << 20),
}
"""By the architecture's number."""


def in_file(header: bytes, data: bytes, more: bytes = b"") -> bytes:
    """A file of firmware: its own header, another, data."""
    begin = 24 + len(header) + len(more)
    head = struct.pack("<6I", 0x10DE, 1, begin + len(data), 24, begin, len(data))
    return head + header + more + data


def booter_file() -> bytes:
    """The booter, with signatures of versions 4 to 1."""
    signatures = b"".join(BOOTER.signature(version) for version in (4, 3, 2, 1))
    at = 24 + 36
    words_at = at + len(signatures)
    load_at = words_at + 8 + 12
    header = struct.pack(
        "<9I", at, len(signatures), words_at, 0, words_at + 8, 12, words_at + 4, load_at, 36
    )
    patch = BOOTER.code_at + BOOTER.code_bytes + BOOTER.patch
    more = signatures + struct.pack("<II", patch, 4)
    more += struct.pack("<3I", 4, BOOTER.engine_mask, BOOTER.number)
    data_at = BOOTER.code_at + BOOTER.code_bytes
    more += struct.pack("<5I", 0, BOOTER.code_at, data_at, BOOTER.data_bytes, 1)
    more += struct.pack("<4I", BOOTER.code_at, BOOTER.code_bytes, 0, 0)
    unsigned = noise("unsigned code", BOOTER.code_at)
    return in_file(header, unsigned + BOOTER.code + BOOTER.data, more)


def bootloader_file() -> bytes:
    """The bootloader of the RISC-V core."""
    code, data, manifest = BOOT_OFFSETS
    words = [4, 0, 0, 0, 0, 0, 0, BOOT_VERSION, manifest, 0x100, data, 0x100, code, 0x100]
    return in_file(struct.pack("<19I", *words, *[0] * 5), BOOTLOADER)


def elf(sections: dict[str, bytes]) -> bytes:
    """An ELF file with sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    content, rows = bytearray(64), [bytes(64)]
    for name, data in {**sections, ".shstrtab": names}.items():
        where = names.index(b"\0" + name.encode() + b"\0") + 1
        row = (where, 1, 0, 0, len(content), len(data), 0, 0, 1, 0)
        rows.append(struct.pack("<IIQQQQIIQQ", *row))
        content += data
    count = len(rows)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = (identity, 2, 243, 1, 0, 0, len(content), 0, 64, 0, 0, 64, count, count - 1)
    content[:64] = struct.pack("<16sHHIQQQIHHHHHH", *head)
    return bytes(content) + b"".join(rows)


def fmc_file(form: FmcForm, damage: int = 0) -> bytes:
    """An ELF file of 32 bits, whose sections have checksums."""
    parts = {"image": FMC, "hash": form.digest, "publickey": form.key, "signature": form.signature}
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*parts, ".shstrtab"))
    content, rows = b"", [bytes(40)]
    begin = 52 + 40 * (len(parts) + 2)
    for name, data in {**parts, ".shstrtab": names}.items():
        where = names.index(b"\0" + name.encode() + b"\0") + 1
        check = zlib.crc32(data) ^ damage if name in parts else 0
        kind = 1 if name in parts else 3
        row = (where, kind, 0, 0, begin + len(content), len(data), 0, check, 1, 0)
        rows.append(struct.pack("<10I", *row))
        content += data
    identity = b"\x7fELF\x01\x01\x01".ljust(16, b"\0")
    head = (identity, 0, 0, 1, 0, 0, 52, 0, 52, 0, 0, 40, len(rows), len(rows) - 1)
    return struct.pack("<16sHHIIIIIHHHHHH", *head) + b"".join(rows) + content


@cache
def firmware(signature: str) -> dict[str, bytes]:
    """The files by their names."""
    other = "ga10x" if signature == "ad10x" else "ad10x"
    form = next((form for form in FORMS.values() if form.signature_name == signature), None)
    sections = {
        ".fwversion": b"570.144\0",
        ".fwimage": IMAGE,
        f".fwsignature_{other}": noise("another signature", 4096),
        f".fwsignature_{signature}": SIGNED,
    }
    return {
        "booter_load": booter_file(),
        "bootloader": bootloader_file(),
        "gsp": elf(sections),
        "fmc": fmc_file(form) if form else b"",
    }


def image(kind: int, content: bytes, *, is_last: bool) -> bytes:
    """An image of a PCI ROM."""
    blocks = -(-(0x60 + len(content)) // 512)
    head = struct.pack("<H22xH", 0xAA55, 0x20).ljust(0x20, b"\0")
    data = struct.pack("<4sHHHHB3sHHBB", b"PCIR", 0x10DE, 0x2204, 0, 24, 0, b"\0\0\3", blocks, 0,
                       kind, 0x80 if is_last else 0)  # fmt: skip
    return ((head + data).ljust(0x60, b"\0") + content).ljust(blocks * 512, b"\0")


@cache
def rom() -> bytes:
    """A video BIOS of four images, FWSEC in the last."""
    first_fwsec = image(0xE0, noise("first", 700), is_last=False)
    efi = image(0x03, noise("efi", 3000), is_last=False)
    pc_bytes = 2048
    table_in_image = 0x60 + 0x40
    table = pc_bytes + len(first_fwsec) + table_in_image
    descriptor = table + 0x60
    signatures = b"".join(FWSEC.signature(version) for version in (0, 2, 3))
    described = struct.pack(
        "<9IHBBHH",
        (44 + len(signatures)) << 16 | 3 << 8 | 1,
        len(FWSEC.code + FWSEC.data),
        FWSEC.patch,
        0x100,
        0,
        FWSEC.code_bytes,
        FWSEC.code_at,
        0,
        FWSEC.data_bytes,
        FWSEC.engine_mask,
        FWSEC.number,
        3,
        VERSIONS,
        0,
    )
    programs = struct.pack("<BBBBBx", 1, 6, 6, 3, 3)
    for application, at in ((0x05, 0x10), (0x45, 0x20), (0x85, descriptor)):
        programs += struct.pack("<BBI", application, 1, at)
    second = bytes(0x40) + programs.ljust(0x60, b"\0") + described + signatures
    second += FWSEC.code + FWSEC.data
    data_at = 0x300
    token = struct.pack("<BBHH", 0x70, 2, 4, data_at)
    bit = b"\xff\xb8BIT\0\0\1" + struct.pack("<BBBB", 12, 6, 2, 0)
    bit += struct.pack("<BBHH", 0x42, 2, 8, 0x280) + token
    pc = bytearray(image(0x00, bytes(pc_bytes - 0x60), is_last=True))
    pc[0x1C0 : 0x1C0 + len(bit)] = bit
    pc[data_at : data_at + 4] = struct.pack("<I", table)
    assert len(pc) == pc_bytes
    return bytes(pc) + efi + first_fwsec + image(0xE0, second, is_last=True)
