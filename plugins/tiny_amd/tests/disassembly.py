#!/usr/bin/env python3
"""Compare the emulator's decoder with llvm-objdump, over the kernels that tests launch.

    plugins/tiny_amd/tests/disassembly.py page.md tests/unit/tensor tests/unit/nn
    plugins/tiny_amd/tests/disassembly.py page.md --standin AMD-GFX942 --one-in 20 tests/unit/tensor

The tests run on the stand-in. Each kernel's machine code, once however many tests launch it, is
listed by llvm-objdump and decoded by the emulator: mnemonics and lengths must agree, instruction by
instruction. A row is added to the page for each run. `--keep FOLDER` keeps the kernels.
Needs llvm-objdump 19 or later (Debian: llvm-19), or the one OBJDUMP names.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import pluggy
import pytest

ROOT: Final = Path(__file__).parents[3]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/support")]

from listings import disagreement, plain  # noqa: E402  the paths are set above

from tinycore.plugin import register_observer  # noqa: E402

ARCHS: Final = {"AMD": "gfx1100", "AMD-GFX1201": "gfx1201", "AMD-GFX942": "gfx942"}
"""Architectures of the stand-ins."""
VERSIONS: Final = range(30, 18, -1)
OPTIONS: Final = ("-p", "no:cacheprovider", "--tb=short")
AT_ONCE: Final = 200
"""Objects of one call of llvm-objdump."""
LINE: Final = re.compile(r"^\t(.*?)\s*// [0-9A-F]{12}: ([0-9A-F ]+)$")
PADDING: Final = frozenset({"s_code_end", "s_nop"})
"""Instructions behind the end of a kernel, which nothing executes; counted apart."""
HEAD: Final = (
    "| architecture | tests | passed | skipped | failed | kernels | instructions | of them padding "
    "| mnemonics | mismatches |"
)


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
        command = [objdump(), "-d", f"--mcpu={arch}", *map(str, files)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in said.splitlines():
        if found := LINE.match(line):
            words = [struct.pack("<I", int(word, 16)) for word in found[2].split()]
            yield plain(found[1].split()[0]), b"".join(words)


class Kernels:
    """Machine code of kernels, each once."""

    def __init__(self) -> None:
        self.found: dict[bytes, None] = {}

    @pluggy.HookimplMarker("tinycore")
    def tinycore_kernel_compiled(self, binary: bytes) -> None:
        """Note a kernel, if an AMD card is to run it: ELF of machine 224."""
        if binary[:4] == b"\x7fELF" and binary[18:20] == b"\xe0\x00":
            self.found[binary] = None


class Outcomes:
    """How tests ended."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test at its call, or where it did not come to that."""
        if report.when == "call" or report.outcome != "passed":
            self.count[report.outcome] += 1


def compare(objects: list[bytes], arch: str) -> tuple[Counter[str], Counter[str]]:
    """Mnemonics that were listed, and disagreements, with their numbers."""
    mnemonics: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for start in range(0, len(objects), AT_ONCE):
        for mnemonic, code in listing(objects[start : start + AT_ONCE], arch):
            mnemonics[mnemonic] += 1
            if said := disagreement(mnemonic, code, arch):
                wrong[said] += 1
    return mnemonics, wrong


def keep(objects: Iterable[bytes], folder: Path) -> None:
    """Put kernels into files of a folder, named by their content."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in objects:
        (folder / f"{sha256(data).hexdigest()[:24]}.o").write_bytes(data)


def main() -> int:
    """Run the tests and compare; status 1 at the first disagreement, or where nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("page", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--standin", default="AMD", choices=ARCHS)
    parser.add_argument("--one-in", default="1", help="run one test in so many")
    parser.add_argument("--keep", type=Path, help="a folder to keep the kernels in")
    given = parser.parse_args()
    version = re.search(r"version ([0-9.]+)", subprocess.getoutput(f"{objdump()} --version"))
    os.environ |= {"STANDIN": given.standin, "CCACHE": "0"}
    kernels, outcomes = Kernels(), Outcomes()
    register_observer(kernels)
    pytest.main(["-q", *OPTIONS, "--one-in", given.one_in, *given.tests], plugins=[outcomes])
    arch = ARCHS[given.standin]
    if given.keep:
        keep(kernels.found, given.keep)
    mnemonics, wrong = compare(list(kernels.found), arch)
    padding = sum(mnemonics[name] for name in PADDING)
    share = "" if given.one_in == "1" else f", one in {given.one_in}"
    row: list[object] = [arch, " ".join(given.tests) + share]
    row += [f"{outcomes.count[name]:,}" for name in ("passed", "skipped", "failed")]
    row += [f"{len(kernels.found):,}", f"{mnemonics.total():,}"]
    row += [f"{padding:,}", len(mnemonics), wrong.total()]
    about = (
        f"# The emulator's decoder beside llvm-objdump, {time.strftime('%Y-%m-%d')}\n\n"
        f"llvm-objdump {version[1] if version else 'of an unknown version'}; the kernels are those "
        "that the tests launch on the stand-in, by LLVM IR. Mnemonic and length of each "
        "instruction are compared. Written by `plugins/tiny_amd/tests/disassembly.py`.\n\n"
        f"{HEAD}\n|---|---|{'---:|' * 8}\n"
    )
    before = given.page.read_text("utf-8") if given.page.exists() else about
    given.page.write_text(f"{before}| {' | '.join(map(str, row))} |\n", "utf-8")
    print(row, *wrong.most_common(20), sep="\n")
    return 1 if wrong or not kernels.found else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
