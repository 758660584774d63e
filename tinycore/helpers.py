"""Small conveniences that programs import by this name: settings, counters, timing, progress bars.

Floor 6, on the public API only. tinycore's own floors import what they need from where it lives.
"""

from __future__ import annotations

import gzip
import math
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from tinycore.cache import cache_folder
from tinycore.config import Context, Settings, cpu_count, environment, settings
from tinycore.engine.counters import GlobalCounters
from tinycore.errors import SettingError
from tinycore.trace import ansilen, ansistrip, colored

if TYPE_CHECKING:
    from tqdm import tqdm, trange

__all__ = [
    "DEBUG",
    "JIT",
    "NOOPT",
    "Context",
    "GlobalCounters",
    "Timing",
    "ansilen",
    "ansistrip",
    "argsort",
    "ceildiv",
    "colored",
    "cpu_count",
    "dedup",
    "fetch",
    "flatten",
    "getenv",
    "prod",
    "round_up",
    "settings",
    "tqdm",
    "trange",
]

T = TypeVar("T")
Default = TypeVar("Default", bool, int, float, str)

DEBUG: Final = Settings.DEBUG
JIT: Final = Settings.JIT
NOOPT: Final = Settings.NOOPT

prod: Final = math.prod


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
        kind = type(default).__name__
        raise SettingError(f"{name}={found} is not understood; allowed is any {kind}.") from error


class Timing:
    """Prints how long a `with` block took: `with Timing("load: "): ...` gives `load: 12.34 ms`.

    `on_exit` gets the nanoseconds and returns more text for the line; `seconds` keeps the time.
    """

    def __init__(
        self, prefix: str = "", on_exit: Callable[[int], str] | None = None, enabled: bool = True
    ) -> None:
        self.prefix = prefix
        self.on_exit = on_exit
        self.enabled = enabled
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        nanoseconds = time.perf_counter_ns() - self._start
        self.seconds = nanoseconds * 1e-9
        if self.enabled:
            more = self.on_exit(nanoseconds) if self.on_exit else ""
            print(f"{self.prefix}{nanoseconds * 1e-6:6.2f} ms{more}")


def dedup(items: Iterable[T]) -> list[T]:
    """The items in order, each once."""
    return list(dict.fromkeys(items))


def flatten(lists: Iterable[Iterable[T]]) -> list[T]:
    """The items of all lists in one list."""
    return [item for items in lists for item in items]


def argsort(items: Sequence[Any]) -> list[int]:
    """The positions in the order that sorts the items; the inverse of a permutation."""
    return sorted(range(len(items)), key=items.__getitem__)


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
) -> Path:
    """The local file with what `url` holds, downloaded once into the cache folder.

    A path or a `file:` URL of this machine is used where it lies. Raises OSError when the download
    fails; a file is only ever there whole.
    """
    if url.startswith(("/", ".")):
        return Path(url)
    if url.startswith("file:"):
        return Path(urllib.request.url2pathname(url.removeprefix("file:").removeprefix("//")))
    folder = cache_folder().parent / "downloads" / (subdir or "")
    target = folder / (name or blake2b(f"{url} {gunzip}".encode(), digest_size=20).hexdigest())
    if target.is_file() and allow_caching:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _download(url, target, gunzip)
    return target


def _shown(answer: Any, url: str) -> AbstractContextManager[Any]:
    """What is read from a server, with a bar while it is read if there is a terminal to draw on."""
    from tqdm import tqdm  # noqa: PLC0415  see __getattr__

    size, name = getattr(answer, "length", None), url.rpartition("/")[2]
    bar: AbstractContextManager[Any] = tqdm.wrapattr(
        answer, "read", total=size, desc=name or url, disable=None, leave=False
    )
    return bar


def _download(url: str, target: Path, gunzip: bool) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "tinycore"})
    descriptor, temporary = tempfile.mkstemp(prefix=".writing-", dir=target.parent)
    try:
        with (
            urllib.request.urlopen(request, timeout=60) as answer,
            os.fdopen(descriptor, "wb") as file,
            _shown(answer, url) as source,
        ):
            shutil.copyfileobj(gzip.GzipFile(fileobj=source) if gunzip else source, file)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
