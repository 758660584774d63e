"""Each rule of the stand-in of NVIDIA's driver is broken by a program: rm_checks.py lists them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rm_checks import rules

TESTS = Path(__file__).parent
PAGE = TESTS.parents[2] / "benchmarks/results/2026-11-24-nv-rules.md"
LIMIT_SECONDS = 600


def test_the_page_has_a_row_for_each_rule() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][2:]

    assert len(rows) == len(rules()) > 300
    for row, rule in zip(rows, rules(), strict=True):
        test = row.rpartition(" | `")[2].removesuffix("` |").replace("\\|", "|")
        assert row == rule.row(test), "write it anew with rm_checks.py --page"
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (TESTS / file).read_text("utf-8"), row


@pytest.mark.slow
def test_each_rule_is_broken_by_a_program() -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "rm_checks.py")],
        capture_output=True,
        check=False,
        text=True,
        timeout=LIMIT_SECONDS,
    )

    assert done.returncode == 0, done.stdout
    count = re.search(r"^(\d+) of (\d+) rules are broken by a test$", done.stdout, re.MULTILINE)
    assert count is not None
    assert count[1] == count[2]
