"""The page of one seed: `python -m tests.faults.page --seed 3 --verdicts FILE --page FILE`.

The verdicts are those that `python -m tests.faults` kept, judged by the tests of their tree.
`survivors.toml` says what became of each survivor since; a test that it names is run here on the
present tree with the fault in it, and must fail.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.faults.__main__ import EQUIVALENT, ROOT, Key
from tests.faults.choosing import PARTS, Fault, Source
from tests.faults.collecting import Scratch, Trial, import_ahead
from tests.faults.hosting import Host
from tests.faults.judging import Court, Equivalents, Verdict, judge_by_import

SURVIVORS: Final = Path(__file__).with_name("survivors.toml")
OUTCOMES: Final = {
    "test": "test: `{}`",
    "rewritten": "test: `{}`; the line is another one now",
    "there": "noticed by `{}`, which was there and not run: it is slow, or came late",
    "removed": "needless: {}",
    "stays": "stays: {}",
    "equivalent": "equivalent: {}",
    "open": "open",
}
"""Outcomes as they are told, with the name of the test or the reason."""

SECONDS: Final = 3600.0
"""In which the named tests of all survivors have run, on a machine that does much else."""


class Row(NamedTuple):
    """A fault, its verdict, and what became of it where it survived."""

    key: Key
    verdict: Verdict
    outcome: str = "open"
    """One of OUTCOMES, or "equivalent", or "open"."""
    what: str = ""

    @property
    def part(self) -> str:
        """The folder of the core that it is in."""
        return self.key[0].split("/")[1]

    @property
    def is_noticed(self) -> bool:
        """True if the tests of its tree notice it."""
        return self.verdict.word == "noticed" or self.outcome == "there"

    @property
    def is_noticed_since(self) -> bool:
        """True if a test notices it that was written for it."""
        return self.outcome in ("test", "rewritten")

    @property
    def matters(self) -> bool:
        """True if it is a fault of code that is needed."""
        return self.outcome not in ("equivalent", "removed")


def rows_of(
    verdicts: Mapping[Key, Verdict], equivalents: Equivalents, answers: Iterable[Mapping[str, str]]
) -> list[Row]:
    """Every fault with what became of it."""
    told = {(a["file"], a["scope"], a["before"].strip(), a["after"].strip()): a for a in answers}
    rows = []
    for key, verdict in verdicts.items():
        if verdict.word == "noticed":
            rows.append(Row(key, verdict, ""))
        elif (why := equivalents.reasons.get(key)) is not None:
            rows.append(Row(key, verdict, "equivalent", why))
        elif key in told:
            kind = next(k for k in OUTCOMES if k in told[key])
            rows.append(Row(key, verdict, kind, told[key][kind]))
        else:
            rows.append(Row(key, verdict))
    return rows


def table(rows: Sequence[Row], chosen: int) -> str:
    """Counts of verdicts in each part of the core, and both shares."""
    lines = [
        "| part | judged | equivalent or needless | matter | noticed before | with tests since |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for part in (*PARTS, ""):
        mine = [row for row in rows if not part or row.part == part]
        matter = [row for row in mine if row.matters]
        before = sum(row.is_noticed for row in matter)
        since = before + sum(row.is_noticed_since for row in matter)
        counts = len(mine), len(mine) - len(matter), len(matter), before, since
        lines.append(f"| {part or 'all'} | " + " | ".join(map(str, counts)) + " |")
    told = (
        f"Of the {len(matter)} that matter the tests of that tree noticed {before}, "
        f"{share(before, matter)}; with the tests written since, {since}, "
        f"{share(since, matter)}. {chosen - len(rows)} of the {chosen} chosen are not judged."
    )
    return "\n".join((told, "", *lines))


def share(count: int, of: Sequence[object]) -> str:
    """A share in percent."""
    return f"{count / len(of):.1%}" if of else "none"


def survivors(rows: Iterable[Row]) -> str:
    """A table of the survivors, and what became of each."""
    lines = [
        "| where | text | instead | tests run, of those that execute it | what became of it |",
        "| --- | --- | --- | ---: | --- |",
    ]
    for (file, scope, before, after), verdict, outcome, what in rows:
        if outcome:
            where = f"`{file.removeprefix('tinycore/')}`, `{scope or 'the module'}`"
            ran = f"{verdict.ran} of {verdict.executing}"
            became = OUTCOMES[outcome].format(what)
            lines.append(f"| {where} | {cell(before)} | {cell(after)} | {ran} | {became} |")
    return "\n".join(lines)


def cell(code: str) -> str:
    """Code on one line of a table."""
    text = " ".join(code.split()).replace("|", "\\|")
    return f"`{text or 'nothing'}`"


# Tests named for survivors


def fault_of(key: Key) -> Fault | None:
    """The fault of the present tree that is as one of another tree was; None where it is gone."""
    source = Source(key[0], (ROOT / key[0]).read_text("utf-8"))
    for edit in (edit for line in source.edits.values() for edit in line):
        if (fault := source.fault(edit)) is not None and fault.key == key:
            return fault
    return None


class Retrial:
    """Judges survivors by the tests that are named for them."""

    def __init__(self, rows: Iterable[Row], folder: Path) -> None:
        self.folder, self.kept = folder, folder / "noticed.json"
        self.scratch = Scratch(ROOT, folder)
        named = [row for row in rows if row.outcome in ("test", "there")]
        self.pairs = [(fault_of(row.key), row) for row in named]

    def failures(self) -> list[str]:
        """Survivors that their tests do not notice, and those that are not there any more."""
        told = [f"{row.key}: not in this tree" for fault, row in self.pairs if fault is None]
        files = sorted({row.what.split("::", 1)[0] for _, row in self.pairs})
        if not files:
            return told
        host = Host(self.scratch, self.folder / "at-import.json", self.judge)
        status, printed = self.scratch.pytest([*files, "-m", "slow or not slow"], SECONDS, [host])
        if status != 0:
            return [*told, printed]
        noticed = json.loads(self.kept.read_text("utf-8"))
        for number, (fault, row) in enumerate(self.pairs):
            if fault is not None and not noticed[str(number)]:
                trial = Trial(row.what, 1.0, (number,))
                verdict = judge_by_import(fault, self.scratch, [trial])
                if verdict.word != "noticed":
                    told.append(f"{fault}\n  is not noticed by {row.what}")
        return told

    def judge(self, host: Host) -> None:
        """Judge in forks of a process that has imported the core."""
        noticed = {}
        for number, (fault, row) in enumerate(self.pairs):
            if fault is not None:
                # A test of many cases is named without them.
                names = [n for n in host.items if n == row.what or n.startswith(f"{row.what}[")]
                court = Court(host, [Trial(name, 1.0, (number,)) for name in names])
                noticed[number] = court.judge(fault, number, False).word == "noticed"
        self.kept.write_text(json.dumps(noticed), "utf-8")


def main(words: Sequence[str]) -> int:
    """Write the page; 1 where a test that is named does not notice its fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.page", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="which faults")
    parser.add_argument("--count", type=int, default=200, help="how many were chosen")
    parser.add_argument("--tree", required=True, help="the commit that was judged")
    parser.add_argument("--verdicts", type=Path, required=True, help="what `tests.faults` kept")
    parser.add_argument("--page", type=Path, required=True, help="the file to write")
    parser.add_argument("--note", default="", help="the ways in which it was judged otherwise")
    given = parser.parse_args(words)
    kept = json.loads(given.verdicts.read_text("utf-8"))
    verdicts: dict[Key, Verdict] = {tuple(key): Verdict(**row) for key, row in kept}
    answers = tomllib.loads(SURVIVORS.read_text("utf-8"))["survivor"]
    found = rows_of(verdicts, Equivalents.read(EQUIVALENT), answers)
    rows = [row for row in found if row.verdict.word != "at import" or row.outcome != "open"]
    import_ahead()
    with TemporaryDirectory() as folder:
        told = Retrial(rows, Path(folder)).failures()
    for line in told:
        print(line)
    given.page.write_text(page(rows, given, bool(told)), "utf-8")
    return int(bool(told))


def page(rows: Sequence[Row], given: argparse.Namespace, is_unsure: bool) -> str:
    """The whole page."""
    seconds = sorted(row.verdict.seconds for row in rows if row.is_noticed)
    median = seconds[len(seconds) // 2] if seconds else 0.0
    outcomes = Counter(row.outcome for row in rows if row.outcome)
    became = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    tests = (
        "Not every test named below fails with its fault: see what the program printed."
        if is_unsure
        else "Each test named below fails with its fault on the tree of this page, and passes "
        "without, but those of lines that are others now. Those written since were written for "
        "these very faults, so the second share is no estimate for others."
    )
    return f"""# Seeded random faults, seed {given.seed}

Judged by `python -m tests.faults --seed {given.seed} --count {given.count}` on the tree of \
{given.tree}; this page is written by
`python -m tests.faults.page --seed {given.seed} --count {given.count} --tree {given.tree} \
--verdicts FILE --page FILE`.

{given.note}

{table(rows, given.count)}

A noticed fault took {median} s (median). {tests}

## Survivors

What became of them: {became or "there are none"}.

{survivors(rows)}
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
