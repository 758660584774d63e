"""Worker processes: programs that answer questions one at a time, each in a process of its own.

Floor 1. Candidates of BEAM run in them, and compilers that crash, hang, or cannot be loaded beside
other libraries. A question is a value of JSON on a line; an answer is a line of JSON, [bytes,
value], and so many bytes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

from tinycore._deferred import DeferredModule
from tinycore._locks import lock

if TYPE_CHECKING:
    import selectors
    import subprocess
    import tempfile
else:  # plugins import this file, and few processes need these
    selectors, subprocess, tempfile = map(DeferredModule, ("selectors", "subprocess", "tempfile"))

WORKER_SECONDS: Final = 600.0
"""Time limit of an answer, unless a question has its own."""
END_SECONDS: Final = 10.0
"""Time that a process has to end after its output has ended."""
LOG_BYTES: Final = 1 << 16
"""Bytes of the standard error of a lost process that are kept, the last ones."""
READ_BYTES: Final = 1 << 20
WRITE_BYTES: Final = getattr(select, "PIPE_BUF", 512)
"""Bytes that a pipe takes without blocking once it is ready (POSIX, `poll`)."""


class WorkerLost(Exception):
    """A worker that ended, gave no answer in time or a malformed one, and is gone.

    The message continues a sentence whose subject is the worker: "was ended by SIGSEGV".
    """

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log
        """The end of its standard error."""

    @property
    def last_line(self) -> str:
        """The last line of its log, "" where it has none."""
        return (self.log.strip().splitlines() or [""])[-1]


class WorkerProcess:
    """A process of Python that answers questions, started at the first and again after its end.

    Its program calls `serve_questions`. A forked child has a process of its own.
    """

    def __init__(self, words: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """`words`: arguments of Python, as in ("-m", "package.module"); `variables`: additions to
        the environment.
        """
        self.words, self.variables = tuple(words), dict(variables or {})
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None
        self.owner = 0
        self.lock = lock()
        self._end: Callable[[], object] | None = None

    @property
    def pid(self) -> int:
        """Its process id; 0 while this process has none that runs."""
        process = self.process
        if process is None or self.owner != os.getpid() or process.poll() is not None:
            return 0
        return process.pid

    def ask(self, question: object, seconds: float = WORKER_SECONDS) -> tuple[Any, bytes]:
        """The value and the bytes of the answer. Raises WorkerLost."""
        text = json.dumps(question).encode() + b"\n"
        with self.lock:
            try:
                return self._exchange(text, seconds)
            except BaseException:
                self.stop()  # an answer that was not read would be taken for the next
                raise

    def stop(self) -> None:
        """End the process, whatever it does; the next question starts another."""
        if self._end is not None:
            self._end()

    def _exchange(self, text: bytes, seconds: float) -> tuple[Any, bytes]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        try:
            _send(process.stdin.fileno(), text, deadline)
            return _receive(process.stdout.fileno(), deadline)
        except TimeoutError:
            raise self._lost(f"gave no answer within {seconds:.1f} s and was killed") from None
        except (BrokenPipeError, EOFError):
            raise self._lost("") from None
        except OSError as error:  # Windows cannot wait for pipes
            raise self._lost(f"cannot be asked ({error})") from None
        except (ValueError, TypeError) as error:
            raise self._lost(f"gave a malformed answer ({error})") from None

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, a new one where none runs."""
        if self.process is not None and self.pid:
            return self.process
        self.stop()
        errors = tempfile.TemporaryFile()
        path = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(
            [sys.executable, "-P", *self.words],
            bufsize=0,  # what a buffer holds would be written again by a forked child
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **self.variables, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the program that asks
        )
        self.process, self.errors, self.owner = process, errors, os.getpid()
        self._end = weakref.finalize(self, _end_of, process, errors, self.owner)
        return process

    def _lost(self, manner: str) -> WorkerLost:
        """The error of a process that is lost: `manner`, or how it ended where it did."""
        process, errors = self.process, self.errors
        assert process is not None
        assert errors is not None
        try:
            status: int | None = process.wait(0 if manner else END_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        self.process = None
        errors.seek(max(errors.seek(0, os.SEEK_END) - LOG_BYTES, 0))
        log = errors.read().decode("utf-8", "replace")
        return WorkerLost(manner or _manner_of(status), log)


def serve_questions(answer: Callable[[Any], tuple[object, bytes]]) -> None:
    """Answer the questions of a WorkerProcess until there are no more.

    Standard output becomes standard error: what a library prints is no answer.
    """
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        for line in sys.stdin.buffer:
            value, content = answer(json.loads(line))
            answers.write(json.dumps([len(content), value]).encode() + b"\n" + content)
            answers.flush()


def _end_of(process: subprocess.Popen[bytes], errors: IO[bytes], owner: int) -> None:
    """End a process and close its pipes; a forked child, whose process it is not, closes these."""
    if owner == os.getpid():
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            stream.close()


def _manner_of(status: int | None) -> str:
    """The end of a process in words, by its exit status; None where it still ran."""
    if status is None:
        return "closed its output"
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by {signal_name(-status)}"


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGSEGV; "signal 99" for one without."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _wait(selector: selectors.BaseSelector, deadline: float) -> None:
    """Wait until a pipe is ready. Raises TimeoutError at the deadline."""
    if not selector.select(max(deadline - time.monotonic(), 0)):
        raise TimeoutError


def _send(pipe: int, text: bytes, deadline: float) -> None:
    """Write a question. Raises TimeoutError, and OSError where nobody reads."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_WRITE)
        rest = memoryview(text)
        while rest:
            _wait(selector, deadline)
            rest = rest[os.write(pipe, rest[:WRITE_BYTES]) :]


def _receive(pipe: int, deadline: float) -> tuple[Any, bytes]:
    """Read an answer. Raises TimeoutError, EOFError at the end of the output, ValueError and
    TypeError for what is no answer.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        read, line_end = bytearray(), -1
        while line_end < 0:
            begin = len(read)
            read += _part(pipe, selector, deadline)
            line_end = read.find(b"\n", begin)
        size, value = json.loads(read[:line_end])
        content = read[line_end + 1 :]
        while len(content) < size:
            content += _part(pipe, selector, deadline)
    if len(content) != size:
        raise ValueError(f"{len(content)} bytes where it says {size}")
    return value, bytes(content)


def _part(pipe: int, selector: selectors.BaseSelector, deadline: float) -> bytes:
    """The next bytes of the output."""
    _wait(selector, deadline)
    if part := os.read(pipe, READ_BYTES):
        return part
    raise EOFError
