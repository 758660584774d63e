"""Write the tables of docs/reference/: dtypes, and every environment variable.

    python docs/generate_tables.py

The other pages of that folder name what mkdocstrings shows of the docstrings.
`tests/test_reference.py` fails when a table is not what this script would write.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tinycore import dtypes
from tinycore.config import PluginSettings, Setting, settings

FOLDER: Final = Path(__file__).with_name("reference")


def dtype_page() -> str:
    """Every dtype with its width, and its other names."""
    lines = [
        "# dtypes",
        "",
        "`from tinycore import dtypes`. Names that mean the same stand in one row.",
        "",
        "| dtype | bytes | least | greatest | also |",
        "|---|---|---|---|---|",
    ]
    for dtype in dtypes.all:
        same = [n for n in dir(dtypes) if n != dtype.name and getattr(dtypes, n) is dtype]
        also = ", ".join(f"`{n}`" for n in same if not n.startswith("default"))
        least, greatest = (f"{limit + 0}" for limit in (dtypes.min(dtype), dtypes.max(dtype)))
        lines.append(f"| `{dtype.name}` | {dtype.itemsize} | {least} | {greatest} | {also} |")
    return "\n".join(lines) + "\n"


def plugin_settings() -> dict[str, list[Setting[Any]]]:
    """The tables of the plugins of this tree, installed or not, by the name in their docstring."""
    found: dict[str, list[Setting[Any]]] = {}
    for path in sorted(FOLDER.parent.parent.glob("plugins/*/src/*/settings.py")):
        sys.path.append(str(path.parent.parent))
        try:
            module = importlib.import_module(f"{path.parent.name}.settings")
        finally:
            sys.path.pop()
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__:
                found[kind.__name__.removesuffix("Settings").upper()] = list(table_of(kind))
    return found


def table_of(kind: type) -> Iterable[Setting[Any]]:
    """The rows of a plugin's table; none of another class."""
    return kind.table() if issubclass(kind, PluginSettings) else ()


def settings_page() -> str:
    """The table of environment variables: the core's, then those of each plugin."""
    lines = [
        "# Environment variables",
        "",
        "Every setting, written from `tinycore/config.py` and the `settings.py` of each plugin by",
        "`docs/generate_tables.py`. `tinycore settings` prints their values in force, and where",
        "each comes from. A program sets one by `with Context(DEBUG=2): ...`. A setting of",
        "the core is also read with the prefix `TINYCORE_` (`TINYCORE_DEBUG=2`), which wins.",
        "",
    ]
    tables: dict[str, Iterable[Setting[Any]]] = {"tinycore": settings, **plugin_settings()}
    for name, table in tables.items():
        lines += [f"## `{name}`", "", "| variable | default | allowed | what it does |"]
        lines.append("|---|---|---|---|")
        lines += [
            f"| `{row.name}` | {default_of(row)} | {row.allowed} | {row.doc} |" for row in table
        ]
        lines.append("")
    return "\n".join(lines)


def default_of(row: Setting[Any]) -> str:
    """The default of a setting as its variable would spell it; nothing where it is empty."""
    value = row.default
    if isinstance(value, tuple):
        value = ",".join(value)
    elif isinstance(value, bool):
        value = int(value)
    return "" if value in ("", None) else f"`{value}`"


def generate() -> dict[str, str]:
    """Each table by the name of its page."""
    return {"dtypes.md": dtype_page(), "settings.md": settings_page()}


def main() -> None:
    """Write the pages."""
    for file, text in generate().items():
        (FOLDER / file).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
