"""Threads for work that nobody waits for, or waits for later.

Floor 0. Imports `_locks`. A signal handler may run between any two steps of the main thread, also
in the middle of `ThreadPoolExecutor.submit` or `Thread.start`, which hold locks that are not
recursive: a handler that starts a thread there would wait for its own thread for ever. So threads
are started by one call of C, and what they share are queues of C. See docs/threads.md.
"""

from __future__ import annotations

import _thread
import atexit
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from tinycore._locks import in_child

EXIT_SECONDS: Final = 60.0
"""Time that the end of the process waits for a thread that is in the middle of a job."""

at_work: Final[list[SimpleQueue[None]]] = []
"""For each thread with a job that must not be cut off, the queue that tells of its end."""
ending: Final[list[bool]] = []
"""Not empty once the process ends: no thread is started any more, and none takes another job."""


def start(work: Callable[[], object]) -> bool:
    """Run a function in a thread of its own, whose errors are dropped.

    The end of the process waits for it. Returns False where no thread can be started: the system
    has no more, or the process ends.
    """
    end: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        try:
            with suppress(BaseException):
                work()
        finally:
            with suppress(ValueError):
                at_work.remove(end)
            end.put(None)

    if ending:
        return False
    if not at_work:
        atexit.unregister(finish)
        atexit.register(finish)  # before what was registered earlier, such as the close of devices
    at_work.append(end)
    if not (is_started := started(run)):
        at_work.remove(end)
    return is_started


def started(work: Callable[[], object]) -> bool:
    """Start a thread, which nobody waits for. Returns False where none can be started."""
    try:
        _thread.start_new_thread(work, ())
    except (RuntimeError, MemoryError):
        return False
    return True


def finish() -> None:
    """Let jobs that were begun end, and start no more: a library must not be unloaded below one."""
    ending.append(True)
    for end in at_work.copy():
        with suppress(Empty):
            end.get(timeout=EXIT_SECONDS)


class Crew:
    """A few threads that wait for short jobs, and begin at the first."""

    def __init__(self, count: int) -> None:
        self.jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.started = 0
        while self.started < count and started(self._work):
            self.started += 1

    def _work(self) -> None:
        while True:
            with suppress(BaseException):
                self.jobs.get()()

    def begin(self, job: Callable[[], object]) -> Callable[[], None]:
        """Begin a job that raises nothing; what waits for its end, any number of times."""
        ended: SimpleQueue[None] = SimpleQueue()

        def run() -> None:
            try:
                job()
            finally:
                ended.put(None)

        def wait() -> None:
            ended.put(ended.get())

        self.jobs.put(run)
        return wait


in_child(at_work.clear)
