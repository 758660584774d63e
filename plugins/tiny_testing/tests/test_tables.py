"""The committed tables: every device in them conforms, and every exception has a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "docs/conformance"
PAGES = ("suite", "training")
"""Pages that are no table of devices."""
TABLES = sorted(path for path in FOLDER.glob("*.md") if path.stem not in PAGES)


def rows(path: Path, first: str) -> list[list[str]]:
    """Cells of the rows that begin with a word, or a name of a device."""
    lines = path.read_text("utf-8").splitlines()
    found = [line for line in lines if re.match(rf"\| {first}", line)]
    return [[cell.strip() for cell in row.removeprefix("|").split(" |")] for row in found]


def test_there_are_tables() -> None:
    assert {"amd", "cpu", "nv", "python"} <= {path.stem for path in TABLES}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_device_of_a_table_passed_all_that_it_claims(path: Path) -> None:
    devices = rows(path, "[A-Z]")

    assert path.read_text("utf-8").startswith(f"# Conformance of {path.stem.upper()}\n")
    assert devices
    for name, played, _, *levels in devices:
        assert played
        wanted = 2 if name in ("AMD-PCI", "AMD-USB") else 6
        assert sum(bool(re.fullmatch(r"\d+/\d+", level)) for level in levels) == wanted, name
    assert "disproven" not in path.read_text("utf-8")


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_what_did_not_simply_pass_has_a_reason(path: Path) -> None:
    trials = rows(path, "`test_")

    assert trials
    for trial, verdict, devices, reason, _ in trials:
        assert verdict in ("not claimed", "not applicable", "passed unclaimed"), trial
        assert devices
        assert reason
