"""clang for kernels: source to a shared library, with what must be known to launch them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from platform import machine
from typing import Final

from tiny_hcq import ElfFile
from tinycore import cache as disk

__all__ = ["Array", "CompileFailure", "Compiled", "Function", "Parameter", "compiled", "toolchain"]

HERE: Final = Path(__file__).parent
OLDEST: Final = 19
"""The first clang whose halves can be rounded after each operation on every processor."""
SANITIZERS: Final = (
    "thread,integer-divide-by-zero,shift-exponent,float-cast-overflow,bool,alignment,"
    "signed-integer-overflow,bounds"
)
FLAGS: Final = (
    "-O1", "-fPIC", "-ffreestanding", "-nostdinc", "-fno-exceptions", "-fno-rtti", "-w",
    "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-fno-stack-protector",
    "-fsigned-char",
    "-Xclang", "-ffloat16-excess-precision=none",
)  # fmt: skip
CHECKS: Final = (
    f"-fsanitize={SANITIZERS}", "-fsanitize-recover=all",
    "-mllvm", "-tsan-instrument-func-entry-exit=0",
)  # fmt: skip
SHARED: Final = re.compile(
    r"^(?P<indent>[ \t]*)(?P<align>alignas\(\d+\)\s+)?threadgroup\s+"
    r"(?P<declared>[\w:]+(?:\s*<[^;>]*>)?\s+\w+\s*\[[^;]*\]\s*;)",
    re.MULTILINE,
)
"""A declaration of an array in threadgroup memory: one a group, and groups run in turn."""
KERNEL: Final = re.compile(r"\bkernel\s+void\s+(\w+)\s*\(((?:[^()]|\([^()]*\))*)\)\s*\{")
PARAMETER: Final = re.compile(r"^(?P<type>.*?)(?P<name>\w+)\s*\[\[\s*(?P<what>\w+)(?:\((\d+)\))?")
POSITIONS: Final = {
    "threadgroup_position_in_grid": "at->group[{i}]",
    "thread_position_in_threadgroup": "at->local[{i}]",
    "threadgroups_per_grid": "at->groups[{i}]",
    "threads_per_threadgroup": "at->threads[{i}]",
    "thread_position_in_grid": "at->group[{i}] * at->threads[{i}] + at->local[{i}]",
    "threads_per_grid": "at->groups[{i}] * at->threads[{i}]",
    "thread_index_in_threadgroup": (
        "at->local[0] + at->threads[0] * (at->local[1] + at->threads[1] * at->local[2])"
    ),
    "thread_index_in_simdgroup": "msl_lane()",
}
TRAMPOLINES: Final = """
#undef kernel
struct msl_pointer { void *p; template <class T> operator T *() const { return (T *)p; } };
struct msl_value { void *p; template <class T> operator const T &() const { return *(T *)p; } };
struct msl_position { unsigned group[3], local[3], groups[3], threads[3]; };
"""


class CompileFailure(Exception):
    """A source refused by clang, with its messages."""


@dataclass(frozen=True)
class Parameter:
    """A buffer of a kernel: its slot, its name, and whether it is only read."""

    slot: int
    name: str
    is_read_only: bool


@dataclass(frozen=True)
class Function:
    """A kernel of a source."""

    name: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Array:
    """An array in threadgroup memory: its name, its place in the library, and its bytes."""

    name: str
    address: int
    size: int


@dataclass(frozen=True)
class Compiled:
    """A library on disk."""

    path: Path
    functions: dict[str, Function]
    arrays: tuple[Array, ...]
    anchor: int
    """Address of `msl_run` in the library."""
    meets: bool
    """True if threads of a group meet: at barriers, or as a SIMD group."""


@cache
def toolchain() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words that start clang and its linker. Raises LookupError, saying how to get them."""
    spec = find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        zig = Path(folder, "zig")
        if os.access(zig, os.X_OK):
            return (str(zig), "clang"), (str(zig), "ld.lld")
    for version in range(24, OLDEST - 1, -1):
        clang, linker = shutil.which(f"clang-{version}"), shutil.which(f"ld.lld-{version}")
        if clang and linker:
            return (clang,), (linker,)
    raise LookupError(
        f"kernels are run by clang {OLDEST} or newer, which there is not: `pip install ziglang`"
    )


@cache
def folder() -> Path:
    """Folder of libraries, which lives as long as this process."""
    made = tempfile.TemporaryDirectory(prefix="msl-")
    _kept.append(made)
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []
_lock: Final = threading.Lock()
_known: Final[dict[tuple[str, tuple[int, int]], Compiled]] = {}


def target() -> tuple[str, ...]:
    """The processor at hand."""
    name = {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine(), machine())
    tuned = ("-march=native",) if name == "x86_64" else ("-mcpu=native",)
    return (f"--target={name}-linux-gnu", *tuned)


def run(command: Sequence[str], source: str = "") -> bytes:
    """Output of a command. Raises CompileFailure with its messages."""
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if done.returncode:
        raise CompileFailure(done.stderr.decode(errors="replace"))
    return done.stdout


@cache
def runtime() -> Path:
    """The object that every library has in it."""
    clang, _ = toolchain()
    place = folder() / "runtime.o"
    source = str(HERE / "runtime.c")
    flags = [flag for flag in FLAGS if flag != "-fno-rtti"]
    run([*clang, *target(), "-x", "c", *flags, "-O2", "-c", source, "-o", str(place)])
    return place


def compiled(source: str, language: tuple[int, int] = (3, 1)) -> Compiled:
    """The library of a source. Raises CompileFailure with what a compiler of Metal would say."""
    key = (source, language)
    with _lock:
        if key not in _known:
            _known[key] = make(source, language)
        return _known[key]


def make(source: str, language: tuple[int, int]) -> Compiled:
    """Compile, link, and read what was linked."""
    functions = {name: function_of(name, text) for name, text in KERNEL.findall(source)}
    shared = SHARED.sub(
        r'\g<indent>\g<align>static __attribute__((section("threadgroup"))) \g<declared>', source
    )
    text = f'#line 1 "program_source"\n{shared}{TRAMPOLINES}'
    text += "\n".join(map(trampoline, KERNEL.findall(source)))
    place = folder() / f"kernel{len(_known)}.so"
    place.write_bytes(linked(text, language))
    elf = ElfFile(place.read_bytes())
    table, section = elf.section(".symtab"), elf.section("threadgroup")
    assert table is not None
    symbols = elf.symbols(table)
    arrays = tuple(
        Array(name_of(symbol.name), symbol.value, symbol.size)
        for symbol in symbols
        if section is not None and symbol.size and elf.sections[symbol.section] == section
    )
    anchor = next(symbol.value for symbol in symbols if symbol.name == "msl_run")
    meets = any(word in source for word in ("barrier(", "simd_", "simdgroup_"))
    return Compiled(place, functions, arrays, anchor, meets)


def linked(text: str, language: tuple[int, int]) -> bytes:
    """The library, from the disk cache where it was made before."""
    clang, linker = toolchain()
    version = f"-D__METAL_VERSION__={language[0] * 100 + language[1] * 10}"
    options = [*target(), "-x", "c++", "-std=c++17", *FLAGS, *CHECKS, version, f"-I{HERE}"]
    helpers = [(HERE / name).read_text() for name in ("metal_stdlib", "runtime.c")]
    key = hashlib.sha256("\0".join([text, *clang, *options, *helpers]).encode()).hexdigest()
    if (found := disk.get("shader", key)) is not None:
        return found
    code, place = folder() / f"{key}.o", folder() / f"{key}.so"
    run([*clang, *options, "-c", "-", "-o", str(code)], text)
    run([*linker, "-shared", str(code), str(runtime()), "-o", str(place)])
    content = place.read_bytes()
    code.unlink()
    place.unlink()
    disk.put("shader", key, content)
    return content


def name_of(symbol: str) -> str:
    """Name of a static array in the source: temp0 for _ZZ8kernel_E5temp0, or for k_.temp0."""
    found = re.search(r"E\d+([A-Za-z_]\w*)$", symbol)
    return found[1] if found else symbol.rpartition(".")[2]


def split(parameters: str) -> list[str]:
    """The parameters of a kernel: commas inside of angles or brackets divide none."""
    return [part.strip() for part in re.split(r",(?![^<\[]*[>\]])", parameters) if part.strip()]


def function_of(name: str, parameters: str) -> Function:
    """Launch information of a kernel. Raises CompileFailure for what Metal refuses."""
    buffers = []
    for text in split(parameters):
        found = PARAMETER.match(text)
        if found is None:
            raise CompileFailure(f"program_source:1:1: error: no attribute on parameter '{text}'")
        if found["what"] == "buffer":
            read_only = "const" in found["type"].split() or "constant" in found["type"].split()
            buffers.append(Parameter(int(found[4]), found["name"], read_only))
        elif found["what"] not in POSITIONS:
            raise CompileFailure(f"program_source:1:1: error: unknown attribute '{found['what']}'")
    slots = [parameter.slot for parameter in buffers]
    if len(set(slots)) < len(slots) or any(not 0 <= slot <= 30 for slot in slots):
        raise CompileFailure(f"program_source:1:1: error: buffer indices {slots} of {name}")
    return Function(name, tuple(buffers))


def trampoline(found: tuple[str, str]) -> str:
    """A function that calls a kernel with what the runtime has."""
    name, parameters = found
    arguments = [argument(text) for text in split(parameters)]
    return (
        f'extern "C" __attribute__((no_sanitize("thread"), visibility("default"))) void '
        f"{name}_trampoline(void **buffers, const msl_position *at) "
        f"{{ {name}({', '.join(arguments)}); }}"
    )


def argument(text: str) -> str:
    """Argument that a trampoline passes for a parameter."""
    found = PARAMETER.match(text)
    assert found is not None
    if found["what"] == "buffer":
        return f"{'msl_value' if '&' in found['type'] else 'msl_pointer'}{{buffers[{found[4]}]}}"
    kind = found["type"].strip()
    template = POSITIONS[found["what"]]
    lanes = int(kind[-1]) if kind[-1:].isdigit() else 1
    parts = ", ".join(f"({kind.rstrip('234')})({template.format(i=i)})" for i in range(lanes))
    return parts if lanes == 1 else f"metal::{kind}({parts})"
