"""Trials are run apart, survive what kills their process, and are told as text, JSON and a page."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tiny_testing.accelerator.device import CORRECT, LIMITS, Memory, Span, backend_of
from tiny_testing.kernels import product
from tiny_testing.suite import shared
from tiny_testing.suite.case import CASES, Case, Level, NotApplicable, Trial, trials
from tiny_testing.suite.judge import Outcome, Skips, Verdict
from tiny_testing.suite.report import Report
from tiny_testing.suite.run import Plan, run_apart, run_here, subject_for, work
from tiny_testing.suite.subject import Subject
from tinycore.cli.main import main
from tinycore.device.registry import Device
from tinycore.dtype import dtypes
from tinycore.errors import DeviceError, PluginError, SettingError
from tinycore.lower.steps.stage import Stage
from tinycore.plugin import Backend, deferred

MIB = 1 << 20
COPIES = "test_what_is_written_is_read[6"


def dead_worker(plan: Plan, first: int, pipe: Connection) -> None:
    """Ends before anything else."""
    os._exit(3)


def hanging_worker(plan: Plan, first: int, pipe: Connection) -> None:
    """Never comes to an end."""
    pipe.send(first)
    time.sleep(60)


def crash_at_second(plan: Plan, first: int, pipe: Connection) -> None:
    if first == 0:
        for number, trial in enumerate(trials(plan.highest, plan.named)[:2]):
            pipe.send(number)
            if number == 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            pipe.send(next(run_here(subject_for(plan), [trial])))
    work(plan, first, pipe)


def test_every_case_says_what_it_proves() -> None:
    assert [name for name, case in CASES.items() if not case.meaning.endswith(".")] == []
    assert {case.level for case in CASES.values()} == set(Level)


def test_trials_have_names_of_their_own() -> None:
    names = [trial.name for trial in trials(Level.PERFORMANCE)]

    assert len(set(names)) == len(names) > 900


@pytest.mark.parametrize("units", [0, 132])
def test_trials_of_shared_memory_apply_to_any_number_of_units(
    monkeypatch: pytest.MonkeyPatch, units: int
) -> None:
    limits = replace(LIMITS, matrix=(), units=units, unit_threads=2048, unit_registers=65536)
    subject = Subject("PYTHON")
    monkeypatch.setattr(shared, "grid_limits", lambda subject: (limits, limits.grid))

    plan, _ = shared.sharing_plan(subject, product(32, 16, 32, dtypes.float32))

    assert any(isinstance(step, Stage) for step in plan)


@pytest.mark.slow
def test_a_crash_is_a_failure_and_the_others_go_on() -> None:
    plan = Plan("PYTHON", Level.MEMORY, COPIES)
    found = list(run_apart(plan, worker=crash_at_second))

    assert [r.outcome for r in found] == [
        Outcome.PASSED, Outcome.CRASHED, *[Outcome.PASSED] * (len(found) - 2),
    ]  # fmt: skip
    assert found[1].judgement.verdict is Verdict.FAILED
    assert found[1].judgement.reason == "crashed the process: SIGSEGV"
    assert [r.name for r in found] == [t.name for t in trials(plan.highest, plan.named)]


def test_a_trial_that_hangs_is_ended() -> None:
    found = next(run_apart(Plan("PYTHON", Level.MEMORY, COPIES), 0.5, hanging_worker))

    assert found.outcome is Outcome.CRASHED
    assert found.judgement.reason == "still ran after 0 s and was ended"


def test_a_process_that_dies_at_once_is_told() -> None:
    with pytest.raises(PluginError, match="ended the process with status 3 before trial 1"):
        list(run_apart(Plan("PYTHON", Level.MEMORY, COPIES), worker=dead_worker))


def report_of(*cases: Case) -> Report:
    subject = Subject("PYTHON")
    report = Report(subject, Level.MODELS)
    for result in run_here(subject, [Trial(case, None) for case in cases]):
        report.add(result)
    return report


def fails(subject: Subject) -> None:
    """Fails."""
    raise AssertionError("3 instead of 4")


def passes(subject: Subject) -> None:
    """Passes."""


def skips(subject: Subject) -> None:
    """Does not apply."""
    raise NotApplicable("there is nothing to try")


def case_of(function: object, *needs: str) -> Case:
    name = getattr(function, "__name__", "")
    return Case(name, Level.MEMORY, frozenset(needs), function, ())  # type: ignore[arg-type]


class LosingMemory(Memory):
    """Memory of a device that is lost by its third block; opened anew, it works."""

    lives = 1
    """Number of devices of this process that are lost so."""

    def alloc(self, size: int) -> Span:
        """`size` bytes, while there is a device."""
        kind = type(self)
        if kind.lives and self.used > 2 * MIB:
            self.is_lost = True
            kind.lives -= 1
        if getattr(self, "is_lost", False):
            raise DeviceError("the device is lost")
        return super().alloc(size)


def takes_much(subject: Subject) -> None:
    """Loses the device."""
    with subject.memory(3 * MIB):
        subject.allocator.alloc(1)


def copies(subject: Subject) -> None:
    """A copy."""
    assert subject.copies()


def test_a_trial_that_loses_the_device_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LosingMemory, "lives", 1)
    Device.register(backend_of(replace(CORRECT, name="LOSING", memory=LosingMemory)))
    try:
        subject = Subject("LOSING")
        cases = [case_of(copies), case_of(takes_much), case_of(copies), case_of(fails)]
        found = list(run_here(subject, [Trial(case, None) for case in cases]))
    finally:
        Device.close("LOSING")
        Device.unregister("LOSING")

    assert [r.outcome for r in found] == [
        Outcome.PASSED, Outcome.FAILED, Outcome.PASSED, Outcome.FAILED,
    ]  # fmt: skip
    assert [r.lost for r in found] == [False, True, False, False]
    assert "the device is lost" in found[1].detail
    assert found[1].detail.endswith("opened anew for the next trial")


def one_trial_a_process(plan: Plan, first: int, pipe: Connection) -> None:
    """As a device that is lost in each trial, and cannot be opened again in the process."""
    for result in run_here(subject_for(plan), trials(plan.highest, plan.named)[first : first + 1]):
        pipe.send(first)
        pipe.send(result)
    pipe.send(None)


@pytest.mark.slow
def test_a_process_that_ends_early_is_followed_by_another() -> None:
    plan = Plan("PYTHON", Level.MEMORY, COPIES)
    found = list(run_apart(plan, worker=one_trial_a_process))

    assert [r.name for r in found] == [t.name for t in trials(plan.highest, plan.named)]


def idle_worker(plan: Plan, first: int, pipe: Connection) -> None:
    """Runs nothing."""
    pipe.send(None)


def test_a_process_that_runs_nothing_is_followed_by_none() -> None:
    assert list(run_apart(Plan("PYTHON", Level.MEMORY, COPIES), worker=idle_worker)) == []


def test_a_claim_is_proven_or_disproven() -> None:
    report = report_of(
        case_of(passes, "float16"), case_of(fails, "int8"), case_of(passes, "graph"),
        case_of(fails), case_of(skips),
    )  # fmt: skip
    standing = {word.word: word.verdict for word in report.words()}

    assert standing["float16"] == "proven"
    assert standing["int8"] == "disproven"
    assert standing["graph"] == "works, though not claimed"
    assert standing["float64"] == "claimed, not tried"
    assert not report.is_conformant
    assert [r.judgement.reason for r in report.failures] == ["3 instead of 4"] * 2
    assert "| `skips`:  | not applicable | there is nothing to try |" in report.to_markdown()


def test_a_promise_that_is_left_out_disproves_no_dtype() -> None:
    subject = Subject("PYTHON", Skips(rounding="a quotient is a product with a reciprocal"))
    report = Report(subject, Level.MODELS)
    cases = (case_of(passes, "float32"), case_of(fails, "float32", "rounding"))
    for result in run_here(subject, [Trial(case, None) for case in cases]):
        report.add(result)
    standing = {word.word: word.verdict for word in report.words()}

    assert standing["float32"] == "proven"
    assert standing["rounding"] == "not claimed"
    assert report.is_conformant


def test_nothing_tried_is_not_conformant() -> None:
    assert not report_of().is_conformant


def test_the_command_tells_people_and_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, page = tmp_path / "out.json", tmp_path / "page.md"
    options = ["--level", "1", "--named", "of_a_view", "--in-process", "-v"]
    status = main(["conformance", "PYTHON", *options, "--json", str(told), "--markdown", str(page)])
    found = json.loads(told.read_text("utf-8"))

    assert status == 0
    assert found["conforms"] is True
    assert [trial["name"] for trial in found["trials"]] == ["test_a_view_of_a_view"]
    assert found["counts"] == {"passed": 1}
    assert page.read_text("utf-8").startswith("# Conformance of PYTHON\n")
    output = capsys.readouterr().out
    assert "ok    test_a_view_of_a_view\n" in output
    assert output.endswith("PYTHON conforms up to level 1\n")


def test_a_name_that_no_trial_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "PYTHON", "--level", "1", "--named", "zzz"]) == 1

    assert "no trial up to level 1 has 'zzz' in its name" in capsys.readouterr().err


def test_a_suite_file_gives_skips(tmp_path: Path) -> None:
    path = tmp_path / "test_conformance.py"
    path.write_text("from tiny_testing.suite import *\nSKIPS = Skips(graph='none yet')\n")

    assert dict(subject_for(Plan("PYTHON", 1, suite=path)).skips) == {"graph": "none yet"}
    path.write_text("SKIPS = {'graph': 'none yet'}\n")
    with pytest.raises(PluginError, match="write SKIPS = Skips"):
        subject_for(Plan("PYTHON", 1, suite=path))


def test_several_devices_are_refused() -> None:
    with pytest.raises(SettingError, match="conformance is tested of one device"):
        Subject("PYTHON;NULL")


LATE = Backend(
    name="LATE",
    api=(2, 0),
    open=deferred("tinycore.builtin.interpreter:PythonRuntime"),
    renderers={"PYTHON": deferred("tinycore.builtin.interpreter:toolchain")},
    capabilities=frozenset({"bool", "int32", "float32"}),
)


def test_a_backend_can_be_registered_first() -> None:
    try:
        subject = subject_for(Plan("LATE", 1, registers=(f"{__name__}:LATE",)))
        found = list(run_here(subject, trials(Level.MEMORY, "test_the_dtypes")))
    finally:
        Device.unregister("LATE")

    assert [r.judgement.verdict for r in found] == [Verdict.PASSED]


OTHER_NULL = replace(LATE, name="NULL")


def test_a_backend_can_take_the_place_of_an_installed_one() -> None:
    Device.close("NULL")  # another test may have opened it
    try:
        subject = subject_for(Plan("NULL", 1, registers=(f"{__name__}:OTHER_NULL",)))
        assert subject.backend is OTHER_NULL
        again = subject_for(Plan("NULL", 1, registers=(f"{__name__}:OTHER_NULL",)))
        assert again.backend is OTHER_NULL
    finally:
        Device.unregister("NULL")
