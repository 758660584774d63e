"""The tests that README.md names exist, and every file of tests is named."""

from __future__ import annotations

import re
from pathlib import Path

from kgsl_faults import FAULTS

FOLDER = Path(__file__).parent


def names_in(file: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE))


def test_named_tests_exist() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    rows = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")]
    named = [re.fullmatch(r" *(test_\w+): (.*)", part) for row in rows for part in row.split(";")]
    found = {match[1]: match[2] for match in named if match}
    assert len([row for row in rows if ":" in row]) == len(rows) - 2, "each row names tests"
    for match in filter(None, named):
        missing = set(match[2].strip().split(", ")) - names_in(FOLDER / f"{match[1]}.py")
        assert not missing, f"{match[1]} has no {missing}"
    files = {path.stem for path in FOLDER.glob("test_*.py")} - {Path(__file__).stem}
    assert files == set(found)
    assert f"the driver with {len(FAULTS)} faults" in text
