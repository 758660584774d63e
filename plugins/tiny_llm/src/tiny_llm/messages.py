"""Messages of a server: a stream for standard error that waits for no reader."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from tinycore.plugin import lock

__all__ = ["unhurried"]

MOST_WAITING: Final = 1000
"""Texts that wait for a reader; what comes then is lost, and counted."""
LAST_SECONDS: Final = 0.5
"""Time for what still waits at the end."""
PIECE_BYTES: Final = getattr(select, "PIPE_BUF", 512)
"""Bytes that a pipe takes without waiting if it says that it is ready."""


class Messages(io.TextIOBase):
    """A stream that writes to a file descriptor at once what that takes without waiting.

    A thread writes the rest, in order.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting: deque[bytes] = deque()
        self.lost = 0
        """Texts that were lost since the last one that was not."""
        self.lock = lock()

    def write(self, text: str) -> int:
        """Write a text, now or later, or lose it where nobody reads. Never waits."""
        content = text.encode("utf-8", "backslashreplace")
        with self.lock:
            if not self.waiting:
                content = self.rest_of(content)
            if content and len(self.waiting) >= MOST_WAITING:
                self.lost += 1
            elif content:
                self.waiting.append(content)
                if len(self.waiting) == 1:
                    threading.Thread(target=self.run, name="tiny-llm messages", daemon=True).start()
        return len(text)

    def rest_of(self, content: bytes) -> bytes:
        """The bytes that the descriptor does not take now, none if its reader is gone."""
        try:
            while content and self.is_ready():
                content = content[os.write(self.descriptor, content[:PIECE_BYTES]) :]
        except BlockingIOError:
            return content
        except OSError:
            return b""
        return content

    def is_ready(self, seconds: float | None = 0) -> bool:
        """True if a write of `PIECE_BYTES` bytes does not wait, after so many seconds at most."""
        try:
            return bool(select.select((), (self.descriptor,), (), seconds)[1])
        except (OSError, ValueError):  # no such file can be asked
            return seconds is None

    def run(self) -> None:
        """Write what waits, until nothing does."""
        while self.waiting:
            content = self.waiting[0]
            with contextlib.suppress(OSError):  # the reader is gone
                while content:
                    with contextlib.suppress(BlockingIOError):
                        self.is_ready(None)
                        content = content[os.write(self.descriptor, content[:PIECE_BYTES]) :]
            with self.lock:
                if self.lost:
                    told = f"\n(nobody read here: {self.lost} texts were lost)\n"
                    self.waiting.append(told.encode())
                    self.lost = 0
                self.waiting.popleft()
                if not self.waiting:  # the next one begins a thread
                    return

    def isatty(self) -> bool:
        """True if what is written shows on a terminal."""
        return os.isatty(self.descriptor)

    def fileno(self) -> int:
        """The file descriptor, for programs that write to it by themselves."""
        return self.descriptor

    def end(self) -> None:
        """Give what waits a moment to be read."""
        end = time.monotonic() + LAST_SECONDS
        while self.waiting and time.monotonic() < end:
            time.sleep(0.01)


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """A block in which messages to standard error wait for no reader.

    A pipe that nobody reads takes 64 KiB; then a write to it would stop the server.
    """
    try:
        sys.stderr.flush()
        stream = Messages(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        yield
        return
    with contextlib.redirect_stderr(stream):
        try:
            yield
        finally:
            stream.end()
