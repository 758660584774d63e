"""Progress of long work on a terminal: what it is, and for how long. Nothing goes into pipes.

Floor 0. Imports `_background`. A thread of C waits for the end of the work, and writes a line
after a second, so work that is over sooner costs the start of a thread, on a terminal alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TypeVar

from tinycore._background import started

T = TypeVar("T")
SILENT_SECONDS = 1.0
"""Time between two lines, and before the first."""
CLEAR = "\r\x1b[K"


@contextmanager
def telling(what: Callable[[float], str]) -> Iterator[None]:
    """Say what is done by a `with` block, once it takes more than a second; `what` is given the
    seconds since its begin.
    """
    if not (sys.stderr and sys.stderr.isatty()):
        yield
        return
    began, ended = time.monotonic(), SimpleQueue[None]()

    def write(text: str) -> None:
        print(f"{CLEAR}{text}", end="", file=sys.stderr, flush=True)

    def tell() -> None:
        while True:
            try:
                return ended.get(timeout=SILENT_SECONDS)
            except Empty:
                write(f"tinycore: {what(time.monotonic() - began)}")

    try:
        started(tell)
        yield
    finally:
        ended.put(None)
        if time.monotonic() > began + SILENT_SECONDS:
            write("")


def progress(items: Iterable[T], what: str, count: int) -> Iterator[T]:
    """The items, of which there are `count`, while how many came is told."""
    done = 0
    with telling(
        lambda s: (
            f"{what}: {done} of {count}, {s:.0f} s"
            + (f", about {s / done * (count - done):.0f} s left" if done else "")
        )
    ):
        for item in items:
            yield item
            done += 1
