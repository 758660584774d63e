"""Whoever watches launches is told of each, however it is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tinycore import Context, Tensor, TinyJit
from tinycore.engine.watch import Watch, watches


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Somebody who watches, on PYTHON."""
    found = Watch()
    watches.append(found)
    with Context(DEV="PYTHON"):
        yield found
    watches.remove(found)


def launches(watch: Watch) -> list[int]:
    """How often each program ran; all of them took time."""
    assert all(seconds > 0 for _, _, seconds in watch.seen.values())
    return [count for _, count, _ in watch.seen.values()]


def test_launches_are_added_up() -> None:
    watch, runner = Watch(), object()
    for seconds in (0.5, None, 0.25):
        watch.note(runner, seconds)

    assert watch.of(runner) == (3, 0.75)
    assert watch.of(object()) == (0, 0.0)
    assert list(watch.seen.values()) == [(runner, 3, 0.75)]


def test_results_are_noted(watch: Watch) -> None:
    x = Tensor([1.0, 2.0]).realize()
    watch.seen.clear()
    for _ in range(3):
        (x + 1).realize()

    assert launches(watch) == [3]


def test_writes_in_place_are_noted(watch: Watch) -> None:
    x = Tensor([1.0, 2.0]).realize()
    watch.seen.clear()
    x.assign(x * 2).realize()

    assert launches(watch) == [1]
    assert x.tolist() == [2.0, 4.0]


def test_replays_are_noted(watch: Watch) -> None:
    step = TinyJit(lambda x: (x * 3).realize())
    x = Tensor([1.0, 2.0]).realize()
    for _ in range(2):
        step(x)
    watch.seen.clear()

    assert step(x).tolist() == [3.0, 6.0]
    assert launches(watch) == [1]


def test_nobody_is_told_who_does_not_watch_any_more(watch: Watch) -> None:
    x = Tensor([1.0, 2.0]).realize()
    watches.remove(watch)
    watch.seen.clear()
    (x + 1).realize()
    watches.append(watch)

    assert not watch.seen
