"""Random gradients of leaves against torch: a few here, any number by
`python -m tests.fuzz.leaves`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.fuzz.leaves import REFUSED, check, program_of, shown
from tests.fuzz.writes import Program
from tinycore import Context


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "seeds", [range(5), range(5, 10), range(10, 15), (7, 15, 23, 215, 415)]
)  # the last ones are about views of memory that a write waits for
def test_values_and_gradients_of_leaves_are_those_of_torch(seeds: Sequence[int]) -> None:
    kinds: Counter[str] = Counter()
    with Context(DEV="PYTHON", PARALLEL=1):
        for seed in seeds:
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
