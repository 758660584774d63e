"""Verdicts on faults: which test notices each, the fastest that execute the changed lines first."""

from __future__ import annotations

import ast
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.faults.choosing import Fault, Source
from tests.faults.collecting import Scratch, Trial

Word = Literal["noticed", "survived", "equivalent"]

FIRST_SECONDS: Final = 2.0
GROWTH: Final = 4
"""How long the first batch of tests takes on a sound tree, and how much longer each one after."""

MOST_SECONDS: Final = 90.0
"""How long all tests that are run for one fault take on a sound tree."""

PLANS: Final = "tests/golden/test_plans.py"
"""Tests that notice another plan, which computes the same more slowly: always run last."""

FAILED: Final = 1
NOTHING_RAN: Final = 5
"""Exit statuses of pytest."""

DEPTH: Final = 3
"""How many tables are followed that are made of tables."""


@dataclass(frozen=True)
class Verdict:
    """What became of a fault, by which test, and how many execute the changed line."""

    word: Word
    by: str
    executing: int
    seconds: float


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
    """Whether a name or an attribute is read, not bound."""
    return isinstance(getattr(node, "ctx", None), ast.Load)


def executing(fault: Fault, trials: Sequence[Trial], readers: Readers) -> list[Trial]:
    """The tests that execute what a fault changes."""
    places = {(fault.file, line) for line in fault.lines}
    if fault.names:
        places |= set(readers.lines_of(fault.names))
    by_file: dict[str, set[int]] = {}
    for file, line in places:
        by_file.setdefault(file, set()).add(line)
    return [
        trial
        for trial in trials
        if any(trial.executes(file, lines) for file, lines in by_file.items())
    ]


def batches(trials: Sequence[Trial], most: float = MOST_SECONDS) -> list[list[Trial]]:
    """Tests in the order given, each batch longer than the one before; golden plans last."""
    plans = [t for t in trials if t.name.startswith(PLANS)]
    found: list[list[Trial]] = []
    batch: list[Trial] = []
    limit, used, total = FIRST_SECONDS, 0.0, 0.0
    for trial in trials:
        if trial in plans or total + trial.seconds > most:
            continue
        batch.append(trial)
        used, total = used + trial.seconds, total + trial.seconds
        if used >= limit:
            found.append(batch)
            batch, used, limit = [], 0.0, limit * GROWTH
    return [b for b in [*found, batch, plans] if b]


# Running them


def judge(fault: Fault, scratch: Scratch, trials: Sequence[Trial]) -> Verdict:
    """Put a fault into the copy of the tree, and run tests until one fails."""
    begun = time.monotonic()

    def verdict(word: Word, by: str) -> Verdict:
        return Verdict(word, by, len(trials), round(time.monotonic() - begun, 1))

    scratch.put(fault.file, fault.text)
    try:
        for batch in batches(trials):
            names = [trial.name for trial in batch]
            seconds = 60 + 10 * sum(trial.seconds for trial in batch)
            status, output = scratch.pytest([*names, "-x", "--tb=line", "--timeout=60"], seconds)
            if status is None:
                return verdict("noticed", f"a hang in {names[0]} or later")
            if status not in (0, NOTHING_RAN):
                return verdict("noticed", failing_test(output))
    finally:
        scratch.put(fault.file, None)
    return verdict("survived", "")


def failing_test(output: str) -> str:
    """The test that failed first, or the last line that pytest wrote."""
    lines = output.strip().splitlines() or ["nothing"]
    found = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return found[0].split(" ", 1)[1] if found else lines[-1]


def name_of(by: str) -> str:
    """The test that a verdict names."""
    return by.split(" - ", 1)[0]


def unsound(verdicts: Iterable[Verdict], scratch: Scratch) -> set[str]:
    """Of the tests that noticed faults, those that fail alone in a sound tree."""
    names = sorted({name_of(v.by) for v in verdicts if v.word == "noticed" and "::" in v.by})
    if not names:
        return set()
    _, output = scratch.pytest([*names, "--tb=line", "--timeout=120"], 600)
    lines = output.splitlines()
    return {name_of(line.split(" ", 1)[1]) for line in lines if line.startswith("FAILED ")}


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
        """Those that a file lists."""
        return cls(tomllib.loads(file.read_text("utf-8"))["change"])

    def reason(self, fault: Fault) -> str | None:
        """Why a fault is none; None where it is one."""
        return self.reasons.get(fault.key)
