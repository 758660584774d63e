"""Compiling the kernels of a schedule several at a time, ahead of their first run.

Floor 4. Lowering is Python and happens one at a time; compilers are programs of their own or native
code, and work beside it. Threads see the settings of the one that asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Final, TypeVar

from tinycore._deferred import deferred
from tinycore.config import cpu_count, settings

Job = TypeVar("Job")

thread_pool: Final = deferred("concurrent.futures:ThreadPoolExecutor")
MOST_AT_ONCE: Final = 16


def at_once() -> int:
    """How many kernels are compiled at the same time."""
    return min(settings.PARALLEL or cpu_count(), MOST_AT_ONCE)


def start_ahead(make: Callable[[Job], object], jobs: Iterable[Job]) -> None:
    """Begin with all jobs, in order, on threads of their own, and return at once.

    What a job raises is dropped: who needs its result makes it again, and finds out.
    """
    waiting = list(dict.fromkeys(jobs))
    if min(len(waiting), at_once()) < 2:
        return
    threads = thread_pool(min(len(waiting), at_once()), "tinycore-compile")
    for job in waiting:
        threads.submit(copy_context().run, make, job)
    threads.shutdown(wait=False)
