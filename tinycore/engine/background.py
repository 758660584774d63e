"""Background compilation of a schedule's kernels on a thread pool.

Floor 4. Lowering holds the interpreter lock and is serialized; compilers are native code or
subprocesses and run in parallel to it. Threads inherit the settings of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Final, TypeVar

from tinycore._deferred import deferred
from tinycore.config import cpu_count, settings

Job = TypeVar("Job")

thread_pool: Final = deferred("concurrent.futures:ThreadPoolExecutor")
MOST_JOBS: Final = 16


def parallel_jobs() -> int:
    """The number of kernels compiled at the same time: PARALLEL, or one per processor."""
    return min(settings.PARALLEL or cpu_count(), MOST_JOBS)


def start_compiling(make: Callable[[Job], object], jobs: Iterable[Job]) -> None:
    """Start all jobs, in order, on a thread pool, without waiting.

    Exceptions of jobs are dropped: the caller that needs the result compiles again, and gets them.
    """
    waiting = list(dict.fromkeys(jobs))
    jobs_at_once = min(len(waiting), parallel_jobs())
    if jobs_at_once < 2:
        return
    threads = thread_pool(jobs_at_once, "tinycore-compile")
    for job in waiting:
        threads.submit(copy_context().run, make, job)
    threads.shutdown(wait=False)
