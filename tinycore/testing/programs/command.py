"""Check many random programs: `python -m tinycore.testing.programs --count 20000 --jobs 2`.

Floor 6.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from tinycore.config import Context
from tinycore.testing.programs import check, random_program, script, smallest


class Outcome(NamedTuple):
    """What came of one seed: nothing, or the failure and a script that shows it."""

    seed: int
    kind: str
    message: str
    text: str


def outcome(seed: int, device: str, shrink: bool) -> Outcome:
    """Check the program of one seed on a device."""
    with Context(DEV=device) if device else Context():
        program = random_program(seed)
        failure = check(program)
        if failure is None:
            return Outcome(seed, "", "", "")
        if shrink:
            program, failure = smallest(program, failure)
        return Outcome(seed, failure.kind, str(failure), script(program, failure))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tinycore.testing.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--device", default="", help="as in DEV; the default device if not given")
    parser.add_argument("--no-shrink", action="store_true", help="report programs as they are")
    parser.add_argument("--report", type=Path, help="folder for the scripts of failures")
    return parser.parse_args()


def main() -> int:
    """Run, report, and return 1 if anything failed."""
    options = arguments()
    seeds = range(options.seed, options.seed + options.count)
    run = partial(outcome, device=options.device, shrink=not options.no_shrink)
    kinds: Counter[str] = Counter()
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        shared = options.jobs > 1
        results = pool.imap_unordered(run, seeds, chunksize=4) if shared else map(run, seeds)
        for result in tqdm(results, total=options.count, unit="program", smoothing=0.02):
            if result.kind:
                kinds[result.kind] += 1
                report(result, options.report)
    seconds = time.perf_counter() - began
    failures = ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "no failure"
    print(f"{options.count} programs from seed {options.seed} in {seconds:.0f} s: {failures}")
    return 1 if kinds else 0


def report(result: Outcome, folder: Path | None) -> None:
    """Print a failure, with its script unless that goes to a folder."""
    tqdm.write(f"seed {result.seed}: {result.message}")
    if folder is None:
        tqdm.write(result.text)
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.kind}_{result.seed}.py").write_text(result.text, "utf-8")
