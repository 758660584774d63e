"""Clang: C through a pipe to an object. Any clang from version 15 on, or the one inside `ziglang`.

The object is ELF on every system, for a processor without an operating system, so one loader
serves all and no system header or library is read.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tiny_cpu._subnormals import FLUSHING
from tiny_cpu.arch import Arch
from tinycore import cache as disk
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import file_identity

__all__ = [
    "Clang",
    "ClangCompiler",
    "candidates",
    "find_clang",
    "is_clang_installed",
    "target_of",
    "zig",
]

OLDEST: Final = 15
"""The first clang with _Float16 on every processor and with opaque pointers."""
_NEWEST_NAMED: Final = 22
_NAMES: Final = ("clang", *(f"clang-{version}" for version in range(_NEWEST_NAMED, OLDEST - 1, -1)))
_VERSION: Final = re.compile(r"clang version (\d+)[^\n]*")

_FLAGS: Final = (
    "-x", "c", "-std=gnu11", "-c", "-O2", "-w",
    "-ffreestanding", "-fPIC", "-fno-ident", "-fomit-frame-pointer",
    "-fwrapv", "-fno-strict-aliasing",  # integers wrap; a buffer may be seen as several types
    "-fno-math-errno",
    "-fno-stack-protector", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables",
)  # fmt: skip

_WITHOUT_VECTORIZERS: Final = ("-fno-slp-vectorize", "-fno-vectorize")
"""Kernels state their vectors themselves. Those that clang makes of scalars may be masks that its
code generator has no instruction for: "cannot select", seen from clang 15 with AVX-512."""
_OWN_DEFECT: Final = "error in backend"


@dataclass(frozen=True)
class Clang:
    """A clang that was found: the words that start it, and the first line it says about itself."""

    command: tuple[str, ...]
    version: str

    @property
    def major(self) -> int:
        """Its major version; 0 when it does not say."""
        found = _VERSION.search(self.version)
        return int(found[1]) if found else 0


class ClangCompiler:
    """Compiles C to an ELF object for one processor. Usable from several threads at once."""

    name = "CLANG"

    def __init__(self, arch: Arch, clang: Clang | None = None) -> None:
        found = clang or find_clang()
        self.arch = arch
        self._command = (*found.command, *_FLAGS, *target_of(arch), "-o", "-", "-")
        build = file_identity(found.command[0])
        words = self._command[len(found.command) :]
        self.key = " ".join((found.version, build, *words, arch.identity))

    def compile(self, source: str) -> bytes:
        """The object file for `source`. Raises CompileError with all that clang said."""
        return self._translate(self._command, source)

    def assembly(self, source: str) -> str:
        """The machine code of `source` as text. Raises CompileError with all that clang said."""
        command = ("-S" if word == "-c" else word for word in self._command)
        return self._translate(tuple(command), source).decode()

    def _translate(self, command: tuple[str, ...], source: str) -> bytes:
        if FLUSHING in source:
            command = (*command, "-fdenormal-fp-math=preserve-sign")
        try:
            return self.run(command, source)
        except CompileError as error:
            if _OWN_DEFECT not in error.log:
                raise
        return self.run((*command, *_WITHOUT_VECTORIZERS), source)

    @staticmethod
    def run(command: tuple[str, ...], source: str) -> bytes:
        """Run `command` on `source` and return its output. Raises CompileError when it fails."""
        done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
        if done.returncode:
            log = done.stderr.decode(errors="replace")
            raise CompileError(
                f"clang rejected a kernel (exit status {done.returncode}):", log=log, source=source
            )
        return done.stdout


def target_of(arch: Arch) -> tuple[str, ...]:
    """The words that name a processor, first of all the machine without an operating system."""
    target = f"--target={arch.machine}-none-elf"
    if arch.machine == "x86_64":
        signed = (
            f"-m{'no-' if feature[0] == '-' else ''}{feature[1:]}" for feature in arch.features
        )
        return (target, f"-march={arch.processor}", *signed, "-mprefer-vector-width=512")
    words = ("+no" + feature[1:] if feature[0] == "-" else feature for feature in arch.features)
    return (target, "-mcpu=" + "".join((arch.processor, *words)), "-ffixed-x18")  # macOS owns x18


@cache
def find_clang() -> Clang:
    """The clang to use. Raises CompilerUnavailable, naming what was tried and how to get one."""
    tried = []
    for clang in candidates():
        if clang.major >= OLDEST:
            return clang
        tried.append(f"{' '.join(clang.command)} is {clang.version or 'broken'}")
    searched = (
        f"{_NAMES[0]} and {_NAMES[-1]} to {_NAMES[1]} on PATH, and the Python package ziglang"
    )
    found = "; found only: " + "; ".join(tried) if tried else "; found none"
    raise CompilerUnavailable(
        f"no clang {OLDEST} or newer. Searched: {searched}{found}. Install clang {OLDEST} or newer "
        "with the system's packages, or run `pip install ziglang`, or set DEV=CPU:LLVM, which "
        "needs no compiler."
    )


def candidates() -> Iterator[Clang]:
    """Every clang there is, of any version, the preferred first."""
    for name in _NAMES:
        path = shutil.which(name)
        if path is not None:
            yield Clang((path,), _version_of((path,)))
    program = zig()
    if program is not None:
        yield Clang((program, "clang"), _version_of((program, "clang")))


def is_clang_installed() -> bool:
    """True if `find_clang` finds one."""
    try:
        find_clang()
    except CompilerUnavailable:
        return False
    return True


def zig() -> str | None:
    """The program inside the `ziglang` package, found without importing it."""
    try:
        spec = importlib.util.find_spec("ziglang")
    except (ImportError, ValueError):
        return None
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "zig")
        if os.access(path, os.X_OK):
            return str(path)
    return None


def _version_of(command: tuple[str, ...]) -> str:
    """Query the compiler's version and features, once per program file; cached on disk."""
    try:
        facts = os.stat(command[0])
    except OSError:
        return ""
    key = f"{' '.join(command)} {facts.st_size} {facts.st_mtime_ns}"
    known = disk.get("clang", key)
    if known is not None:
        return known.decode()
    try:
        done = subprocess.run((*command, "--version"), capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    version = done.stdout.decode(errors="replace").partition("\n")[0].strip()
    if done.returncode or not version:
        return ""
    disk.put("clang", key, version.encode())
    return version
