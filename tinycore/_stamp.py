"""Stamps of cache keys: tinycore's files, and the settings in force.

Floor 0. Imports `config`. Keys of the disk cache hold both, so that nothing made by other code, or
under other settings, is ever found. What a floor makes is decided by itself and by lower floors, as
`tests/test_floors.py` proves: a stamp is of all files but those of higher floors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tinycore.config import reader_of, settings

HERE: Final = Path(__file__).parent

INDECISIVE_SETTINGS: Final = frozenset(
    "DEBUG TRACE VIZ NO_COLOR VERIFY DEV LRU NULL_ALLOW_COPYOUT DATA_DIR TINYCORE_PLUGINS "
    "TINYCORE_PLUGINS_DENY TINYCORE_STRICT TRAINING JIT DEFAULT_FLOAT DEFAULT_INT CCACHE CACHE_DIR "
    "CACHE_SIZE WAIT_TIMEOUT_MS BEAM BEAM_SECONDS TUNED PARALLEL".split()
)
"""Settings that affect neither how a given graph is scheduled nor how a kernel is lowered; new
settings are assumed to. BEAM and TUNED choose a plan, which has a place in keys of its own."""
DECISIVE_SETTINGS: Final = tuple(s.name for s in settings if s.name not in INDECISIVE_SETTINGS)
"""The names of all other settings of the core."""

decisive_values: Final = reader_of(DECISIVE_SETTINGS)
"""Their values now, for keys of tables in memory."""

ABOVE_TENSOR: Final = (
    *("__init__.py", "__main__.py", "groups.py", "helpers.py"),
    *("array_api", "cli", "linalg", "nn"),
)
"""The parts of this package on floors above that of tensors."""
ABOVE_ENGINE: Final = ("tensor", *ABOVE_TENSOR)
"""The parts of this package on floors above the engine's."""


def decisive_settings() -> list[str]:
    """The settings that may affect a schedule or a program, each with its value."""
    return [f"{n}={v}" for n, v in zip(DECISIVE_SETTINGS, decisive_values(), strict=True)]


@cache
def stamp(above: tuple[str, ...]) -> str:
    """A digest of the source files of this package, but for the parts that are above its user."""
    files = HERE.rglob("*.py")
    return digest_of(file for file in files if file.relative_to(HERE).parts[0] not in above)


@cache
def stamp_of_modules(names: tuple[str, ...]) -> str | None:
    """A digest of the source files in the folders of some modules.

    None where a module has no file, as that of an interactive session: what it does may change
    under the same name.
    """
    places = [getattr(sys.modules.get(name), "__file__", None) or "" for name in names]
    if not all(places):
        return None
    return digest_of({file for place in places for file in Path(place).parent.glob("*.py")})


def digest_of(files: Iterable[Path]) -> str:
    """A digest of some files.

    Content is hashed, as sizes and times stay where a package is rebuilt with clamped times.
    """
    digest = blake2b(digest_size=16)
    for file in sorted(files):
        digest.update(str(file).encode() + content_of(file))
    return digest.hexdigest()


@cache
def content_of(file: Path) -> bytes:
    """The digest of one file, which several stamps may ask for."""
    return blake2b(file.read_bytes(), digest_size=16).digest()
