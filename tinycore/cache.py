"""The on-disk cache: bytes kept between runs under a key that says everything they depend on.

Floor 0. Imports `config`, `errors` and `trace`.
An entry is one file, written aside and then renamed into place, so a reader sees a whole entry or
none and any number of processes may share the folder without locks. Its first bytes hold a checksum
over table, key and content: a truncated, damaged or misplaced file is discarded and made anew.
A folder that cannot be used costs one warning, and the work goes on without it.
See docs/decisions/0002-disk-cache.md.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from tinycore._locks import lock
from tinycore.config import settings
from tinycore.errors import CacheError
from tinycore.trace import Trace

FORMAT: Final = 1
"""Version of the files' layout, in the folder's name: another version never reads these files."""

_MAGIC: Final = b"tinycore"
_DIGEST_BYTES: Final = 20
_HEADER_BYTES: Final = len(_MAGIC) + _DIGEST_BYTES
_TEMPORARY: Final = ".writing-"
_SWEPT: Final = ".swept"
"""A file whose modification time is that of the last sweep by any process."""
_ABANDONED_SECONDS: Final = 3600.0
_TOUCH_SECONDS: Final = 3600.0
_SWEEP_SECONDS: Final = 3600.0
_KEEP_SHARE: Final = 0.8
_SWEEP_SHARE: Final = 1 / 16

trace = Trace("cache")


class DiskCache:
    """A folder of at most about `limit_bytes`; the least recently used entries are removed first.

    Threads and processes may use one folder at once. Methods never raise for what is wrong with the
    folder or a file in it: reading then finds nothing, and writing does nothing.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._lock = lock()
        self._usable: bool | None = None  # not known before the first use
        self._unswept_bytes = 0
        self._began = False

    def get(self, table: str, key: str | bytes) -> bytes | None:
        """The entry under this key, or None. Raises CacheError when `table` is no plain word."""
        path = self._path(table, key)
        if not self._can_read():
            return None
        try:
            entry = path.read_bytes()
        except FileNotFoundError:
            trace(f"miss    {table} {path.name}")
            return None
        except OSError as error:
            trace(f"failed  {table} {path.name}: {error}")
            return None
        content = entry[_HEADER_BYTES:]
        if entry[:_HEADER_BYTES] != _header(table, key, content):
            trace(f"damaged {table} {path.name}: discarded")
            _remove(path)
            return None
        trace(f"hit     {table} {path.name} {len(content)} bytes")
        _touch(path)
        return content

    def put(self, table: str, key: str | bytes, content: bytes) -> None:
        """Keep `content` under this key. Raises CacheError when `table` is no plain word."""
        path = self._path(table, key)
        if len(content) > self.limit_bytes * _KEEP_SHARE or not self._can_write():
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(path, _header(table, key, content) + content)
        except OSError as error:
            self._give_up(f"{error.strerror or error}")
            return
        trace(f"put     {table} {path.name} {len(content)} bytes")
        self._sweep_when_due(_HEADER_BYTES + len(content))

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """Every file in the cache with its size and times, in no order."""
        return list(_files(self.folder))

    def _path(self, table: str, key: str | bytes) -> Path:
        if not table.isidentifier():
            raise CacheError(f"a table of the cache is named by a plain word, not {table!r}")
        name = blake2b(_as_bytes(key), digest_size=_DIGEST_BYTES).hexdigest()
        return self.folder / table / name[:2] / name[2:]

    def _can_read(self) -> bool:
        return self._usable is not False and (self._usable or self._examine(create=False))

    def _can_write(self) -> bool:
        return self._usable is not False and (self._usable or self._examine(create=True))

    def _examine(self, *, create: bool) -> bool:
        """Check once that the folder exists, is a folder, and is owned by us."""
        with self._lock:
            if self._usable is not None:
                return self._usable
            try:
                if create:
                    self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                objection = distrust(self.folder)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and not create:
                    return False  # nothing to read yet, and nothing to complain of
                objection = error.strerror or str(error)
            if not objection:
                self._usable = True
        if objection:
            self._give_up(objection)
        return not objection

    def _give_up(self, reason: str) -> None:
        with self._lock:
            already, self._usable = self._usable is False, False
        if not already:
            warnings.warn(
                f"the on-disk cache in {self.folder} cannot be used ({reason}), so kernels are "
                "compiled again in every run. Set CACHE_DIR to a folder of your own, or CCACHE=0.",
                stacklevel=3,
            )

    def _sweep_when_due(self, written_bytes: int) -> None:
        """Sweep after each sixteenth of the limit, and at a first write long after the last sweep.

        To go through 300,000 entries takes seconds, more than most processes compile for.
        """
        with self._lock:
            self._unswept_bytes += written_bytes
            first, self._began = not self._began, True
            due = self._unswept_bytes >= self.limit_bytes * _SWEEP_SHARE
            if not due and not (first and self._swept_long_ago()):
                return
            self._unswept_bytes = 0
        self._sweep()

    def _swept_long_ago(self) -> bool:
        try:
            return time.time() - (self.folder / _SWEPT).stat().st_mtime > _SWEEP_SECONDS
        except OSError:
            return True

    def _sweep(self) -> None:
        """Remove abandoned temporary files and, over the limit, the entries unused for longest."""
        now = time.time()
        kept = []
        with contextlib.suppress(OSError):  # first, so that no other process sweeps beside this one
            (self.folder / _SWEPT).touch(mode=0o600)
        for path, facts in _files(self.folder):
            if path.name.startswith(_TEMPORARY):
                if now - facts.st_mtime > _ABANDONED_SECONDS:
                    _remove(path)
            else:
                kept.append((facts.st_mtime, facts.st_size, path))
        total = sum(size for _, size, _ in kept)
        if total <= self.limit_bytes:
            return
        for _, size, path in sorted(kept):
            if total <= self.limit_bytes * _KEEP_SHARE:
                break
            _remove(path)
            trace(f"evicted {path.name} {size} bytes")
            total -= size


def _as_bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _header(table: str, key: str | bytes, content: bytes) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in (table.encode(), _as_bytes(key), content):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return _MAGIC + digest.digest()


def _write_whole(path: Path, entry: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(entry)
        os.replace(temporary, path)
    except PermissionError:
        _remove(Path(temporary))
        if not path.exists():  # on Windows a reader may hold the old entry, which is as good
            raise
    except BaseException:
        _remove(Path(temporary))
        raise


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All files in tables of `folder`; files that vanish meanwhile are skipped."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if name == _SWEPT:
                continue
            path = Path(parent, name)
            try:
                yield path, path.stat()
            except OSError:
                continue


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        trace(f"failed  to remove {path}: {error}")


def _touch(path: Path) -> None:
    """Note that an entry was used. Once an hour is exact enough, and spares most reads a write."""
    try:
        if time.time() - path.stat().st_mtime > _TOUCH_SECONDS:
            os.utime(path)
    except OSError:
        pass  # a folder we may only read is still worth reading


def distrust(folder: Path) -> str:
    """Why the content of a folder, which may run as machine code, cannot be trusted; or ""."""
    facts = folder.stat()
    if not stat.S_ISDIR(facts.st_mode):
        return "it is not a folder"
    if os.name != "posix":
        return ""
    if facts.st_uid not in {os.geteuid(), 0}:
        return f"it belongs to another user, number {facts.st_uid}"
    if facts.st_mode & stat.S_IWOTH:
        return "every user may write to it"
    return "its group may write to it" if facts.st_mode & stat.S_IWGRP else ""


# The cache that the settings name

_caches: Final[dict[Path, DiskCache]] = {}


def cache_folder() -> Path:
    """Folder of the entries: CACHE_DIR, else the user's cache folder."""
    chosen = settings.CACHE_DIR
    parent = Path(chosen).expanduser() if chosen else user_cache_path("tinycore")
    return parent / f"cache-v{FORMAT}"


def get(table: str, key: str | bytes) -> bytes | None:
    """The entry that any process put under this key; None if there is none, or CCACHE=0."""
    return _chosen().get(table, key) if settings.CCACHE else None


def put(table: str, key: str | bytes, content: bytes) -> None:
    """Keep `content` under this key for every later process; does nothing when CCACHE=0."""
    if settings.CCACHE:
        _chosen().put(table, key, content)


def _chosen() -> DiskCache:
    folder = cache_folder()
    limit_bytes = settings.CACHE_SIZE * 1024 * 1024
    found = _caches.get(folder)
    if found is None:
        found = _caches.setdefault(folder, DiskCache(folder, limit_bytes))
    found.limit_bytes = limit_bytes
    return found
