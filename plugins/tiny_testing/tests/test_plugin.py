"""The suite under pytest, as the author of a backend runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

AUTHORS_FILE = '''"""Everything tinycore promises of a device."""
from tiny_testing.suite import *
DEVICE = "PYTHON"
SKIPS = Skips({skips})
'''


def pytest_run(folder: Path, *options: str, skips: str = "") -> subprocess.CompletedProcess[str]:
    """pytest over an author's file, in a process of its own."""
    (folder / "test_conformance.py").write_text(AUTHORS_FILE.format(skips=skips))
    command = [sys.executable, "-m", "pytest", "-p", "tiny_testing.plugin", "-q", "-rs"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", *options],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_an_authors_file_is_two_lines(tmp_path: Path) -> None:
    told = tmp_path / "out.json"
    options = ["--level", "3", "-k", "offset or view or graph_says", f"--conformance-json={told}"]
    done = pytest_run(tmp_path, *options, skips="graph='an interpreter gains nothing'")

    assert done.returncode == 0, done.stdout
    assert "an interpreter gains nothing" in done.stdout
    assert "PYTHON conforms up to level 3" in done.stdout
    found = json.loads(told.read_text("utf-8"))["PYTHON"]
    assert found["skips"] == {"graph": "an interpreter gains nothing"}
    assert found["counts"]["passed"] >= 10


@pytest.mark.slow
def test_a_claim_that_is_skipped_fails_the_run(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, "-k", "mapped_memory", skips="host_memory='far away'")

    assert done.returncode == 1
    assert "the backend claims host_memory, and SKIPS leaves it out" in done.stdout


@pytest.mark.slow
def test_levels_above_are_left_out(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, "--level", "0", "--collect-only", "-v")

    assert "test_the_declaration_is_complete" in done.stdout
    assert "test_what_is_written_is_read" not in done.stdout


@pytest.mark.slow
def test_without_the_plugin_a_case_is_not_quietly_passed(tmp_path: Path) -> None:
    (tmp_path / "test_conformance.py").write_text(AUTHORS_FILE.format(skips=""))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "leak or dtypes"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode != 0
    assert "fixture 'subject' not found" in done.stdout
