"""`StandInFiles`: the files of a machine that is not there, for stand-ins of kernel drivers.

A stand-in of a kernel driver inherits from it, says which files there are, and adds
`open`, `close`, `ioctl`, `map` and `unmap` of `tiny_hcq.System`; `use_system` then puts it
in the place of the operating system:

    class Machine(StandInFiles):
        def texts(self) -> dict[str, str]:
            return {"/sys/class/toy/version": "3\\n"}

        def device_files(self) -> set[str]:
            return {"/dev/toy0"}
"""

from __future__ import annotations

import errno
import os

__all__ = ["StandInFiles"]


class StandInFiles:
    """Files of a machine by their paths: those with a text, and those of devices."""

    def __init__(self) -> None:
        self.missing: set[str] = set()
        """Paths that are not there, whatever else says so."""
        self.forbidden: set[str] = set()
        """Paths that this user may not open."""

    def texts(self) -> dict[str, str]:
        """Files with a text, and the text of each."""
        return {}

    def device_files(self) -> set[str]:
        """Files without a text, such as /dev/toy0."""
        return set()

    def paths(self) -> set[str]:
        """All existing files; folders are their parents."""
        return {*self.device_files(), *self.texts()} - self.missing

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder."""
        prefix = folder.rstrip("/") + "/"
        below = (path[len(prefix) :] for path in self.paths() if path.startswith(prefix))
        return sorted({path.split("/")[0] for path in below})

    def read_text(self, path: str) -> str:
        """The content of a file; "" if it is missing or unreadable."""
        return "" if path in self.missing | self.forbidden else self.texts().get(path, "")

    def exists(self, path: str) -> bool:
        """True if a file exists."""
        return path in self.paths()

    def is_usable(self, path: str) -> bool:
        """True if a file may be read and written."""
        return self.exists(path) and path not in self.forbidden

    def verify_path(self, path: str) -> None:
        """Raise what opening a file raises that is not there, or may not be opened."""
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path in self.forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
