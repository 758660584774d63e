"""The bytes of an untrusted file, and the budget of one load.

Floor 6. Imports `errors` and NumPy.
A file is read, never mapped: one that another process cuts short while it is loaded ends in an
exception, where a mapping would end the process by SIGBUS. What a load may take is in proportion to
the file, so that a small file cannot ask for much.
"""

from __future__ import annotations

import errno
import io
import lzma
import math
import os
import pickle
import reprlib
import stat
import struct
import tarfile
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final, Self

import numpy

from tinycore.errors import FileFormatError

__all__ = ["ALLOWANCES", "Budget", "PathLike", "Source", "reading", "verify_shape"]

Array = numpy.ndarray[Any, numpy.dtype[Any]]
PathLike = str | os.PathLike[str]

MIB: Final = 1 << 20
ALLOWANCES: Final[dict[str, tuple[int, float]]] = {
    "bytes of tensors": (64 * MIB, 10),
    "bytes of objects": (64 * MIB, 64),
    "unpacked bytes": (64 * MIB, 32),
    "copied items": (1 << 20, 1),
    "tensors": (4096, 1 / 64),
    "quantized tensors": (4096, 1 / 512),
}
"""Allowance of each load: so much, and so much more for each byte of the file."""
MOST_ARRAY_BYTES: Final = (1 << 63) - 1
"""Greatest size of an array whose offsets fit into 64 bits."""
MOST_AXES: Final = 32
"""The axes that NumPy has had since its first version."""
CAREFUL_BYTES: Final = 1 << 16
"""Bytes from which a stream looks at what is left before it takes memory for them."""
shown: Final = reprlib.repr
"""Text of what an untrusted file says, which may be as long as the file: its ends are shown."""

PARSERS_RAISE: Final = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error),
    *(lzma.LZMAError, tokenize.TokenError, SyntaxError),
    *(EOFError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, OSError),
    *(ImportError, RuntimeError, MemoryError, AssertionError),
)
"""Exceptions of the parsers of the standard library for damaged content."""


class Budget:
    """An account of what one load has taken, by the names in ALLOWANCES."""

    def __init__(self, file_bytes: int, place: str = "") -> None:
        self.file_bytes, self.place = file_bytes, place
        self.most = {name: int(a + b * file_bytes) for name, (a, b) in ALLOWANCES.items()}
        self.spent = dict.fromkeys(ALLOWANCES, 0)

    def spend(self, name: str, count: int) -> None:
        """Note that so many more were taken. Raises FileFormatError beyond the allowance."""
        self.spent[name] += count
        if self.spent[name] > self.most[name]:
            prefix = f"{self.place}: " if self.place else ""
            raise FileFormatError(
                f"{prefix}the file of {self.file_bytes} bytes asks for more than the "
                f"{self.most[name]} {name} that one of its size may take"
            )

    def left(self, name: str) -> int:
        """The rest of an allowance."""
        return self.most[name] - self.spent[name]


class Source:
    """The bytes of a file, or of memory, read by position. Errors name `place`."""

    __slots__ = ("_content", "_file", "place", "size")

    def __init__(self, content: memoryview, place: str) -> None:
        self._content: memoryview | None = content
        self._file: io.FileIO | None = None
        self.place, self.size = place, len(content)

    @classmethod
    def open(cls, path: PathLike) -> Source:
        """The bytes of a regular file; close it afterwards.

        Raises FileFormatError for pipes, sockets and device nodes, which have no length, and
        OSError when the file cannot be read.
        """
        place = str(Path(path))
        descriptor = os.open(path, _OPEN)
        file = io.FileIO(descriptor, "rb")
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            file.close()
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), place)
            raise FileFormatError(f"{place}: no regular file, so it has no length. Copy it first.")
        source = cls(memoryview(b""), place)
        source._content, source._file, source.size = None, file, status.st_size
        return source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing can be read afterwards."""
        if self._file is not None:
            self._file.close()

    def readinto(self, start: int, into: memoryview) -> int:
        """Fill `into` with bytes from a position on; how many there were."""
        if self._content is not None:
            piece = self._content[start : start + len(into)]
            into[: len(piece)] = piece
            return len(piece)
        assert self._file is not None
        self._file.seek(start)
        done = 0
        while done < len(into):
            count = self._file.readinto(into[done:])
            if not count:
                break
            done += count
        return done

    def array(self, dtype: numpy.dtype[Any], count: int, start: int) -> Array:
        """Elements from a position on, read-only. Raises FileFormatError where they are not."""
        size = count * dtype.itemsize
        if start < 0 or start + size > self.size:
            raise FileFormatError(
                f"{self.place}: bytes {start} to {start + size} of {self.size} were asked for"
            )
        if self._content is not None:
            return numpy.frombuffer(self._content, dtype, count, start)
        found = numpy.empty(size, numpy.uint8)
        done = self.readinto(start, found.data)
        if done < size:
            raise FileFormatError(
                f"{self.place}: ends at byte {start + done}, and had {self.size} bytes when it was "
                "opened. Another program writes to it."
            )
        found.flags.writeable = False
        return found.view(dtype)

    def bytes(self, start: int, count: int) -> bytes:
        """So many bytes from a position on. Raises FileFormatError where they are not."""
        return self.array(numpy.dtype(numpy.uint8), count, start).tobytes()

    def stream(self) -> Stream:
        """The bytes as a file to read, from the beginning on."""
        return Stream(_Raw(self), self.size)


class _Raw(io.RawIOBase):
    """A source as an unbuffered file."""

    def __init__(self, source: Source) -> None:
        self.source, self.position = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        done = self.source.readinto(self.position, memoryview(buffer).cast("B"))
        self.position += done
        return done

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self.position, self.source.size)[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"position {base + offset} lies before the file")
        self.position = base + offset
        return self.position


class Stream(io.BufferedReader):
    """A buffered file of known size: a request for more takes no memory for more."""

    def __init__(self, raw: io.RawIOBase, size: int) -> None:
        super().__init__(raw)
        self.size = size

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, fewer at the end."""
        if size is not None and size > CAREFUL_BYTES:
            size = min(size, max(0, self.size - self.tell()))
        return super().read(size)


class reading:  # noqa: N801  a statement's name, as those of contextlib
    """Turn what parsers raise for damaged content into FileFormatError: `place`: no `kind`.

    An OSError of the system, as of a disk that fails, stays one; a FileFormatError gets the place.
    """

    def __init__(self, place: str, kind: str) -> None:
        self.place, self.kind = place, kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileFormatError):
            if not str(error).startswith(f"{self.place}:"):
                raise FileFormatError(f"{self.place}: {error}") from error
        elif isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            return
        elif isinstance(error, PARSERS_RAISE):
            told = f"{type(error).__name__}: {shown(str(error))}"
            raise FileFormatError(f"{self.place}: no {self.kind}: {told}") from error


def verify_shape(shape: tuple[int, ...], itemsize: int, what: str) -> None:
    """Raises FileFormatError for a shape that no array can have, with or without elements."""
    if len(shape) > MOST_AXES:
        raise FileFormatError(f"{what} has {len(shape)} axes; the limit is {MOST_AXES}")
    if math.prod(size for size in shape if size) * itemsize > MOST_ARRAY_BYTES:
        raise FileFormatError(f"{what} has the shape {shown(shape)}, whose size overflows")


_OPEN: Final = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer is refused, not waited for
    | getattr(os, "O_CLOEXEC", 0)
)
