"""Atomic file writes: readers and crashes see the old content or the new one.

Floor 6. Imports nothing of tinycore.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing_file"]


@contextlib.contextmanager
def replacing_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file to write into, which takes the place of `path` when the block ends well.

    The file is written beside its target, flushed to the disk and renamed. When the block raises,
    the target is as it was. A symbolic link is followed, so that the link stays one. An existing
    file's permissions are kept. Raises OSError when the folder cannot be written.
    """
    target = Path(path).resolve()
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


_BINARY = getattr(os, "O_BINARY", 0)  # Windows translates line ends without it
