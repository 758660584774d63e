"""Worker processes of the search, with time limits and replacement after a crash.

Floor 4.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any, Final

from tinycore.config import cpu_count

Json = dict[str, Any]

COMMAND: Final = (sys.executable, "-P", "-m", "tinycore.engine.search_worker")
SAID_BYTES: Final = 2000
"""Most characters of a dead worker's stderr that are looked at."""


class WorkerLost(Exception):
    """A worker that died or did not answer in time, and was ended; the message says which."""


class WorkerRefused(Exception):
    """A request that ended in an error of a healthy worker."""


class Worker:
    """A process that answers requests, started at the first."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None
        self.owner = 0

    def ask(self, word: str, seconds: float, **content: Any) -> Json:
        """The answer to a request. Raises WorkerLost, or WorkerRefused with the worker's error."""
        process = self.process or self.start()
        request = json.dumps({"do": word, "seconds": seconds} | content) + "\n"
        assert process.stdin is not None
        try:
            process.stdin.write(request.encode())
            process.stdin.flush()
            line = self.line_within(process, seconds)
            answer: Json = json.loads(line)
        except (OSError, ValueError) as error:
            raise WorkerLost(self.ended(str(error))) from None
        if "error" in answer:
            raise WorkerRefused(answer["error"])
        return answer

    def start(self) -> subprocess.Popen[bytes]:
        """A new process."""
        self.owner = os.getpid()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment(),
        )
        return self.process

    def line_within(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        """The next line of output. Raises WorkerLost when the time is over or the output ends."""
        assert process.stdout is not None
        text, end = b"", time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                if not selector.select(max(end - time.monotonic(), 0)):
                    self.close()
                    raise WorkerLost(f"it did not end within {seconds:.1f} s and was killed")
                part = os.read(process.stdout.fileno(), 1 << 20)
                if not part:
                    raise WorkerLost(self.ended("its output ended"))
                text += part
        return text

    def ended(self, otherwise: str) -> str:
        """Reap the process and describe how it ended."""
        process, errors = self.process, self.errors
        if process is None or errors is None:
            return otherwise
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            status = 0
        errors.seek(max(errors.seek(0, os.SEEK_END) - SAID_BYTES, 0))
        said = errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        last = f": {said[-1]}" if said else ""
        if status < 0:
            return f"it was ended by {signal.Signals(-status).name}{last}"
        return f"it ended with status {status}{last}" if status else otherwise

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self.process = self.process, None
        if process is not None and self.owner == os.getpid():  # a forked child has no say
            process.kill()
            process.communicate()
        if self.errors is not None:
            self.errors.close()
            self.errors = None

    def __del__(self) -> None:
        self.close()


def environment() -> dict[str, str]:
    """The environment of a worker: that of this process, but quiet, without a search."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    chosen = {"CPU_COUNT": str(cpu_count()), "BEAM": "0", "TUNED": "0", "DEBUG": "0", "TRACE": ""}
    chosen |= {"NOOPT": "0", "LRU": "0"}
    prefixed = {f"TINYCORE_{name}": value for name, value in chosen.items()}
    return {**os.environ, **prefixed, "PYTHONPATH": path}
