"""The suite, graded: does a named trial find each fault of the reference accelerator?

    python -m tiny_testing.grading --markdown docs/conformance/suite.md

A fault counts as found when its trial fails on the faulty accelerator and passes on the
correct one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tiny_testing.suite  # noqa: F401  it fills CASES
from tiny_testing.accelerator import CORRECT, Parts, backend_of, external_memory
from tiny_testing.accelerator.faults import FAULTS, Fault
from tiny_testing.suite.case import CASES, Level, Trial, trials
from tiny_testing.suite.judge import Skips, Verdict
from tiny_testing.suite.run import Result, run_here
from tiny_testing.suite.subject import Subject
from tinycore.device.registry import Device

__all__ = ["Grade", "accelerator", "grade", "page", "score", "trial_named"]

INTRODUCTION = (
    "Written by `python -m tiny_testing.grading --markdown FILE`. The reference accelerator of "
    "`tiny_testing.accelerator` is given one fault at a time; a named trial of the suite must "
    "fail on it, and pass without it."
)


@dataclass(frozen=True)
class Grade:
    """Outcomes of the trial of a fault: on the faulty accelerator, and on the correct one."""

    fault: Fault
    faulty: Result
    correct: Result

    @property
    def is_found(self) -> bool:
        """True if the trial distinguishes the two."""
        verdicts = self.faulty.judgement.verdict, self.correct.judgement.verdict
        return verdicts == (Verdict.FAILED, Verdict.PASSED)


@contextmanager
def accelerator(parts: Parts = CORRECT) -> Iterator[Subject]:
    """An accelerator made of some parts, registered while it is tested."""
    backend = backend_of(parts)
    Device.register(backend)
    try:
        yield Subject(backend.name, Skips(), external_memory)
    finally:
        Device.unregister(backend.name)


def trial_named(name: str) -> Trial:
    """The trial with exactly this name."""
    cases = [CASES[name.partition("[")[0]]]
    (found,) = [trial for trial in trials(Level.PERFORMANCE, only=cases) if trial.name == name]
    return found


def result_on(parts: Parts, trial: Trial) -> Result:
    """Outcome of a trial on an accelerator."""
    with accelerator(parts) as subject:
        (result,) = run_here(subject, [trial])
    return result


def grade(fault: Fault) -> Grade:
    """Run the trial of a fault with it and without it."""
    trial = trial_named(fault.found_by)
    return Grade(fault, result_on(fault.parts, trial), result_on(CORRECT, trial))


def score(grades: Sequence[Grade]) -> str:
    """The number of faults found, in words."""
    found = sum(g.is_found for g in grades)
    return f"{found} of {len(grades)} seeded faults are found by their trials"


def page(grades: Sequence[Grade]) -> str:
    """The grades as a page for the documentation."""
    count = len(trials(Level.MODELS))
    lines = [
        "# The conformance suite, graded",
        "",
        INTRODUCTION,
        "",
        f"Score: {score(grades)}. The suite has {count} trials of {len(CASES)} cases.",
        "",
        "| fault | what is wrong | the trial that finds it | what that says |",
        "|---|---|---|---|",
    ]
    for g in grades:
        said = g.faulty.judgement.reason.partition("\n")[0].replace("|", "\\|")
        told = said if g.is_found else f"**not found** {said}"
        lines.append(f"| {g.fault.name} | {g.fault.meaning} | `{g.fault.found_by}` | {told} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print a line per fault and the score; status 1 when a fault is not found."""
    parser = argparse.ArgumentParser(prog="python -m tiny_testing.grading")
    parser.add_argument("--markdown", type=Path, help="write a page with the grades")
    options = parser.parse_args()
    grades = []
    for fault in FAULTS.values():
        found = grade(fault)
        grades.append(found)
        mark = "found" if found.is_found else "MISSED"
        said = found.faulty.judgement.reason.partition("\n")[0]
        print(f"{mark:<7} {fault.name:<24} {fault.found_by}: {said}", flush=True)
        if found.correct.judgement.verdict is not Verdict.PASSED:
            print(f"        without the fault: {found.correct.judgement.reason}", flush=True)
    print(score(grades))
    if options.markdown:
        options.markdown.write_text(page(grades), "utf-8")
    return 0 if all(g.is_found for g in grades) else 1


if __name__ == "__main__":
    sys.exit(main())
