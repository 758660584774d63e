"""The script for a card, on cards of a stand-in: every line says that it works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "hardware/run"
SUPPORT = TESTS.parents[2] / "tests/support"


@pytest.mark.slow
def test_the_script_writes_a_line_for_every_check(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    options = ["--register", "simulated_amd:BACKEND", "--by", "64", "--seconds", "0"]
    paths = os.pathsep.join(map(str, (TESTS, SUPPORT)))
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, SCRIPT, page, *options], check=True, env=environment)

    text = page.read_text()
    assert "failed" not in text, text
    assert text.count("| works |") == 18
    assert text.count("00 launches") >= 2
