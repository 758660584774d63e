"""Stamps of cache keys: tinycore's files, and the settings in force.

Floor 0. Imports `config`. Keys of the disk cache hold both, so that nothing made by other code, or
under other settings, is ever found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tinycore.config import settings

INDECISIVE_SETTINGS: Final = frozenset(
    {"DEBUG", "TRACE", "NO_COLOR", "VERIFY", "DEV", "LRU", "NULL_ALLOW_COPYOUT", "DATA_DIR"}
    | {"TINYCORE_PLUGINS", "TINYCORE_PLUGINS_DENY", "TINYCORE_STRICT", "TRAINING", "JIT", "RING"}
    | {"DEFAULT_FLOAT", "DEFAULT_INT", "CCACHE", "CACHE_DIR", "CACHE_SIZE"}
    | {"BEAM", "BEAM_SECONDS", "TUNED", "PARALLEL"}
)
"""Settings that do not affect how a given graph is lowered; new settings are assumed to."""


def decisive_settings() -> list[str]:
    """The settings that may affect lowering, each with its value."""
    return [f"{s.name}={s.value}" for s in settings if s.name not in INDECISIVE_SETTINGS]


@cache
def stamp(parts: tuple[str, ...], modules: tuple[str, ...] = ()) -> str:
    """A digest of the source files of parts of this package, and of those next to modules.

    Content is hashed, as sizes and times stay where a package is rebuilt with clamped times.
    """
    here = Path(__file__).parent
    folders = {here / part for part in parts}
    for name in modules:
        if file := getattr(sys.modules.get(name), "__file__", None):
            folders.add(Path(file).parent)
    digest = blake2b(digest_size=16)
    for file in sorted(file for folder in folders for file in sources(folder)):
        digest.update(str(file).encode() + content_of(file))
    return digest.hexdigest()


@cache
def content_of(file: Path) -> bytes:
    """The digest of one file, which several stamps may ask for."""
    return blake2b(file.read_bytes(), digest_size=16).digest()


def sources(place: Path) -> Iterator[Path]:
    """The Python files in a folder, or the file itself."""
    return iter((place,)) if place.is_file() else place.glob("*.py")
