"""The benchmarks' harness: one case from end to end, what it keeps, and what it notices."""

import math
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # last: what is installed comes first

from benchmarks.agreement import digest, outliers  # noqa: E402
from benchmarks.case import Case, StartCase  # noqa: E402
from benchmarks.cases import CASES, selected  # noqa: E402
from benchmarks.report import Limits, Row, markdown, slower  # noqa: E402
from benchmarks.samples import Sample, Summary, inner_calls, summarize, undisturbed  # noqa: E402
from benchmarks.session import Outcome  # noqa: E402


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(ROOT / "benchmarks" / "run.py"), *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_trivial_case_from_end_to_end(tmp_path: Path) -> None:
    table = tmp_path / "table.md"

    done = run(
        "--only", "^trivial$", "--peers", "tinycore,numpy", "--rounds", "1", "--no-limits",
        "--output", str(table),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (row,) = (line for line in table.read_text().splitlines() if line.startswith("| trivial"))
    name, ours, theirs, *_ = (cell.strip() for cell in row.strip("|").split("|"))
    assert name == "trivial"
    assert "±" in ours
    assert "±" in theirs
    assert row in done.stdout


def test_unknown_peer_is_told() -> None:
    done = run("--peers", "abacus")

    assert done.returncode != 0
    assert "no peer is named 'abacus'; there are tinycore, tinycore-jit, torch" in done.stderr


def test_names_are_unique_and_patterns_select() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert [case.name for case in selected("^matmul 256$")] == ["matmul 256"]
    assert "trivial" not in {case.name for case in selected("")}


def test_disturbed_samples_are_left_out_when_enough_remain() -> None:
    calm = [Sample(1.0, 0)] * 5

    assert undisturbed([*calm, Sample(9.0, 1)]) == calm
    assert summarize([*calm, Sample(9.0, 1)]) == Summary(1.0, 1.0, 1.0, 5, disturbed=False)


def test_least_disturbed_samples_are_kept_when_too_few_are_calm() -> None:
    samples = [Sample(1.0, 0), *[Sample(2.0, 1)] * 4, Sample(9.0, 7)]

    assert undisturbed(samples) == samples[:5]
    assert summarize(samples).disturbed


def test_short_calls_are_sampled_together() -> None:
    assert inner_calls(1.0) == 1
    assert inner_calls(0.00005) == 10


def test_result_that_was_not_computed_is_noticed() -> None:
    right = numpy.arange(10_000, dtype=numpy.float32)
    digests = {"a": digest(right), "b": digest(right), "lazy": digest(right * 0)}

    assert list(outliers(digests, 1e-3)) == ["lazy"]


def test_part_that_was_not_computed_is_noticed() -> None:
    right = numpy.ones(100_000, numpy.float32)
    partly = right.copy()
    partly[50_000:50_900] = 0

    assert set(outliers({"a": digest(right), "b": digest(partly)}, 1e-3)) == {"a", "b"}


def test_rounding_is_no_disagreement() -> None:
    right = numpy.random.default_rng(0).random((100, 100))

    assert not outliers({"a": digest(right), "b": digest(right.astype(numpy.float16))}, 1e-2)


def test_no_number_is_a_disagreement() -> None:
    found = outliers({"a": digest(numpy.ones(4)), "b": digest(numpy.full(4, math.nan))}, 1e-3)

    assert found["b"] == "disagrees with a: an element is infinite or no number"


@pytest.mark.parametrize(
    ("case", "seconds"),
    [
        (Case("reads", {}, read_bytes=200), 2.0),
        (Case("moves", {}, read_bytes=100, written_bytes=100), 4.0),
        (Case("multiplies", {}, read_bytes=100, flops=9000), 9.0),
        (Case("unknown", {}), 0.0),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_limit_is_the_slowest_of_what_the_hardware_must_do(case: Case, seconds: float) -> None:
    assert Limits(read=100.0, triad=50.0, fma=1000.0).seconds(case) == seconds


def outcome(seconds: float) -> Outcome:
    return Outcome(Summary(seconds, seconds, seconds, 9, disturbed=False))


def test_ratio_takes_the_better_of_ours_by_the_best_peer() -> None:
    times = {"tinycore": 6.0, "tinycore-jit": 4.0, "torch": 2.0, "numpy": 3.0}
    row = Row(StartCase("work", {}), {peer: outcome(time) for peer, time in times.items()})

    assert row.against == "2.00 torch"
    assert slower([row]) == [row]


def test_failure_is_a_note_below_the_table() -> None:
    row = Row(
        StartCase("work", {}),
        {"tinycore": Outcome(failure="ShapeError: no"), "torch": outcome(0.5)},
    )

    text = markdown([row], ["tinycore", "torch"], {"processor": "an abacus"})

    assert "- processor: an abacus" in text
    assert "| work |    fails | 500 ±0% |" in text
    assert "- work: tinycore fails: ShapeError: no" in text
