"""A copy of the tree in which tests run, and what is known of each test."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns, rmtree
from typing import Final, NoReturn

import pytest

CHOSEN: Final = (
    *("tests/unit/uop", "tests/unit/schedule", "tests/unit/lower", "tests/unit/engine"),
    *("tests/unit/tensor", "tests/golden", "tests/property", "tests/unit/builtin"),
    *("tests/unit/render", "tests/unit/nn", "tests/unit/device", "tests/unit/testing"),
    "plugins/tiny_testing/tests",
    *("tests/unit/test_once.py", "tests/unit/test_processes.py", "plugins/tiny_cpu/tests"),
)
"""Tests that may notice a fault, those nearest to the core first."""

COPIED: Final = ("tinycore", "tests", "conftest.py", "pyproject.toml")
SETTINGS: Final = {"TENSOR_TESTS": "CPU:LLVM", "CI": "1", "OMP_NUM_THREADS": "1"}
ALWAYS: Final = (
    *("-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-m", "not slow"),
    "--capture=sys",  # what a crash prints is read, too
)
CRASHED: Final = 70
"""The exit status of a run that pytest did not end."""

MOST_BYTES: Final = 16 << 30
"""Address space that one process of tests may use: a fault may ask for any amount of memory."""

LINKED: Final = ("plugins", "docs", "examples", "benchmarks", "noxfile.py", "README.md")


@dataclass(frozen=True)
class Trial:
    """A test, its processor time, and the numbers of the faults whose lines it executes."""

    name: str
    seconds: float
    marks: tuple[int, ...] = ()


class Scratch:
    """A copy of the tree in a folder, where faults are put in and tests are run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder.resolve()
        self.caches = self.folder / ".caches"
        ignored = ignore_patterns("__pycache__")
        for name in COPIED:
            if (root / name).is_dir():
                rmtree(self.folder / name, ignore_errors=True)
                copytree(root / name, self.folder / name, ignore=ignored)
            elif (root / name).exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                copy2(root / name, self.folder / name)
        for name in LINKED:
            if (root / name).exists() and not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(root / name)

    def sound(self, file: str) -> str:
        """A file as it is in the tree."""
        return (self.root / file).read_text("utf-8")

    def put(self, file: str, text: str | None) -> None:
        """Write a file of the copy, for None as it is in the tree."""
        place = self.folder / file
        place.write_text(self.sound(file) if text is None else text, "utf-8")
        for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*"):
            compiled.unlink()  # Python tells files apart by size and second

    def forget(self) -> None:
        """Drop what tests kept on disk."""
        rmtree(self.caches, ignore_errors=True)

    def pytest(
        self, words: Sequence[str], seconds: float, plugins: Sequence[object] = ()
    ) -> tuple[int | None, str]:
        """The exit status of a run of tests and what it printed; None for one that hung.

        It is run by a fork of this process, which has imported what takes long.
        """
        self.forget()
        printed = self.folder / ".printed"
        process = os.fork()
        if process == 0:
            self.run_forked([*ALWAYS, *words], printed, plugins)
        try:
            status = ended(process, seconds)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            raise
        if status is None:
            return None, ""
        return os.waitstatus_to_exitcode(status), printed.read_text("utf-8", "replace")

    def run_forked(
        self, words: Sequence[str], printed: Path, plugins: Sequence[object]
    ) -> NoReturn:
        """Run tests in this process, and end it."""
        status = CRASHED
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            for target in (1, 2):
                os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), target)
            os.chdir(self.folder)
            os.environ.update({"CACHE_DIR": str(self.caches), **SETTINGS})
            os.environ["PYTHONPATH"] = os.pathsep.join(
                [str(self.folder), os.environ.get("PYTHONPATH", "")]
            )
            sys.path[:0] = [str(self.folder)]
            sys.dont_write_bytecode = False  # the next run compiles one file of the core, not all
            for name in [n for n in sys.modules if n.split(".")[0] in ("tests", "tinycore")]:
                del sys.modules[name]
            status = int(pytest.main(list(words), plugins=list(plugins)))
            sys.stdout.flush()
        finally:
            os._exit(status)


def ended(process: int, seconds: float) -> int | None:
    """Exit status of a forked process; None for one that took too long, and was killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return status
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def import_ahead() -> None:
    """Import what tests import and faults are not in, so that forks need not."""
    for name in ("numpy", "hypothesis", "hypothesis.strategies", "cffi", "llvmlite.binding"):
        with suppress(ImportError):
            import_module(name)
    with suppress(ImportError):
        import_module("torch").set_num_threads(1)  # forks would lack the threads


# Which files, and what was found before


def digest(files: Iterable[Path], *words: str) -> str:
    """A name for the content of files."""
    found = blake2b(" ".join(words).encode(), digest_size=10)
    for file in sorted(files):
        found.update(file.read_bytes())
    return found.hexdigest()


def core_digest(root: Path) -> str:
    """A name for the content of the core."""
    return digest((root / "tinycore").rglob("*.py"))


def files_of_tests(root: Path) -> list[str]:
    """The files of the tests that may notice faults."""
    found: list[str] = []
    for name in CHOSEN:
        place = root / name
        files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
        found += [file.relative_to(root).as_posix() for file in files]
    return found


class Known:
    """Cache of the tests in each file, keyed by the content of the file and of the core."""

    def __init__(self, root: Path, folder: Path, faults: str) -> None:
        self.root, self.folder = root, folder / "trials"
        self.words = (core_digest(root), faults)
        self.folder.mkdir(parents=True, exist_ok=True)

    def place(self, file: str) -> Path:
        """Path of the cached trials of a file."""
        return self.folder / f"{digest([self.root / file], *self.words, file)}.json"

    def write(self, file: str, trials: Iterable[Trial]) -> None:
        """Keep the trials of a file."""
        rows = [(trial.name, round(trial.seconds, 4), trial.marks) for trial in trials]
        self.place(file).write_text(json.dumps(rows), "utf-8")

    def unknown(self, files: Iterable[str]) -> list[str]:
        """The files of which nothing is known."""
        return [file for file in files if not self.place(file).exists()]

    def read(self, files: Iterable[str]) -> list[Trial]:
        """The trials of files, fast ones first, and none long after others of its file."""
        ranked: list[tuple[float, Trial]] = []
        for file in files:
            rows = json.loads(self.place(file).read_text("utf-8"))
            trials = [Trial(name, seconds, tuple(marks)) for name, seconds, marks in rows]
            trials.sort(key=lambda trial: trial.seconds)
            ranked += [(t.seconds + rank * OF_ONE_FILE, t) for rank, t in enumerate(trials)]
        return [trial for _, trial in sorted(ranked, key=lambda entry: entry[0])]


OF_ONE_FILE: Final = 0.01
"""Seconds by which each further test of a file is put off: tests of one file notice alike."""
