"""Seeded faults: a plugin with one thing wrong at a time, which the tests of its driver must find.

Each fault is a change of one text of the plugin, in a copy of it. The tests run on the copy; a
fault that passes them all is printed, and the status of the program is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["Fault", "Seeded"]

Fault: TypeAlias = tuple[str, str, str]
"""A file, a text that is in it once, and what is put in its place."""

NO_FAULT: Final = ("", "", "")
ROOT: Final = Path(__file__).parents[2]
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
OPTIONS: Final = ("-p", "no:cacheprovider", "--override-ini=addopts=")
BY_PATHS: Final = "--import-mode=importlib"
"""Without it pytest puts the folder of the tests before all others."""


@dataclass(frozen=True)
class Seeded:
    """The faults of a driver, and the tests that must find them."""

    tests: Path
    """The folder of the tests."""
    package: Path
    """The folder of the plugin's package."""
    folder: str
    """Folder of the files with faults, inside of the package."""
    run: tuple[str, ...]
    """The files of tests."""
    chosen: str
    """The tests among them, as pytest's `-k` has it."""
    wait_ms: int
    """The time limit of waits: a fault may leave a queue that never ends."""
    faults: tuple[Fault, ...]
    modules: tuple[Path, ...] = ()
    """Folders of modules that the tests take beside the copy, where that is no package."""

    def found_by(self, fault: Fault) -> str:
        """Name of the first test that fails on a copy with the fault; "" where none does.

        A fault of no file is none.
        """
        name, old, new = fault
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / self.package.name
            shutil.copytree(self.package, copy, ignore=shutil.ignore_patterns("__pycache__"))
            if name:
                put_in(copy / self.folder / name, old, new)
            environment = {**os.environ, "PYTHONPATH": folder, "WAIT_TIMEOUT_MS": str(self.wait_ms)}
            paths = " ".join(map(str, (copy, *self.modules)))
            by_paths = (f"--override-ini=pythonpath={paths}", BY_PATHS) if self.modules else ()
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-xq",
                    *OPTIONS,
                    *by_paths,
                    *self.run,
                    "-k",
                    self.chosen,
                ],
                capture_output=True,
                check=False,
                cwd=self.tests,
                env=environment,
                text=True,
            )
            if done.returncode in (0, 5):
                return ""
            failed = FAILED.search(done.stdout)
            return failed[1] if failed else f"pytest ends with status {done.returncode}"

    def try_all(self, first: int, last: int) -> dict[Fault, str]:
        """Try faults by their numbers: the test that finds each, "" for those that none does.

        Files are named from the package's folder on.
        """
        found = {}
        for number, fault in enumerate(self.faults[first:last], first):
            name, old, new = fault
            test = self.found_by(fault)
            found[str(Path(self.folder) / name), old, new] = test
            print(f"{number:3} {test or 'NOT FOUND'}  {name}: {old!r}", flush=True)
        print(f"{sum(map(bool, found.values()))} of {len(found)} are found")
        return found

    def main(self, arguments: Sequence[str], *others: Seeded) -> int:
        """Try the faults that the command line asks for: all, or those from a number to another.

        `--page FILE` writes a table, if the tests pass where there is no fault. 1 when a fault is
        not found. Those of others follow where all are tried.
        """
        parser = argparse.ArgumentParser()
        parser.add_argument("bounds", nargs="*", type=int)
        parser.add_argument("--page", type=Path)
        asked = parser.parse_args(arguments)
        bounds = asked.bounds or [0, len(self.faults)]
        found: dict[Fault, str] = {}
        for seeded in (self, *(() if asked.bounds else others)):
            first, last = (bounds[0], bounds[-1]) if seeded is self else (0, len(seeded.faults))
            if asked.page is not None and (failed := seeded.found_by(NO_FAULT)):
                raise SystemExit(f"without a fault {failed} fails: that would find every one")
            found |= seeded.try_all(first, last)
            if asked.page is not None:  # after each, as all of them take long
                asked.page.write_text(page_of(self, found), "utf-8")
        return 0 if all(found.values()) else 1


def put_in(file: Path, old: str, new: str) -> None:
    """Change a text of a file, which must be in it once."""
    content = file.read_text("utf-8")
    assert content.count(old) == 1, f"{file.name} has {old!r} {content.count(old)} times"
    file.write_text(content.replace(old, new), "utf-8")


def page_of(seeded: Seeded, found: Mapping[Fault, str]) -> str:
    """A table of faults, and of the first test that finds each."""
    program = Path(sys.argv[0])
    shown = program.relative_to(ROOT) if program.is_absolute() else program
    rows = [
        f"| `{name}` | {code(old)} | {code(new)} | {test or '**none**'} |"
        for (name, old, new), test in found.items()
    ]
    lines = (
        f"# Faults seeded into {seeded.package.name}",
        "",
        f"Written by `python {shown} --page FILE`. Each fault is one changed text of the",
        "driver, in a copy of it; the tests of the driver run on the copy until one fails.",
        "",
        f"{sum(map(bool, found.values()))} of {len(found)} are found.",
        "",
        "| file | text | instead | first test that fails |",
        "| --- | --- | --- | --- |",
        *rows,
    )
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """A text of a program, on one line of a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return f"`{line}`" if line else "nothing"
