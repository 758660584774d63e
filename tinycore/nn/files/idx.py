"""The IDX format: one big-endian array per file, as MNIST is distributed.

Floor 6. Imports `errors` and NumPy.
A file is two zero bytes, a type, the number of axes, their sizes as 32-bit integers, and the
elements row by row (http://yann.lecun.com/exdb/mnist/). It may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy

from tinycore.errors import DTypeError, FileFormatError, ShapeError
from tinycore.nn.files.atomic import replacing_file
from tinycore.nn.files.source import Budget, PathLike, Source, verify_shape

__all__ = ["read_idx", "write_idx"]

Array = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]

ELEMENT_TYPES: Final[dict[int, str]] = {
    0x08: ">u1",
    0x09: ">i1",
    0x0B: ">i2",
    0x0C: ">i4",
    0x0D: ">f4",
    0x0E: ">f8",
}
"""The byte that names an element type -> its NumPy spelling."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_CHUNK_BYTES: Final = 1 << 20


def read_idx(path: PathLike) -> Array:
    """The array in an IDX file, in native byte order; gzip is recognized by its first bytes.

    Raises FileFormatError when the magic number, the type, a size or the length is wrong, and
    OSError when the file cannot be read.
    """
    path = Path(path)
    with Source.open(path) as source:
        file = source.stream()
        compressed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if compressed else cast(BinaryIO, file)
        try:
            return _read_array(stream, path, Budget(source.size, str(path)))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileFormatError(f"{path}: the gzip stream is damaged: {error}") from error


def _read_array(stream: BinaryIO, path: Path, budget: Budget) -> Array:
    magic = _read_exactly(stream, 4, path, "the magic number")
    if magic[:2] != b"\0\0" or magic[2] not in ELEMENT_TYPES:
        known = ", ".join(f"0x{code:02x}" for code in ELEMENT_TYPES)
        raise FileFormatError(
            f"{path}: not an IDX file: it starts with {magic.hex(' ')}, where two zero bytes, "
            f"a type ({known}) and the number of axes belong."
        )
    axes = magic[3]
    sizes = _read_exactly(stream, 4 * axes, path, f"the sizes of {axes} axes")
    shape = struct.unpack(f">{axes}I", sizes)
    dtype = numpy.dtype(ELEMENT_TYPES[magic[2]])
    verify_shape(shape, dtype.itemsize, str(path))
    budget.spend("unpacked bytes", math.prod(shape) * dtype.itemsize)
    elements = _read_exactly(
        stream, math.prod(shape) * dtype.itemsize, path, f"{shape} elements of {dtype.name}"
    )
    if stream.read(1):
        raise FileFormatError(f"{path}: bytes follow the {shape} elements of {dtype.name}.")
    array = numpy.frombuffer(elements, dtype)
    return array.astype(dtype.newbyteorder("="), copy=False).reshape(shape)


def _read_exactly(stream: BinaryIO, size_bytes: int, path: Path, what: str) -> bytearray:
    """`size_bytes` from the stream, in pieces: a header's claim alone reserves no memory."""
    content = bytearray()
    while len(content) < size_bytes:
        piece = stream.read(min(_CHUNK_BYTES, size_bytes - len(content)))
        if not piece:
            raise FileFormatError(
                f"{path}: ends within {what}: {len(content)} of {size_bytes} bytes are there."
            )
        content += piece
    return content


def write_idx(path: PathLike, array: Array) -> None:
    """Write `array` as an IDX file, compressed when the name ends in `.gz`.

    The same array always gives the same bytes. Raises DTypeError when IDX has no such element type
    and ShapeError when the array has more than 255 axes or one that needs more than 32 bits.
    """
    codes = {numpy.dtype(name).newbyteorder("="): code for code, name in ELEMENT_TYPES.items()}
    code = codes.get(array.dtype.newbyteorder("="))
    if code is None:
        known = ", ".join(dtype.name for dtype in codes)
        raise DTypeError(f"IDX has no element type {array.dtype.name!r}. It has: {known}.")
    if array.ndim > 255 or any(size >= 1 << 32 for size in array.shape):
        raise ShapeError(f"IDX holds up to 255 axes of less than 2**32, not {array.shape}")
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    content = header + array.astype(ELEMENT_TYPES[code]).tobytes()
    if Path(path).suffix == ".gz":
        content = gzip.compress(content, 9, mtime=0)
    with replacing_file(path) as file:
        file.write(content)
