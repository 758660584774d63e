"""The tour names files that exist, so that whoever follows it arrives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tinycore.schedule.pipeline import PASS_NAMES

ROOT = Path(__file__).resolve().parent.parent
TOUR = (ROOT / "docs" / "tour.md").read_text("utf-8")
PATHS = sorted(set(re.findall(r"`([a-z_]+(?:/[\w.]+)+|[a-z_]+\.py)`", TOUR)))


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_the_tour_names_exists(path: str) -> None:
    assert (ROOT / "tinycore" / path).exists() or (ROOT / path).exists()


def test_the_tour_lists_the_passes_of_scheduling() -> None:
    table = TOUR.partition("| pass | file |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]

    assert tuple(rows) == PASS_NAMES
