"""Worker of the server: one thread that writes texts side by side, from a queue with a limit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiny_llm.sampling import Sampling
from tiny_llm.text import Options, Piece
from tinycore.errors import TinycoreError
from tinycore.plugin import lock

__all__ = ["Job", "QueueFull", "Worker", "Writer", "Writing"]


class Writer(Protocol):
    """A language model, as far as the server needs it."""

    name: str
    context: int

    def prompt(self, given: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a prompt. Raises ArgumentError."""


class Writing(Protocol):
    """Texts in progress, see `Batch`. A text is whatever `add` returns, by its identity."""

    def __len__(self) -> int:
        """The number of texts."""

    def add(self, ids: Sequence[int], options: Options) -> Any:
        """A text that begins; None where there is no place for it. Raises ArgumentError."""

    def drop(self, text: Any) -> None:
        """End a text without a piece."""

    def step(self) -> Iterable[tuple[Any, Piece]]:
        """Pieces of one step, with their texts; a text whose last piece came has left."""


class QueueFull(TinycoreError):
    """Raised when as many jobs wait as may."""


@dataclass(eq=False)
class Job:
    """A text to generate, and the pieces that came of it: read by `pieces` in the loop's thread."""

    ids: list[int]
    sampling: Sampling
    limit: int
    stop: Sequence[str]
    seconds: float
    """The time that generating may take, from when it begins."""
    loop: asyncio.AbstractEventLoop
    results: asyncio.Queue[Piece | Exception] = field(default_factory=asyncio.Queue)
    cancelled: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0

    def cancel(self) -> None:
        """Have the worker leave it, at the next token."""
        self.cancelled.set()

    @property
    def is_late(self) -> bool:
        """True if its time is over."""
        return time.monotonic() > self.began + self.seconds

    def give(self, result: Piece | Exception) -> None:
        """Pass a result to the loop, from the worker's thread."""
        try:
            self.loop.call_soon_threadsafe(self.results.put_nowait, result)
        except RuntimeError:  # the loop was closed: the server is gone
            self.cancel()

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces, to the last. Raises what generating raised; leaving it cancels the job."""
        try:
            while True:
                result = await self.results.get()
                if isinstance(result, Exception):
                    raise result
                yield result
                if result.reason is not None:
                    return
        finally:
            self.cancel()


class Worker:
    """The thread that owns the texts in progress. `submit` is called in any thread."""

    def __init__(self, writing: Writing, waiting: int) -> None:
        self._writing, self._most = writing, waiting
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition(lock())
        """Held to look at the jobs that wait; notified when there is one, and at the end."""
        self._is_closed = False
        self._running: dict[Any, Job] = {}
        self._thread = threading.Thread(target=self._run, name="tiny-llm worker", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return sum(not job.cancelled.is_set() for job in list(self._jobs))

    @property
    def running(self) -> int:
        """The number of texts that are written."""
        return len(self._running)

    def submit(self, job: Job) -> None:
        """Add a job. Raises QueueFull."""
        with self._changed:
            if len(self._jobs) >= self._most:  # those who went away give their place to others
                self._jobs = deque(each for each in self._jobs if not each.cancelled.is_set())
            if len(self._jobs) >= self._most:
                raise QueueFull(f"{self._most} requests wait already; try later")
            self._jobs.append(job)
            self._changed.notify()

    def close(self, seconds: float = 5.0) -> None:
        """Cancel all jobs and end the thread."""
        with self._changed:
            self._is_closed = True
            for job in self._jobs:
                job.cancel()
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while self._joined():
            try:
                self._step()
            except Exception as error:  # of one step: later texts may do
                self._fail(error)
        for job in self._running.values():
            job.cancel()
        self._step()

    def _step(self) -> None:
        for text, piece in self._writing.step():
            job = self._running[text] if piece.reason is None else self._running.pop(text)
            job.give(piece)

    def _joined(self) -> bool:
        """Begin jobs that wait while there are places; wait for one where nothing is to be done.

        False at the end.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._running or self._jobs)
                if self._is_closed:
                    return False
                if not self._jobs:
                    return True
                job = self._jobs.popleft()
            if not job.cancelled.is_set() and not self._begin(job):
                with self._changed:
                    self._jobs.appendleft(job)
                return True

    def _begin(self, job: Job) -> bool:
        """Begin a job. False where there is no place."""
        job.began = time.monotonic()
        options = Options(
            job.sampling, job.limit, job.stop, lambda: job.cancelled.is_set() or job.is_late
        )
        try:
            text = self._writing.add(job.ids, options)
        except Exception as error:  # of one text: the next one may do
            job.give(error)
            return True
        if text is not None:
            self._running[text] = job
        return text is not None

    def _fail(self, error: Exception) -> None:
        """Tell all whose texts were in a step that failed, and begin anew."""
        while self._running:
            text, job = self._running.popitem()
            self._writing.drop(text)
            job.give(error)
