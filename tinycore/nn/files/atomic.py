"""Atomic file writes: readers and crashes see the old content or the new one.

Floor 6. Imports `errors`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tinycore.errors import ArgumentError

__all__ = ["replacing_file"]


@contextlib.contextmanager
def replacing_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file to write into, which takes the place of `path` when the block ends well.

    The file is written beside its target, flushed to the disk and renamed. When the block raises,
    the target is as it was. A symbolic link is followed, so that the link stays one. An existing
    file's permissions are kept. Raises ArgumentError where the target is something else than a
    file, as a device node or a pipe, and OSError when the folder cannot be written.
    """
    target = Path(path).resolve()
    with contextlib.suppress(FileNotFoundError):
        verify_file(path, target.stat().st_mode)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def verify_file(path: str | os.PathLike[str], mode: int) -> None:
    """Raises ArgumentError unless the mode is that of a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise ArgumentError(
            f"{path} is no regular file, but {KINDS.get(stat.S_IFMT(mode), 'something else')}, "
            "which a file would replace. Name a file."
        )


KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_BINARY = getattr(os, "O_BINARY", 0)  # Windows translates line ends without it
