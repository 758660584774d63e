"""The script for a card, on cards of a stand-in, and the one that compiles for cards not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "hardware/run"
COMPILE = TESTS.parent / "hardware/compile"
SUPPORT = TESTS.parents[2] / "tests/support"


@pytest.mark.slow
def test_the_script_writes_a_line_for_every_check(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    options = ["--register", "simulated_amd:BACKEND", "--by", "64", "--seconds", "0"]
    paths = os.pathsep.join(map(str, (TESTS, SUPPORT)))
    environment = {**os.environ, "PYTHONPATH": paths, "VERIFY": "0"}
    subprocess.run([sys.executable, SCRIPT, page, *options], check=True, env=environment)

    text = page.read_text()
    assert "failed" not in text, text
    assert text.count("| works |") == 18
    assert text.count("00 launches") >= 2


@pytest.mark.slow
def test_kernels_compiled_for_cards_have_matrix_instructions_and_no_scratch(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    options = ["--archs", "gfx1100", "--only", "conv 3x3"]
    done = subprocess.run([sys.executable, COMPILE, page, *options], check=False)

    lines = page.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| gfx1100 | conv 3x3")]
    matrix, scratch = zip(*(map(int, row.split("|")[12:14]) for row in rows), strict=True)
    assert done.returncode == 0
    assert len(rows) == 2
    assert min(matrix) > 0
    assert scratch == (0, 0)
