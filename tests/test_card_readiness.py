"""docs/card-readiness.md: it has every row, and the tests that it names are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs/card-readiness.md").read_text("utf-8")
ROWS: Final = {
    cells[0].split()[0]: cells
    for line in PAGE.splitlines()
    if re.match(r"\| [ABC]\d", line)
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
TESTS: Final = [
    (row, *named)
    for row, cells in ROWS.items()
    for named in re.findall(r"`([\w/]+\.py)::(\w+)`", cells[2])
]


@cache
def names_of(path: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    return frozenset(re.findall(r"^def (test_\w+)", (ROOT / path).read_text("utf-8"), re.MULTILINE))


def test_the_page_has_every_row() -> None:
    letters = {"A": 11, "B": 9, "C": 7}
    assert list(ROWS) == [f"{k}{n}" for k, most in letters.items() for n in range(1, most + 1)]
    assert {len(cells) for cells in ROWS.values()} == {4}


@pytest.mark.parametrize(("row", "path", "name"), TESTS)
def test_a_test_that_is_named_is_there(row: str, path: str, name: str) -> None:
    assert name in names_of(path), f"{row}: name the test of {path} that proves it now"


def test_every_row_has_a_test() -> None:
    assert {row for row, _, _ in TESTS} == set(ROWS)
