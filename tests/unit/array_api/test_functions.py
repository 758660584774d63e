"""Every function that is not elementwise, on the cases that `cases` lists for it."""

from __future__ import annotations

import pytest

from tests.unit.array_api.cases import CASES
from tests.unit.array_api.comparing import run_both
from tests.unit.array_api.conftest import FULL

pytestmark = pytest.mark.sample(20)

SLACK = {name: 64.0 for name in CASES if name.startswith("linalg.")}
"""Elimination and norms take several steps, here of matrices with condition numbers below 8."""

SIGNLESS = {"max", "min", "sum", "prod", "cumulative_sum", "cumulative_prod", "mean"}


ROTATED = {f"linalg.{n}" for n in "eigh eigvalsh matrix_rank pinv svd svdvals".split()}
"""Hundreds of kernels, which take the interpreter long."""

PLACES = [(name, FULL) for name in CASES]
PLACES += [(name, "PYTHON") for name in CASES if name not in ROTATED]


@pytest.mark.parametrize(("name", "target"), PLACES)
def test_function(name: str, target: str) -> None:
    for number, case in enumerate(CASES[name][: None if target == FULL else 1]):
        run_both(case, f"{name}, case {number}", SLACK.get(name, 1.0), sign=False)
