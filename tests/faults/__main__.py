"""The command: `python -m tests.faults --seed 1 --count 200`.

What was found is kept in a folder, by the content of the tree: `--minutes 5` ends early with status
3, and the same command goes on from there. `--again` runs more tests on what survived.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Final

from tqdm import tqdm

from tests.faults.choosing import PARTS, Fault, choose, sources_in
from tests.faults.collecting import Known, Scratch, core_digest, files_of_tests, import_ahead
from tests.faults.hosting import Host, collect, function_of
from tests.faults.judging import (
    Court,
    Equivalents,
    Readers,
    Verdict,
    fastest_of_files,
    judge_by_import,
    nearest_first,
    places,
)

ROOT: Final = Path(__file__).resolve().parents[2]
EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
LATER: Final = 3
"""The exit status when time ran out."""

Key = tuple[str, str, str, str]


class Kept:
    """Verdicts that are kept in a file between runs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.verdicts: dict[Key, Verdict] = {}
        self.read()

    def read(self) -> None:
        """Read what another process wrote."""
        rows = json.loads(self.file.read_text("utf-8")) if self.file.exists() else []
        self.verdicts = {tuple(key): Verdict(**row) for key, row in rows}

    def write(self) -> None:
        """Write all of them down."""
        rows = [(key, vars(verdict)) for key, verdict in self.verdicts.items()]
        self.file.write_text(json.dumps(rows, indent=1), "utf-8")

    def keep(self, keys: set[Key]) -> None:
        """Forget all others."""
        self.verdicts = {key: v for key, v in self.verdicts.items() if key in keys}
        self.write()


class Run:
    """One call of the command: what it judges, and where it keeps what it found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.until: float = time.monotonic() + 60 * options.minutes
        self.folder, self.files = Path(options.folder), files_of_tests(ROOT)
        self.sources = sources_in(ROOT)
        self.source_of = {source.file: source for source in self.sources}
        changed = sources_in(ROOT, options.parts)
        self.faults = list(islice(choose(changed, options.seed), options.count))
        self.places = places(self.faults, Readers(self.sources))
        self.scratch = Scratch(ROOT, self.folder / f"tree-{options.seed}")
        chosen = blake2b(repr([f.key for f in self.faults]).encode(), digest_size=6).hexdigest()
        self.known = Known(ROOT, self.folder, chosen)
        self.kept = Kept(self.folder / f"verdicts-{core_digest(ROOT)}.json")
        self.equivalents = Equivalents.read(EQUIVALENT)

    @property
    def is_late(self) -> bool:
        """True if time ran out."""
        return time.monotonic() > self.until

    def unjudged(self, *words: str) -> list[tuple[int, Fault]]:
        """The faults without a verdict, and those with a verdict of some words."""
        return [
            (number, fault)
            for number, fault in enumerate(self.faults)
            if self.equivalents.reason(fault) is None
            and ((v := self.kept.verdicts.get(fault.key)) is None or v.word in words)
        ]

    def keep(self, fault: Fault, verdict: Verdict) -> None:
        """Write a verdict down."""
        self.kept.verdicts[fault.key] = verdict
        self.kept.write()

    def judge_hosted(self, host: Host) -> None:
        """Judge what needs no new import of the core."""
        if not collect(host, self.known, self.files, self.sources, self.places, self.until):
            return
        court = Court(host, self.known.read(self.files))
        for number, fault in self.unjudged():
            if self.is_late:
                return
            place = function_of(self.scratch.folder, self.source_of[fault.file], fault.line)
            self.keep(fault, court.judge(fault, number, place in host.at_import))

    def judge_by_import(self) -> None:
        """Judge the others."""
        trials = self.known.read(self.files)
        for number, fault in self.unjudged("at import"):
            if self.is_late:
                return
            concerned = [t for t in trials if number in t.marks] or fastest_of_files(trials)
            nearest = nearest_first(concerned, fault.file)
            self.keep(fault, judge_by_import(fault, self.scratch, nearest))

    def found(self) -> list[tuple[Fault, Verdict]]:
        """All faults and their verdicts."""
        found = []
        for fault in self.faults:
            why = self.equivalents.reason(fault)
            equivalent = Verdict("equivalent", why, 0, 0.0) if why is not None else None
            found.append((fault, equivalent or self.kept.verdicts[fault.key]))
        return found


def main(words: Sequence[str]) -> int:
    """Choose faults, judge each, and say which survived."""
    options = parsed(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(LATER))  # what it started ends with it
    tqdm.monitor_interval = 0  # a thread, which forks would lack
    import_ahead()
    run = Run(options)
    if options.again:
        run.kept.keep({key for key, v in run.kept.verdicts.items() if v.word == "noticed"})
    if run.known.unknown(run.files) or run.unjudged():
        at_import = run.folder / f"at-import-{core_digest(ROOT)}.json"
        host = Host(run.scratch, at_import, run.judge_hosted)
        status, printed = run.scratch.pytest(run.files, 60 * options.minutes + 600, [host])
        run.kept.read()
        if status != 0:
            print(printed)
            return 1
    if run.known.unknown(run.files) or run.unjudged():
        return LATER
    run.judge_by_import()
    if run.unjudged("at import"):
        return LATER
    found = run.found()
    for fault, verdict in found:
        if verdict.word == "survived":
            print(f"\n{fault}\n  survived {verdict.ran} of {verdict.executing} tests")
    return report(found, options.least)


def report(found: Sequence[tuple[Fault, Verdict]], least: float) -> int:
    """Say how many faults were noticed. 0 when they are the share that is asked for."""
    counts = Counter(verdict.word for _, verdict in found)
    matter = counts["noticed"] + counts["survived"]
    share = counts["noticed"] / matter if matter else 1.0
    print(
        f"{len(found)} faults: {counts['equivalent']} equivalent; of the {matter} that matter "
        f"{counts['noticed']} were noticed, {share:.1%}"
    )
    return 0 if share >= least / 100 else 1


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which faults")
    parser.add_argument("--count", type=int, default=200, help="how many faults")
    parser.add_argument("--parts", nargs="+", default=PARTS, help="folders of the core")
    parser.add_argument("--minutes", type=float, default=600, help="after which to stop")
    parser.add_argument("--least", type=float, default=97, help="percent that must be noticed")
    parser.add_argument("--again", action="store_true", help="judge what survived anew")
    folder = Path(tempfile.gettempdir()) / "tinycore-faults"
    parser.add_argument("--folder", default=str(folder), help="where results are kept")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
