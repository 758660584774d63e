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
from itertools import islice
from pathlib import Path
from typing import Final

from tqdm import tqdm

from tests.faults.choosing import Fault, choose, sources_in
from tests.faults.collecting import (
    Scratch,
    collect,
    core_digest,
    files_of_tests,
    import_ahead,
    load_trials,
)
from tests.faults.judging import (
    Equivalents,
    Readers,
    Verdict,
    executing,
    judge,
    name_of,
    unsound,
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
        rows = json.loads(file.read_text("utf-8")) if file.exists() else []
        self.verdicts: dict[Key, Verdict] = {tuple(key): Verdict(**row) for key, row in rows}

    def write(self) -> None:
        """Write all of them down."""
        rows = [(key, vars(verdict)) for key, verdict in self.verdicts.items()]
        self.file.write_text(json.dumps(rows, indent=1), "utf-8")

    def keep(self, keys: set[Key]) -> None:
        """Forget all others."""
        self.verdicts = {key: v for key, v in self.verdicts.items() if key in keys}
        self.write()


def main(words: Sequence[str]) -> int:
    """Choose faults, judge each, and say which survived."""
    options = parsed(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(LATER))  # what it started ends with it
    until = time.monotonic() + 60 * options.minutes
    folder = Path(options.folder)
    tqdm.monitor_interval = 0  # a thread, which forks would lack
    import_ahead()
    scratch = Scratch(ROOT, folder / f"tree-{options.seed}")
    files = files_of_tests(ROOT)
    with tqdm(total=len(files), desc="coverage", unit="file") as bar:
        is_whole = collect(scratch, folder, files, until, lambda count: bar.update(count) and None)
    if not is_whole:
        return LATER
    sources = sources_in(ROOT)
    faults = list(islice(choose(sources, options.seed), options.count))
    kept = Kept(folder / f"verdicts-{core_digest(ROOT)}.json")
    if options.again:
        kept.keep({key for key, v in kept.verdicts.items() if v.word == "noticed"})
    trials, readers = load_trials(ROOT, folder, files), Readers(sources)
    equivalents = Equivalents.read(EQUIVALENT)
    found: list[tuple[Fault, Verdict]] = []
    for fault in tqdm(faults, desc="faults", unit="fault"):
        verdict = kept.verdicts.get(fault.key)
        if (why := equivalents.reason(fault)) is not None:
            verdict = Verdict("equivalent", why, 0, 0.0)
        elif verdict is None:
            if time.monotonic() > until:
                return LATER
            verdict = judge(fault, scratch, executing(fault, trials, readers))
            kept.verdicts[fault.key] = verdict
            kept.write()
        found.append((fault, verdict))
        if verdict.word == "survived":
            tqdm.write(f"\n{fault}\n  survived {verdict.executing} tests that execute it")
    if wrong := unsound([verdict for _, verdict in found], scratch):
        kept.keep({key for key, v in kept.verdicts.items() if name_of(v.by) not in wrong})
        print("These fail in a sound tree; run again to judge by others:", *sorted(wrong))
        return 1
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
    parser.add_argument("--minutes", type=float, default=600, help="after which to stop")
    parser.add_argument("--least", type=float, default=97, help="percent that must be noticed")
    parser.add_argument("--again", action="store_true", help="judge what survived anew")
    folder = Path(tempfile.gettempdir()) / "tinycore-faults"
    parser.add_argument("--folder", default=str(folder), help="where results are kept")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
