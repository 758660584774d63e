"""NVIDIA's run-time compiler: where it is, and what it makes of a source.

It is looked for where the system finds libraries, then in a CUDA toolkit, then in the wheels
`nvidia-cuda-nvrtc` (which torch brings as well); NVRTC_LIBRARY names one elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from tiny_nv._native import ffi
from tiny_nv.settings import cuda_settings
from tinycore.errors import CompileError, CompilerUnavailable

__all__ = ["annotated", "built", "compiled", "library", "supported", "tool", "version"]

_MAJORS: Final = ("13", "12")
"""Versions of CUDA whose nvrtc is taken, the newest first."""
_LIBRARY_NAMES: Final = tuple(f"libnvrtc.so.{major}" for major in _MAJORS)
_WINDOWS_NAMES: Final = tuple(f"nvrtc64_{major}0_0.dll" for major in _MAJORS)
_TOOLKIT_VARIABLES: Final = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
_TOOLKITS: Final = ("/usr/local/cuda", "/opt/cuda")
_LIBRARY_FOLDERS: Final = (
    "lib64",
    "lib",
    "bin",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
)
INSTALL: Final = 'pip install "tinycore[cuda]"'

_found: list[tuple[Any, str]] = []
"""The library and its path, once it is open."""
_kept: list[Any] = []
"""Libraries that it depends on, which stay open as well."""


def library() -> Any:
    """The compiler's library. Raises CompilerUnavailable with what was tried."""
    return _opened()[0]


def path() -> str:
    """Path of the library."""
    return _opened()[1]


def _opened() -> tuple[Any, str]:
    if _found:
        return _found[0]
    tried = []
    for candidate in _candidates():
        try:
            library = ffi.dlopen(candidate)
        except OSError as error:
            tried.append(f"{candidate} ({str(error).rpartition(': ')[2]})")
            continue
        _found.append((library, candidate))
        _kept.extend(_builtins_beside(Path(candidate)))
        return _found[0]
    raise CompilerUnavailable(
        f"NVIDIA's compiler nvrtc is not installed: `{INSTALL}` brings it, and so does a CUDA "
        f"toolkit of version {' or '.join(reversed(_MAJORS))}; NVRTC_LIBRARY names one elsewhere. "
        f"Tried: {'; '.join(tried)}"
    )


def _builtins_beside(file: Path) -> Iterator[Any]:
    """Libraries that the compiler opens by name when it compiles, opened by path beforehand."""
    if file.is_absolute():
        for beside in sorted(file.parent.glob("libnvrtc-builtins.so.*")):
            with suppress(OSError):
                yield ffi.dlopen(str(beside))


def _candidates() -> Iterator[str]:
    """Candidate paths of the compiler: the system's, a toolkit's, a wheel's."""
    if named := cuda_settings.NVRTC_LIBRARY:
        yield named
        return
    names = _WINDOWS_NAMES if sys.platform == "win32" else _LIBRARY_NAMES
    yield from names
    for folder in _toolkits():
        yield from (str(file) for name in names if (file := folder / name).exists())
    yield from map(str, _wheels())


def _toolkits() -> Iterator[Path]:
    """The folders of libraries of CUDA toolkits."""
    for root in _roots():
        yield from (root / folder for folder in _LIBRARY_FOLDERS)


def _roots() -> list[Path]:
    """Candidate folders of CUDA toolkits."""
    named = [os.environ[name] for name in _TOOLKIT_VARIABLES if os.environ.get(name)]
    return [Path(root) for root in (*named, *_TOOLKITS)]


def tool(name: str) -> str | None:
    """A program of a CUDA toolkit, or of the PATH; None where there is none."""
    folders = [str(root / "bin") for root in _roots()]
    return shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))


def _wheels() -> list[Path]:
    """The libraries in wheels of NVIDIA, the newest first."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [
        file
        for pattern in (*_LIBRARY_NAMES, *_WINDOWS_NAMES)
        for root in roots
        for folder in ("lib", "bin")
        for file in sorted(Path(root).glob(f"*/{folder}/{pattern}"))
    ]


@cache
def version() -> tuple[int, int]:
    """The version of CUDA that the compiler is of."""
    major, minor = ffi.new("int *"), ffi.new("int *")
    library().nvrtcVersion(major, minor)
    return major[0], minor[0]


@cache
def supported() -> tuple[int, ...]:
    """The architectures it compiles for, as numbers: 90 is sm_90."""
    count = ffi.new("int *")
    library().nvrtcGetNumSupportedArchs(count)
    archs = ffi.new("int[]", count[0])
    library().nvrtcGetSupportedArchs(archs)
    return tuple(archs)


def compiled(source: str, options: Sequence[str], form: str = "CUBIN") -> bytes:
    """A source as CUBIN or as PTX. Raises CompileError with the log and the lines it is about."""
    return built(source, options, form)[0]


def built(source: str, options: Sequence[str], form: str = "CUBIN") -> tuple[bytes, str]:
    """A source as CUBIN or as PTX, and the log. Raises CompileError as `compiled` does."""
    lib = library()
    program = ffi.new("nvrtcProgram *")
    text = ffi.new("char[]", source.encode())
    _verify(lib.nvrtcCreateProgram(program, text, b"kernel.cu", 0, ffi.NULL, ffi.NULL))
    try:
        flags = [ffi.new("char[]", option.encode()) for option in options]
        status = lib.nvrtcCompileProgram(program[0], len(flags), ffi.new("char *[]", flags))
        log = _text("ProgramLog", program[0]).rstrip(b"\0").decode("utf-8", "replace")
        if status:
            raise CompileError(
                f"nvrtc {'.'.join(map(str, version()))} cannot compile a kernel: {_name(status)}",
                log=annotated(log, source),
                source=source,
            )
        return _text(form, program[0]), log
    finally:
        lib.nvrtcDestroyProgram(program)


def _text(what: str, program: Any) -> bytes:
    """A log or a binary of a program."""
    size = ffi.new("size_t *")
    _verify(getattr(library(), f"nvrtcGet{what}Size")(program, size))
    data = ffi.new("char[]", max(size[0], 1))
    _verify(getattr(library(), f"nvrtcGet{what}")(program, data))
    return bytes(ffi.buffer(data, size[0]))


def _verify(status: int) -> None:
    if status:
        raise CompileError(f"nvrtc failed: {_name(status)}", log="", source="")


def _name(status: int) -> str:
    return bytes(ffi.string(library().nvrtcGetErrorString(status))).decode()


def annotated(log: str, source: str) -> str:
    """A log with the line of the source after each message that names one."""
    lines = source.splitlines()
    shown = []
    for message in log.splitlines():
        shown.append(message)
        place = re.match(r"kernel\.cu\((\d+)\)", message)
        if place and 0 < (number := int(place[1])) <= len(lines):
            shown.append(f"  line {number}: {lines[number - 1].strip()}")
    return "\n".join(shown)
