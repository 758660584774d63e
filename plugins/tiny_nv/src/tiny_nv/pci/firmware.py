"""Firmware of a card's own processors: files of linux-firmware, by chip, and what is in them.

The files are NVIDIA's, and are redistributable; tiny-nv brings none of them. Their headers: Linux,
drivers/gpu/drm/nouveau/include/nvfw/fw.h and hs.h; NVIDIA/open-gpu-kernel-modules, rmRiscvUcode.h.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tiny_nv.pci.machine import read_bytes
from tiny_nv.pci.registers import Architecture
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import System

__all__ = [
    "FIRMWARE_VERSION",
    "Bootloader",
    "SecureImage",
    "bootloader_of",
    "firmware_files",
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
_ELF_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")


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


def firmware_files(of: Architecture) -> list[str]:
    """Files that an architecture needs, below a folder of firmware."""
    names = _BY_FSP if of.has_fsp else _BY_BOOTER
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


def sections_of(content: bytes) -> Mapping[str, bytes]:
    """Sections of the GSP's ELF file by their names. Raises DeviceUnavailable."""
    what = "the GSP's firmware"
    if content[:5] != b"\x7fELF\x02":
        raise DeviceUnavailable(f"{what} is no ELF file of 64 bits")
    header = _unpack(_ELF_HEADER, content, 0, what)
    first, count, names_index = header[6], header[12], header[13]
    rows = [_unpack(_SECTION, content, first + n * _SECTION.size, what) for n in range(count)]
    names_at = rows[names_index][4]
    return {
        content[names_at + row[0] : names_at + row[0] + 64]
        .partition(b"\0")[0]
        .decode("ascii", "replace"): content[row[4] : row[4] + row[5]]
        for row in rows
    }
