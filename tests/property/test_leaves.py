"""Random gradients of leaves against torch: a few here, any number by
`python -m tests.fuzz.leaves`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.leaves import REFUSED, check, program_of, shown
from tests.fuzz.writes import Program
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


@pytest.mark.parametrize(("value", "kind"), [("x0", "cut"), ("x0.detach()", "")])
def test_a_write_through_a_detached_tensor_of_what_has_no_name(value: str, kind: str) -> None:
    lines = (
        "x0 = param(real(1.0, 2.0))",
        "x1 = slope((x0 * x0).sum(), x0)",
        f"write(x1, {value})",
        "back((x1 * 2).sum() + (x0 * 3).sum())",
        "names = ['x0', 'x1']",
        "asked = ['x0']",
    )
    found = Program(0, lines)

    with Context(DEV="PYTHON", PARALLEL=1):
        verdict = check(found)

    assert verdict.kind == kind, shown(found, verdict)
