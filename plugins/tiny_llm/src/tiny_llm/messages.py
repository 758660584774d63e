"""Messages of a server: a stream for standard error that waits for no reader."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

__all__ = ["unhurried"]

MOST_WAITING: Final = 1000
"""Messages that wait for a reader; what comes then is dropped."""
LAST_SECONDS: Final = 0.5
"""Time for what still waits at the end."""


class Messages(io.TextIOBase):
    """A stream that hands text to a thread, which writes it to a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting: queue.Queue[str] = queue.Queue(MOST_WAITING)
        threading.Thread(target=self._run, name="tiny-llm messages", daemon=True).start()

    def write(self, text: str) -> int:
        """Take a text, or drop it where nobody reads. Never waits."""
        with contextlib.suppress(queue.Full):
            self.waiting.put_nowait(text)
        return len(text)

    def isatty(self) -> bool:
        """True if what is written shows on a terminal."""
        return os.isatty(self.descriptor)

    def _run(self) -> None:
        while True:
            content = self.waiting.get().encode("utf-8", "backslashreplace")
            with contextlib.suppress(OSError):  # the reader is gone
                while content:
                    content = content[os.write(self.descriptor, content) :]
            self.waiting.task_done()

    def end(self) -> None:
        """Give what waits a moment to be read."""
        end = time.monotonic() + LAST_SECONDS
        while self.waiting.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """A block in which messages to standard error wait for no reader.

    A pipe that nobody reads takes 64 KiB; then a write to it would stop the server.
    """
    try:
        stream = Messages(os.dup(sys.stderr.fileno()))
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        yield
        return
    with contextlib.redirect_stderr(stream):
        try:
            yield
        finally:
            stream.end()
