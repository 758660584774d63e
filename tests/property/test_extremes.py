"""Random gradients of extremes over values that kernels compute again: a few here, any number by
`python -m tests.fuzz.extremes`."""

from __future__ import annotations

import pytest

from tests.fuzz.extremes import check, program, shown
from tinycore import Context


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_elements_chosen_pass_on_their_gradient_whole(part: int) -> None:
    with Context(PARALLEL=1):
        for seed in range(part * 8, part * 8 + 8):
            found = program(seed)
            verdict = check(found)
            assert verdict.kind in ("", "large"), shown(found, verdict)
