"""The client of COMGR: compiles HIP in a worker process, which is replaced where it has ended."""

from __future__ import annotations

from functools import cache

from tiny_amd.comgr_library import INSTALL
from tiny_amd.settings import settings
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import WorkerLost, WorkerProcess

__all__ = ["ComgrCompiler", "worker_of"]


@cache
def worker_of(named: str) -> WorkerProcess:
    """The process for a library: its path, "" if it is to be looked for."""
    return WorkerProcess(("-m", "tiny_amd.comgr_library", named))


class ComgrCompiler:
    """Compiles HIP source to a relocatable code object for one architecture."""

    name = "COMGR"

    def __init__(self, arch: str) -> None:
        """Raises CompilerUnavailable where there is no library, or none that knows the arch."""
        self.arch = arch
        self.worker = worker_of(settings.COMGR_LIBRARY)
        try:
            (error, message), key = self.worker.ask(["key", arch, ""])
        except WorkerLost as lost:
            said = lost.last_line or "it said nothing"
            why = f"COMGR {lost} as it was loaded: {said}. {INSTALL}"
            raise CompilerUnavailable(why) from None
        if error:
            raise CompilerUnavailable(message)
        self.key = key.decode()

    def compile(self, source: str) -> bytes:
        """The code object. Raises CompileError with the log."""
        return self._made("compile", source)

    def assembly(self, source: str) -> str:
        """The machine code as text. Raises CompileError with the log."""
        return self._made("assembly", source).decode("utf-8", "replace")

    def _made(self, verb: str, source: str) -> bytes:
        """The result of the library for a source."""
        try:
            (error, message), content = self.worker.ask([verb, self.arch, source])
        except WorkerLost as lost:
            raise CompileError(f"COMGR {lost}:", log=lost.log, source=source) from None
        if error:
            log = content.decode("utf-8", "replace")
            raise CompileError(f"{message}:", log=log, source=source)
        return content
