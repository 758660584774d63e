"""Firmware of a card's processors: files of linux-firmware, and the images inside of them.

Linux, drivers/gpu/drm/amd/amdgpu/amdgpu_ucode.h (headers) and amdgpu_ucode.c (which part of a file
is which image). Of the CRC no public source says what it is of, and Linux does not check it; of the
files that Debian has for RDNA3 it is the CRC-32 of all that follows the common header, but of those
of the power controller (smu) and of the run list controller (rlc) it is not, so that theirs is not
checked. The security processor checks signatures of all of it.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from tiny_hcq import System
from tinycore.errors import DeviceUnavailable

__all__ = ["Firmware", "Image", "SupportsReadBytes", "Versions", "read_firmware"]

FOLDERS: Final = ("/lib/firmware/amdgpu", "/usr/lib/firmware/amdgpu")
_COMMON: Final = struct.Struct("<IIHHHHIIII")
_BIN: Final = struct.Struct("<IIII")
_BINS_AT: Final = 36
_MOST_BINS: Final = 64

_SMU: Final = 18
_SDMA_CONTEXT, _SDMA_CONTROL = 71, 72
_MEC, _MEC_STACKS = 89, (94, 95, 96, 97)
_IMU_CODE, _IMU_DATA = 68, 69
_RLC_CODE_RAM, _RLC_DATA_RAM, _RLC_P, _RLC_V, _RLC = 26, 48, 25, 7, 8
"""Types of firmware for the security processor (psp_gfx_if.h, enum psp_gfx_fw_type)."""


@runtime_checkable
class SupportsReadBytes(Protocol):
    """A machine whose files are not this process's own."""

    def read_bytes(self, path: str) -> bytes:
        """The content of a file. Raises OSError."""
        ...


@dataclass(frozen=True)
class Versions:
    """Versions in the names of files, as `13_0_0`."""

    mp0: str
    mp1: str
    sdma: str
    gc: str

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that a card needs."""
        return (
            f"psp_{self.mp0}_sos.bin",
            f"smu_{self.mp1}.bin",
            f"sdma_{self.sdma}.bin",
            *(f"gc_{self.gc}_{part}.bin" for part in ("mec", "imu", "rlc")),
        )


@dataclass(frozen=True)
class Image:
    """Firmware of one processor."""

    kind: int
    """Its type for the security processor."""
    name: str
    content: bytes


@dataclass(frozen=True)
class Firmware:
    """All firmware of a card."""

    sos: tuple[tuple[int, bytes], ...]
    """Type and content of the security processor's own components, in the file's order."""
    images: tuple[Image, ...]
    """In the order in which the security processor is given them."""
    mec_start: int
    """Start address of the compute processor's program."""


class _File:
    """A file with amdgpu's common header, read with a check of every offset."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = name, content
        if len(content) < _COMMON.size:
            raise self.fail(f"it has {len(content)} bytes")
        size, header, major, minor, *_, code_size, code_at, _ = _COMMON.unpack_from(content)
        self.version = (major, minor)
        self.code_at, self.code_size = code_at, code_size
        if size != len(content):
            raise self.fail(f"it has {len(content):,} bytes and says {size:,}")
        if not _COMMON.size <= header <= code_at:
            raise self.fail(f"its header has {header} bytes, and the code is at {code_at}")
        self.part(code_at, code_size)

    def verify_crc(self) -> None:
        """Raise DeviceUnavailable for a file whose content is not that of its CRC."""
        expected = _COMMON.unpack_from(self.content)[-1]
        if (found := zlib.crc32(self.content[_COMMON.size :])) != expected:
            raise self.fail(f"its CRC is {found:#010x} and not {expected:#010x}")

    def fail(self, what: str) -> DeviceUnavailable:
        """The error of a damaged file."""
        return DeviceUnavailable(
            f"firmware {self.name} cannot be read: {what}. Install it anew "
            "(Debian: apt install --reinstall firmware-amd-graphics)"
        )

    def expect(self, *majors: int) -> None:
        """Raise DeviceUnavailable unless the header has one of the versions."""
        if self.version[0] not in majors:
            known = " and ".join(map(str, majors))
            major, minor = self.version
            raise self.fail(f"its header has version {major}.{minor}, and {known} is known")

    def word(self, offset: int) -> int:
        """A word of the header, or of a list that follows it (of which its size says nothing)."""
        if offset + 4 > self.code_at:
            raise self.fail(f"its code begins at {self.code_at}, before a word at {offset}")
        return int(struct.unpack_from("<I", self.content, offset)[0])

    def part(self, start: int, size: int) -> bytes:
        """Bytes of the file."""
        if start + size > len(self.content):
            raise self.fail(f"{size:,} bytes at {start:#x} are not inside of it")
        return self.content[start : start + size]

    def sized(self, size_at: int, start_at: int) -> bytes:
        """Bytes whose size and start are words of the header."""
        return self.part(self.word(start_at), self.word(size_at))

    @property
    def code(self) -> bytes:
        """The code that the common header tells of."""
        return self.part(self.code_at, self.code_size)


def read_firmware(machine: System, versions: Versions, name: str) -> Firmware:
    """Read all firmware of a card; `name` is that of the card.

    Raises DeviceUnavailable that names every file that is missing, and where it was looked for.
    """
    found: dict[str, bytes] = {}
    missing, packed = [], []
    for file in versions.files:
        content = _read(machine, file)
        if content is not None:
            found[file] = content
        elif any(machine.exists(f"{folder}/{file}.zst") for folder in FOLDERS):
            packed.append(file)
        else:
            missing.append(file)
    if packed:
        raise DeviceUnavailable(
            f"firmware of {name} is packed with zstd: {', '.join(packed)}. Unpack it: "
            f"sudo unzstd {FOLDERS[0]}/{packed[0]}.zst, and so on"
        )
    if missing:
        raise DeviceUnavailable(
            f"firmware of {name} is missing: {', '.join(missing)}. Looked in "
            f"{' and '.join(FOLDERS)}, also for .xz. Install it (Debian: apt install "
            "firmware-amd-graphics; else linux-firmware)"
        )
    sos, smu, sdma, mec, imu, rlc = (_File(file, found[file]) for file in versions.files)
    for file_of_crc in (sos, sdma, mec, imu):
        file_of_crc.verify_crc()
    images = (
        Image(_SMU, smu.name, smu.code),
        *_of_sdma(sdma),
        *_of_mec(mec),
        *_of_imu(imu),
        *_of_rlc(rlc),
    )
    return Firmware(_components(sos), images, mec.word(52) | mec.word(56) << 32)


def _read(machine: System, file: str) -> bytes | None:
    """A file, plain or packed by xz; None where there is none that may be read."""
    for folder in FOLDERS:
        for suffix in ("", ".xz"):
            path = f"{folder}/{file}{suffix}"
            if not machine.exists(path):
                continue
            try:
                content = (
                    machine.read_bytes(path)
                    if isinstance(machine, SupportsReadBytes)
                    else Path(path).read_bytes()
                )
                return lzma.decompress(content) if suffix else content
            except (OSError, lzma.LZMAError) as error:
                raise DeviceUnavailable(f"firmware {path} cannot be read: {error}") from error
    return None


def _components(file: _File) -> tuple[tuple[int, bytes], ...]:
    """Components of the security processor; their offsets count from the code on."""
    file.expect(2)
    count = file.word(32)
    if count > _MOST_BINS:
        raise file.fail(f"it has {count} components")
    found = []
    for number in range(count):
        at = _BINS_AT + _BIN.size * number
        kind, _, start, size = (file.word(at + 4 * word) for word in range(4))
        found.append((kind, file.part(file.code_at + start, size)))
    return tuple(found)


def _of_sdma(file: _File) -> tuple[Image, ...]:
    """Both threads of the copy engines: contexts first."""
    file.expect(2)
    context = file.part(file.code_at, file.word(36))
    control = file.sized(52, 48)
    return (
        Image(_SDMA_CONTEXT, f"{file.name} (contexts)", context),
        Image(_SDMA_CONTROL, f"{file.name} (control)", control),
    )


def _of_mec(file: _File) -> tuple[Image, ...]:
    """Code of the compute processor, and the stack that each of its four pipes begins with."""
    file.expect(2)
    code = file.part(file.code_at, file.word(36))
    stack = file.sized(44, 48)
    return (
        Image(_MEC, file.name, code),
        *(
            Image(kind, f"{file.name} (stack of pipe {pipe})", stack)
            for pipe, kind in enumerate(_MEC_STACKS)
        ),
    )


def _of_imu(file: _File) -> tuple[Image, ...]:
    """Code and data of the processor that starts the graphics core; data follows the code."""
    file.expect(1)
    code_size, data_size = file.word(32), file.word(40)
    return (
        Image(_IMU_CODE, f"{file.name} (code)", file.part(file.code_at, code_size)),
        Image(_IMU_DATA, f"{file.name} (data)", file.part(file.code_at + code_size, data_size)),
    )


def _of_rlc(file: _File) -> tuple[Image, ...]:
    """Memories and processors of the run list controller; the controller itself ends the list, as
    the security processor starts the graphics core with it.
    """
    file.expect(2)
    found = []
    if file.version >= (2, 2):
        found += [
            Image(_RLC_CODE_RAM, f"{file.name} (IRAM)", file.sized(156, 160)),
            Image(_RLC_DATA_RAM, f"{file.name} (DRAM)", file.sized(164, 168)),
        ]
    if file.version >= (2, 3):
        found += [
            Image(_RLC_P, f"{file.name} (RLCP)", file.sized(180, 184)),
            Image(_RLC_V, f"{file.name} (RLCV)", file.sized(196, 200)),
        ]
    return (*(image for image in found if image.content), Image(_RLC, file.name, file.code))
