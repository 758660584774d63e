"""Worker of the server: one thread that generates, job after job, from a queue with a limit."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiny_llm.model import Piece
from tiny_llm.sampling import Sampling
from tinycore.errors import TinycoreError

__all__ = ["Job", "QueueFull", "Worker", "Writer"]


class Writer(Protocol):
    """A language model, as far as the server needs it."""

    name: str
    context: int

    def prompt(self, given: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a prompt. Raises ArgumentError."""

    def generate(
        self,
        given: list[int],
        sampling: Sampling | None = None,
        *,
        limit: int | None = None,
        stop: Sequence[str] = (),
        until: Callable[[], bool] | None = None,
    ) -> Iterator[Piece]:
        """Pieces of the text that follows. Raises ArgumentError."""


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
    """The thread that owns the model. `submit` is called in any thread."""

    def __init__(self, model: Writer, waiting: int) -> None:
        self.model = model
        self._jobs: queue.Queue[Job | None] = queue.Queue(waiting)
        self._closed = threading.Event()
        self._current: Job | None = None
        self._thread = threading.Thread(target=self._run, name="tiny-llm worker", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return self._jobs.qsize()

    def submit(self, job: Job) -> None:
        """Add a job. Raises QueueFull."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full as error:
            raise QueueFull(f"{self._jobs.maxsize} requests wait already; try later") from error

    def close(self, seconds: float = 5.0) -> None:
        """Cancel all jobs and end the thread."""
        self._closed.set()
        if (current := self._current) is not None:
            current.cancel()
        while True:
            try:
                waiting = self._jobs.get_nowait()
            except queue.Empty:
                break
            if waiting is not None:
                waiting.cancel()
        self._jobs.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closed.is_set() and (job := self._jobs.get()) is not None:
            self._current = job
            try:
                self._work(job)
            except Exception as error:  # of one text: the next one may do
                job.give(error)
            self._current = None

    def _work(self, job: Job) -> None:
        if job.cancelled.is_set():
            return
        job.began = time.monotonic()
        pieces = self.model.generate(
            job.ids,
            job.sampling,
            limit=job.limit,
            stop=job.stop,
            until=lambda: job.cancelled.is_set() or job.is_late,
        )
        for piece in pieces:
            job.give(piece)
