"""The script for a card, from end to end on cards that the executor plays: it runs, and says so."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "hardware/run"


@pytest.mark.usefixtures("simulated")
@pytest.mark.slow
def test_the_script_writes_a_line_for_every_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    given = [str(SCRIPT), str(page), "--by", "512", "--seconds", "0"]
    monkeypatch.setattr(sys, "argv", given)

    runpy.run_path(str(SCRIPT), run_name="__main__")

    text = page.read_text()
    assert "Failed" not in text, text
    assert "# CUDA on A card that is not there" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 36
