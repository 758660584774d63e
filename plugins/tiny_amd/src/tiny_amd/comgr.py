"""The client of COMGR: a process of its own compiles HIP, and is replaced where it has ended."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from typing import IO, Final

from tiny_amd.comgr_library import INSTALL
from tiny_amd.settings import settings
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import in_child, lock

__all__ = ["ComgrCompiler", "ComgrProcess"]

COMMAND: Final = (sys.executable, "-P", "-m", "tiny_amd.comgr_library")


class ComgrProcess:
    """The process that compiles, one source at a time."""

    def __init__(self, named: str) -> None:
        """`named`: path of the library, "" if it is to be looked for."""
        self.named = named
        self.lock = lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None
        atexit.register(self.stop)
        in_child(self.forget)

    def ask(self, verb: str, arch: str, source: str = "") -> bytes:
        """The answer to a question. Raises CompilerUnavailable and CompileError."""
        question = json.dumps([verb, arch, source]).encode() + b"\n"
        with self.lock:
            try:
                error, message, content = self.exchange(question)
            except BaseException:
                self.stop()  # an answer that was not read would be taken for the next
                raise
            if error == "ended":
                self.stop()
        if not error:
            return content
        log = content.decode("utf-8", "replace")
        if verb == "key":
            last = (log.strip().splitlines() or [""])[-1]
            loaded = f"{message} as it was loaded: {last or 'it said nothing'}. {INSTALL}"
            raise CompilerUnavailable(loaded if error == "ended" else message)
        raise CompileError(f"{message}:", log=log, source=source)

    def exchange(self, question: bytes) -> tuple[str, str, bytes]:
        """Kind of error, its message, and the content of an answer; "ended" if none comes."""
        process = self.process
        if process is None or process.poll() is not None:
            process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(question)
            process.stdin.flush()
        head = process.stdout.readline()
        if head:
            error, message, size = json.loads(head)
            content = process.stdout.read(size)
            if len(content) == size:
                return error, message, content
        return self.end_of(process)

    def end_of(self, process: subprocess.Popen[bytes]) -> tuple[str, str, bytes]:
        """Exit status of a process that does not answer, as an answer, with its log."""
        status = process.wait()
        assert self.errors is not None
        self.errors.seek(0)
        log = self.errors.read()
        with contextlib.suppress(ValueError):
            return "ended", f"COMGR was ended by {signal.Signals(-status).name}", log
        return "ended", f"COMGR ended with status {status}", log

    def start(self) -> subprocess.Popen[bytes]:
        """A new process."""
        self.stop()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop()
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [*COMMAND, self.named],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the program that asks
        )
        return self.process

    def forget(self) -> None:
        """In a forked child: the process belongs to the parent, which reads its answers."""
        self.process = None

    def stop(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, self.errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@cache
def process_of(named: str) -> ComgrProcess:
    """The process for a library."""
    return ComgrProcess(named)


class ComgrCompiler:
    """Compiles HIP source to a relocatable code object for one architecture."""

    name = "COMGR"

    def __init__(self, arch: str) -> None:
        """Raises CompilerUnavailable where there is no library, or none that knows the arch."""
        self.arch = arch
        self.process = process_of(settings.COMGR_LIBRARY)
        self.key = self.process.ask("key", arch).decode()

    def compile(self, source: str) -> bytes:
        """The code object. Raises CompileError with the log."""
        return self.process.ask("compile", self.arch, source)

    def assembly(self, source: str) -> str:
        """The machine code as text. Raises CompileError with the log."""
        return self.process.ask("assembly", self.arch, source).decode("utf-8", "replace")
