"""Whoever profilers launches is told of each, however it is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from tinycore import Context, Tensor, TinyJit
from tinycore.cli.tune import LaunchTimes
from tinycore.device.protocols import Program
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.counters import profilers


@pytest.fixture
def profiler() -> Iterator[LaunchTimes]:
    """Somebody who profilers, on PYTHON."""
    found = LaunchTimes()
    profilers.append(found)
    with Context(DEV="PYTHON"):
        yield found
    profilers.remove(found)


def launches(profiler: LaunchTimes) -> list[int]:
    """Number of launches of each program; all of them took time."""
    assert all(seconds > 0 for _, seconds in profiler.seen.values())
    return [count for count, _ in profiler.seen.values()]


def test_launches_are_added_up() -> None:
    profiler, runner = LaunchTimes(), object()
    for seconds in (0.5, None, 0.25):
        profiler.record(runner, seconds)

    assert profiler.of(runner) == (3, 0.75)
    assert profiler.of(object()) == (0, 0.0)
    assert profiler.seen == {runner: (3, 0.75)}


def test_results_are_noted(profiler: LaunchTimes) -> None:
    x = Tensor([1.0, 2.0]).realize()
    profiler.seen.clear()
    for _ in range(3):
        (x + 1).realize()

    assert launches(profiler) == [3]


def test_writes_in_place_are_noted(profiler: LaunchTimes) -> None:
    x = Tensor([1.0, 2.0]).realize()
    profiler.seen.clear()
    x.assign(x * 2).realize()

    assert launches(profiler) == [1]
    assert x.tolist() == [2.0, 4.0]


def test_replays_are_noted(profiler: LaunchTimes) -> None:
    step = TinyJit(lambda x: (x * 3).realize())
    x = Tensor([1.0, 2.0]).realize()
    for _ in range(2):
        step(x)
    profiler.seen.clear()

    assert step(x).tolist() == [3.0, 6.0]
    assert launches(profiler) == [1]


def test_nobody_is_told_who_does_not_watch_any_more(profiler: LaunchTimes) -> None:
    x = Tensor([1.0, 2.0]).realize()
    profilers.remove(profiler)
    profiler.seen.clear()
    (x + 1).realize()
    profilers.append(profiler)

    assert not profiler.seen


def test_a_program_needs_no_hash(profiler: LaunchTimes) -> None:
    (Tensor([1.0, 2.0]).realize() + 1).realize()
    (runner,) = profiler.seen
    assert isinstance(runner, CompiledRunner)
    of_a_dataclass = replace(runner, program=cast("Program", []))
    profiler.record(of_a_dataclass, 0.5)

    assert profiler.of(of_a_dataclass) == (1, 0.5)
    assert profiler.of(runner)[0] == 1
