"""Compilation and timing of a kernel's candidate plans, in isolated subprocesses.

Floor 4. All workers compile at once; one of them runs the candidates, so that nothing else runs
while a candidate is timed. A worker that dies loses its current candidate and nothing else.
Devices that two processes cannot open at once are measured in this process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Protocol

from tinycore.config import cpu_count
from tinycore.device.protocols import Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.device.worker_process import WorkerLost, WorkerProcess
from tinycore.engine.compile import Binary, parallel_jobs
from tinycore.engine.estimate import estimate
from tinycore.engine.search_worker import binary_from_json, binary_to_json
from tinycore.engine.trial import Outcome, Trial
from tinycore.errors import TinycoreError
from tinycore.lower.tile import Plan, plan_to_text
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

WORKER: Final = ("-m", "tinycore.engine.search_worker")
OPEN_SECONDS: Final = 60.0
BUILD_SECONDS: Final = 20.0
"""Time limit for lowering and compiling one candidate."""
RUN_SECONDS: Final = 3.0
"""Time limit for measuring a candidate, to which the two below are added."""
RUNS: Final = 40.0
"""Multiples of the time to beat."""
SECONDS_PER_BYTE: Final = 2e-8
"""Time to fill and compare buffers."""


class CandidateLost(Exception):
    """A candidate that failed to compile or run; the message says why."""


class RequestFailed(Exception):
    """A request that a worker refused or was lost at; the message says which."""


def new_worker(words: Sequence[str] = WORKER) -> WorkerProcess:
    """A worker with the settings of this process, but quiet and without a search of its own."""
    chosen = {"CPU_COUNT": str(cpu_count()), "BEAM": "0", "TUNED": "0", "DEBUG": "0", "TRACE": ""}
    chosen |= {"NOOPT": "0", "LRU": "0"}
    return WorkerProcess(words, {f"TINYCORE_{name}": value for name, value in chosen.items()})


def answer_of(worker: WorkerProcess, word: str, seconds: float, **content: Any) -> dict[str, Any]:
    """The answer of a worker to a request. Raises RequestFailed."""
    try:
        answer, _ = worker.ask({"do": word, "seconds": seconds} | content, seconds)
    except WorkerLost as lost:
        last = f": {lost.last_line}" if lost.last_line else ""
        raise RequestFailed(f"it {lost}{last}") from None
    if "error" in answer:
        raise RequestFailed(answer["error"])
    return dict(answer)


class CandidateRunner(Protocol):
    """Compiles, runs and compares candidates of one kernel."""

    def build_all(self, plans: Sequence[Plan]) -> list[Binary | CandidateLost]:
        """Each plan compiled, or the reason why it could not be."""

    def set_reference(self, reference: Binary) -> float:
        """Take a program's results as the reference; the seconds of its best run.

        Raises CandidateLost.
        """

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Time a candidate and compare its results with the reference. Raises CandidateLost."""

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """Median seconds of programs that run alternately. Raises CandidateLost."""


class InProcessRunner:
    """Candidates in this process, without isolation, for devices that cannot be opened twice."""

    def __init__(self, ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> None:
        self.trial = Trial(ast, device, toolchain)

    def build_all(self, plans: Sequence[Plan]) -> list[Binary | CandidateLost]:
        """Compile sequentially."""
        return [self.build(plan) for plan in plans]

    def build(self, plan: Plan) -> Binary | CandidateLost:
        """One plan compiled, or why not."""
        try:
            return self.trial.build(plan)
        except Exception as error:  # a candidate may break anything, our passes too
            return CandidateLost(f"{type(error).__name__}: {error}")

    def set_reference(self, reference: Binary) -> float:
        """Run the reference."""
        try:
            return self.trial.set_reference(reference)
        except TinycoreError as error:
            raise CandidateLost(str(error)) from error

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Time and compare a candidate."""
        try:
            return self.trial.measure(candidate, to_beat)
        except TinycoreError as error:
            raise CandidateLost(str(error)) from error

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """Time programs that take turns."""
        return self.trial.compare(candidates)


@dataclass
class SubprocessRunner:
    """Candidates in worker processes."""

    ast: UOp
    device: OpenDevice
    toolchain: Toolchain[Renderer]
    workers: list[WorkerProcess]
    reference: Binary | None = None
    """The program whose results are right, and below the id of the process that has run it."""
    reference_process: int = 0

    def __post_init__(self) -> None:
        self.opening = {
            "device": self.device.name,
            "toolchain": self.toolchain.name,
            "arch": self.toolchain.arch,
            "ast": to_text(self.ast),
        }
        self.opened: set[int] = set()
        self.memory_seconds = estimate(self.ast).bytes * SECONDS_PER_BYTE

    def open(self, worker: WorkerProcess) -> None:
        """Open the kernel in a worker. Raises RequestFailed."""
        if worker.pid in self.opened:
            return
        answer = answer_of(worker, "open", OPEN_SECONDS, **self.opening)
        here = {"key": self.toolchain.compiler.key, "limits": repr(self.toolchain.renderer.limits)}
        if answer != here:
            raise RequestFailed("its compiler or its processors are not those of this process")
        self.opened.add(worker.pid)

    def build_all(self, plans: Sequence[Plan]) -> list[Binary | CandidateLost]:
        """Compile in parallel: each idle worker takes the next plan."""
        free: SimpleQueue[WorkerProcess] = SimpleQueue()
        for worker in self.workers:
            free.put(worker)

        def build(plan: Plan) -> Binary | CandidateLost:
            worker = free.get()
            try:
                self.open(worker)
                answer = answer_of(worker, "build", BUILD_SECONDS, plan=plan_to_text(plan))
                return binary_from_json(answer)
            except RequestFailed as error:
                return CandidateLost(f"compiling: {error}")
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(self.workers)) as threads:
            return list(threads.map(build, plans))

    def ask(self, word: str, seconds: float, **content: Any) -> dict[str, Any]:
        """The answer of the worker that runs candidates. Raises CandidateLost."""
        runner = self.workers[0]
        try:
            self.open(runner)
            if self.reference is not None and self.reference_process != runner.pid:
                self.reference_process = runner.pid
                reference = binary_to_json(self.reference)
                answer_of(runner, "set_reference", OPEN_SECONDS, binary=reference)
            limit = seconds + RUN_SECONDS + self.memory_seconds
            return answer_of(runner, word, limit, **content)
        except RequestFailed as error:
            raise CandidateLost(f"running: {error}") from error

    def set_reference(self, reference: Binary) -> float:
        """Run the reference."""
        self.reference = None
        seconds = self.ask("set_reference", OPEN_SECONDS, binary=binary_to_json(reference))[
            "seconds"
        ]
        self.reference, self.reference_process = reference, self.workers[0].pid
        return float(seconds)

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Time and compare a candidate; after a wrong one the process is replaced, as it may be
        corrupted.
        """
        content = {"binary": binary_to_json(candidate), "to_beat": to_beat}
        outcome = Outcome(**self.ask("measure", RUNS * to_beat, **content))
        if outcome.verdict == "wrong":
            self.workers[0].stop()
        return outcome

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """Time programs that take turns."""
        binaries = [binary_to_json(candidate) for candidate in candidates]
        answer = self.ask("compare", OPEN_SECONDS, binaries=binaries)
        return list(answer["seconds"])


idle_workers: Final[list[WorkerProcess]] = []
"""Workers kept for the next kernel."""
warned: Final[set[str]] = set()
"""Devices for which the warning about missing isolation was shown."""


def candidate_runner_for(
    ast: UOp,
    device: OpenDevice,
    toolchain: Toolchain[Renderer],
    worker: Callable[[], WorkerProcess] | None = None,
) -> CandidateRunner:
    """Subprocesses for a kernel; this process, with a warning, if they cannot open the device.

    `worker` makes workers other than those that are kept, which are the caller's to close.
    """
    if worker is None:
        idle_workers.extend(new_worker() for _ in range(parallel_jobs() - len(idle_workers)))
        workers = idle_workers[: parallel_jobs()]
    else:
        workers = [worker() for _ in range(parallel_jobs())]
    runner = SubprocessRunner(ast, device, toolchain, workers)
    try:
        runner.open(workers[0])
    except RequestFailed as error:
        if device.name not in warned:
            warned.add(device.name)
            warnings.warn(
                f"BEAM cannot use {device.name} from another process ({error}), so candidates are "
                "run in this one, where a candidate that crashes or hangs takes all along.",
                stacklevel=2,
            )
        return InProcessRunner(ast, device, toolchain)
    return runner
