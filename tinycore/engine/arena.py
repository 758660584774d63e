"""Where a kernel's candidates compete: in worker processes, or, if it must be, in this one.

Floor 4. Candidates are compiled by all workers at once and run by one, so that what is timed runs
alone. A worker that dies takes the candidate it was busy with along, and nothing else.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Protocol

from tinycore.device.protocols import Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.engine.ahead import at_once
from tinycore.engine.binary import Binary
from tinycore.engine.estimate import estimate
from tinycore.engine.search_process import COMMAND, Worker, WorkerLost, WorkerRefused
from tinycore.engine.search_worker import binary_from_json, binary_to_json
from tinycore.engine.trial import Outcome, Trial
from tinycore.errors import TinycoreError
from tinycore.lower.plan_text import plan_to_text
from tinycore.lower.tile import Plan
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

OPEN_SECONDS: Final = 60.0
BUILD_SECONDS: Final = 20.0
"""What lowering and compiling one candidate may take."""
RUN_SECONDS: Final = 3.0
"""What running a candidate may take, and the two below on top of it."""
RUNS: Final = 40.0
"""As many runs as fast as what must be beaten."""
SECONDS_PER_BYTE: Final = 2e-8
"""Time to fill and compare memory."""


class Lost(Exception):
    """A candidate that was not to be compiled or run to its end; the message says why."""


class Arena(Protocol):
    """Compiles and runs candidates of one kernel."""

    def build_all(self, plans: Sequence[Plan]) -> list[Binary | Lost]:
        """Each plan compiled, or why it could not be."""

    def refer(self, reference: Binary) -> float:
        """Take a program's results as right; the seconds of its best run. Raises Lost."""

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Time and compare a candidate. Raises Lost."""

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """Median seconds of programs that take turns. Raises Lost."""


class Here:
    """An arena in this process, without protection, for devices that cannot be opened twice."""

    def __init__(self, ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> None:
        self.trial = Trial(ast, device, toolchain)

    def build_all(self, plans: Sequence[Plan]) -> list[Binary | Lost]:
        """One after the other."""
        return [self.build(plan) for plan in plans]

    def build(self, plan: Plan) -> Binary | Lost:
        """One plan compiled, or why not."""
        try:
            return self.trial.build(plan)
        except Exception as error:  # a candidate may break anything, our passes too
            return Lost(f"{type(error).__name__}: {error}")

    def refer(self, reference: Binary) -> float:
        """Run the reference."""
        try:
            return self.trial.refer(reference)
        except TinycoreError as error:
            raise Lost(str(error)) from error

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Time and compare a candidate."""
        try:
            return self.trial.measure(candidate, to_beat)
        except TinycoreError as error:
            raise Lost(str(error)) from error

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """Time programs that take turns."""
        return self.trial.compare(candidates)


@dataclass
class Apart:
    """An arena of worker processes."""

    ast: UOp
    device: OpenDevice
    toolchain: Toolchain[Renderer]
    workers: list[Worker]
    reference: Binary | None = None
    """What results are compared with, and, below, the process that has memory and results of it."""
    refers: int = 0

    def __post_init__(self) -> None:
        self.opening = {
            "device": self.device.name,
            "toolchain": self.toolchain.name,
            "arch": self.toolchain.arch,
            "ast": to_text(self.ast),
        }
        self.opened: set[int] = set()
        self.memory_seconds = estimate(self.ast).bytes * SECONDS_PER_BYTE

    def open(self, worker: Worker) -> None:
        """Let a worker take this kernel on. Raises WorkerLost, WorkerRefused."""
        if worker.process is not None and worker.process.pid in self.opened:
            return
        answer = worker.ask("open", OPEN_SECONDS, **self.opening)
        here = {"key": self.toolchain.compiler.key, "limits": repr(self.toolchain.renderer.limits)}
        if answer != here:
            raise WorkerRefused("its compiler or its processors are not those of this process")
        assert worker.process is not None
        self.opened.add(worker.process.pid)

    def build_all(self, plans: Sequence[Plan]) -> list[Binary | Lost]:
        """All workers at once, each taking the next plan when it is done with one."""
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            free.put(worker)

        def build(plan: Plan) -> Binary | Lost:
            worker = free.get()
            try:
                self.open(worker)
                return binary_from_json(worker.ask("build", BUILD_SECONDS, plan=plan_to_text(plan)))
            except (WorkerLost, WorkerRefused) as error:
                return Lost(f"compiling: {error}")
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(self.workers)) as threads:
            return list(threads.map(build, plans))

    def asked(self, word: str, seconds: float, **content: Any) -> dict[str, Any]:
        """What the worker that runs candidates answers. Raises Lost."""
        runner = self.workers[0]
        try:
            self.open(runner)
            assert runner.process is not None
            if self.reference is not None and self.refers != runner.process.pid:
                self.refers = runner.process.pid
                runner.ask("refer", OPEN_SECONDS, binary=binary_to_json(self.reference))
            limit = seconds + RUN_SECONDS + self.memory_seconds
            return runner.ask(word, limit, **content)
        except (WorkerLost, WorkerRefused) as error:
            raise Lost(f"running: {error}") from error

    def refer(self, reference: Binary) -> float:
        """Run the reference."""
        self.reference = None
        seconds = self.asked("refer", OPEN_SECONDS, binary=binary_to_json(reference))["seconds"]
        process = self.workers[0].process
        self.reference, self.refers = reference, 0 if process is None else process.pid
        return float(seconds)

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Time and compare a candidate; one that is wrong may have harmed its process too."""
        content = {"binary": binary_to_json(candidate), "to_beat": to_beat}
        outcome = Outcome(**self.asked("measure", RUNS * to_beat, **content))
        if outcome.verdict == "wrong":
            self.workers[0].close()
        return outcome

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """Time programs that take turns."""
        binaries = [binary_to_json(candidate) for candidate in candidates]
        answer = self.asked("compare", OPEN_SECONDS, binaries=binaries)
        return [float(seconds) for seconds in answer["seconds"]]


crew: Final[list[Worker]] = []
"""Workers that are kept for the next kernel."""
told: Final[set[str]] = set()
"""Devices of which it was said that they are measured in this process."""


@atexit.register
def dismiss() -> None:
    """End all workers."""
    for worker in crew:
        worker.close()
    crew.clear()


def arena_for(
    ast: UOp,
    device: OpenDevice,
    toolchain: Toolchain[Renderer],
    worker: Callable[[], Worker] | None = None,
) -> Arena:
    """Workers for a kernel; this process, with a warning, if they cannot open the device.

    `worker` makes workers other than those that are kept, which are the caller's to close.
    """
    if worker is None:
        crew.extend(Worker(COMMAND) for _ in range(at_once() - len(crew)))
        workers = crew[: at_once()]
    else:
        workers = [worker() for _ in range(at_once())]
    arena = Apart(ast, device, toolchain, workers)
    try:
        arena.open(workers[0])
    except (WorkerLost, WorkerRefused) as error:
        if device.name not in told:
            told.add(device.name)
            warnings.warn(
                f"BEAM cannot use {device.name} from another process ({error}), so candidates are "
                "run in this one, where a candidate that crashes or hangs takes all along.",
                stacklevel=2,
            )
        return Here(ast, device, toolchain)
    return arena
