"""Copies of host memory by threads, for the staging buffers of devices.

Floor 1. Imports `config`. One thread copies a fraction of what a card's bus takes, most
of all from or to memory that it touches first; and while it copies, nobody hands on what is copied
already. So pieces of a large copy are copied by a few threads. C's memmove runs without Python's
lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, TypeAlias

from tinycore._background import Crew
from tinycore._deferred import numpy
from tinycore._locks import in_child
from tinycore.config import cpu_count

__all__ = ["COPY_THREADS", "HostCopy", "copied", "host_copy"]

COPY_THREADS: Final = 4
"""Most threads that copy: they reach the rate of a bus, and a copy is often all that goes on."""
LEAST_BYTES: Final = 1 << 18
"""Least bytes that another thread is woken for."""

HostCopy: TypeAlias = Callable[[], object]
"""Waits for a copy; may be called again."""


def copied() -> None:
    """Wait for a copy that is done."""


def host_copy(target: memoryview, source: memoryview) -> HostCopy:
    """Begin to copy `source` to the start of `target`, both of bytes; keeps them until it is done.

    Small copies are done on return, and all on a machine with one processor.
    """
    if source.nbytes >= LEAST_BYTES and (count := min(cpu_count(), COPY_THREADS)) > 1:
        crew = threads(count)
        if crew.started:
            return crew.begin(partial(move, target, source))
    target[: source.nbytes] = source
    return copied


def move(target: memoryview, source: memoryview) -> None:
    """Copy while other threads run Python."""
    start, end = (numpy.frombuffer(memory, numpy.uint8).ctypes.data for memory in (target, source))
    memmove()(start, end, source.nbytes)


@cache
def memmove() -> Any:
    """C's function, which is called without Python's lock."""
    import ctypes  # noqa: PLC0415  only large copies need it

    return ctypes.memmove


@cache
def threads(count: int) -> Crew:
    """The threads of this process, made at the first large copy."""
    return Crew(count)


in_child(threads.cache_clear)
