"""Random functions with and without TinyJit: a few here, any number by
`python -m tests.fuzz.captures`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.fuzz.captures import Position, Seen, World, check, world
from tinycore import Context, TinyJit
from tinycore.errors import JitError
from tinycore.tensor.guards.guard import Guard
from tinycore.tensor.methods.stream import stream


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


@pytest.mark.slow
def test_a_guard_that_sees_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "holds", lambda guard, roots: True)
    with Context(DEV="PYTHON"):
        assert any(check(world(seed))[0] in ("result", "state") for seed in range(40))


DRAWS = """
def step(x, default=2.0, *, n=1.0, bag=None):
    return x + s + Tensor.rand(3)

innermost, left = step, lambda: None
step = JIT(step)
"""
A_ROW = "Tensor([1.0, 2.0, 3.0]).realize()"
CALLS = [A_ROW, A_ROW, "s", A_ROW]
REFUSED_IN_THE_MIDDLE = World(1, DRAWS, [([], arguments) for arguments in CALLS])
"""The third call is refused before it draws: its argument is what the function reads outside."""


def test_a_refused_call_need_not_draw_the_numbers_of_the_call() -> None:
    with Context(DEV="PYTHON"):
        assert check(REFUSED_IN_THE_MIDDLE).kind == "refused"


def test_a_refused_call_that_draws_too_many_numbers_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = TinyJit.__call__

    def skipping(self: TinyJit[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return right(self, *args, **kwargs)
        except JitError:
            stream.take(100)
            raise

    monkeypatch.setattr(TinyJit, "__call__", skipping)
    with Context(DEV="PYTHON"):
        assert check(REFUSED_IN_THE_MIDDLE).kind == "result"


@pytest.mark.parametrize(
    ("before", "after", "possible", "impossible"),
    [
        ((1, 4), (1, 8), [(1, 4), (1, 6), (1, 8)], [(1, 3), (1, 9), (2, 4)]),
        ((1, 4), (2, 3), [(1, 4), (1, 5), (2, 0), (2, 3)], [(1, 3), (2, 4), (3, 0)]),
        ((1, 4), (1, 2), [(1, 4), (1, 0), (1, 2)], [(1, 3), (1, 5)]),
    ],
    ids=["draws", "chooses another seed", "starts over"],
)
def test_where_the_random_numbers_of_a_stopped_call_may_end(
    before: tuple[int, int],
    after: tuple[int, int],
    possible: list[tuple[int, int]],
    impossible: list[tuple[int, int]],
) -> None:
    seen = Seen("", None, {}, Position(*before), Position(*after))

    assert all(seen.may_stop_at(Position(*place)) for place in possible)
    assert not any(seen.may_stop_at(Position(*place)) for place in impossible)
