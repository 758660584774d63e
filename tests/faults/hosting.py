"""A plugin of pytest that collects tests once and runs them in forks, each with another fault.

A fork has imported the core and collected every test. First one per test file notes which tests
execute which marked statements; then one per fault runs the tests that do.
"""

from __future__ import annotations

import ast
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest

from tests.faults.choosing import Source
from tests.faults.collecting import Known, Scratch, Trial
from tests.faults.patching import Living, Swap, exchange, marked, place_of, set_mark

SLOWER: Final = 20
LEAST_SECONDS: Final = 30.0
"""A test hangs that takes so many times as long as on a sound tree, and this on top."""

MOST_OF_A_FILE: Final = 30.0
"""Seconds of processor time after which the other tests of a file are left out."""

OF_OTHERS: Final = ("CL", "WEBGPU", "CUDA", "NV", "METAL", "AMD", "QCOM")
"""Devices whose tests are left out: their drivers are not everywhere."""

Failure = tuple[str, str]


class Ran(NamedTuple):
    """Result of a fork: the first test that failed and why, and the trials of those that passed."""

    failure: Failure | None
    trials: list[Trial]


class Host:
    """Runs tests in forks; `work` is done when all are collected.

    `at_import` are the functions that ran before, which it keeps in a file.
    """

    def __init__(self, scratch: Scratch, kept: Path, work: Callable[[Host], None]) -> None:
        self.scratch, self.kept, self.work = scratch, kept, work
        self.items: dict[str, pytest.Item] = {}
        self.at_import: set[tuple[str, int]] = set()
        self.core = f"{scratch.folder}/tinycore"

    # What pytest calls

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        """Note what runs before the tests do, where that is not known."""
        if self.kept.exists():
            rows = json.loads(self.kept.read_text("utf-8"))
            self.at_import = {(file, line) for file, line in rows}
        else:
            sys.settrace(self.note)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """A function of the core is called."""
        if (code := frame.f_code).co_filename.startswith(self.core):
            file, _, line = place_of(code)
            self.at_import.add((file, line))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests of devices that are not everywhere."""
        marks = {item: item.get_closest_marker("device") for item in items}
        gone = {item for item, mark in marks.items() if mark and mark.args[0].startswith(OF_OTHERS)}
        items[:] = [item for item in items if item not in gone]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work in place of the tests."""
        sys.settrace(None)
        self.kept.write_text(json.dumps(sorted(self.at_import)), "utf-8")
        self.items = {item.nodeid: item for item in session.items}
        self.living = Living(self.scratch.folder / "tinycore")
        self.work(self)
        return True

    # Forks

    def swaps(self, file: str, before: str, after: str | ast.Module) -> list[Swap] | None:
        """The functions of this process that a changed source changes; None where that fails."""
        return self.living.swaps(self.scratch.folder / file, before, after)

    def run(
        self,
        names: Sequence[str],
        expected: Mapping[str, float],
        swaps: Sequence[Swap] = (),
        is_first_enough: bool = True,
    ) -> Ran:
        """Run tests in a fork in which functions run other code."""
        self.scratch.forget()
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reader)
            in_fork(lambda: self.run_here(names, writer, swaps, is_first_enough))
        os.close(writer)
        try:
            return told(lines_from(reader, expected))
        finally:
            os.close(reader)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def run_here(
        self,
        names: Sequence[str],
        writer: int,
        swaps: Sequence[Swap],
        is_first_enough: bool,
    ) -> None:
        """Run tests in this process and write what happens to a pipe."""

        def tell(*words: Any) -> None:
            os.write(writer, f"{json.dumps(words)}\n".encode())

        marks: set[int] = set()
        set_mark(marks.add)
        exchange(swaps)
        reports = Reports()
        items = [self.items[name] for name in names]
        items[0].config.pluginmanager.register(reports)
        total = 0.0
        for item, following in zip(items, [*items[1:], None], strict=True):
            marks.clear()
            tell("begin", item.nodeid)
            begun = processor_seconds()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds = processor_seconds() - begun
            total += seconds
            if reports.failed is not None:
                tell("failed", item.nodeid, reports.failed)
                reports.failed = None
                if is_first_enough:
                    break
            elif not reports.was_skipped:
                tell("passed", item.nodeid, seconds, sorted(marks))
            if not is_first_enough and total > MOST_OF_A_FILE:
                break
        tell("end")


class Reports:
    """Why a test failed."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.was_skipped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of a test, or of what is set up for it."""
        if report.when == "setup":
            self.was_skipped = False
        self.was_skipped |= report.skipped
        if report.failed and self.failed is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash is not None else report.longreprtext
            self.failed = (text.strip().splitlines() or ["nothing"])[0][:200]


def in_fork(work: Callable[[], None]) -> None:
    """Do something in a group of processes of its own, and end this process."""
    status = 1
    try:
        os.setsid()
        work()
        status = 0
    finally:
        os._exit(status)


def processor_seconds() -> float:
    """The processor time of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def lines_from(reader: int, expected: Mapping[str, float]) -> Iterator[list[Any]]:
    """Lines that a fork writes; a line `hang` where a test takes too long."""
    rest, limit = b"", LEAST_SECONDS
    end = time.monotonic() + limit
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            yield ["hang"]
            return
        found = os.read(reader, 1 << 16)
        if not found:
            return
        *lines, rest = (rest + found).split(b"\n")
        for line in lines:
            words = json.loads(line)
            if words[0] == "begin":
                limit = LEAST_SECONDS + SLOWER * expected.get(words[1], 0.0)
            yield words
        end = time.monotonic() + limit


def told(lines: Iterable[list[Any]]) -> Ran:
    """Result of the lines a fork wrote. One that stops in the middle of a test crashed in it."""
    trials: list[Trial] = []
    failure: Failure | None = None
    running = ""
    for word, *given in lines:
        match word:
            case "begin":
                running = given[0]
            case "passed":
                trials.append(Trial(given[0], given[1], tuple(given[2])))
            case "failed":
                failure = failure or (given[0], given[1])
            case "hang":
                return Ran(failure or (running, "a hang"), trials)
            case "end":
                return Ran(failure, trials)
    return Ran(failure or (running, "a crash"), trials)


# What tests execute


def collect(
    host: Host,
    known: Known,
    files: Sequence[str],
    sources: Sequence[Source],
    places: Mapping[str, Mapping[int, Iterable[int]]],
    until: float,
) -> bool:
    """Note for each unknown file which tests execute which marked lines; whether all are known."""
    by_file: dict[str, list[str]] = {}
    for name in host.items:
        by_file.setdefault(name.split("::", 1)[0], []).append(name)
    swaps: list[Swap] = []
    for source in sources:
        if source.file in places:
            tree = marked(source, places[source.file])
            swaps += host.swaps(source.file, source.text, tree) or []
    for file in known.unknown(files):
        if time.monotonic() > until:
            return False
        names = by_file.get(file, [])
        ran = host.run(names, {}, swaps, is_first_enough=False) if names else None
        known.write(file, ran.trials if ran else [])
    return True


def function_of(folder: Path, source: Source, line: int) -> tuple[str, int]:
    """The file and the first line of the function that a line is in."""
    first = [
        begin
        for begin, end, _, node in source.scopes
        if begin <= line <= end and isinstance(node, ast.FunctionDef)
    ]
    return str(folder / source.file), first[-1] if first else 0
