"""Write docs/map.md: every file of the core, floor by floor, in the order that data takes.

    python docs/generate_map.py

The order comes from the docstring of each floor's `__init__.py`, which lists its files; what a file
is for comes from the first line of its own docstring. `tests/test_map.py` fails when a file is in
no list, is listed and gone, or when the page is not what this script would write.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CORE: Final = ROOT / "tinycore"
PAGE: Final = Path(__file__).with_name("map.md")

FLOORS: Final = ("uop", "device", "render", "schedule", "lower", "engine", "tensor", "nn")
"""The floors whose docstrings list their files, from the lowest to the highest."""

LISTED: Final = re.compile(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`")
"""A file in a docstring, or a folder with a slash at its end, which stands for its files."""

INTRODUCTION: Final = """\
# Map of the core

Every file with its first line, in the order in which data passes them; written by
`docs/generate_map.py` from the docstrings. How each floor works is on its page:
{pages}.
"""


def docstring(path: Path) -> str:
    """The docstring of a module."""
    return ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""


def first_sentence(path: Path) -> str:
    """The first line of a module's docstring, for a cell of a table."""
    return docstring(path).split("\n")[0].replace("|", "\\|")


def listed_files(floor: str) -> list[str]:
    """The files that the docstring of a floor lists, once each, relative to the floor.

    A file of a listed folder may be named again below the folder's line; a package's face is none.
    """
    folder = CORE / floor
    found: dict[str, None] = {}
    for name in LISTED.findall(docstring(folder / "__init__.py")):
        inside = sorted((folder / name).rglob("*.py")) if name.endswith("/") else [folder / name]
        found |= dict.fromkeys(path.relative_to(folder).as_posix() for path in inside)
    nested = {path.name for path in folder.rglob("*/*.py")} | {"__init__.py"}
    return [name for name in found if is_file(folder / name) or Path(name).name not in nested]


def is_file(path: Path) -> bool:
    """Existing module, other than the `__init__.py` of a package."""
    return path.exists() and path.name != "__init__.py"


def files_of(floor: str) -> set[str]:
    """The files of a floor, without `__init__.py`, relative to the floor."""
    folder = CORE / floor
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    return {name for name in names if not name.endswith("__init__.py")}


def table(floor: str) -> Iterator[str]:
    """The part of the page on one floor."""
    folder = CORE / floor
    yield f"\n## `{floor}/`\n"
    yield f"{first_sentence(folder / '__init__.py')} See [how it works](floors/{floor}.md).\n"
    yield "| file | what it is for |"
    yield "|---|---|"
    for name in listed_files(floor):
        yield f"| `{name}` | {first_sentence(folder / name)} |"


def generate() -> str:
    """The page."""
    pages = ", ".join(f"[{floor}](floors/{floor}.md)" for floor in FLOORS)
    lines = [INTRODUCTION.format(pages=pages).rstrip("\n")]
    for floor in FLOORS:
        lines += table(floor)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(generate(), "utf-8")
