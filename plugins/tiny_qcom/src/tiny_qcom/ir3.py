"""The client of Mesa's compiler: a process of its own that compiles, and is replaced if it ends."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tiny_qcom.chip import Chip
from tiny_qcom.code import Code
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import in_child, lock

__all__ = ["Ir3Compiler", "Server", "library_path", "server"]

VERSION: Final = "25.2.7.2"
"""Version of the wheel tinymesa: structures are read by their offsets in it."""


@cache
def library_path() -> Path:
    """Path of the library in the wheel. Raises CompilerUnavailable."""
    found = importlib.util.find_spec("tinymesa")
    origin = found.origin if found is not None else None
    path = Path(origin).with_name("libtinymesa.so") if origin else None
    if path is None or not path.exists():
        raise CompilerUnavailable(
            "DEV=QCOM:IR3 needs Mesa's compiler, the Python package tinymesa, which is not "
            f"installed. Run `pip install tinymesa=={VERSION}`, or `pip install "
            '"tiny-qcom[ir3]"`.'
        )
    return path


class Server:
    """The process that compiles, one listing at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = lock()
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        in_child(self.forget)

    def start(self) -> subprocess.Popen[bytes]:
        """The process, a new one where the last has ended."""
        if self.process is None or self.process.poll() is not None:
            self.log = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tiny_qcom.mesa", str(self.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                start_new_session=True,  # Ctrl-C is for the program that asks
            )
        return self.process

    def forget(self) -> None:
        """In a forked child: the process belongs to the parent, which reads its answers."""
        self.process = None

    def stop(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self.log):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def compile(self, listing: str, chip: Chip) -> bytes:
        """The container of a listing. Raises CompileError."""
        return self.ask("compile", chip, listing)

    def disassemble(self, machine: bytes, chip: Chip) -> str:
        """Machine code as text. Raises CompileError."""
        return self.ask("disassemble", chip, machine.hex()).decode()

    def ask(self, verb: str, chip: Chip, text: str) -> bytes:
        """The answer of the process. Raises CompileError."""
        question = json.dumps([verb, int(chip.name[1:]), chip.id, text]).encode() + b"\n"
        with self.lock:
            try:
                return self._ask(question, text)
            except BaseException as error:
                if not isinstance(error, CompileError):
                    self.stop()  # an answer that was not read would be taken for the next
                raise

    def _ask(self, question: bytes, listing: str) -> bytes:
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(question)
            process.stdin.flush()
        head = process.stdout.readline()
        if not head:
            process.wait()
            self.log.seek(0)
            log = self.log.read().decode(errors="replace")
            self.stop()
            why = f"Mesa's compiler ended with status {process.returncode} on a kernel:"
            raise CompileError(why, log=log, source=listing)
        error, size = json.loads(head)
        binary = process.stdout.read(size)
        if error:
            raise CompileError("Mesa's compiler rejected a kernel:", log=error, source=listing)
        return binary


@cache
def server() -> Server:
    """The process of this process. Raises CompilerUnavailable."""
    return Server(library_path())


class Ir3Compiler:
    """Compiles listings of NIR for one chip."""

    name = "IR3"

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.server = server()
        self.key = f"tinymesa {VERSION} {chip.id:#x} 2"

    def compile(self, source: str) -> bytes:
        """The container of a kernel. Raises CompileError with what Mesa said."""
        return self.server.compile(source, self.chip)

    def assembly(self, source: str) -> str:
        """Machine code as text. Raises CompileError with what Mesa said."""
        machine = Code.unpack(self.compile(source), "kernel").machine
        return self.server.disassemble(machine, self.chip)
