"""The client of Mesa's compiler: compiles in a worker process, which is replaced if it ends."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Final

from tiny_qcom.chip import Chip
from tiny_qcom.code import Code
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import WorkerLost, WorkerProcess

__all__ = ["Ir3Compiler", "library_path", "worker"]

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


@cache
def worker() -> WorkerProcess:
    """The process that compiles. Raises CompilerUnavailable."""
    return WorkerProcess(("-m", "tiny_qcom.mesa", str(library_path())))


class Ir3Compiler:
    """Compiles listings of NIR for one chip."""

    name = "IR3"

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.worker = worker()
        self.key = f"tinymesa {VERSION} {chip.id:#x} 3"

    def compile(self, source: str) -> bytes:
        """The container of a kernel. Raises CompileError with what Mesa said."""
        return self._made("compile", source)

    def assembly(self, source: str) -> str:
        """Machine code as text. Raises CompileError with what Mesa said."""
        return self.disassemble(Code.unpack(self.compile(source), "kernel").machine)

    def disassemble(self, machine: bytes) -> str:
        """Machine code as text. Raises CompileError with what Mesa said."""
        return self._made("disassemble", machine.hex()).decode()

    def _made(self, verb: str, text: str) -> bytes:
        question = [verb, int(self.chip.name[1:]), self.chip.id, text]
        try:
            error, content = self.worker.ask(question)
        except WorkerLost as lost:
            why = f"Mesa's compiler {lost} on a kernel:"
            raise CompileError(why, log=lost.log, source=text) from None
        if error:
            raise CompileError("Mesa's compiler rejected a kernel:", log=error, source=text)
        return content
