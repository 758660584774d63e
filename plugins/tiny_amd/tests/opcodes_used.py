#!/usr/bin/env python3
"""Print which opcodes kernels use, which the emulator executes, and which its tests have executed.

    plugins/tiny_amd/tests/opcodes_used.py page.md gfx1100=FOLDER gfx942=FOLDER gfx1201=FOLDER

Each folder holds kernels that `disassembly.py --keep FOLDER` has left. `test_emulator.py`,
`test_dots.py`, `test_matrix.py` and `test_waits.py` run first, unless `--used` is given: what they
execute beside this machine's processor or NumPy is tested. Status 1 where a kernel has an opcode
that the emulator does not execute.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[3]
TESTS: Final = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(ROOT / "tests/support")]

from code_object import CODE, load  # noqa: E402  the paths are set above
from emulation.faults import Fault  # noqa: E402
from emulator.decode import Decoder, Instruction, decode  # noqa: E402
from emulator.dispatch import Emulator, make  # noqa: E402
from listings import DECODERS  # noqa: E402

RUN: Final = ("test_emulator.py", "test_dots.py", "test_matrix.py", "test_waits.py")
OPTIONS: Final = ("-q", "-p", "no:cacheprovider", "--override-ini=addopts=--import-mode=importlib")
Names = dict[str, None]


def code_of(data: bytes, decoder: type[Decoder]) -> Counter[str]:
    """Opcodes of a kernel, up to the last s_endpgm. Raises Fault for one that is not executed."""
    loaded = load(data)
    (kernel,) = (name[:-3] for name in loaded.symbols if name.endswith(".kd"))
    place, found, pending = loaded.symbols[kernel] - CODE, Counter[str](), Counter[str]()
    while place < len(loaded.image) - 16:
        try:
            instruction = decode(loaded.image[place : place + 16].tobytes(), place, decoder)
        except Fault:
            if not found:
                raise
            break  # behind the last s_endpgm: descriptors and padding
        for each in (instruction, instruction.partner):
            if each is not None:
                pending[each.name] += 1
        if instruction.name != "s_code_end":
            make(instruction)
        place += instruction.size
        if instruction.name == "s_endpgm":
            found, pending = found + pending, Counter()
    return found


def executable(decoder: type[Decoder]) -> set[str]:
    """Names that the emulator makes a step of, whatever their operands are."""
    found = set()
    for encoding, names in decoder.names.items():
        for name in names.values():
            try:
                make(Instruction(0, encoding, name, 4, (0, 0), (256, 256, 256)))
            except (Fault, KeyError, ValueError, IndexError, AssertionError, StopIteration):
                continue
            found.add(name)
    return found


def executed_by_tests() -> dict[type[Decoder], set[str]]:
    """Names that tests of the emulator execute, by family."""
    found: dict[type[Decoder], set[str]] = {decoder: set() for decoder in DECODERS.values()}
    made: list[Emulator] = []
    begin = Emulator.__init__

    def note(self: Emulator, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        made.append(self)

    Emulator.__init__ = note  # type: ignore[method-assign]
    pytest.main([*OPTIONS, *(str(TESTS / name) for name in RUN)])
    Emulator.__init__ = begin  # type: ignore[method-assign]
    for emulator in made:
        found[emulator.decoder] |= set(emulator.executed)
    return found


def main(page: Path, folders: dict[str, Path], runs_tests: bool) -> int:
    """Write the page."""
    tested = executed_by_tests() if runs_tests else {}
    lines = [
        f"# Opcodes of AMD's cards on the emulator, {time.strftime('%Y-%m-%d')}",
        "",
        "Written by `plugins/tiny_amd/tests/opcodes_used.py`. Used: opcodes of the kernels that",
        "the tests of tensors launch, of which the emulator executes the share that is said.",
        "Tested: executed by the emulator's own tests, beside this machine's processor or NumPy,",
        "over random and special numbers; a dash where these were not run for the page.",
        "",
        "| architecture | kernels | opcodes used | executed | of them tested | all executable |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lists, is_wrong = [], False
    for arch, folder in folders.items():
        decoder, used, refused = DECODERS[arch], Counter[str](), Counter[str]()
        files = sorted(folder.glob("*.o"))
        for file in files:
            try:
                used += code_of(file.read_bytes(), decoder)
            except Fault as fault:
                refused[str(fault)] += 1
        can = executable(decoder) | set(used)
        both = set(used) & tested.get(decoder, set())
        share = 100 if not refused else 100 * (1 - refused.total() / len(files))
        of_tests = len(both) if runs_tests else "-"
        lines.append(
            f"| {arch} | {len(files):,} | {len(used)} | {share:.4g} % | {of_tests} | {len(can)} |"
        )
        is_wrong |= bool(refused)
        lists += ["", f"## {arch}", ""]
        lists += [f"Refused: {what} ({count})" for what, count in refused.most_common()]
        if runs_tests:
            rest = sorted(set(used) - both)
            lists += [f"Used and tested: {', '.join(sorted(both))}.", ""]
            lists += [f"Used, and executed in tests of tensors only: {', '.join(rest)}.", ""]
        else:
            lists += [f"Used: {', '.join(sorted(used))}.", ""]
        lists += [f"Executable, and in no kernel: {', '.join(sorted(can - set(used)))}."]
    page.write_text("\n".join([*lines, *lists]) + "\n", "utf-8")
    print("\n".join(lines))
    return 1 if is_wrong else 0


if __name__ == "__main__":
    words = [word for word in sys.argv[2:] if word != "--used"]
    named = {arch: Path(folder) for arch, folder in (word.split("=", 1) for word in words)}
    sys.exit(main(Path(sys.argv[1]), named, "--used" not in sys.argv))
