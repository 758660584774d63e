"""The runner of random programs: what it counts, reduces, prints and returns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import captures, extremes, leaves, ragged, signals, slopes, symbolic, writes
from tests.fuzz.programs.command import FUZZER as PROGRAMS
from tests.fuzz.runner import Fuzzer, Verdict, run, smallest, without_a_line
from tinycore.config import settings

FUZZERS = [
    writes.FUZZER,
    slopes.FUZZER,
    signals.FUZZER,
    leaves.FUZZER,
    captures.FUZZER,
    extremes.FUZZER,
    symbolic.FUZZER,
    PROGRAMS,
]

Lines = tuple[str, ...]


def lines_of(seed: int) -> Lines:
    return ("start", "useless", f"line {seed}", "end")


def check(lines: Lines) -> Verdict:
    """Wrong where the line of seed 3 is, refused where that of seed 4 is; each needs a start."""
    if lines[0] != "start":
        raise KeyError(lines[0])
    if "line 4" in lines:
        return Verdict("refused")
    return Verdict("value", "three") if "line 3" in lines else Verdict("")


def check_settings(lines: Lines) -> Verdict:
    return Verdict("device", f"{settings.DEV} {settings.PARALLEL}")


def shown(lines: Lines, verdict: Verdict) -> str:
    return f"{verdict.message}: {', '.join(lines)}"


def smaller(lines: Lines) -> Iterator[Lines]:
    return without_a_line(lines)


TOY: Fuzzer[Lines] = Fuzzer(
    "toy", None, lines_of, check, shown, smaller, accepted=frozenset({"refused"})
)


@pytest.fixture(autouse=True, scope="module")
def _freeze() -> Iterator[None]:
    """Let what a run froze be collected again; modules and tests stay frozen (conftest.py)."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def test_kinds_are_counted_and_a_failure_is_shown_reduced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = run(TOY, ["--seed", "2", "--count", "4"])

    told = capsys.readouterr().out
    assert status == 1
    assert "three: start, line 3\n" in told
    assert "4 programs from seed 2 in " in told
    assert told.endswith(": {'right': 2, 'value': 1, 'refused': 1}\n")


def test_accepted_kinds_are_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOY, ["--seed", "4", "--count", "4"]) == 0
    assert "line 4" not in capsys.readouterr().out


def test_failures_go_to_a_folder_as_they_are(tmp_path: Path) -> None:
    status = run(TOY, ["--seed", "3", "--count", "1", "--no-shrink", "--report", str(tmp_path)])

    assert status == 1
    text = (tmp_path / "value_3.py").read_text()
    assert text == "three: start, useless, line 3, end"


def test_a_run_ends_after_some_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOY, ["--seed", "10", "--count", "100000", "--seconds", "0.05"]) == 0
    assert int(capsys.readouterr().out.split()[0]) < 100000


def test_programs_run_on_the_device_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fuzzer: Fuzzer[Lines] = Fuzzer("toy", None, lines_of, check_settings, shown)

    assert run(fuzzer, ["--count", "1", "--device", "PYTHON"]) == 1
    assert "PYTHON 1: start" in capsys.readouterr().out


def test_the_smallest_program_fails_alike_and_lacks_no_line_of_the_check() -> None:
    program, verdict = smallest(lines_of(3), check(lines_of(3)), smaller, check)

    assert program == ("start", "line 3")
    assert verdict == Verdict("value", "three")


def test_lines_are_left_out_from_the_last_on() -> None:
    assert list(without_a_line(("a", "b", "c"), 1)) == [("a", "b"), ("a", "c")]


@pytest.mark.sample(4)
@pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda fuzzer: fuzzer.name.split(".")[-1])
def test_every_kind_of_random_program_runs(
    fuzzer: Fuzzer[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fuzzer, ["--count", "1", "--device", "PYTHON"]) == 0
    assert capsys.readouterr().out.startswith("1 programs from seed 0 in ")


@pytest.mark.slow
@pytest.mark.device("CPU:LLVM")
def test_programs_of_ragged_sizes_run_on_processors() -> None:
    assert run(ragged.FUZZER, ["--count", "20", "--seed", "30"]) == 0


@pytest.mark.slow
def test_processes_share_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(slopes.FUZZER, ["--count", "4", "--jobs", "2", "--device", "PYTHON"]) == 0
    assert capsys.readouterr().out.startswith("4 programs from seed 0 in ")
