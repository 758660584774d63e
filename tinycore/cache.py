"""The disk cache: bytes kept between runs under a key that says everything they depend on.

Floor 0. Imports `_folders`, `config`, `errors` and `trace`.
An entry is one file, written aside and then renamed into place, so a reader sees a whole entry or
none and any number of processes may share the folder without locks. Its first bytes hold a checksum
over table, key and content: a truncated, damaged or misplaced file is discarded and made anew.
A folder that cannot be used, or that other users may write to, costs one warning, and the work goes
on without it. See docs/floors/foundation.md and docs/security.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import warnings
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from tinycore._folders import Folder, size_on_disk
from tinycore.config import settings
from tinycore.errors import CacheError, SettingError
from tinycore.trace import Trace

FORMAT: Final = 2
"""Version of the files' layout, in the folder's name: another version never reads these files."""

_MAGIC: Final = b"tinycore"
_DIGEST_BYTES: Final = 20
_HEADER_BYTES: Final = len(_MAGIC) + _DIGEST_BYTES
_ENTRY: Final = re.compile(r"\w+-[0-9a-f]{40}")
"""Name of an entry: its table, and the hash of its key."""
_TEMPORARY: Final = ".writing-"
_SWEPT: Final = ".swept"
"""A file whose modification time is that of the last sweep by any process."""
_ABANDONED_SECONDS: Final = 3600.0
_TOUCH_SECONDS: Final = 3600.0
_SWEEP_SECONDS: Final = 3600.0
_KEEP_SHARE: Final = 0.8
_SWEEP_SHARE: Final = 1 / 16
_BLOCK_BYTES: Final = 4096
"""Least bytes that a file takes on most disks."""

trace = Trace("cache")


class DiskCache:
    """A folder of at most about `limit_bytes`; the least recently used entries are removed first.

    Threads and processes may use one folder at once. Methods never raise for what is wrong with the
    folder or a file in it: reading then finds nothing, and writing does nothing.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._given_up = False
        self._identity: tuple[int, int] | None = None  # of the folder that was examined
        self._unswept_bytes = 0
        self._began = False

    def get(self, table: str, key: str | bytes) -> bytes | None:
        """The entry under this key, or None. Raises CacheError when `table` is no plain word."""
        name = _name(table, key)
        if (folder := self._open(create=False)) is None:
            return None
        try:
            with folder:
                return _read(folder, table, key, name)
        except FileNotFoundError:
            trace(f"miss    {name}")
        except OSError as error:
            trace(f"failed  {name}: {error}")
        return None

    def put(self, table: str, key: str | bytes, content: bytes) -> None:
        """Keep `content` under this key. Raises CacheError when `table` is no plain word."""
        name, entry = _name(table, key), _header(table, key, content) + content
        if len(content) > self.limit_bytes * _KEEP_SHARE:
            return
        try:
            self._write(name, entry)
        except OSError as error:
            self._give_up(f"{error.strerror or error}")

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """Every entry in the cache with its size and times, in no order."""
        if (folder := self._open(create=False)) is None:
            return []
        with folder:
            files = _files(folder)
            return [(folder.path / name, facts) for name, facts in files if _ENTRY.fullmatch(name)]

    def _open(self, *, create: bool) -> Folder | None:
        """The folder, examined at the first use and whenever another is in its place."""
        if self._given_up:
            return None
        if self.folder.parts[:1] == ("~",):
            self._give_up("no home folder is known for this user")
            return None
        try:
            if self._identity is not None:
                with contextlib.suppress(FileNotFoundError):
                    if (known := Folder.reopen(self.folder, self._identity)) is not None:
                        return known
            folder = Folder.open(self.folder, create=create)
        except OSError as error:
            # before the first write there is nothing to read, and nothing to complain of
            if create or not isinstance(error, FileNotFoundError):
                self._give_up(f"{error.strerror or error}")
            return None
        self._identity = folder.identity
        return folder

    def _write(self, name: str, entry: bytes) -> None:
        if (folder := self._open(create=True)) is None:
            return
        with folder:
            folder.replace(name, entry, _TEMPORARY)
            trace(f"put     {name} {len(entry)} bytes")
            self._sweep_when_due(folder, -(-len(entry) // _BLOCK_BYTES) * _BLOCK_BYTES)

    def _give_up(self, reason: str) -> None:
        already, self._given_up = self._given_up, True
        if not already:
            warnings.warn(
                f"the on-disk cache in {self.folder} cannot be used ({reason}), so kernels are "
                "compiled again in every run. Set CACHE_DIR to a folder of your own, or CCACHE=0.",
                stacklevel=3,
            )

    def _sweep_when_due(self, folder: Folder, written_bytes: int) -> None:
        """Sweep after each sixteenth of the limit, and at a first write long after the last sweep.

        To go through 300,000 entries takes seconds, more than most processes compile for.
        """
        self._unswept_bytes += written_bytes  # of two threads one may be lost: about is enough
        first, self._began = not self._began, True
        due = self._unswept_bytes >= self.limit_bytes * _SWEEP_SHARE
        if due or (first and _swept_long_ago(folder)):
            self._unswept_bytes = 0
            self._sweep(folder)

    def _sweep(self, folder: Folder) -> None:
        """Remove abandoned temporary files and, over the limit, the entries unused for longest."""
        now, total, kept = time.time(), size_on_disk(folder.own_facts), []
        with contextlib.suppress(OSError):  # first, so that no other process sweeps beside this one
            folder.touch(_SWEPT)
        for name, facts in _files(folder):
            if _ENTRY.fullmatch(name):
                kept.append((facts.st_mtime, size_on_disk(facts), name))
                total += size_on_disk(facts)
            elif now - facts.st_mtime > _ABANDONED_SECONDS:
                _remove(folder, name)
        if total > self.limit_bytes:
            _evict(folder, sorted(kept), total - int(self.limit_bytes * _KEEP_SHARE))


def _name(table: str, key: str | bytes) -> str:
    """The name under which an entry is kept."""
    if not table.isidentifier():
        raise CacheError(f"a table of the cache is named by a plain word, not {table!r}")
    return f"{table}-{blake2b(_as_bytes(key), digest_size=_DIGEST_BYTES).hexdigest()}"


def _as_bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _header(table: str, key: str | bytes, content: bytes) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in (table.encode(), _as_bytes(key), content):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return _MAGIC + digest.digest()


def _read(folder: Folder, table: str, key: str | bytes, name: str) -> bytes | None:
    entry, facts = folder.read(name)
    content = entry[_HEADER_BYTES:]
    if entry[:_HEADER_BYTES] != _header(table, key, content):
        trace(f"damaged {name}: discarded")
        _remove(folder, name)
        return None
    trace(f"hit     {name} {len(content)} bytes")
    # once an hour is exact enough, and spares most reads a write
    if time.time() - facts.st_mtime > _TOUCH_SECONDS:
        with contextlib.suppress(OSError):  # a folder we may only read is still worth reading
            folder.touch(name)
    return content


def _files(folder: Folder) -> Iterator[tuple[str, os.stat_result]]:
    """Files of ours; those that vanish meanwhile are skipped."""
    for name in folder.names():
        if _ENTRY.fullmatch(name) or name.startswith(_TEMPORARY):
            with contextlib.suppress(OSError):
                yield name, folder.file_facts(name)


def _evict(folder: Folder, kept: list[tuple[float, int, str]], excess: int) -> None:
    """Remove entries (time, size and name), in order, until so many bytes are gone."""
    for _, size, name in kept:
        if excess <= 0:
            break
        if _remove(folder, name):
            excess -= size
            trace(f"evicted {name} {size} bytes")


def _remove(folder: Folder, name: str) -> bool:
    try:
        folder.remove(name)
    except OSError as error:
        trace(f"failed  to remove {folder.path / name}: {error}")
        return False
    return True


def _swept_long_ago(folder: Folder) -> bool:
    try:
        return time.time() - folder.file_facts(_SWEPT).st_mtime > _SWEEP_SECONDS
    except OSError:
        return True


# The cache that the settings name

_caches: Final[dict[Path, DiskCache]] = {}


def cache_folder() -> Path:
    """Folder of the entries: CACHE_DIR, else the user's cache folder."""
    return (
        named_folder("CACHE_DIR", settings.CACHE_DIR) or user_cache_path("tinycore")
    ) / f"cache-v{FORMAT}"


def named_folder(setting: str, chosen: str) -> Path | None:
    """The folder that a setting names by its value, None where that is empty.

    Raises SettingError where it names the home folder of a user that there is not.
    """
    if not chosen:
        return None
    try:
        return Path(chosen).expanduser()
    except RuntimeError:
        raise SettingError(
            f"{setting}={chosen}: no home folder is known for {Path(chosen).parts[0]}; name the "
            "folder by its whole path."
        ) from None


def get(table: str, key: str | bytes | None) -> bytes | None:
    """The entry that any process put under this key; None if there is none, or CCACHE=0.

    Nothing is kept under the key None, of what no key determines.
    """
    return _chosen().get(table, key) if settings.CCACHE and key is not None else None


def file_identity(name: str) -> str:
    """Identity of a program or library in cache keys: its real path, size and modification time.

    `name` is a path, or the name by which this process loaded a library. Two builds of one version
    differ in it, as those of two distributions do. "" where the file is not known.
    """
    try:
        if os.sep not in name:  # the file's own name may go on, as in libc.so.6.1
            mapped = Path("/proc/self/maps").read_text("utf-8")
            found = re.search(rf"/\S*/{re.escape(name)}\S*", mapped)
            name = found[0] if found else ""
        facts = os.stat(name)
    except OSError:
        return ""
    return f"{os.path.realpath(name)} {facts.st_size} {facts.st_mtime_ns}"


def put(table: str, key: str | bytes | None, content: bytes) -> None:
    """Keep `content` under this key for every later process; does nothing when CCACHE=0."""
    if settings.CCACHE and key is not None:
        _chosen().put(table, key, content)


def _chosen() -> DiskCache:
    folder = cache_folder()
    limit_bytes = settings.CACHE_SIZE * 1024 * 1024
    found = _caches.get(folder)
    if found is None:
        found = _caches.setdefault(folder, DiskCache(folder, limit_bytes))
    found.limit_bytes = limit_bytes
    return found
