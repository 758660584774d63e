"""The committed tables: every device in them conforms, and every exception has a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "docs/conformance"
PAGES = ("suite", "training", "walk")
"""Pages that are no table of a device."""
LEVELS = {"amd-pci": 1, "amd-usb": 1}
"""Tables that end before the last level."""
TABLES = sorted(path for path in FOLDER.glob("*.md") if path.stem not in PAGES)


def test_there_are_tables() -> None:
    assert {"python", "cpu-llvm"} <= {path.stem for path in TABLES}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_is_of_a_device_that_conforms(path: Path) -> None:
    text = path.read_text("utf-8")

    assert re.search(r"^# Conformance of \S+$", text, re.MULTILINE)
    assert f"It conforms up to level {LEVELS.get(path.stem, 5)}." in text
    assert "disproven" not in text


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_what_did_not_simply_pass_has_a_reason(path: Path) -> None:
    rows = [line for line in path.read_text("utf-8").splitlines() if line.startswith("| `test_")]

    assert [row for row in rows if not row.rstrip(" |").rpartition("|")[2].strip()] == []
