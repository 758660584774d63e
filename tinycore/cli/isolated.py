"""Isolated processes for modules, so that a driver can neither hang nor kill this one.

Floor 6. Imports the settings and `worker_process`. The module prints JSON, an object a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from _thread import start_new_thread
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryFile
from typing import IO, Any, Final

from tinycore.config import settings
from tinycore.device.worker_process import signal_name

Row = dict[str, Any]
"""An object that the command printed."""

PACKAGE_ROOT: Final = Path(__file__).parents[2]
"""Folder of this package, so that the subprocess finds it in any working directory."""

LAST_SECONDS: Final = 0.5
"""Time for what a process has printed to be read after its end."""

FIXES: Final = {
    "SIGSEGV": "the driver or its compiler touched memory that is not its own: update it",
    "SIGILL": "code was made for another processor: name one in DEV=DEVICE:RENDERER:ARCH",
    "SIGKILL": "the system ended it, mostly because memory ran out",
}
"""Advice for each signal."""


@dataclass(frozen=True)
class Ended:
    """The end of a process: its status, and its standard error.

    The status is negative for a signal, None if it was ended because it said nothing for `seconds`.
    """

    status: int | None
    errors: str
    seconds: float

    @property
    def manner(self) -> str:
        """Describe how the process died, its last output, and the remedy."""
        last = (self.errors.strip().splitlines() or [""])[-1]
        said = f", saying {last!r}" if last else ""
        if self.status is None:
            return (
                f"nothing came of it in {self.seconds:g} s, so it was ended{said}; "
                "TINYCORE_PLUGINS_DENY leaves the plugin out, and `tinycore devices --timeout "
                "SECONDS` waits longer"
            )
        if self.status >= 0:
            return f"the process ended with status {self.status}{said}"
        word = signal_name(-self.status)
        fix = FIXES.get(word, "update the driver, or leave the plugin out by TINYCORE_PLUGINS_DENY")
        return f"the process was killed by {word}{said}; {fix}"


def run_isolated(
    words: Sequence[str], seconds: float, variables: Mapping[str, str] | None = None
) -> Iterator[Row | Ended]:
    """The objects that `python -m *words` prints, each as it comes; at last how the process ended.

    It is ended when it prints nothing for `seconds`, and when the caller wants no more.
    """
    chosen = {"DEV": settings.DEV} if settings.DEV else {}
    chosen["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")))
    )
    with TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env=os.environ | chosen | dict(variables or {}),
        )
        try:
            status = yield from _rows(process, seconds)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        errors.seek(0)
        yield Ended(status, errors.read().decode("utf-8", "replace"), seconds)


def _rows(process: subprocess.Popen[str], seconds: float) -> Generator[Row, None, int | None]:
    """Yield the lines of a process, then its status; None after a long silence."""
    assert process.stdout is not None
    lines: Queue[str | None] = Queue()
    try:
        start_new_thread(_pass_on, (process.stdout, lines))
        start_new_thread(_end, (process, lines))
    except RuntimeError as error:
        raise OSError(f"no thread can be started: {error}") from error
    try:
        while (line := lines.get(timeout=seconds)) is not None:
            if (row := _object(line)) is not None:
                yield row
        return process.wait(seconds)
    except (Empty, subprocess.TimeoutExpired):
        return None


def _pass_on(stream: IO[str], lines: Queue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _end(process: subprocess.Popen[str], lines: Queue[str | None]) -> None:
    """Put the end when a process ended, though a child of it may still have its output."""
    process.wait()
    time.sleep(LAST_SECONDS)
    lines.put(None)


def _object(line: str) -> Row | None:
    """The object on a line; None for other lines, which a driver may print."""
    with suppress(ValueError):
        if line.startswith("{"):
            row: Row = json.loads(line)
            return row
    return None
