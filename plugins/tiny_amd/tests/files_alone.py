"""A machine with files that can be read, and with no device that can be opened."""

from __future__ import annotations

import errno
import os

from tiny_testing.standin import StandInFiles

__all__ = ["FilesAlone"]


def refused(word: str) -> OSError:
    """The error of a system call that such a machine does not have."""
    return OSError(errno.ENODEV, f"{os.strerror(errno.ENODEV)}: {word}")


class FilesAlone(StandInFiles):
    """The operating system, for `use_system`, as far as files go."""

    def open(self, path: str) -> int:
        raise refused(path)

    def close(self, file: int) -> None:
        raise refused("close")

    def ioctl(self, file: int, request: int, argument: int) -> int:
        return errno.ENODEV

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        raise refused("map")

    def unmap(self, address: int, size: int) -> None:
        raise refused("unmap")
