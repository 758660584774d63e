"""Verdicts on faults: which test notices each, the nearest that execute the changed lines first."""

from __future__ import annotations

import ast
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, Literal

from tests.faults.choosing import Fault, Source
from tests.faults.collecting import Scratch, Trial
from tests.faults.hosting import Host

Word = Literal["noticed", "survived", "equivalent", "at import"]

MOST_SECONDS: Final = 60.0
"""Processor time of all tests that are run for one fault, on a sound tree."""

BATCHES: Final = (2.0, 58.0)
"""Seconds of the tests that are run together where each run imports the core anew."""

BEFORE: Final = 20
"""Tests before one that failed that are run again with it, on a sound tree."""

BRIEFLY: Final = ("--tb=line", "--timeout=60")

NOTHING_RAN: Final = 5
"""The exit status of pytest where it has no tests to run."""

DEPTH: Final = 3
"""Depth to which tables made of tables are followed."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on a fault, by which test, how many execute the changed line, how many ran.

    "at import": a process that has imported the core cannot tell.
    """

    word: Word
    by: str
    executing: int
    seconds: float
    ran: int = 0


# Which tests concern a fault


class Readers:
    """The lines in which the tables of the core are read."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.found: dict[str, list[tuple[Source, ast.expr]]] = {}
        for source in sources:
            for node in ast.walk(source.tree):
                name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
                if isinstance(node, ast.expr) and isinstance(name, str) and is_read(node):
                    self.found.setdefault(name, []).append((source, node))

    def lines_of(self, names: Iterable[str], depth: int = DEPTH) -> Iterator[tuple[str, int]]:
        """The lines that run when something of these names is read, or a table made of it."""
        for name in names:
            for source, node in self.found.get(name, ()):
                lines, others = source.reached_by(node, node.lineno)
                yield from ((source.file, line) for line in lines)
                if depth:
                    yield from self.lines_of([o for o in others if o != name], depth - 1)


def is_read(node: ast.expr) -> bool:
    """True if a name or an attribute is read, not bound."""
    return isinstance(getattr(node, "ctx", None), ast.Load)


def places(faults: Iterable[Fault], readers: Readers) -> dict[str, dict[int, set[int]]]:
    """By file and line, the numbers of the faults that show where the line is executed."""
    found: dict[str, dict[int, set[int]]] = {}
    for number, fault in enumerate(faults):
        lines = {(fault.file, line) for line in fault.lines}
        if fault.names:
            lines |= set(readers.lines_of(fault.names))
        for file, line in lines:
            found.setdefault(file, {}).setdefault(line, set()).add(number)
    return found


def affordable(trials: Sequence[Trial], most: float = MOST_SECONDS) -> list[Trial]:
    """The first of some tests, as many as the time allows."""
    used = accumulate(trial.seconds for trial in trials)
    return [trial for trial, total in zip(trials, used, strict=True) if total <= most]


def fastest_of_files(trials: Iterable[Trial]) -> list[Trial]:
    """The first test of each file."""
    found: dict[str, Trial] = {}
    for trial in trials:
        found.setdefault(trial.name.split("::", 1)[0], trial)
    return list(found.values())


def nearest_first(trials: Iterable[Trial], file: str) -> list[Trial]:
    """The tests named for a changed file, then those of its folder, then all others."""
    part, module = Path(file).parent.name, Path(file).stem

    def distance(trial: Trial) -> tuple[bool, bool]:
        place = Path(trial.name.split("::", 1)[0])
        return place.name != f"test_{module}.py", part not in place.parent.parts

    return sorted(trials, key=distance)


# Running them


class Court:
    """Judges faults in the forks of a host."""

    def __init__(self, host: Host, trials: Sequence[Trial]) -> None:
        self.host, self.trials = host, trials
        self.seconds = {trial.name: trial.seconds for trial in trials}
        self.unsound: set[str] = set()

    def judge(self, fault: Fault, number: int, ran_at_import: bool) -> Verdict:
        """Run the tests that execute a fault until one fails."""
        begun = time.monotonic()
        concerned = nearest_first((t for t in self.trials if number in t.marks), fault.file)
        chosen = affordable(concerned)
        sound = self.host.scratch.sound(fault.file)
        swaps = self.host.swaps(fault.file, sound, fault.text)

        def verdict(word: Word, by: str) -> Verdict:
            seconds = round(time.monotonic() - begun, 1)
            return Verdict(word, by, len(concerned), seconds, len(chosen))

        if swaps is None:
            return verdict("at import", "")
        self.host.scratch.put(fault.file, fault.text)
        try:
            while names := [t.name for t in chosen if t.name not in self.unsound]:
                ran = self.host.run(names, self.seconds, swaps)
                if ran.failure is None:
                    break
                name, why = ran.failure
                if self.is_sound(names, name, fault.file):
                    return verdict("noticed", f"{name} - {why}")
                self.host.scratch.put(fault.file, fault.text)
        finally:
            self.host.scratch.put(fault.file, None)
        return verdict("at import" if ran_at_import or fault.names else "survived", "")

    def is_sound(self, names: Sequence[str], failed: str, file: str) -> bool:
        """True if a test passes in a sound tree after the tests that ran before it."""
        self.host.scratch.put(file, None)
        place = names.index(failed)
        again = names[max(0, place - BEFORE) : place + 1]
        if self.host.run(again, self.seconds).failure is None:
            return True
        self.unsound.add(failed)
        return False


def batches(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Tests in the order given, in runs of so many seconds."""
    rest = list(trials)
    for most in BATCHES:
        if batch := affordable(rest, most):
            yield batch
            rest = rest[len(batch) :]


def judge_by_import(fault: Fault, scratch: Scratch, trials: Sequence[Trial]) -> Verdict:
    """Put a fault into the copy of the tree, and run tests in fresh processes until one fails."""
    begun = time.monotonic()
    ran = 0

    def verdict(word: Word, by: str) -> Verdict:
        return Verdict(word, by, len(trials), round(time.monotonic() - begun, 1), ran)

    for batch in batches(trials):
        names = [trial.name for trial in batch]
        ran += len(names)
        while names:
            by = noticing(fault, scratch, names, 60 + 10 * sum(trial.seconds for trial in batch))
            if by is None:
                break
            failed = by.split(" - ", 1)[0]
            if failed not in names or is_sound(scratch, failed):
                return verdict("noticed", by)
            names.remove(failed)
    return verdict("survived", "")


def noticing(fault: Fault, scratch: Scratch, names: Sequence[str], seconds: float) -> str | None:
    """The test that fails first with a fault, and why; None where all pass."""
    scratch.put(fault.file, fault.text)
    try:
        status, output = scratch.pytest([*names, *BRIEFLY, "-x"], seconds)
    finally:
        scratch.put(fault.file, None)
    if status is None:
        return f"a hang in {names[0]} or later"
    return None if status in (0, NOTHING_RAN) else failing_test(output)


def is_sound(scratch: Scratch, name: str) -> bool:
    """True if a test passes alone in a sound tree."""
    status, _ = scratch.pytest([name, *BRIEFLY], 120)
    return status == 0


def failing_test(output: str) -> str:
    """The test that failed first, or the last line that pytest wrote."""
    lines = output.strip().splitlines() or ["nothing"]
    found = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return found[0].split(" ", 1)[1] if found else lines[-1]


# Changes that are no faults


class Equivalents:
    """Changes that were judged to be no faults, each with the reason."""

    def __init__(self, entries: Iterable[Mapping[str, str]]) -> None:
        self.reasons = {
            (e["file"], e["scope"], e["before"].strip(), e["after"].strip()): e["why"]
            for e in entries
        }

    @classmethod
    def read(cls, file: Path) -> Equivalents:
        """The equivalent changes that a file lists."""
        return cls(tomllib.loads(file.read_text("utf-8"))["change"])

    def reason(self, fault: Fault) -> str | None:
        """Why a fault is none; None where it is one."""
        return self.reasons.get(fault.key)
