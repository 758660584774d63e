"""Compilation and timing of a kernel's candidate plans, in isolated subprocesses.

Floor 4. All workers compile at once; one of them runs the candidates, so that nothing else runs
while a candidate is timed. A worker that dies loses its current candidate and nothing else.
Devices that two processes cannot open at once are measured in this process.
"""

from __future__ import annotations

import pickle
import warnings
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from tinycore.config import cpu_count
from tinycore.device.protocols import Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.device.worker_process import WorkerLost, WorkerProcess
from tinycore.engine.compile import Binary, parallel_jobs
from tinycore.engine.estimate import estimate
from tinycore.engine.trial import Outcome, Trial
from tinycore.errors import TinycoreError
from tinycore.lower.tile import Plan
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
    zeros = dict.fromkeys(("BEAM", "TUNED", "DEBUG", "NOOPT", "LRU"), "0")
    chosen = {**zeros, "CPU_COUNT": str(cpu_count()), "TRACE": ""}
    return WorkerProcess(words, {f"TINYCORE_{name}": value for name, value in chosen.items()})


def answer_of(worker: WorkerProcess, word: str, seconds: float, *given: object) -> Any:
    """The answer of a worker to a request. Raises RequestFailed."""
    try:
        request = word, seconds, b64encode(pickle.dumps(given)).decode()
        fault, content = worker.ask(request, seconds)
        if not fault:
            return pickle.loads(content)
    except WorkerLost as lost:
        last = f": {lost.last_line}" if lost.last_line else ""
        raise RequestFailed(f"it {lost}{last}") from None
    except Exception as error:  # a candidate may have broken whatever answers
        raise RequestFailed(f"it gave a malformed answer ({error})") from error
    raise RequestFailed(fault)


class CandidateRunner:
    """Runner of candidates of one kernel, which it compiles, times and compares: in worker
    processes, or in this one, without isolation, if there are none.
    """

    def __init__(
        self,
        ast: UOp,
        device: OpenDevice,
        toolchain: Toolchain[Renderer],
        workers: Sequence[WorkerProcess],
    ) -> None:
        self.trial = Trial(ast, device, toolchain)
        self.workers = workers
        self.opening = device.name, toolchain.name, toolchain.arch, to_text(ast)
        self.opened: set[int] = set()
        self.memory_seconds = estimate(ast).bytes * SECONDS_PER_BYTE
        self.reference: Binary | None = None
        """The program whose results are right, and below the id of the process that has run it."""
        self.reference_process = 0

    def open(self, worker: WorkerProcess) -> None:
        """Open the kernel in a worker. Raises RequestFailed."""
        if worker.pid in self.opened:
            return
        toolchain = self.trial.toolchain
        here = toolchain.compiler.key, repr(toolchain.renderer.limits)
        if answer_of(worker, "open", OPEN_SECONDS, *self.opening) != here:
            raise RequestFailed("its compiler or its processors are not those of this process")
        self.opened.add(worker.pid)

    def build_all(self, plans: Sequence[Plan]) -> list[Binary | CandidateLost]:
        """Each plan compiled, or the reason why it could not be; each idle worker takes the next
        plan.
        """
        free: SimpleQueue[WorkerProcess | None] = SimpleQueue()
        for worker in self.workers or (None,):
            free.put(worker)

        def build(plan: Plan) -> Binary | CandidateLost:
            worker = free.get()
            try:
                return self.build(plan, worker)
            except RequestFailed as error:
                return CandidateLost(f"compiling: {error}")
            except Exception as error:  # a candidate may break anything, our passes too
                return CandidateLost(f"{type(error).__name__}: {error}")
            finally:
                free.put(worker)

        # no thread can be started, or there is no worker to wait for
        with suppress(RuntimeError, ValueError), ThreadPoolExecutor(len(self.workers)) as threads:
            return list(threads.map(build, plans))
        return [*map(build, plans)]

    def build(self, plan: Plan, worker: WorkerProcess | None) -> Binary:
        """A plan compiled by a worker, or here."""
        if worker is None:
            return self.trial.build(plan)
        self.open(worker)
        built: Binary = answer_of(worker, "build", BUILD_SECONDS, plan)
        return built

    def ask(self, word: str, seconds: float, *given: object) -> Any:
        """The answer of what runs candidates. Raises CandidateLost."""
        try:
            if not self.workers:
                return getattr(self.trial, word)(*given)
            runner = self.workers[0]
            self.open(runner)
            if self.reference is not None and self.reference_process != runner.pid:
                self.reference_process = runner.pid
                answer_of(runner, "set_reference", OPEN_SECONDS, self.reference)
            return answer_of(runner, word, seconds + RUN_SECONDS + self.memory_seconds, *given)
        except RequestFailed as error:
            raise CandidateLost(f"running: {error}") from error
        except TinycoreError as error:
            raise CandidateLost(str(error)) from error

    def set_reference(self, reference: Binary) -> float:
        """Seconds of the program whose results are right. Raises CandidateLost."""
        self.reference = None
        seconds: float = self.ask("set_reference", OPEN_SECONDS, reference)
        if self.workers:
            self.reference, self.reference_process = reference, self.workers[0].pid
        return seconds

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Time and compare a candidate; after a wrong one the process is replaced, as it may be
        corrupted. Raises CandidateLost.
        """
        outcome: Outcome = self.ask("measure", RUNS * to_beat, candidate, to_beat)
        if outcome.verdict == "wrong" and self.workers:
            self.workers[0].stop()
        return outcome

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """Median seconds of programs that run alternately. Raises CandidateLost."""
        seconds: list[float] = self.ask("compare", OPEN_SECONDS, candidates)
        return seconds


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
    runner = CandidateRunner(ast, device, toolchain, workers)
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
        return CandidateRunner(ast, device, toolchain, ())
    return runner
