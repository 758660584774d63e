"""Coverage by test: which test executes which line of the core, and how long it takes.

Also a plugin of pytest: `pytest -p tests.faults.collecting` writes what it saw to the files that
FAULTS_COVERAGE names.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns, rmtree
from typing import Any, Final, NoReturn

import pytest

from tests.faults.choosing import PARTS

CHOSEN: Final = (
    *("tests/unit/uop", "tests/unit/schedule", "tests/unit/lower", "tests/unit/engine"),
    *("tests/unit/tensor", "tests/unit/builtin", "tests/unit/render", "tests/property"),
    *("tests/unit/nn", "tests/golden/test_kernels.py", "tests/unit/test_processes.py"),
)
"""Tests that may notice a fault, those nearest to the core first."""

COPIED: Final = ("tinycore", "tests", "conftest.py", "pyproject.toml")
SETTINGS: Final = {"TENSOR_TESTS": "CPU:LLVM", "CI": "1"}
ALWAYS: Final = (
    *("-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    "--capture=sys",  # what a crash prints is read, too
)
CRASHED: Final = 70
"""The exit status of a run that pytest did not end."""

LINKED: Final = ("plugins", "docs", "examples", "benchmarks", "noxfile.py", "README.md")

TOGETHER: Final = 5
"""Test files in one process, in which later ones find what earlier ones left in tables."""

OF_OTHERS: Final = ("CL", "WEBGPU", "CUDA", "NV", "METAL", "AMD", "QCOM")
"""Devices whose tests are left out: their drivers are not everywhere."""


@dataclass
class Trial:
    """A test: how long it takes, and the lines it executes as bits of a number, by file."""

    name: str
    seconds: float
    lines: dict[str, int] = field(default_factory=dict)

    def executes(self, file: str, lines: Iterable[int]) -> bool:
        """Whether it executes one of these lines."""
        bits = self.lines.get(file, 0)
        return any(bits >> line & 1 for line in lines)


class Scratch:
    """A copy of the tree in a folder, where faults are put in and tests are run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.caches = folder / ".caches"
        ignored = ignore_patterns("__pycache__")
        for name in COPIED:
            if (root / name).is_dir():
                rmtree(folder / name, ignore_errors=True)
                copytree(root / name, folder / name, ignore=ignored)
            elif (root / name).exists():
                folder.mkdir(parents=True, exist_ok=True)
                copy2(root / name, folder / name)
        for name in LINKED:
            if (root / name).exists() and not (folder / name).is_symlink():
                (folder / name).symlink_to(root / name)

    def put(self, file: str, text: str | None) -> None:
        """Write a file of the copy, for None as it is in the tree."""
        content = (self.root / file).read_text("utf-8") if text is None else text
        place = self.folder / file
        place.write_text(content, "utf-8")
        for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*"):
            compiled.unlink()  # Python tells files apart by size and second

    def pytest(
        self,
        words: Sequence[str],
        seconds: float,
        settings: Mapping[str, str] | None = None,
    ) -> tuple[int | None, str]:
        """The exit status of a run of tests and what it printed; None for one that hung.

        It is run by a fork of this process, which has imported what takes long.
        """
        rmtree(self.caches, ignore_errors=True)
        printed = self.folder / ".printed"
        process = os.fork()
        if process == 0:
            self.run_forked([*ALWAYS, *words], printed, settings or {})
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
        self, words: Sequence[str], printed: Path, settings: Mapping[str, str]
    ) -> NoReturn:
        """Run tests in this process, and end it."""
        status = CRASHED
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for target in (1, 2):
                os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), target)
            os.chdir(self.folder)
            os.environ.update({"CACHE_DIR": str(self.caches), **SETTINGS, **settings})
            os.environ["PYTHONPATH"] = os.pathsep.join(
                [str(self.folder), os.environ.get("PYTHONPATH", "")]
            )
            sys.path[:0] = [str(self.folder)]
            sys.dont_write_bytecode = False  # the next run compiles one file of the core, not all
            for name in [n for n in sys.modules if n.split(".")[0] in ("tests", "tinycore")]:
                del sys.modules[name]
            status = int(pytest.main(list(words)))
            sys.stdout.flush()
        finally:
            os._exit(status)


def ended(process: int, seconds: float) -> int | None:
    """How a forked process ended; None for one that took too long, and was killed."""
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


def trials_file(root: Path, folder: Path, core: str, file: str) -> Path:
    """Where the trials of a test file are kept."""
    return folder / "trials" / f"{digest([root / file], core, file)}.pickle"


def collect(
    scratch: Scratch, folder: Path, files: Sequence[str], until: float, show: Callable[[int], None]
) -> bool:
    """Run test files not yet known, several in a process, until a time; whether all are known."""
    core = core_digest(scratch.root)
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    kept = {file: trials_file(scratch.root, folder, core, file) for file in files}
    unknown = [file for file in files if not kept[file].exists()]
    show(len(files) - len(unknown))
    for start in range(0, len(unknown), TOGETHER):
        if time.monotonic() > until:
            return False
        group = unknown[start : start + TOGETHER]
        targets = json.dumps({file: str(kept[file]) for file in group})
        settings = {"FAULTS_COVERAGE": targets, "FAULTS_ROOT": str(scratch.folder)}
        options = ["-m", "not slow", "--timeout=120", "-p", "tests.faults.collecting"]
        scratch.pytest([*group, *options], 280, settings)
        for file in group:
            if not kept[file].exists():  # a test ended the process
                kept[file].write_bytes(pickle.dumps([]))
        show(len(group))
    return True


def load_trials(root: Path, folder: Path, files: Sequence[str]) -> list[Trial]:
    """The trials of all files, the fastest of each file first and in turn."""
    core = core_digest(root)
    ranked: list[tuple[int, int, Trial]] = []
    for number, file in enumerate(files):
        kept = trials_file(root, folder, core, file)
        trials: list[Trial] = pickle.loads(kept.read_bytes())
        trials.sort(key=lambda trial: trial.seconds)
        ranked += [(rank, number, trial) for rank, trial in enumerate(trials)]
    return [trial for _, _, trial in sorted(ranked, key=lambda entry: entry[:2])]


# The plugin, in the process that runs tests


class Collector:
    """Notes the lines that each test executes."""

    def __init__(self, root: Path, kept: Mapping[str, str]) -> None:
        from coverage import Coverage  # noqa: PLC0415  only where lines are collected

        self.root, self.kept = root, kept
        self.data = root / f".coverage.{os.getpid()}"
        folders = [f"{root}/tinycore/{part}/*" for part in PARTS]
        self.coverage: Any = Coverage(data_file=str(self.data), include=folders, config_file=False)
        self.trials: dict[str, Trial] = {}
        self.failed: set[str] = set()
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run one test in a context of its own."""
        self.coverage.switch_context(item.nodeid)
        begun = time.perf_counter()
        result = yield
        self.trials[item.nodeid] = Trial(item.nodeid, time.perf_counter() - begun)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Forget tests that do not pass."""
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        self.coverage.stop()
        self.coverage.save()
        query = (
            "select context.context, file.path, line_bits.numbits from line_bits "
            "join context on context.id = line_bits.context_id "
            "join file on file.id = line_bits.file_id"
        )
        with sqlite3.connect(self.data) as database:
            for name, path, bits in database.execute(query):
                if (trial := self.trials.get(name)) is not None:
                    file = Path(path).relative_to(self.root).as_posix()
                    trial.lines[file] = int.from_bytes(bits, "little")
        database.close()
        self.data.unlink()
        passed = [t for name, t in self.trials.items() if name not in self.failed]
        for file, kept in self.kept.items():
            own = [trial for trial in passed if trial.name.startswith(f"{file}::")]
            Path(kept).write_bytes(pickle.dumps(own))


def pytest_configure(config: pytest.Config) -> None:
    """Begin to collect where a file for it is named."""
    if kept := os.environ.get("FAULTS_COVERAGE"):
        collector = Collector(Path(os.environ["FAULTS_ROOT"]), json.loads(kept))
        config.pluginmanager.register(collector)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of devices that are not everywhere."""
    marks = {item: item.get_closest_marker("device") for item in items}
    gone = {item for item, mark in marks.items() if mark and mark.args[0].startswith(OF_OTHERS)}
    items[:] = [item for item in items if item not in gone]
