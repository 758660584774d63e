"""Trials run one after the other, in this process or in one that may die.

`run_here` is for pytest and for grading the suite; `run_apart` survives what kills a
process: a trial under which it dies has crashed, and the next ones go on in a new one.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from runpy import run_path
from typing import Final

from tiny_testing.suite.case import NoSecondDevice, NotApplicable, Trial, trials
from tiny_testing.suite.judge import Judgement, Outcome, Skips, claims_of, judge
from tiny_testing.suite.subject import Subject
from tinycore._deferred import Deferred
from tinycore.device.registry import Device
from tinycore.errors import PluginError

__all__ = [
    "Plan",
    "Result",
    "chosen_trials",
    "register_named",
    "run_apart",
    "run_here",
    "run_one",
    "subject_for",
]

TRIAL_SECONDS: Final = 180.0
"""Time limit of a trial, whose process is then ended."""
START_SECONDS: Final = 120.0
"""Time limit of a process until its first trial."""
LINES_OF_TRACE: Final = 4


@dataclass(frozen=True)
class Plan:
    """The trials to run, in a form that can be sent to another process."""

    target: str
    highest: int
    named: str = ""
    suite: Path | None = None
    """An author's file, for its SKIPS and external_memory."""
    registers: tuple[str, ...] = ()
    """Backends to register first, as "package.module:BACKEND"."""
    claimed: bool = False
    """True to leave out trials of what is not claimed."""


@dataclass(frozen=True)
class Result:
    """Result of a trial. `figure` is the measurement of a performance case.

    `lost` tells that the device did not work afterwards, and was closed for the next trial to open.
    """

    name: str
    level: int
    needs: tuple[str, ...]
    outcome: Outcome
    detail: str
    seconds: float
    judgement: Judgement
    figure: str = ""
    lost: bool = False


def subject_for(plan: Plan) -> Subject:
    """The device that a plan names, with what its author's file says.

    Raises PluginError when that file has SKIPS that are none.
    """
    if not __debug__:
        raise PluginError("conformance is proven by assertions: run Python without -O")
    for reference in plan.registers:
        register_named(reference)
    said = run_path(str(plan.suite)) if plan.suite else {}
    skips = said.get("SKIPS", Skips())
    if not isinstance(skips, Skips):
        raise PluginError(f"{plan.suite}: SKIPS is {skips!r}; write SKIPS = Skips(word='reason')")
    return Subject(plan.target, skips, said.get("external_memory"))


def register_named(reference: str) -> None:
    """Register a backend given as "package.module:BACKEND", also in place of an installed one."""
    backend = Deferred(reference).resolve()
    claim = Device.plugins.find(backend.name)
    if claim is None or claim.backend is not backend:
        Device.register(backend)


def chosen_trials(plan: Plan, subject: Subject) -> list[Trial]:
    """The trials that a plan selects."""
    found = trials(plan.highest, plan.named)
    if not plan.claimed:
        return found
    claims = claims_of(subject.backend.capabilities, subject.skips)
    return [trial for trial in found if trial.needs <= claims]


def told(error: BaseException) -> str:
    """An exception for the table: an assertion's text, and any other with where it was raised."""
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    if isinstance(error, AssertionError):
        return f"not so: {traceback.extract_tb(error.__traceback__)[-1].line}"
    lines = "".join(traceback.format_tb(error.__traceback__)[-LINES_OF_TRACE:]).rstrip()
    return f"{type(error).__name__}: {error}\n{lines}"


def attempt(trial: Trial, subject: Subject) -> tuple[Outcome, str, str]:
    """Run a trial: its outcome, the detail, and its measurements."""
    try:
        with subject.chosen():
            measured = trial.run(subject)
    except NoSecondDevice as reason:
        return Outcome.ABSENT, str(reason), ""
    except NotApplicable as reason:
        return Outcome.SKIPPED, str(reason), ""
    except Exception as error:  # a device may raise anything, and the suite goes on
        return Outcome.FAILED, told(error), ""
    return Outcome.PASSED, "", str(measured or "")


def run_one(trial: Trial, subject: Subject) -> Result:
    """Run a trial in this process, and judge it."""
    began = time.perf_counter()
    outcome, detail, figure = attempt(trial, subject)
    seconds = time.perf_counter() - began
    lost = outcome is Outcome.FAILED and subject.close_if_lost()
    if lost:
        detail += "\nthe device was lost, and is opened anew for the next trial"
    claims = subject.backend.capabilities
    judgement = judge(trial.needs, claims, subject.skips, outcome, detail)
    return Result(
        trial.name,
        int(trial.case.level),
        tuple(sorted(trial.needs)),
        outcome,
        detail,
        seconds,
        judgement,
        figure,
        lost,
    )


def run_here(subject: Subject, chosen: Sequence[Trial]) -> Iterator[Result]:
    """The results of trials, each as soon as it is there."""
    for trial in chosen:
        yield run_one(trial, subject)


# --- in a process that may die


def work(plan: Plan, first: int, pipe: Connection) -> None:
    """The other process: trials from number `first` on, each announced before it is run.

    It ends early where a device was lost that cannot be opened again in the same process.
    """
    subject = subject_for(plan)
    for number, trial in enumerate(chosen_trials(plan, subject)):
        if number >= first:
            pipe.send(number)
            result = run_one(trial, subject)
            pipe.send(result)
            if result.lost and not subject.copies():
                break
    pipe.send(None)


def run_apart(
    plan: Plan, seconds: float = TRIAL_SECONDS, worker: Callable[..., None] = work
) -> Iterator[Result]:
    """The results of a plan's trials. One that kills its process, or hangs, has crashed.

    A process that ends early is followed by another one, unless it ran no trial. Raises PluginError
    when the process dies before its first trial.
    """
    subject = subject_for(plan)
    chosen = chosen_trials(plan, subject)
    capabilities, skips = subject.backend.capabilities, subject.skips
    done = 0
    while done < len(chosen):
        number, died, before = done - 1, "", done
        for number, said in watched(plan, done, seconds, worker):
            if isinstance(said, Result):
                done = number + 1
                yield said
            else:
                died = said
        if not died and done == before:
            return
        if not died:
            continue
        if number < done:
            raise PluginError(f"the process that runs the trials {died} before trial {done + 1}")
        trial = chosen[number]
        verdict = judge(trial.needs, capabilities, skips, Outcome.CRASHED, died)
        yield Result(
            trial.name,
            int(trial.case.level),
            tuple(sorted(trial.needs)),
            Outcome.CRASHED,
            died,
            0.0,
            verdict,
        )
        done = number + 1


def watched(
    plan: Plan, first: int, seconds: float, worker: Callable[..., None]
) -> Iterator[tuple[int, Result | str]]:
    """Numbers of trials with their results; at the end how the process died, if it did."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=worker, args=(plan, first, theirs), daemon=True)
    process.start()
    theirs.close()
    number = first - 1
    try:
        while ours.poll(max(seconds, START_SECONDS) if number < first else seconds):
            said = ours.recv()
            if said is None:
                return
            if isinstance(said, int):
                number = said
            else:
                yield number, said
        process.kill()
        yield number, f"still ran after {seconds:.0f} s and was ended"
    except EOFError:
        process.join()
        yield number, manner(process.exitcode)
    finally:
        process.join(timeout=5)
        ours.close()


def manner(status: int | None) -> str:
    """End of a process in words, by its exit status."""
    if status is None or status >= 0:
        return f"ended the process with status {status}"
    try:
        return f"crashed the process: {signal.Signals(-status).name}"
    except ValueError:
        return f"crashed the process: signal {-status}"
