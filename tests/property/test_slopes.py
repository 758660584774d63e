"""Random gradients through writes against torch: a few here, any number by
`python -m tests.fuzz.slopes`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.slopes import RIGHT_OUTCOMES, check, program
from tinycore import Context


@pytest.mark.sample(3)
@pytest.mark.parametrize("part", range(3))
def test_gradients_through_writes_are_those_of_torch(part: int) -> None:
    kinds: Counter[str] = Counter()
    with Context(DEV="PYTHON", PARALLEL=1):
        for seed in range(part * 20, part * 20 + 20):
            found = program(seed)
            kind, message = check(found)
            kinds[kind] += 1
            assert kind in RIGHT_OUTCOMES, "\n".join(
                (f"seed {seed}: {kind}: {message}", *found.lines)
            )

    assert kinds[""] >= 8
    assert kinds["both"] >= 1
