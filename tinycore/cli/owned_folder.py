"""A folder whose files one command wrote, and may replace; files of others stay as they are.

Floor 6. Imports the errors.
A list in the folder names each file that was written, with its digest. The next time, files of that
list are replaced or removed if they are as they were written. Everything is written to a folder
apart first, so that a failure changes no file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tinycore.errors import ArgumentError

__all__ = ["LIST", "replacing_folder"]

LIST: Final = ".tinycore-export.json"
"""The name of the list of files."""


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, whose files go to `folder` when the block ends well.

    Raises ArgumentError where that would overwrite or remove a file that was not written so, or
    would go through a link, and OSError when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    owned = files_owned(folder)
    with tempfile.TemporaryDirectory(prefix=".tinycore-export-", dir=folder) as name:
        new = Path(name)
        yield new
        files = sorted(place for place in new.rglob("*") if place.is_file())
        digests = {place.relative_to(new).as_posix(): digest(place) for place in files}
        verify_untouched(folder, owned, [*digests, LIST])
        (new / LIST).write_text(json.dumps(digests, indent=1) + "\n", "utf-8")
        for place in owned.keys() - digests.keys():
            (folder / place).unlink(missing_ok=True)
        for place in [*digests, LIST]:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            os.replace(new / place, folder / place)


def digest(place: Path) -> str:
    """The SHA-256 of a file."""
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_owned(folder: Path) -> dict[str, str]:
    """Digests of the files that the list in a folder names, by their paths; none without a list."""
    place = folder / LIST
    if not place.is_file() or place.is_symlink():
        return {}
    try:
        found = json.loads(place.read_bytes())
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: known
        for name, known in found.items()
        if isinstance(known, str) and ".." not in Path(name).parts and not Path(name).is_absolute()
    }


def verify_untouched(folder: Path, owned: dict[str, str], places: list[str]) -> None:
    """Raises ArgumentError for a file that would be lost, and for a link on the way to one."""
    for name in sorted({*places, *owned}):
        place = folder / name
        links = [p for p in (place, *place.parents) if p.is_relative_to(folder) and p != folder]
        if any(link.is_symlink() for link in links):
            raise ArgumentError(f"{place} goes through a link. Name an empty folder.")
        if not place.exists() or (name == LIST and owned):
            continue
        if name not in owned:
            why = "is there already, and no export wrote it"
        elif digest(place) != owned[name]:
            why = "was changed since it was exported"
        else:
            continue
        raise ArgumentError(f"{place} {why}. Move it away, or name an empty folder.")
