"""Functions and classes to be imported by this name: settings, counters, timing, progress bars.

Floor 6, on the public API only. tinycore's own floors import what they need from where it lives.
"""

from __future__ import annotations

import ctypes
import getpass
import gzip
import math
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ContextDecorator, suppress
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from tinycore._folders import Folder, UntrustedFolder
from tinycore.cache import cache_folder
from tinycore.config import (
    Context,
    PluginSettings,
    Setting,
    Settings,
    cpu_count,
    environment,
    number,
    row,
    settings,
    text,
)
from tinycore.engine.counters import GlobalCounters
from tinycore.errors import ArgumentError, SettingError
from tinycore.tensor.methods.data import LEAST_UNPACKED, UNPACKED_EACH
from tinycore.trace import Trace, ansilen, ansistrip, colored

if TYPE_CHECKING:
    from tqdm import tqdm, trange

__all__ = [
    "BEAM",
    "DEBUG",
    "DEV",
    "IMAGE",
    "JIT",
    "NOOPT",
    "OSX",
    "TRAINING",
    "Context",
    "ContextVar",
    "GlobalCounters",
    "Profiling",
    "Timing",
    "all_same",
    "ansilen",
    "ansistrip",
    "argfix",
    "argsort",
    "ceildiv",
    "colored",
    "cpu_count",
    "dedup",
    "fetch",
    "flat_mv",
    "flatten",
    "get_child",
    "getenv",
    "partition",
    "prod",
    "profile_marker",
    "round_up",
    "settings",
    "temp",
    "to_mv",
    "tqdm",
    "trange",
]

T = TypeVar("T")
Default = TypeVar("Default", bool, int, float, str)

BEAM: Final = Settings.BEAM
DEBUG: Final = Settings.DEBUG
DEV: Final = Settings.DEV
IMAGE: Final = Settings.IMAGE
JIT: Final = Settings.JIT
NOOPT: Final = Settings.NOOPT
TRAINING: Final = Settings.TRAINING

OSX: Final = sys.platform == "darwin"

prod: Final = math.prod

_run: Final = Trace("run")


def __getattr__(name: str) -> Any:
    if name in {"tqdm", "trange"}:  # 30 ms to import, and most programs draw no bar
        import tqdm  # noqa: PLC0415

        return getattr(tqdm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def getenv(name: str, default: Default = 0) -> Default:  # type: ignore[assignment]
    """A program's own environment variable, in the type of `default`; blank counts as absent.

    Raises SettingError when the text is no such value. tinycore's settings are in `settings`.
    """
    found = environment(name)
    if found is None:
        return default
    if isinstance(default, bool):
        return found.lower() not in {"0", "false", "no", "off"}
    try:
        return type(default)(found)
    except ValueError as error:
        raise SettingError(
            f"{name}={found} is not understood; allowed is any {type(default).__name__}."
        ) from error


def ContextVar(key: str, default_value: Any) -> Setting[Any]:  # noqa: N802  a class in tinygrad
    """A program's own setting, an integer or text: from the environment, or from a `Context`.

    Its `value` is the one in force. That of a name that tinycore has is tinycore's own. Raises
    SettingError for a default of another type.

    >>> RATE = ContextVar("DEMO_RATE", 3)
    >>> with Context(DEMO_RATE=5):
    ...     RATE.value, RATE > 4
    (5, True)
    """
    try:
        return row(key)
    except SettingError:
        pass  # it is new
    if isinstance(default_value, int):
        made: Setting[Any] = number(int(default_value), "A program's own", -(1 << 63))
    elif isinstance(default_value, str):
        made = text(default_value, "A program's own", "any text")
    else:
        raise SettingError(f"ContextVar: {key} is an int or a string, not {default_value!r}")
    type("ProgramSettings", (PluginSettings,), {key: made})
    return made


@dataclass(eq=False)
class Timing:
    """Prints how long a `with` block took: `with Timing("load: "): ...` gives `load: 12.34 ms`.

    `on_exit` gets the nanoseconds and returns more text for the line; `seconds` keeps the time.
    """

    prefix: str = ""
    on_exit: Callable[[int], str] | None = None
    enabled: bool = True
    seconds: float = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        nanoseconds = time.perf_counter_ns() - self._start
        self.seconds = nanoseconds * 1e-9
        if self.enabled:
            more = self.on_exit(nanoseconds) if self.on_exit else ""
            print(f"{self.prefix}{nanoseconds * 1e-6:6.2f} ms{more}")


@dataclass(eq=False)
class Profiling(ContextDecorator):
    """Prints where the Python of a `with` block took its time, by cProfile.

    Lines are sorted by `sort`, and `frac` of them printed. `fn` names a file for all of it, which
    `python -m pstats` reads. Kernels are in `DEBUG=2`.
    """

    enabled: bool = True
    sort: str = "cumtime"
    frac: float = 0.2
    fn: str | os.PathLike[str] | None = None

    def __enter__(self) -> Self:
        import cProfile  # noqa: PLC0415  see __getattr__

        self._profile = cProfile.Profile()
        if self.enabled:
            self._profile.enable()
        return self

    def __exit__(self, *_: object) -> None:
        import pstats  # noqa: PLC0415

        if self.enabled:
            self._profile.disable()
            if self.fn is not None:
                self._profile.dump_stats(self.fn)
            found = pstats.Stats(self._profile).strip_dirs().sort_stats(self.sort)
            found.print_stats(self.frac)


def profile_marker(name: str) -> None:
    """A line among those of `DEBUG=2`, to tell kernels before it from those after."""
    _run(f"-- {name}")


def argfix(*items: Any) -> tuple[Any, ...]:
    """The items, or those of a list or tuple that is the only argument.

    >>> argfix(1, 2), argfix([1, 2])
    ((1, 2), (1, 2))
    """
    return tuple(items[0]) if len(items) == 1 and isinstance(items[0], (list, tuple)) else items


def dedup(items: Iterable[T]) -> list[T]:
    """The items in order, each once."""
    return list(dict.fromkeys(items))


def flatten(lists: Iterable[Iterable[T]]) -> list[T]:
    """The items of all lists in one list."""
    return [item for items in lists for item in items]


def all_same(items: Sequence[Any]) -> bool:
    """True if all items are equal, as none are."""
    return all(item == items[0] for item in items)


def partition(items: Iterable[T], condition: Callable[[T], object]) -> tuple[list[T], list[T]]:
    """The items for which a condition holds, and the others, each in order."""
    found: tuple[list[T], list[T]] = [], []
    for item in items:
        found[not condition(item)].append(item)
    return found


def get_child(value: Any, path: str) -> Any:
    """The value at a path of attributes, positions and keys, joined by dots, as in a state dict.

    >>> get_child({"layers": [1, 2]}, "layers.1")
    2
    """
    for step in path.split("."):
        if step.isnumeric() and not isinstance(value, dict):
            value = value[int(step)]
        else:
            value = value[step] if isinstance(value, dict) else getattr(value, step)
    return value


def argsort(items: Sequence[Any]) -> list[int]:
    """The positions in the order that sorts the items; the inverse of a permutation."""
    return sorted(range(len(items)), key=items.__getitem__)


def to_mv(address: int, size_bytes: int) -> memoryview:
    """The bytes at an address of this process, writable; the caller keeps them alive."""
    return memoryview((ctypes.c_uint8 * size_bytes).from_address(address)).cast("B")


def flat_mv(view: memoryview) -> memoryview:
    """The bytes of contiguous memory in one row."""
    return view.cast("B") if len(view) else view


def temp(name: str, append_user: bool = False) -> str:
    """The path of a file in the folder for temporary ones; the user's own with `append_user`."""
    own = f".{getpass.getuser()}" if append_user else ""
    return str(Path(tempfile.gettempdir()) / f"{name}{own}")


def ceildiv(amount: int, divisor: int) -> int:
    """`amount / divisor`, rounded up."""
    return -(amount // -divisor)


def round_up(amount: int, multiple: int) -> int:
    """The least multiple of `multiple` that is at least `amount`."""
    return ceildiv(amount, multiple) * multiple


def fetch(
    url: str,
    name: str | os.PathLike[str] | None = None,
    subdir: str | None = None,
    gunzip: bool = False,
    allow_caching: bool = True,
    sha256: str | None = None,
    max_bytes: int | None = None,
) -> Path:
    """The local file with what `url` holds, downloaded once into the cache folder.

    A path or a `file:` URL of this machine is used where it lies. `name` is that of the file below
    the folder of downloads, or an absolute Path. `sha256` is the digest in hexadecimal that the
    file must have, a local one, too. Nothing is downloaded of more than `max_bytes`, else nine
    tenths of what the disk has free. Raises OSError when the download fails, is too large, ends
    early or has another digest: a file is only ever there whole; and when the folder of downloads
    can be written by other users. ArgumentError for a name that leads out of it, and for what is
    neither a URL nor a path.
    """
    if url.startswith(("/", ".", "file:")):
        if (local := url.removeprefix("file:")) != url:
            from urllib.request import url2pathname  # noqa: PLC0415  see _download

            local = url2pathname(local.removeprefix("//"))
        return _checked(Path(local), url, sha256)
    target = _target(
        name or blake2b(f"{url} {gunzip}".encode(), digest_size=20).hexdigest(), subdir
    )
    if target.is_file() and allow_caching:
        with suppress(OSError):
            return _checked(target, url, sha256)
    most = shutil.disk_usage(target.parent).free * 9 // 10 if max_bytes is None else max_bytes
    _download(url, target, gunzip, sha256, most)
    return target


def _target(name: str | os.PathLike[str], subdir: str | None) -> Path:
    """Path of a download, in a folder that is there. Raises ArgumentError for one that leads out of
    the folder of downloads, PermissionError where other users may write to it.
    """
    if isinstance(name, Path) and name.is_absolute():
        name.parent.mkdir(parents=True, exist_ok=True)
        return name
    downloads = Path(os.path.abspath(cache_folder().parent / "downloads"))
    target = Path(os.path.normpath(downloads / (subdir or "") / name))
    if downloads not in target.parents:
        raise ArgumentError(
            f"fetch: {os.fspath(name)!r} in {subdir or 'downloads'!r} leads out of {downloads}; "
            "give a plain name, or an absolute Path"
        )
    for folder in (downloads, target.parent):
        try:
            Folder.open(folder, create=True).close()
        except UntrustedFolder as error:
            raise PermissionError(
                f"fetch: {folder} is not used: {error.strerror}. Set CACHE_DIR to a folder of your "
                "own"
            ) from None
    return target


def _checked(file: Path, url: str, sha256: str | None) -> Path:
    """The file. Raises OSError where it has another digest."""
    if sha256 is not None:
        with file.open("rb") as content:
            found = file_digest(content, "sha256").hexdigest()
        if found != sha256.lower():
            raise OSError(f"fetch: {url} has the SHA-256 digest {found}, not {sha256}")
    return file


def _shown(answer: Any, url: str) -> AbstractContextManager[Any]:
    """A server's answer, read with a progress bar on a terminal."""
    from tqdm import tqdm  # noqa: PLC0415  see __getattr__

    return tqdm.wrapattr(  # type: ignore[no-any-return]
        answer,
        "read",
        getattr(answer, "length", None),
        desc=url.rpartition("/")[2] or url,
        disable=None,
        leave=False,
    )


@dataclass(eq=False)
class _Bounded:
    """A server's answer, read until it is longer than allowed, or announces to be."""

    source: Any
    url: str
    most: int
    count: int = 0

    def read(self, size: int) -> bytes:
        found: bytes = self.source.read(size)
        self.count += len(found)
        if self.count + (getattr(self.source, "length", None) or 0) > self.most:  # what is left
            raise OSError(
                f"fetch: {self.url} has more than {self.most} bytes; make room, or give max_bytes"
            )
        return found


def _download(url: str, target: Path, gunzip: bool, sha256: str | None, most: int) -> None:
    import urllib.request  # noqa: PLC0415  30 ms and 3 MiB, for the few that download
    from http.client import HTTPException  # noqa: PLC0415

    descriptor, temporary = tempfile.mkstemp(prefix=".writing-", dir=target.parent)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            urllib.request.urlopen(
                urllib.request.Request(url, headers={"User-Agent": "tinycore"}), timeout=60
            ) as answer,
            _shown(answer, url) as shown,
        ):
            packed: Any = _Bounded(shown, url, most)
            source = gzip.GzipFile(fileobj=packed) if gunzip else packed
            while part := source.read(1 << 20):
                if file.tell() > LEAST_UNPACKED + UNPACKED_EACH * packed.count:
                    raise OSError(
                        f"fetch: {packed.count} bytes of {url} unpack to more than {file.tell()}"
                    )
                file.write(part)
            if missing := getattr(answer, "length", None):  # what a server has announced, and kept
                raise OSError(f"fetch: {url} ended {missing} bytes before its end")
        os.replace(_checked(Path(temporary), url, sha256), target)
    except (HTTPException, EOFError, zlib.error) as error:
        raise OSError(f"fetch: {url}: {error!r}") from error
    except ValueError as error:  # of urllib, which has not asked yet
        raise ArgumentError(
            f"fetch: {url!r} is no URL ({error}); it begins with https://, a path with / or ./"
        ) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
