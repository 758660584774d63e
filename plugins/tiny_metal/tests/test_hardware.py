"""The script for a Mac, from end to end on the mock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_script_for_a_mac_runs(mock: None, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    script = ROOT / "plugins/tiny_metal/hardware/run"
    folders = [str(ROOT / "plugins/tiny_metal/tests"), str(ROOT / "tests/support")]
    done = subprocess.run(
        [sys.executable, script, page, "--seconds=0.01", "--register=simulated_metal:BACKEND"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text()
    assert "| A product of bfloat16 matrices | right | relative error" in text
    assert (
        "| Lanes of a SIMD group hold the elements of a matrix that plans rely on | right |" in text
    )
    assert "| Objects respond to every message that is sent to them | right |" in text
    assert "TFLOP/s" in text
    assert "WRONG" not in text
