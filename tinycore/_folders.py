"""Folders whose files may run as machine code: opened so that no other user can have changed them.

Floor 0. Imports the standard library alone. The way to a folder is walked once from the root, each
part opened below the last by its descriptor and then examined, so nothing can be exchanged between
the check and the use. A link on the way is followed only where its owner is trusted. Below a folder
that was opened, files are named by its descriptor, and no link is followed at all.
Where the system has no descriptors of folders (Windows), paths are used and nothing is examined:
the folder of a user's profile is closed to others there.
See docs/security.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final, Self

EXAMINED: Final = os.name == "posix"
"""True where owners and modes say who may write, and folders have descriptors."""

FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
PASSING: Final = FOLDER | getattr(os, "O_PATH", 0)
"""Flags for a folder on the way; by O_PATH it need not be readable, as /home often is not."""
NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
FILE: Final = NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""A named pipe in the place of a file is opened without waiting for its writer."""
MOST_LINKS: Final = 40
"""Links on the way to a folder, as many as Linux follows."""
OWNER_ONLY: Final = 0o700
BLOCK_BYTES: Final = 512
"""Unit of `st_blocks`."""


class UntrustedFolder(PermissionError):
    """Raised when another user may have placed what lies in a folder."""


def objection_to(facts: os.stat_result, *, on_the_way: bool = False) -> str:
    """Why other users may have written to a file or folder; "" when they cannot.

    In a folder on the way to another, a sticky bit protects what belongs to trusted users, and a
    user's private group is the user.
    """
    if not EXAMINED:
        return ""
    if facts.st_uid not in {os.geteuid(), 0}:
        return f"it belongs to another user, number {facts.st_uid}"
    if on_the_way and facts.st_mode & stat.S_ISVTX:
        return ""
    if facts.st_mode & stat.S_IWOTH:
        return "every user may write to it"
    if facts.st_mode & stat.S_IWGRP and not (on_the_way and is_private_group(facts.st_gid)):
        return "its group may write to it"
    return ""


def is_private_group(number: int) -> bool:
    """True if a group is the user's alone: most Linux systems give each user one of that kind."""
    import grp  # noqa: PLC0415  POSIX only
    import pwd  # noqa: PLC0415

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    is_own = group.gr_name == user.pw_name and number == user.pw_gid
    return is_own and set(group.gr_mem) <= {user.pw_name}


def size_on_disk(facts: os.stat_result) -> int:
    """Bytes that a file or folder takes, which for small files is more than its length."""
    return max(facts.st_size, getattr(facts, "st_blocks", 0) * BLOCK_BYTES)


class Folder:
    """An open folder that nobody else can have written to. A context manager, which closes it.

    Methods raise OSError for what the system refuses, UntrustedFolder for what others may have
    written.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> Self:
        """Open a folder by its path, examining each part of it; with `create`, make what is absent.

        Raises FileNotFoundError for an absent one, NotADirectoryError where a file is in its place.
        """
        path = Path(os.path.abspath(path))
        if EXAMINED:
            return cls(path, walk(path, create=create))
        if create:
            path.mkdir(parents=True, exist_ok=True)
        if not path.is_dir():
            missing = errno.ENOTDIR if path.exists() else errno.ENOENT
            raise OSError(missing, os.strerror(missing), str(path))
        return cls(path, None)

    @classmethod
    def reopen(cls, path: Path, identity: tuple[int, int]) -> Self | None:
        """The folder that was opened by this path before, without another walk; None if it moved.

        Sound as nobody else can exchange what `open` has examined, other than the user.
        """
        if not EXAMINED:
            return cls(path, None) if path.is_dir() else None
        found = cls(path, os.open(path, FOLDER))
        if found.identity == identity and not objection_to(found.own_facts):
            return found
        found.close()
        return None

    @property
    def identity(self) -> tuple[int, int]:
        """Device and number of the folder, which no other has while it is there."""
        facts = self.own_facts
        return facts.st_dev, facts.st_ino

    @property
    def own_facts(self) -> os.stat_result:
        """Owner, mode and size of the folder itself."""
        return os.stat(self.path if self.descriptor is None else self.descriptor)

    def read(self, name: str) -> tuple[bytes, os.stat_result]:
        """Content and facts of a regular file."""
        with self._opened(name) as file:
            facts = os.fstat(file.fileno())
            if objection := objection_to(facts):
                raise UntrustedFolder(errno.EPERM, objection, str(self.path / name))
            return file.read(), facts

    def _opened(self, name: str) -> BinaryIO:
        """A regular file, open for reading; no link is followed to it."""
        flags = os.O_RDONLY | FILE
        descriptor = os.open(self._place(name), flags, dir_fd=self.descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        raise irregular(self.path / name)

    def replace(self, name: str, content: bytes, prefix: str) -> None:
        """Write a file aside, under a name with a prefix, and then rename it into its place."""
        aside = f"{prefix}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE
        descriptor = os.open(self._place(aside), flags, 0o600, dir_fd=self.descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            places = self._place(aside), self._place(name)
            os.replace(*places, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException as error:
            with contextlib.suppress(OSError):
                self.remove(aside)
            # on Windows a reader may hold the old file, which is as good
            if (
                EXAMINED
                or not isinstance(error, PermissionError)
                or not (self.path / name).exists()
            ):
                raise

    def remove(self, name: str) -> None:
        """Remove a file; nothing where there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._place(name), dir_fd=self.descriptor)

    def touch(self, name: str) -> None:
        """Set the time of a file to now, and make it where it is absent."""
        flags = os.O_WRONLY | os.O_CREAT | FILE
        descriptor = os.open(self._place(name), flags, 0o600, dir_fd=self.descriptor)
        try:
            if os.utime in os.supports_fd:
                os.utime(descriptor)
            else:
                os.utime(self._place(name))
        finally:
            os.close(descriptor)

    def file_facts(self, name: str) -> os.stat_result:
        """Size and times of a regular file; OSError for a link or a folder."""
        facts = os.stat(self._place(name), dir_fd=self.descriptor, follow_symlinks=False)
        if not stat.S_ISREG(facts.st_mode):
            raise irregular(self.path / name)
        return facts

    def names(self) -> list[str]:
        """The names in this folder."""
        return os.listdir(self.path if self.descriptor is None else self.descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor is not None:
            os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)


def irregular(path: Path) -> OSError:
    """The error for a link, a folder or a device in the place of a file."""
    return OSError(errno.EINVAL, "it is no regular file", str(path))


def walk(path: Path, *, create: bool) -> int:
    """Descriptor of the folder at an absolute path, opened from the root part by part."""
    left, where, links = deque(path.parts[1:]), Path(path.anchor), 0
    here = os.open(where, PASSING)
    try:
        while left:
            examine(here, where, on_the_way=True)
            part = left.popleft()
            if link := entered(here, part, where / part, create=create):
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                left.extendleft(reversed(link.parts[link.is_absolute() :]))
                part = link.anchor or "."
            below = os.open(part, PASSING | NO_LINK, dir_fd=here)
            os.close(here)
            here, where = below, where / part
        examine(here, where, on_the_way=False)
        return os.open(".", FOLDER, dir_fd=here)
    finally:
        os.close(here)


def examine(descriptor: int, path: Path, *, on_the_way: bool) -> None:
    """Raise UntrustedFolder where other users may have written to an open folder."""
    if objection := objection_to(os.fstat(descriptor), on_the_way=on_the_way):
        text = f"{path} is on the way to it, and {objection}" if on_the_way else objection
        raise UntrustedFolder(errno.EPERM, text, str(path))


def entered(folder: int, name: str, path: Path, *, create: bool) -> Path | None:
    """Target of a link in an open folder, None for a folder, which is made if it is absent.

    Raises UntrustedFolder for a link of another user, who could let it lead anywhere.
    """
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, OWNER_ONLY, dir_fd=folder)
        return None
    if not stat.S_ISLNK(facts.st_mode):
        return None
    if facts.st_uid not in {os.geteuid(), 0}:
        text = f"{path} is a link of another user, number {facts.st_uid}"
        raise UntrustedFolder(errno.EPERM, text, str(path))
    return Path(os.readlink(name, dir_fd=folder))
