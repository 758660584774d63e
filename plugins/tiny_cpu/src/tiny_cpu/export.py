"""A model as C: `tinycore export cpu`.

The kernels as they are compiled here, each in a file of its own; `model.c` with tables of memory
and launches, the thread pool and what runs them; `model.h`; a shared library of all of it, and
`model.py`, which loads that from Python and needs nothing installed. docs/export.md is its page.
"""

from __future__ import annotations

import json
import shutil
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Final

from tqdm import tqdm

from tiny_cpu.arch import Arch, host_machine
from tiny_cpu.clang import ClangCompiler, target_of, zig
from tiny_cpu.pool import pool_in_c
from tinycore.errors import ArgumentError, CompileError, CompilerUnavailable, UnsupportedError
from tinycore.plugin import ExportedKernel, ExportedModel, ExportedTensor

__all__ = ["write"]

LIBRARY: Final = "libmodel.so"
WEIGHTS: Final = "weights.safetensors"
ALIGNMENT: Final = 64
HEADER_LENGTH_BYTES: Final = 8
TILES: Final = "__builtin_ia32_tile"
"""Name of the functions by which kernels multiply tiles of AMX."""
FNV_BASIS: Final = 0xCBF29CE484222325
FNV_PRIME: Final = 0x100000001B3
PLAIN: Final = frozenset(b"_./: -" + (string.ascii_letters + string.digits).encode())
"""Bytes that mean themselves in a literal of C."""
SECONDS: Final = 600
"""Most seconds of the comparison with what was computed here."""


def write(model: ExportedModel, folder: Path) -> None:
    """Write sources, library and loader, and compare what the library computes with the example.

    On systems whose libraries are not ELF files the sources are all. Raises CompilerUnavailable
    without clang or a linker, ArgumentError for names that C cannot tell apart, and
    UnsupportedError where results differ.
    """
    verify_names([x.name for x in (*model.inputs, *model.outputs)])
    if any(not kernel.source.lstrip().startswith("#pragma clang") for kernel in model.kernels):
        raise CompilerUnavailable(
            "a model is exported as C, for which clang 15 or newer has to be there: "
            "`pip install ziglang`, or the system's package"
        )
    sources = {place_of(n, kernel): source_of(n, kernel) for n, kernel in enumerate(model.kernels)}
    sources["model.c"] = program(model, folder / WEIGHTS)
    (folder / "kernels").mkdir(exist_ok=True)
    for place, text in sources.items():
        (folder / place).write_text(text, "utf-8")
    for name in ("model.h", "model.map", "model.py"):
        (folder / name).write_text(_resource(name), "utf-8")
    if sys.platform == "linux":
        arch = Arch.parse(model.arch)
        link(ClangCompiler(arch), sources, folder)
        if arch.processor == "native" and arch.machine == host_machine():
            verify(folder)


def verify_names(names: Sequence[object]) -> None:
    """Raises ArgumentError for names that `model_data` would not find, or find as others."""
    for number, name in enumerate(names):
        if not isinstance(name, str) or "\0" in name:
            raise ArgumentError(f"the name {name!r} is no text of C; give another")
        if name in names[:number]:
            raise ArgumentError(
                f"{name!r} is the name of an input and of an output, whose memory is found by name "
                "in C; call one of them something else"
            )


# Sources


def symbol_of(number: int, kernel: ExportedKernel) -> str:
    """The name of a kernel in the library, where two kernels may have one."""
    return f"k{number:03d}_{kernel.info.name}"


def place_of(number: int, kernel: ExportedKernel) -> str:
    """Path of the source of a kernel."""
    return f"kernels/{number:03d}_{kernel.info.name}.c"


def source_of(number: int, kernel: ExportedKernel) -> str:
    """The source of a kernel under its name in the library, which no other library sees."""
    name = kernel.info.name
    return (
        "#pragma GCC visibility push(hidden)\n"
        f"#define {name} {symbol_of(number, kernel)}\n{kernel.source}"
    )


def program(model: ExportedModel, weights: Path) -> str:
    """The text of `model.c`."""
    used = any(TILES in kernel.source for kernel in model.kernels)
    return "\n".join(
        [
            _ABOUT.format(arch=model.arch, target=" ".join(target_of(Arch.parse(model.arch))[1:])),
            '#include "model.h"\n',
            *(["#define TILES 1"] if used else []),
            pool_in_c(),
            tables(model, weights),
            _resource("runner.c"),
        ]
    )


_ABOUT: Final = """\
/* Written by `tinycore export cpu`, for {arch}. With the files in kernels/ it makes the library:

     clang -O2 {target} \\
       -fdenormal-fp-math=preserve-sign -fPIC -ffreestanding -fwrapv -fno-strict-aliasing \\
       -fno-math-errno -w -shared -Wl,--version-script=model.map model.c kernels/*.c -o libmodel.so

   It needs no header but those of clang, by whose extensions kernels use vectors. */
"""


def tables(model: ExportedModel, weights: Path) -> str:
    """Everything about this model as data: memory, tensors, weights, launches."""
    starts = [0, *accumulate(size + -size % ALIGNMENT for size in model.buffers)]

    def at(tensor: ExportedTensor) -> int:
        return starts[tensor.span.buffer] + tensor.span.start

    slots = [starts[s.buffer] + s.start for launch in model.launches for s in launch.spans]
    file = Weights.of(weights)
    named = [*model.inputs, *model.outputs]
    kernels = [symbol_of(number, kernel) for number, kernel in enumerate(model.kernels)]
    parallel = [max(kernel.info.parallel, 1) for kernel in model.kernels]
    return "\n".join(
        [
            f"extern kernel {', '.join(kernels)};",
            f"#define MEMORY_BYTES {max(starts[-1], 1)}ull",
            f"#define SLOTS {len(slots)}",
            f"#define HEADER_BYTES {file.header_bytes}ull",
            f"#define HEADER_DIGEST {file.digest:#x}ull",
            f"#define WEIGHT_FILE_BYTES {file.bytes}l",
            f"#define WEIGHTS {len(model.weights)}",
            f"#define LAUNCHES {len(model.launches)}",
            f"#define PLACES {len(named)}",
            *table("u64 slots[]", map(str, slots)),
            *table(
                "struct weight { u64 in_memory, in_file, bytes; } weights[]",
                (f"{{{at(x)}, {file.starts[x.name]}, {x.span.size}}}" for x in model.weights),
            ),
            *table(
                "struct { kernel *entry; i64 extent; u64 slots; } launches[]",
                (f"{{{kernels[k]}, {parallel[k]}, {len(spans)}}}" for k, spans in launched(model)),
            ),
            *table(
                "struct { const char *name; u64 in_memory; } places[]",
                (f"{{{quoted(x.name)}, {at(x)}}}" for x in named),
            ),
            *tensors("input", model.inputs),
            *tensors("output", model.outputs),
        ]
    )


def launched(model: ExportedModel) -> Iterator[tuple[int, Sequence[object]]]:
    """The kernel of each launch, and its slots."""
    return ((launch.kernel, launch.spans) for launch in model.launches)


def table(declaration: str, rows: Iterable[str]) -> Iterator[str]:
    """Lines of a constant table; one without rows has an empty one, since C wants some."""
    yield f"static const {declaration} = {{"
    yield from (f"  {row}," for row in [*rows] or ["{0}"])
    yield "};"


def tensors(what: str, found: Sequence[ExportedTensor]) -> Iterator[str]:
    """Tables of inputs or of outputs, as the header declares them."""
    for number, x in enumerate(found):
        shape = ", ".join(map(str, x.shape)) or "0"
        yield f"static const int64_t {what}_{number}[] = {{{shape}}};"
    yield f"const model_tensor model_{what}s[] = {{"
    for number, x in enumerate(found):
        words = (quoted(x.name), quoted(x.dtype.name), len(x.shape), f"{what}_{number}")
        yield f"  {{{', '.join(map(str, words))}, {x.span.size}}},"
    yield from [] if found else ["  {0},"]
    yield f"}};\nconst int model_{what}_count = {len(found)};"


def quoted(text: str) -> str:
    """A literal in C of any text: octal bytes where a character could mean something."""
    plain = (chr(b) if b in PLAIN else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


@dataclass(frozen=True)
class Weights:
    """Layout of the file of weights, which this export wrote."""

    bytes: int
    header_bytes: int
    digest: int
    starts: dict[str, int]

    @classmethod
    def of(cls, path: Path) -> Weights:
        """Read the header."""
        with path.open("rb") as file:
            first = file.read(HEADER_LENGTH_BYTES)
            content = first + file.read(int.from_bytes(first, "little"))
        length, header = len(content), json.loads(content[HEADER_LENGTH_BYTES:])
        starts = {
            name: length + facts["data_offsets"][0]
            for name, facts in header.items()
            if name != "__metadata__"
        }
        return cls(path.stat().st_size, length, fnv(content), starts)


def fnv(content: bytes) -> int:
    """FNV-1a of 64 bits (draft-eastlake-fnv)."""
    digest = FNV_BASIS
    for byte in content:
        digest = (digest ^ byte) * FNV_PRIME % (1 << 64)
    return digest


# The library


def link(compiler: ClangCompiler, sources: dict[str, str], folder: Path) -> None:
    """Write the shared library. Raises CompileError, or CompilerUnavailable without a linker."""
    linkers = [[found] for name in ("ld.lld", "ld") if (found := shutil.which(name))]
    linkers += [[program, "ld.lld"] for program in [zig()] if program is not None]
    if not linkers:
        raise CompilerUnavailable(
            "there is no linker for the shared library: `pip install ziglang`, or the system's "
            "package binutils or lld"
        )
    with tempfile.TemporaryDirectory() as name:
        objects: list[str] = []
        for number, text in enumerate(tqdm(sources.values(), "compiling", disable=None, delay=1)):
            included = text.replace('#include "model.h"', _resource("model.h"))
            place = Path(name, f"{number}.o")
            place.write_bytes(compiler.compile(included))
            objects.append(str(place))
        script = f"--version-script={folder / 'model.map'}"
        command = [*linkers[0], "-shared", script, "-o", str(folder / LIBRARY), *objects]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{linkers[0][0]} made no library:", log=done.stderr)


def verify(folder: Path) -> None:
    """Compare what the library computes of the example, in a process of its own, with what was
    computed here. Raises UnsupportedError.
    """
    command = [sys.executable, "-I", str(folder / "model.py")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(
            f"the exported library has not computed its example after {SECONDS} seconds. Give "
            "smaller inputs: what is exported has their shapes"
        ) from error
    if done.returncode:
        raise UnsupportedError(
            f"the exported library computes something else than this process:\n{done.stdout}"
            f"{done.stderr}Please report it, with the model"
        )


def _resource(name: str) -> str:
    return (resources.files("tiny_cpu") / "exported" / name).read_text("utf-8")
