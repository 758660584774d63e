"""Seeded faults: a plugin with one thing wrong at a time, which the tests of its driver must find.

Each fault is a change of one text of the plugin, in a copy of it. The tests run on the copy; a
fault that passes them all is printed, and the status of the program is 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["Fault", "Seeded"]

Fault: TypeAlias = tuple[str, str, str]
"""A file, a text that is in it once, and what is put in its place."""

OPTIONS: Final = ("-p", "no:cacheprovider", "--override-ini=addopts=")


@dataclass(frozen=True)
class Seeded:
    """The faults of a driver, and the tests that must find them."""

    tests: Path
    """The folder of the tests."""
    package: Path
    """The folder of the plugin's package."""
    folder: str
    """Where the files of the faults are inside of the package."""
    run: tuple[str, ...]
    """The files of tests."""
    chosen: str
    """The tests among them, as pytest's `-k` has it."""
    wait_ms: int
    """The time limit of waits: a fault may leave a queue that never ends."""
    faults: tuple[Fault, ...]

    def is_found(self, fault: Fault) -> bool:
        """Whether a test fails on a copy with the fault."""
        name, old, new = fault
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / self.package.name
            shutil.copytree(self.package, copy, ignore=shutil.ignore_patterns("__pycache__"))
            file = copy / self.folder / name
            changed = file.read_text("utf-8")
            assert changed.count(old) == 1, f"{name} has {old!r} {changed.count(old)} times"
            file.write_text(changed.replace(old, new), "utf-8")
            environment = {**os.environ, "PYTHONPATH": folder, "WAIT_TIMEOUT_MS": str(self.wait_ms)}
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-x",
                    "-q",
                    *OPTIONS,
                    *self.run,
                    "-k",
                    self.chosen,
                ],
                capture_output=True,
                check=False,
                cwd=self.tests,
                env=environment,
            )
            return done.returncode not in (0, 5)

    def try_all(self, first: int, last: int) -> int:
        """Try faults by their numbers; 1 when one of them is not found."""
        tried = self.faults[first:last]
        left = []
        for number, fault in enumerate(tried, first):
            found = self.is_found(fault)
            told = "found" if found else "NOT FOUND"
            print(f"{number:3} {told}  {fault[0]}: {fault[1]!r}", flush=True)
            left += [] if found else [number]
        print(f"{len(tried) - len(left)} of {len(tried)} are found")
        return 1 if left else 0

    def main(self, arguments: Sequence[str]) -> int:
        """Try the faults that the command line asks for: all, or those from a number to another."""
        bounds = [int(text) for text in arguments] or [0, len(self.faults)]
        return self.try_all(bounds[0], bounds[-1])
