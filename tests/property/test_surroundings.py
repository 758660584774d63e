"""Random programs around a captured function: a few here, any number by
`python -m tests.fuzz.surroundings`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.surroundings import check, program, shown
from tinycore import Context
from tinycore.tensor.capture import recorded_call
from tinycore.tensor.guards.guard import Guard


@pytest.mark.parametrize("first", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_programs_see_the_same_around_a_capture(first: int) -> None:
    kinds: Counter[str] = Counter()
    with Context(DEV="PYTHON"):
        for seed in range(first, 6 if first == 0 else 60):
            verdict = check(program(seed))
            kinds[verdict.kind] += 1
            assert verdict.kind in ("", "refused"), shown(program(seed), verdict)

    assert kinds[""] >= 3


@pytest.mark.slow
def test_a_replay_that_leaves_waiting_values_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded_call, "finish_reads", lambda overwritten: None)

    with Context(DEV="PYTHON"):
        assert any(check(program(seed)).kind == "seen" for seed in range(60))


@pytest.mark.slow
def test_a_guard_that_holds_always_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "holds", lambda guard, roots: True)

    with Context(DEV="PYTHON"):
        assert any(check(program(seed)).kind == "seen" for seed in range(60))
