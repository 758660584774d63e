"""Random gradients of leaves against torch: a few here, any number by
`python -m tests.fuzz.leaves`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.leaves import REFUSED, check, program_of, shown
from tinycore import Context


@pytest.mark.sample(3)
@pytest.mark.parametrize("part", range(3))
def test_values_and_gradients_of_leaves_are_those_of_torch(part: int) -> None:
    kinds: Counter[str] = Counter()
    with Context(DEV="PYTHON", PARALLEL=1):
        for seed in range(part * 5, part * 5 + 5):
            found = program_of(seed)
            verdict = check(found)
            kinds[verdict.kind] += 1
            assert verdict.kind in {"", *REFUSED}, shown(found, verdict)

    assert kinds[""] >= 3
