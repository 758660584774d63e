"""Taking turns: one process for each peer of a case, all warm, sampled A B C A B C ...

What else happens on the machine then falls on all of them alike.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Final

from benchmarks.agreement import Digest, outliers
from benchmarks.case import Case, StartCase
from benchmarks.machine import wait_for_quiet
from benchmarks.peers import environment_of, package_of
from benchmarks.samples import Sample, Summary, is_enough, summarize

__all__ = ["Outcome", "Pace", "Worker", "WorkerFailed", "measure", "measure_starts"]

_ROOT: Final = Path(__file__).resolve().parent.parent
_FIND: Final = f"import sys; sys.path.append({str(_ROOT)!r})"
"""Last on the path: what is installed is measured, and not the tree, where they differ."""
_RUN: Final = f"{_FIND}; import runpy; runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
_QUIET_SECONDS: Final = 2.0
"""Seconds to wait, before a turn, for a moment in which nobody else runs."""
_ANSWER_SECONDS: Final = 300.0


@dataclass(frozen=True)
class Pace:
    """Time to measure: `rounds` turns of `turn_seconds`, at most about `peer_seconds` a peer.

    A peer that was disturbed too often gets up to `patience` times as many turns.
    """

    rounds: int = 8
    patience: int = 3
    turn_seconds: float = 0.04
    peer_seconds: float = 6.0
    starts: int = 7

    @property
    def quiet_seconds(self) -> float:
        """Seconds to wait in all, in one case, for moments in which nobody else runs."""
        return 2.0 * self.rounds


@dataclass(frozen=True)
class Outcome:
    """Outcome of one peer on one case: figures, or why there are none, or why to doubt them."""

    summary: Summary | None = None
    failure: str = ""
    doubt: str = ""
    count: int | None = None
    about: str = ""


class WorkerFailed(Exception):
    """A worker that ended or fell silent; the message is the last line it wrote to stderr."""


class Worker:
    """A process that answers lines with lines, ready or dead."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a module of this package with its arguments."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-c", _RUN, *command),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env=dict(environment), cwd=tempfile.gettempdir(),
        )  # fmt: skip
        try:
            self.ready: dict[str, Any] = self._answer()
        except WorkerFailed:
            self.close()
            raise

    def turn(self, seconds: float) -> Any:
        """The answer to a request for a turn. Raises WorkerFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"seconds": seconds}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._last_words()) from None
        return self._answer()

    def close(self) -> None:
        """End the process, without waiting for what it does."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        text, end = b"", perf_counter() + _ANSWER_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                if not selector.select(max(0.0, end - perf_counter())):
                    raise WorkerFailed(f"no answer within {_ANSWER_SECONDS:.0f} s")
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise WorkerFailed(self._last_words())
                text += piece
        return json.loads(text)

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
        return _telling(lines) or f"ended with status {status} and said nothing"


def _telling(lines: Sequence[str]) -> str:
    """The line of a traceback that says what went wrong: the last one that names an error."""
    said = [line for line in lines if line]
    named = [line for line in said if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (named or said or [""])[-1][:300]


@contextmanager
def worker(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Worker]:
    """A worker that is ended afterwards."""
    made = Worker(command, environment)
    try:
        yield made
    finally:
        made.close()


def measure(
    case: Case, peers: Sequence[str], caches: Path, pace: Pace, limits: Worker | None = None
) -> tuple[dict[str, Outcome], list[dict[str, list[float]]]]:
    """The outcome for each peer that can do the case, and what the hardware did meanwhile."""
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for peer in peers:
            if case.program_of(package_of(peer)) is None or not case.suits(peer):
                continue
            command = ("benchmarks.worker", peer, case.name)
            try:
                environment = environment_of(peer, caches)
                workers[peer] = stack.enter_context(worker(command, environment))
            except WorkerFailed as failed:
                failures[peer] = str(failed)
        samples, rates = _rounds(workers, failures, pace, limits)
        ready = {peer: found.ready for peer, found in workers.items()}
    doubts = _doubts(ready, case.tolerance)
    outcomes = {peer: Outcome(failure=failure) for peer, failure in failures.items()}
    for peer, taken in samples.items():
        if peer not in failures:
            facts = ready[peer]
            outcomes[peer] = Outcome(
                summarize(taken), "", doubts.get(peer, ""), facts.get("count"), facts["about"]
            )
    return outcomes, rates


def _rounds(
    workers: Mapping[str, Worker], failures: dict[str, str], pace: Pace, limits: Worker | None
) -> tuple[dict[str, list[Sample]], list[dict[str, list[float]]]]:
    samples: dict[str, list[Sample]] = {peer: [] for peer in workers}
    spent = dict.fromkeys(workers, 0.0)
    rates = []
    waited = 0.0
    for number in range(pace.rounds * pace.patience):
        for peer, found in workers.items():
            done = number >= pace.rounds and is_enough(samples[peer])
            if done or peer in failures or spent[peer] > pace.peer_seconds:
                continue
            waited += wait_for_quiet(min(_QUIET_SECONDS, pace.quiet_seconds - waited))
            start = perf_counter()
            try:
                samples[peer] += [Sample(*pair) for pair in found.turn(pace.turn_seconds)]
            except WorkerFailed as failed:
                failures[peer] = str(failed)
            spent[peer] += perf_counter() - start
        if limits is not None and number < pace.rounds:
            waited += wait_for_quiet(min(_QUIET_SECONDS, pace.quiet_seconds - waited))
            rates.append(limits.turn(pace.turn_seconds))
    return samples, rates


def _doubts(ready: Mapping[str, Mapping[str, Any]], tolerance: float) -> dict[str, str]:
    digests = {
        peer: Digest(**(facts["digest"] | {"shape": tuple(facts["digest"]["shape"])}))
        for peer, facts in ready.items()
        if "digest" in facts
    }
    return outliers(digests, tolerance)


def measure_starts(
    case: StartCase, peers: Sequence[str], caches: Path, pace: Pace
) -> dict[str, Outcome]:
    """As `measure`, for scripts: a process for each sample, after one that does not count."""
    able = [peer for peer in peers if peer in case.scripts]
    samples: dict[str, list[Sample]] = {peer: [] for peer in able}
    failures: dict[str, str] = {}
    for number in range(1 + pace.starts):
        for peer in able:
            if peer in failures:
                continue
            try:
                sample = _start(case, peer, caches)
            except WorkerFailed as failed:
                failures[peer] = str(failed)
                continue
            if number:
                samples[peer].append(sample)
    outcomes = {peer: Outcome(failure=failure) for peer, failure in failures.items()}
    return outcomes | {p: Outcome(summarize(s)) for p, s in samples.items() if p not in failures}


def _start(case: StartCase, peer: str, caches: Path) -> Sample:
    with tempfile.TemporaryDirectory() as empty:
        wait_for_quiet(_QUIET_SECONDS)
        folder = Path(empty) if case.empty_caches else caches
        done = subprocess.run(
            (sys.executable, "-P", "-c", f"{_FIND}\n{case.scripts[peer]}"),
            env=environment_of(peer, folder), cwd=empty,
            capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS,
        )  # fmt: skip
    if done.returncode:
        raise WorkerFailed(_telling(done.stderr.splitlines()))
    return Sample(float(done.stdout.split()[-1]), 0)
