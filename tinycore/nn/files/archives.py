"""Files inside of tar and ZIP archives, unpacked within the budget of the load.

Floor 6. Imports `errors`.
A tar archive is read from front to back, as a stream, so that nothing is unpacked twice; a ZIP
archive by its directory. Packed data grow by at most the "unpacked bytes" of the budget, whatever
their headers say.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator
from typing import IO, Any, Final

from tinycore.errors import FileFormatError
from tinycore.nn.files.source import Budget, Source, reading, shown

__all__ = ["tar_members", "zip_members"]

UNPACKED_PIECE: Final = 1 << 20
UNPACKERS: Final[dict[bytes, Callable[[Any], Any]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"\x5d\0\0": lzma.LZMAFile,
}
"""Decompressors of archives, by the bytes that these begin with."""
LOCAL_HEADER_BYTES: Final = 30
LOCAL_HEADER: Final = b"PK\3\4"
MEMBER_BYTES: Final = 512
"""Memory of what an archive says of a member, beside the member."""


class Metered(io.RawIOBase):
    """A stream that is read to the end of a budget."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self.file, self.budget = file, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.file.read(min(len(buffer), UNPACKED_PIECE))
        self.budget.spend("unpacked bytes", len(piece))
        buffer[: len(piece)] = piece
        return len(piece)


def tar_members(source: Source, names: Container[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """The regular files in a tar archive, and their content; folders and links are left out.

    With `names` only those are read. Raises FileFormatError for what is no tar archive.
    """
    budget = Budget(source.size, source.place)
    with reading(source.place, "tar archive"):
        stream = source.stream()
        start = stream.read(6)
        stream.seek(0)
        unpack = next((u for magic, u in UNPACKERS.items() if start.startswith(magic)), None)
        metered = Metered(unpack(stream) if unpack else stream, budget)
        with tarfile.open(fileobj=metered, mode="r|", bufsize=tarfile.RECORDSIZE) as archive:
            for member in archive:
                budget.spend("bytes of objects", MEMBER_BYTES)
                archive.members = []  # type: ignore[attr-defined]  # else all are kept
                is_asked = member.isreg() and (names is None or member.name in names)
                file = archive.extractfile(member) if is_asked else None
                if file is not None:
                    yield member.name, read_member(file, member, budget)
        while metered.read(UNPACKED_PIECE):
            pass  # the checksum of what was unpacked comes after the end of the archive


def read_member(file: IO[bytes], member: tarfile.TarInfo, budget: Budget) -> bytes:
    """The content of a file in a tar archive. Raises FileFormatError where it is cut off."""
    if member.size < 0 or member.issparse():
        raise FileFormatError(f"{shown(member.name)} has holes or a size of {member.size} bytes")
    if member.size > budget.left("unpacked bytes"):
        budget.spend("unpacked bytes", member.size)
    content = file.read()
    if len(content) != member.size:
        raise FileFormatError(
            f"{shown(member.name)} has {member.size} bytes, of which {len(content)} are there"
        )
    return content


def zip_members(source: Source, names: Container[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """The files in a ZIP archive, and their content; folders are left out.

    With `names` only those are unpacked. Raises FileFormatError for what is no ZIP archive.
    """
    budget = Budget(source.size, source.place)
    with reading(source.place, "ZIP archive"), zipfile.ZipFile(source.stream()) as archive:
        seen: set[str] = set()
        for info in archive.infolist():
            if info.filename in seen:
                raise FileFormatError(f"two members are named {shown(info.filename)}")
            seen.add(info.filename)
            if not info.is_dir() and (names is None or info.filename in names):
                yield info.filename, unpacked(source, info, budget)


def unpacked(source: Source, info: zipfile.ZipInfo, budget: Budget) -> bytes:
    """The content of a member. Raises FileFormatError where it is not what the directory says."""
    what = f"member {shown(info.filename)}"
    budget.spend("unpacked bytes", info.file_size + info.compress_size)
    if info.flag_bits & 1:
        raise FileFormatError(f"{what} is encrypted")
    header = source.bytes(info.header_offset, LOCAL_HEADER_BYTES)
    if not header.startswith(LOCAL_HEADER):
        raise FileFormatError(f"{what} is not where the directory says")
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    begin = info.header_offset + LOCAL_HEADER_BYTES + names
    packed = source.bytes(begin, info.compress_size)
    content = decompressed(packed, info, what)
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise FileFormatError(f"{what} is not the {info.file_size} bytes the directory says")
    return content


def decompressed(packed: bytes, info: zipfile.ZipInfo, what: str) -> bytes:
    """The bytes of a member, of which one more than it should have is enough to refuse it."""
    most = info.file_size + 1
    if info.compress_type == zipfile.ZIP_STORED:
        return packed
    if info.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most)
    if info.compress_type == zipfile.ZIP_BZIP2:
        return bz2.BZ2Decompressor().decompress(packed, most)
    raise FileFormatError(
        f"{what} is packed by method {info.compress_type}; stored, deflated and bzip2 are read"
    )
