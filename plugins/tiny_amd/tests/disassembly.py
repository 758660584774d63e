#!/usr/bin/env python3
"""Compare the emulator's decoder with llvm-objdump, over the kernels that tests launch.

    plugins/tiny_amd/tests/disassembly.py page.md tests/unit/tensor tests/unit/nn
    plugins/tiny_amd/tests/disassembly.py page.md --standin AMD-GFX942 --one-in 20 tests/unit/tensor

The tests run on the stand-in. Each kernel's machine code, once however many tests launch it, is
listed by llvm-objdump and decoded by the emulator: mnemonics and lengths must agree, instruction by
instruction. A row is added to the page for each run. `--keep FOLDER` keeps the kernels, their
graphs and how the tests ended, to which later runs add theirs; without tests only what is kept is
compared. `--graphs FOLDER` compiles the graphs that a run of another architecture has kept:

    plugins/tiny_amd/tests/disassembly.py page.md --keep rdna3 tests/unit/tensor
    plugins/tiny_amd/tests/disassembly.py page.md --standin AMD-GFX942 --keep cdna3 --graphs rdna3

With `--on-cpu` the tests run some ten times as fast: kernels are compiled for the card, and the
processor executes the same graphs in their place.

Needs llvm-objdump 19 or later (Debian: llvm-19), or the one OBJDUMP names. Words that it does not
know are asked of a newer LLVM's library, if LIBLLVM names one (the wheel llvm-nanobind has one).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pluggy
import pytest

ROOT: Final = Path(__file__).parents[3]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/support")]

from listings import disagreement, plain  # noqa: E402  the paths are set above

from tiny_amd.device import toolchain  # noqa: E402
from tinycore.engine import compile as compiling  # noqa: E402
from tinycore.errors import TinycoreError  # noqa: E402
from tinycore.plugin import Toolchain, register, register_observer  # noqa: E402
from tinycore.uop.node import UOp  # noqa: E402
from tinycore.uop.parse import from_text  # noqa: E402
from tinycore.uop.text import to_text  # noqa: E402

ARCHS: Final = {
    "AMD": "gfx1100",
    "AMD-GFX1030": "gfx1030",
    "AMD-GFX1201": "gfx1201",
    "AMD-GFX942": "gfx942",
}
"""Architectures of the stand-ins."""
TRUE16: Final = "--mattr=+real-true16"
"""Has llvm-objdump 19 know halves of registers as operands."""
MORE: Final = {"gfx1030": (), "gfx1100": (TRUE16,), "gfx1201": (TRUE16,), "gfx942": ()}
VERSIONS: Final = range(30, 18, -1)
OPTIONS: Final = ("-p", "no:cacheprovider", "--tb=short")
AT_ONCE: Final = 200
"""Objects of one call of llvm-objdump."""
LINE: Final = re.compile(r"^\t(.*?)\s*// [0-9A-F]{12}: ([0-9A-F ]+)$")
PADDING: Final = frozenset({"s_code_end", "s_nop"})
"""Instructions behind the end of a kernel, which nothing executes; counted apart."""
HEAD: Final = (
    "| architecture | tests | passed | skipped | failed | kernels | instructions | of them padding "
    "| mnemonics | unknown to llvm-objdump | mismatches |"
)
UNKNOWN: Final = ".long"
"""Text that llvm-objdump writes for words that it does not know."""
OUTCOMES: Final = "outcomes.json"
ALIGNED, ANYWHERE = "aligned", "anywhere"
"""First line of a kept graph: where the buffers of its kernel start."""


def objdump() -> str:
    """The command of an llvm-objdump that knows the architectures. Raises SystemExit."""
    named = [os.environ.get("OBJDUMP", ""), *(f"llvm-objdump-{number}" for number in VERSIONS)]
    for name in named:
        if name and (found := shutil.which(name)):
            return found
    raise SystemExit("no llvm-objdump of 19 or later: apt install llvm-19, or set OBJDUMP")


def listing(objects: list[bytes], arch: str) -> Iterator[tuple[str, bytes]]:
    """Mnemonic and code of each instruction of object files, as llvm-objdump lists them."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.o" for number in range(len(objects))]
        for file, data in zip(files, objects, strict=True):
            file.write_bytes(data)
        command = [objdump(), "-d", f"--mcpu={arch}", *MORE[arch], *map(str, files)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in said.splitlines():
        if found := LINE.match(line):
            words = [struct.pack("<I", int(word, 16)) for word in found[2].split()]
            yield plain(found[1].split()[0]), b"".join(words)


def is_of_card(binary: bytes) -> bool:
    """True if an AMD card is to run it: ELF of machine 224."""
    return binary[:4] == b"\x7fELF" and binary[18:20] == b"\xe0\x00"


class Kernels:
    """Machine code of kernels, each once."""

    def __init__(self) -> None:
        self.found: dict[bytes, None] = {}

    @pluggy.HookimplMarker("tinycore")
    def tinycore_kernel_compiled(self, binary: bytes) -> None:
        """Note a kernel, if an AMD card is to run it."""
        if is_of_card(binary):
            self.found[binary] = None


class Graphs:
    """Graphs of kernels as text, each with whether its buffers are aligned: one of each binary."""

    def __init__(self) -> None:
        self.found: dict[bytes, str] = {}

    def observe(self) -> None:
        """Note what is compiled from now on."""
        compile_one = compiling.compile_kernel

        def noted(ast: UOp, toolchain: Toolchain[Any], plan: Any = None) -> Any:
            made = compile_one(ast, toolchain, plan)
            word = ALIGNED if toolchain.renderer.limits.buffers_aligned else ANYWHERE
            if is_of_card(made.binary):
                self.found.setdefault(made.binary, f"{word}\n{to_text(ast)}")
            return made

        compiling.compile_kernel = noted


def play_by_cpu(arch: str) -> None:
    """Have the processor be the card: schedules are the card's, and so are the kernels compiled;
    what is executed is compiled for the processor, of the same graph."""
    from tiny_cpu import BACKEND  # noqa: PLC0415  only for who asks for it
    from tiny_cpu.device import llvm_toolchain  # noqa: PLC0415

    compile_one, cpu = compiling.compile_kernel, llvm_toolchain()

    def twice(ast: UOp, toolchain: Toolchain[Any], plan: Any = None) -> Any:
        made = compile_one(ast, toolchain, plan)
        if toolchain.arch != arch:
            return made
        aligned = toolchain.renderer.limits.buffers_aligned
        return compile_one(
            ast, cpu if aligned else compiling.with_limits(cpu, buffers_aligned=False)
        )

    compiling.compile_kernel = twice

    def card(_: str = "") -> Toolchain[Any]:
        return toolchain(arch)

    renderers = {"LLVM": card}
    register(replace(BACKEND, name="AMD", renderers=renderers, dlpack=None))


def compile_all(folder: Path, arch: str) -> Counter[str]:
    """Compile kept graphs for an architecture; what was said of those that it does not take."""
    tools, refused = toolchain(arch), Counter[str]()
    for file in sorted(folder.glob("*.graph")):
        said, _, text = file.read_text("utf-8").partition("\n")
        try:
            aligned = (
                tools if said == ALIGNED else compiling.with_limits(tools, buffers_aligned=False)
            )
            compiling.compile_kernel(from_text(text), aligned)
        except TinycoreError as error:
            refused[f"{type(error).__name__}: {error}".splitlines()[0][:120]] += 1
    return refused


class Outcomes:
    """Outcomes of tests, by their names."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test at its call, or where it did not come to that."""
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid] = report.outcome

    def count(self, outcome: str) -> int:
        """Number of tests that ended so."""
        return sum(each == outcome for each in self.found.values())


class NewerLlvm:
    """The disassembler of a library of LLVM, by its interface for C."""

    def __init__(self, path: str, arch: str) -> None:
        library = ctypes.CDLL(path)
        for part in ("TargetInfo", "TargetMC", "Disassembler"):
            getattr(library, f"LLVMInitializeAMDGPU{part}")()
        library.LLVMCreateDisasmCPUFeatures.restype = ctypes.c_void_p
        features = ",".join(word.removeprefix("--mattr=") for word in MORE[arch])
        self.disassembler = library.LLVMCreateDisasmCPUFeatures(
            *(b"amdgcn-amd-amdhsa", arch.encode(), features.encode(), None, 0, None, None)
        )
        self.ask = library.LLVMDisasmInstruction
        self.ask.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
        self.ask.argtypes += [ctypes.c_char_p, ctypes.c_size_t]
        self.ask.restype = ctypes.c_size_t

    def mnemonic(self, code: bytes) -> str:
        """The instruction that fills these bytes; what llvm-objdump writes where none does."""
        text = ctypes.create_string_buffer(256)
        size = self.ask(self.disassembler, code, len(code), 0, text, len(text))
        return plain(text.value.decode().split()[0]) if size == len(code) else UNKNOWN


def compare(objects: list[bytes], arch: str) -> tuple[Counter[str], int, Counter[str]]:
    """Mnemonics that were listed, how many were not known at first, and disagreements."""
    mnemonics: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    newer = NewerLlvm(named, arch) if (named := os.environ.get("LIBLLVM")) else None
    unknown = 0
    for start in range(0, len(objects), AT_ONCE):
        for mnemonic, code in listing(objects[start : start + AT_ONCE], arch):
            if mnemonic == UNKNOWN:
                unknown += 1
                mnemonic = newer.mnemonic(code) if newer else mnemonic
            mnemonics[mnemonic] += 1
            if said := disagreement(mnemonic, code, arch):
                wrong[said] += 1
    return mnemonics, unknown, wrong


def add_kept(folder: Path, kernels: Kernels, graphs: Graphs, outcomes: Outcomes) -> None:
    """Add to a run what earlier ones have left in a folder, and leave all of it there."""
    folder.mkdir(parents=True, exist_ok=True)
    for data, text in graphs.found.items():
        (folder / f"{sha256(data).hexdigest()[:24]}.graph").write_text(text, "utf-8")
    for data in kernels.found:
        (folder / f"{sha256(data).hexdigest()[:24]}.o").write_bytes(data)
    kernels.found = dict.fromkeys(file.read_bytes() for file in sorted(folder.glob("*.o")))
    file = folder / OUTCOMES
    before = json.loads(file.read_text("utf-8")) if file.exists() else {}
    outcomes.found = {**before, **outcomes.found}
    file.write_text(json.dumps(outcomes.found), "utf-8")


def about() -> str:
    """Head of the page."""
    version = re.search(r"version ([0-9.]+)", subprocess.getoutput(f"{objdump()} --version"))
    return (
        f"# The emulator's decoder beside llvm-objdump, {time.strftime('%Y-%m-%d')}\n\n"
        f"llvm-objdump {version[1] if version else 'of an unknown version'}; the kernels are those "
        "that the tests launch, by LLVM IR, each once. Mnemonic and length of each "
        "instruction are compared. What llvm-objdump does not know, LLVM's library of a newer "
        "version was asked for. Written by `plugins/tiny_amd/tests/disassembly.py`.\n\n"
        f"{HEAD}\n|---|---|{'---:|' * 9}\n"
    )


def main() -> int:
    """Run the tests and compare; status 1 at the first disagreement, or where nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--standin", default="AMD", choices=ARCHS)
    parser.add_argument("--one-in", default="1", help="run one test in so many")
    parser.add_argument("--on-cpu", action="store_true", help="execute graphs on the processor")
    parser.add_argument("--keep", type=Path, help="a folder of kernels, graphs and outcomes")
    parser.add_argument("--graphs", type=Path, help="a folder that a run before has kept")
    given = parser.parse_intermixed_args()
    device = given.standin.partition("-")[0]
    os.environ |= {"TENSOR_TESTS": device} if given.on_cpu else {"STANDIN": given.standin}
    os.environ["CCACHE"] = "0"
    kernels, graphs, outcomes = Kernels(), Graphs(), Outcomes()
    register_observer(kernels)
    graphs.observe()
    if given.on_cpu:
        play_by_cpu(ARCHS[given.standin])
    if given.tests:
        pytest.main(["-q", *OPTIONS, "--one-in", given.one_in, *given.tests], plugins=[outcomes])
    arch = ARCHS[given.standin]
    refused = compile_all(given.graphs, arch) if given.graphs else Counter[str]()
    if given.keep:
        add_kept(given.keep, kernels, graphs, outcomes)
    mnemonics, unknown, wrong = compare(list(kernels.found), arch)
    share = "" if given.one_in == "1" else f", one in {given.one_in}"
    folders = sorted({"/".join(name.split("/")[:3]) for name in outcomes.found})
    if given.graphs:
        share = f"compiled from graphs of those above, {refused.total()} refused"
    row: list[object] = [arch, " ".join(folders) + share]
    row += [f"{outcomes.count(name):,}" for name in ("passed", "skipped", "failed")]
    row += [f"{len(kernels.found):,}", f"{mnemonics.total():,}"]
    row += [f"{sum(mnemonics[name] for name in PADDING):,}", len(mnemonics), unknown, wrong.total()]
    before = given.page.read_text("utf-8") if given.page.exists() else about()
    given.page.write_text(f"{before}| {' | '.join(map(str, row))} |\n", "utf-8")
    print(row, *refused.most_common(20), *wrong.most_common(20), sep="\n")
    return 1 if wrong or not kernels.found else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
