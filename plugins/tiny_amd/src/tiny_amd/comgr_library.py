"""COMGR: AMD's library of compilers, through cffi; HIP source to a relocatable object.

ROCm, amd_comgr.h. The library is looked for where the system finds libraries, in ROCm's folder and
in wheels; COMGR_LIBRARY names one elsewhere. Versions 2 and 3 number languages and actions
differently.

Run as a program, this is the process of `comgr.py` that compiles. The library is not loaded beside
others' code: Debian's takes the system's LLVM, as drivers of OpenCL do, and LLVM ends a process in
which two of its users register an option with the same name.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tiny_amd._native import ffi
from tiny_amd.arch import arch_of
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import file_identity, serve_questions

__all__ = ["ComgrLibrary", "open_library"]

NAMES: Final = ("libamd_comgr.so.3", "libamd_comgr.so.2", "libamd_comgr.so")
ROCM: Final = "/opt/rocm/lib"
WHEELS: Final = {"triton": "third_party/rocm/lib", "_rocm_sdk_core": "lib"}
"""Packages that bring the library, and where in them it is."""


class Numbers(NamedTuple):
    """Numbers of the library that depend on its version."""

    hip: int
    """The language."""
    codegen: int
    """The action that makes a relocatable object of bitcode."""
    to_assembly: int
    """The action that makes text of it."""


NUMBERS: Final = {2: Numbers(4, 6, 7), 3: Numbers(3, 4, 5)}
"""By major version."""
SOURCE, LOG, BITCODE, RELOCATABLE = 1, 5, 6, 7
COMPILE: Final = 2
PREFIX: Final = "amdgcn-amd-amdhsa--"
"""Prefix of the names of architectures."""
DECLINED: Final = ("-dot7-insts", "-dot8-insts", "-unaligned-access-mode")
"""LLVM does without dot products of bytes and wide accesses at odd addresses: see `llvm.py`."""
OPTIONS: Final = (
    *("-O3", "-nogpuinc", "-nogpulib", "-std=c++17", "-mcode-object-version=5"),
    *("-ffp-contract=fast", "-fno-strict-aliasing", "-fwrapv", "-Wno-everything"),
    *("-mllvm", "-disable-promote-alloca-to-lds"),
)
"""LLVM does not put arrays of a thread into LDS, whose place a kernel finds by the packet that
launched it: such a kernel asks for the packet, which PM4 does not give.
"""


def options_of(arch: str) -> list[str]:
    """Clang's options of kernels for an architecture."""
    features = (*DECLINED, *arch_of(arch).features)
    words = (("-Xclang", "-target-feature", "-Xclang", feature) for feature in features)
    return [*OPTIONS, *(word for four in words for word in four)]


INSTALL: Final = (
    "Install ROCm's library (Debian: apt install libamd-comgr2) or a wheel that brings it (pip "
    "install --no-deps pytorch-triton-rocm==2.1.0); COMGR_LIBRARY names one elsewhere. "
    "DEV=AMD:LLVM needs none of it"
)


def open_library(named: str) -> Any:
    """The library of a path, or one that is found. Raises CompilerUnavailable."""
    tried = []
    for candidate in candidates(named):
        try:
            return ffi.dlopen(candidate)
        except OSError as error:
            tried.append(f"{candidate} ({str(error).rpartition(': ')[2]})")
    raise CompilerUnavailable(
        f"DEV=AMD:HIP needs AMD's compiler library COMGR, which is not here. {INSTALL}. "
        f"Tried: {'; '.join(tried)}"
    )


def candidates(named: str) -> Iterator[str]:
    """Candidate paths of the library: the one that is named, or the system's, ROCm's, a wheel's."""
    if named:
        yield named
        return
    yield from NAMES
    folders = [Path(ROCM)]
    for package, folder in WHEELS.items():
        spec = importlib.util.find_spec(package)
        roots = list(spec.submodule_search_locations or ()) if spec is not None else []
        folders += [Path(root) / folder for root in roots]
    yield from (str(f / name) for f in folders for name in NAMES if (f / name).exists())


class ComgrLibrary:
    """The open library: compiles HIP source for the architectures that it knows."""

    def __init__(self, library: Any) -> None:
        """Raises CompilerUnavailable for a version whose numbers are not known."""
        self.library = library
        major, minor = ffi.new("size_t *"), ffi.new("size_t *")
        library.amd_comgr_get_version(major, minor)
        self.version = f"{major[0]}.{minor[0]}"
        if int(major[0]) not in NUMBERS:
            raise CompilerUnavailable(
                f"COMGR {self.version} is here; tiny-amd knows versions "
                f"{' and '.join(map(str, NUMBERS))}. {INSTALL}"
            )
        self.numbers = NUMBERS[int(major[0])]

    def key(self, arch: str) -> str:
        """Cache key of what is compiled for an architecture. Raises CompilerUnavailable."""
        if arch not in (known := self.architectures()):
            raise CompilerUnavailable(
                f"COMGR {self.version} does not compile for {arch}, but for "
                f"{', '.join(known)}: a newer ROCm may. {INSTALL}"
            )
        return f"COMGR {self.version} {arch} {' '.join(options_of(arch))}"

    def architectures(self) -> list[str]:
        """Architectures that the library compiles for."""
        count, name, found = ffi.new("size_t *"), ffi.new("char **"), []
        self.library.amd_comgr_get_isa_count(count)
        for index in range(count[0]):
            self.library.amd_comgr_get_isa_name(index, name)
            found.append(bytes(ffi.string(name[0])).decode().removeprefix(PREFIX))
        return found

    def compile(self, arch: str, source: str) -> bytes:
        """The code object. Raises CompileError with the log."""
        return self._made(arch, source, self.numbers.codegen, RELOCATABLE)

    def assembly(self, arch: str, source: str) -> bytes:
        """The machine code as text. Raises CompileError with the log."""
        return self._made(arch, source, self.numbers.to_assembly, SOURCE)

    def _made(self, arch: str, source: str, last: int, kind: int) -> bytes:
        """Result of the last action, on the bitcode of a source."""
        with _Action(self.library, f"{PREFIX}{arch}", self.numbers.hip, source) as action:
            bitcode = action.run(COMPILE, action.input(SOURCE, "kernel.hip", source.encode()))
            return action.content(action.run(last, bitcode), kind)


class _Action:
    """An action's settings and the sets of data that it makes, given back at its end."""

    def __init__(self, lib: Any, isa: str, language: int, source: str) -> None:
        self.lib, self.source = lib, source
        self.sets: list[Any] = []
        self.info = self.made("create_action_info")
        self.do("action_info_set_isa_name", self.info, isa.encode())
        self.do("action_info_set_language", self.info, language)
        kept = [
            ffi.new("char[]", option.encode()) for option in options_of(isa.removeprefix(PREFIX))
        ]
        options = ffi.new("char *[]", kept)
        self.do("action_info_set_option_list", self.info, options, len(kept))
        self.do("action_info_set_logging", self.info, True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for each in self.sets:
            self.lib.amd_comgr_destroy_data_set(each)
        self.lib.amd_comgr_destroy_action_info(self.info)

    def do(self, name: str, *arguments: Any) -> None:
        """Call the library. Raises CompileError for any status but success."""
        if status := getattr(self.lib, f"amd_comgr_{name}")(*arguments):
            raise CompileError(
                f"COMGR's {name} failed: {self.told(status)}", log="", source=self.source
            )

    def told(self, status: int) -> str:
        """A status in words."""
        text = ffi.new("char **")
        self.lib.amd_comgr_status_string(status, text)
        return bytes(ffi.string(text[0])).decode() if text[0] else str(status)

    def made(self, name: str, *arguments: Any) -> Any:
        """Result of a call."""
        place = ffi.new("comgr_handle *")
        self.do(name, *arguments, place)
        return place[0]

    def new_set(self) -> Any:
        """An empty set of data."""
        self.sets.append(self.made("create_data_set"))
        return self.sets[-1]

    def input(self, kind: int, name: str, content: bytes) -> Any:
        """A set with one piece of data."""
        found, data = self.new_set(), self.made("create_data", kind)
        self.do("set_data", data, len(content), content)
        self.do("set_data_name", data, name.encode())
        self.do("data_set_add", found, data)
        self.do("release_data", data)
        return found

    def run(self, kind: int, given: Any) -> Any:
        """The set that an action makes of another. Raises CompileError with the log."""
        result = self.new_set()
        if status := self.lib.amd_comgr_do_action(kind, self.info, given, result):
            log = self.content(result, LOG).decode("utf-8", "replace")
            raise CompileError(
                f"COMGR cannot compile a kernel: {self.told(status)}", log=log, source=self.source
            )
        return result

    def content(self, given: Any, kind: int) -> bytes:
        """The bytes of the first piece of a kind in a set, none where it has none."""
        count = ffi.new("size_t *")
        self.do("action_data_count", given, kind, count)
        if not count[0]:
            return b""
        data, size = self.made_in(given, kind), ffi.new("size_t *")
        self.do("get_data", data, size, ffi.NULL)
        content = ffi.new("char[]", max(size[0], 1))
        self.do("get_data", data, size, content)
        self.do("release_data", data)
        return bytes(ffi.buffer(content, size[0]))

    def made_in(self, given: Any, kind: int) -> Any:
        """The first piece of a kind."""
        return self.made("action_data_get_data", given, kind, 0)


# --- the process that compiles


class Service:
    """Answers questions of `comgr.py`: [verb, architecture, source], and the verb is "key",
    "compile" or "assembly".

    An answer is [kind of error, message], both "" where there is none, and the result or the log.
    """

    def __init__(self, named: str) -> None:
        """`named`: path of the library, "" if it is to be looked for."""
        self.named = named
        self.library: ComgrLibrary | None = None

    def answer(self, question: list[str]) -> tuple[list[str], bytes]:
        """The answer to a question, an error of the library among them."""
        try:
            return ["", ""], self.result(*question)
        except CompilerUnavailable as why:
            return ["unavailable", str(why)], b""
        except CompileError as why:
            return ["rejected", why.message], why.log.encode()

    def result(self, verb: str, arch: str, source: str) -> bytes:
        """Result of the library, opened at the first. Raises CompilerUnavailable, CompileError."""
        library = self.library = self.library or ComgrLibrary(open_library(self.named))
        if verb == "key":
            build = next(filter(None, map(file_identity, candidates(self.named))), "")
            return f"{library.key(arch)} {build}".encode()
        make = library.compile if verb == "compile" else library.assembly
        return make(arch, source)


if __name__ == "__main__":
    serve_questions(Service(sys.argv[1]).answer)
