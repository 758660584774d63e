"""Packages that earlier versions of `tinycore new-backend` wrote: they compute and conform once
they state this version of the plugin API, and are refused until then.

`frozen/packages` has their sources as they were written: tinycore_ancient when the plugin API was
1.5, tiny_older, which has queues, when it was 1.8. They are never changed.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy
import pytest

from tiny_testing.suite.case import Level, trials
from tiny_testing.suite.judge import Skips, Verdict
from tiny_testing.suite.run import run_here
from tiny_testing.suite.subject import Subject
from tinycore import Device, Tensor, TinyJit, Variable
from tinycore.errors import PluginError
from tinycore.plugin import API_VERSION, Backend, register, unregister

PACKAGES: Final = Path(__file__).with_name("frozen") / "packages"
NAMES: Final = ("tinycore_ancient", "tiny_older")
SAMPLE: Final = (
    "test_opening_finds_what_is_declared",
    "test_what_is_written_is_read[4096]",
    "test_an_operation[ADD-float32]",
    "test_an_operation[IDIV-int32]",
    "test_a_cast[float32-int32]",
    "test_a_reduction[ADD-float32-rows]",
    "test_movement[pad]",
    "test_views_are_arguments[4]",
    "test_variables_are_passed_by_name",
    "test_loops_of_symbolic_length",
    "test_threads_have_arrays",
    "test_a_graph_outlives_the_scratch_it_was_made_with",
    "test_a_graph_launches_the_groups_of_its_values",
    "test_a_graph_takes_other_memory_and_values",
    "test_a_copier_copies_within_and_between_devices[4097]",
)


@pytest.fixture(params=NAMES)
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    """The backend of a package of before, registered for this version of the plugin API."""
    for source in (PACKAGES / request.param).glob("*.txt"):
        target = tmp_path / request.param / source.stem
        target.parent.mkdir(exist_ok=True)
        target.write_text(source.read_text("utf-8"), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found: Backend = importlib.import_module(request.param).BACKEND
    assert found.api[0] == 1
    found = replace(found, api=API_VERSION)
    register(found)
    yield found
    unregister(found.name)
    for name in [name for name in sys.modules if name.partition(".")[0] == request.param]:
        del sys.modules[name]


def test_a_package_of_before_conforms(backend: Backend) -> None:
    chosen = [trial for trial in trials(Level.MODELS) if trial.name in SAMPLE]
    results = list(run_here(Subject(backend.name, Skips()), chosen))
    failed = {r.name: r.judgement.reason for r in results if r.judgement.verdict is Verdict.FAILED}
    passed = [r for r in results if r.judgement.verdict is Verdict.PASSED]

    assert len(chosen) == len(SAMPLE)
    assert failed == {}
    assert len(passed) >= 10


def test_a_package_of_before_computes_and_replays(backend: Backend) -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).softmax(-1).realize()

    captured, rows = TinyJit(step), numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    for turn in range(4):
        x, y = (Tensor(a + turn, device=backend.name).realize() for a in (rows, rows.T.copy()))
        scores = (rows + turn) @ (rows.T + turn)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True)
        numpy.testing.assert_allclose(captured(x, y).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_symbolic_sizes_on_a_package_of_before(backend: Backend) -> None:
    numbers = numpy.arange(40, dtype=numpy.int32)
    x = Tensor(numbers, device=backend.name).realize()
    captured = TinyJit(lambda t, n: (t[:n] * 3).sum().realize())
    for count in (1, 7, 40, 13):
        found = captured(x, Variable("n", 1, 40).bind(count))
        assert found.item() == numbers[:count].sum() * 3


@pytest.mark.parametrize("minor", range(API_VERSION[1] + 1))
def test_every_minor_version_that_was_is_taken(backend: Backend, minor: int) -> None:
    unregister(backend.name)
    register(replace(backend, api=(API_VERSION[0], minor)))
    assert (Tensor([1, 2, 3], device=backend.name) + 1).tolist() == [2, 3, 4]
    Device.close(backend.name)


def test_a_package_of_version_1_is_refused_with_both(backend: Backend) -> None:
    unregister(backend.name)
    ours = re.escape(".".join(map(str, API_VERSION)))
    for version in ((1, 0), (1, 8), (1, 18), (1, 25)):
        theirs = re.escape(".".join(map(str, version)))
        refused = (
            rf"needs version {theirs} of the plugin API, this tinycore has {ours}: upgrade the"
        )
        with pytest.raises(PluginError, match=refused) as raised:
            register(replace(backend, api=version))
        assert "docs/write-a-backend.md" in str(raised.value)
    register(backend)


def test_a_version_that_is_not_there_yet_is_refused_with_both(backend: Backend) -> None:
    later = (API_VERSION[0], API_VERSION[1] + 1)
    unregister(backend.name)
    with pytest.raises(PluginError, match=rf"{later[0]}\.{later[1]}"):
        register(replace(backend, api=later))
    register(backend)
