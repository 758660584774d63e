"""Random functions with and without TinyJit: a few here, any number by
`python -m tinycore.testing.captures`."""

from __future__ import annotations

from collections import Counter

import pytest

from tinycore import Context
from tinycore.tensor.environment import Guard
from tinycore.testing.captures import check, world


@pytest.mark.parametrize(
    "first", [8, pytest.param(0, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)]
)
def test_functions_do_the_same_under_tinyjit_or_are_refused(first: int) -> None:
    kinds: Counter[str] = Counter()
    with Context(DEV="PYTHON"):
        for seed in range(first, first + 8):
            found = world(seed)
            kind, message = check(found)
            kinds[kind] += 1
            assert kind in ("", "refused"), f"seed {seed}: {kind}\n{message}\n{found}"

    assert kinds[""] >= 3


def test_a_guard_that_sees_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Guard.find

    def blind(guard: Guard, roots: tuple[object, ...]) -> object:
        found = [(*roots, *guard.more)]
        for box in guard.boxes:
            found.append(box.values(found[box.parent][box.place]))
        return right(guard, roots) or found

    monkeypatch.setattr(Guard, "find", blind)
    with Context(DEV="PYTHON"):
        assert any(check(world(seed))[0] in ("result", "state") for seed in range(40))
