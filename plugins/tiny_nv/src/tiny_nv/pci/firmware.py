"""Firmware of a card's own processors: files of linux-firmware, by chip, and what is in them.

The files are NVIDIA's, and are redistributable; tiny-nv brings none of them. Their headers: Linux,
drivers/gpu/drm/nouveau/include/nvfw/fw.h and hs.h; NVIDIA/open-gpu-kernel-modules, rmRiscvUcode.h.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tiny_hcq import System
from tiny_nv.pci.machine import read_bytes
from tiny_nv.pci.registers import Architecture, Trust
from tinycore.errors import DeviceUnavailable

__all__ = [
    "FIRMWARE_VERSION",
    "Bootloader",
    "FirstProgram",
    "SecureImage",
    "bootloader_of",
    "firmware_files",
    "first_program_of",
    "load_firmware",
    "sections_of",
    "secure_image_of",
    "verify_firmware",
]

FIRMWARE_VERSION: Final = "570.144"
"""The release whose structures are known."""
_FIRMWARE_FOLDERS: Final = ("/lib/firmware/nvidia", "/usr/lib/firmware/nvidia")
_COMPRESSIONS: Final = ("", ".zst", ".xz")
_BY_FSP: Final = ("bootloader", "fmc", "gsp")
_BY_BOOTER: Final = ("booter_load", "bootloader", "gsp")
_MAGIC: Final = 0x10DE
_BIN_HEADER: Final = struct.Struct("<6I")
_SECURE_HEADER: Final = struct.Struct("<9I")
_LOAD_HEADER: Final = struct.Struct("<5I")
_APPLICATION: Final = struct.Struct("<4I")
_META: Final = struct.Struct("<3I")
_RISCV: Final = struct.Struct("<19I")
_ELF_HEADERS: Final = {1: struct.Struct("<16sHHIIIIIHHHHHH"), 2: struct.Struct("<16sHHIQQQIHHHHHH")}
"""Headers of ELF files by their classes: of 32 and of 64 bits."""
_SECTIONS: Final = {1: struct.Struct("<IIIIIIIIII"), 2: struct.Struct("<IIQQQQIIQQ")}
_DIGEST_BYTES: Final = 48


@dataclass(frozen=True)
class SecureImage:
    """A signed program of a falcon: code, data, and the signatures that one is chosen from."""

    image: bytes
    code_offset: int
    code_bytes: int
    code_at: int
    """Virtual address of the code."""
    data_offset: int
    data_bytes: int
    patch_at: int
    """Offset of the signature in the image."""
    signatures: tuple[bytes, ...]
    engine_mask: int
    program: int
    """Number of the program, by which a fuse says which versions are revoked."""
    fuse_version: int = 0
    """Version of the first signature."""
    versions: int = 0
    """Mask of versions that there are signatures for; 0 where `fuse_version` says it."""


@dataclass(frozen=True)
class Bootloader:
    """Program that the GSP's RISC-V core begins with."""

    image: bytes
    code_offset: int
    data_offset: int
    manifest_offset: int
    version: int


@dataclass(frozen=True)
class FirstProgram:
    """Program that a security processor starts on the GSP (FMC), with what proves it."""

    image: bytes
    digest: bytes
    """Its SHA-384."""
    key: bytes
    signature: bytes


def firmware_files(of: Architecture) -> list[str]:
    """Files that an architecture needs, below a folder of firmware."""
    names = _BY_FSP if of.trust else _BY_BOOTER
    return [f"{of.chip}/gsp/{name}-{FIRMWARE_VERSION}.bin" for name in names]


def verify_firmware(machine: System, of: Architecture) -> list[str]:
    """Paths of the firmware. Raises DeviceUnavailable naming what is missing."""
    found: list[str] = []
    missing: list[str] = []
    for name in firmware_files(of):
        places = (
            f"{folder}/{name}{form}" for folder in _FIRMWARE_FOLDERS for form in _COMPRESSIONS
        )
        path = next((place for place in places if machine.exists(place)), "")
        (found if path else missing).append(path or name)
    if missing:
        raise DeviceUnavailable(
            f"the firmware of a card of {of.name} is missing in {_FIRMWARE_FOLDERS[0]}: "
            f"{', '.join(missing)}. Install linux-firmware (Debian: firmware-nvidia-graphics), of "
            f"{FIRMWARE_VERSION}."
        )
    return found


def load_firmware(machine: System, of: Architecture) -> Mapping[str, bytes]:
    """Content of the files by their names without the version. Raises DeviceUnavailable."""
    return {
        path.rpartition("/")[2].partition(f"-{FIRMWARE_VERSION}")[0]: _content(machine, path)
        for path in verify_firmware(machine, of)
    }


def _content(machine: System, path: str) -> bytes:
    if path.endswith(".zst"):
        plain = path.removesuffix(".zst")
        raise DeviceUnavailable(
            f"{path} is compressed by zstd, which NV does not read: `zstd -d {path} -o {plain}` as "
            "root"
        )
    try:
        content = read_bytes(machine, path)
        return lzma.decompress(content) if path.endswith(".xz") else content
    except (OSError, lzma.LZMAError) as error:
        raise DeviceUnavailable(f"{path} cannot be read: {error}") from error


def _unpack(form: struct.Struct, content: bytes, offset: int, what: str) -> tuple[int, ...]:
    if offset < 0 or offset + form.size > len(content):
        raise DeviceUnavailable(
            f"{what} ends at byte {len(content)}, and a header lies at {offset}: it is not the "
            f"firmware of {FIRMWARE_VERSION}"
        )
    return form.unpack_from(content, offset)


def _open_file(content: bytes, what: str) -> tuple[int, bytes]:
    """Offset of the header that follows the file's own, and the data."""
    found = _unpack(_BIN_HEADER, content, 0, what)
    magic, _, _, header, data, size = found
    if magic != _MAGIC or data + size > len(content):
        raise DeviceUnavailable(f"{what} begins with {magic:#x}: it is no firmware of NVIDIA's")
    return header, content[data : data + size]


def secure_image_of(content: bytes) -> SecureImage:
    """The booter. Raises DeviceUnavailable for a file of another form."""
    what = "the booter"
    at, data = _open_file(content, what)
    header = _unpack(_SECURE_HEADER, content, at, what)
    signatures_at, _, patch_at, _, meta_at, _, count_at, load_at, _ = header
    signatures_bytes = header[1]
    word = struct.Struct("<I")
    (patch,) = _unpack(word, content, patch_at, what)
    (count,) = _unpack(word, content, count_at, what)
    fuse, engine, program = _unpack(_META, content, meta_at, what)
    load = _unpack(_LOAD_HEADER, content, load_at, what)
    code, code_bytes, _, _ = _unpack(_APPLICATION, content, load_at + _LOAD_HEADER.size, what)
    if not count or signatures_bytes % count or patch + signatures_bytes // count > len(data):
        raise DeviceUnavailable(f"{what} has {count} signatures in {signatures_bytes} bytes")
    size = signatures_bytes // count
    every = content[signatures_at : signatures_at + signatures_bytes]
    return SecureImage(
        data,
        code,
        code_bytes,
        code,
        load[2],
        load[3],
        patch,
        tuple(every[start : start + size] for start in range(0, signatures_bytes, size)),
        engine,
        program,
        fuse,
    )


def bootloader_of(content: bytes) -> Bootloader:
    """The bootloader. Raises DeviceUnavailable for a file of another form."""
    what = "the bootloader"
    at, data = _open_file(content, what)
    found = _unpack(_RISCV, content, at, what)
    manifest, monitor_data, monitor_code = found[8], found[10], found[12]
    return Bootloader(data, monitor_code, monitor_data, manifest, found[7])


def first_program_of(content: bytes, trust: Trust) -> FirstProgram:
    """The GSP's first program. Raises DeviceUnavailable for a file of another form."""
    what = "the GSP's first program"
    sections = sections_of(content, what)
    sizes = {
        "image": 0,
        "hash": _DIGEST_BYTES,
        "publickey": trust.key_bytes,
        "signature": trust.signature_bytes,
    }
    for name, size in sizes.items():
        found = len(sections.get(name, b""))
        if not found or (size and found != size):
            wanted = f"{size} bytes" if size else "something"
            raise DeviceUnavailable(f"{what} has {found} bytes as its {name}, not {wanted}")
    return FirstProgram(*(sections[name] for name in sizes))


def sections_of(content: bytes, what: str) -> Mapping[str, bytes]:
    """Sections of an ELF file by their names. Raises DeviceUnavailable, also for a section whose
    checksum, which some files have, is another's.
    """
    kind = content[4] if len(content) > 4 else 0
    if content[:4] != b"\x7fELF" or kind not in _ELF_HEADERS:
        raise DeviceUnavailable(f"{what} is no ELF file")
    header = _unpack(_ELF_HEADERS[kind], content, 0, what)
    first, count, names_index = header[6], header[12], header[13]
    form = _SECTIONS[kind]
    rows = [_unpack(form, content, first + n * form.size, what) for n in range(count)]
    names_at = rows[names_index][4] if names_index < count else 0
    found: dict[str, bytes] = {}
    for row in rows:
        at = names_at + row[0]
        name = content[at : at + 64].partition(b"\0")[0].decode("ascii", "replace")
        found[name] = content[row[4] : row[4] + row[5]]
        if kind == 1 and row[7] and zlib.crc32(found[name]) != row[7]:
            raise DeviceUnavailable(f"{what} is damaged: the checksum of its {name} differs")
    return found
