"""Measure, print the table, and write it where `--output` says."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Final

from benchmarks import peak
from benchmarks.case import Case
from benchmarks.cases import CASES, selected
from benchmarks.clock import PROCESSOR, SETTING
from benchmarks.machine import facts, load
from benchmarks.peers import PEERS, environment_of, why_absent
from benchmarks.report import Limits, Row, figures, markdown, slower
from benchmarks.session import Pace, Worker, WorkerFailed, measure, measure_starts

_DEFAULT_PEERS: Final = ("tinycore", "tinycore-jit", "torch", "jax", "tinygrad", "numpy")
PEAK: Final = "peak memory"
"""The name by which `--only` selects the table of `peak.py`."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="cases whose name has a match"
    )
    parser.add_argument(
        "--peers", default=",".join(_DEFAULT_PEERS), metavar="A,B", help=", ".join(PEERS)
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--rounds", type=int, default=Pace.rounds, help="turns of each peer")
    parser.add_argument("--no-limits", action="store_true", help="leave the hardware alone")
    parser.add_argument(
        "--processor-time", action="store_true",
        help="on one processor, count what it did for us: for machines that others use too",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    return parser.parse_args(words)


def main() -> int:
    """0 when every peer that was measured agreed with the others and none failed."""
    given = arguments()
    if given.list:
        print("\n".join(case.name for case in CASES))
        return 0
    if given.processor_time:
        count_processor_time()
    peers = list(present(given.peers.split(",")))
    pace = Pace(rounds=given.rounds, starts=min(given.rounds, Pace.starts))
    rows: list[Row] = []
    loads = [load()]
    told = dict(facts(peers))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limits = None if given.no_limits else stack.enter_context(_limits(folder))
        for case in selected(given.only):
            if isinstance(case, Case):
                outcomes, rates = measure(case, peers, folder, pace, limits)
                rows.append(Row(case, outcomes, Limits.best_of(rates)))
            else:
                outcomes = measure_starts(case, peers, folder, pace)
                rows.append(Row(case, outcomes))
            told |= {f"{p} runs on": o.about for p, o in outcomes.items() if o.about}
            print(progress(rows[-1]), file=sys.stderr)
    loads.append(load())
    told["processes wanting a processor"] = " before, ".join(loads) + " after (2 is what we need)"
    if given.processor_time:
        told["times"] = "of the processor, with one processor for each process; not on the wall"
    told["date"] = date.today().isoformat()
    text = markdown(rows, peers, told)
    if re.search(given.only, PEAK) and Path("/proc/self/clear_refs").exists():
        text += f"\n{peak.table()}"
    print(text)
    for row in slower(rows):
        print(f"behind: {row.case.name} {row.against}")
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    doubtful = [o for row in rows for o in row.outcomes.values() if o.failure or o.doubt]
    return 1 if doubtful else 0


def count_processor_time() -> None:
    """Let all workers run on one processor, and count the time that it works for them."""
    os.environ[SETTING] = PROCESSOR
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def present(peers: Sequence[str]) -> Iterator[str]:
    """The peers that can be measured; the others are told."""
    for peer in peers:
        if peer not in PEERS:
            raise SystemExit(f"no peer is named {peer!r}; there are {', '.join(PEERS)}")
        reason = why_absent(peer)
        if reason:
            print(f"{peer} is left out: {reason}", file=sys.stderr)
        else:
            yield peer


@contextmanager
def _limits(caches: Path) -> Iterator[Worker | None]:
    """The worker that measures the hardware, where it can."""
    with ExitStack() as stack:
        try:
            found: Worker | None = Worker(("benchmarks.limits",), environment_of("", caches))
        except WorkerFailed as failed:
            print(f"the hardware's limits are not measured: {failed}", file=sys.stderr)
            found = None
        if found is not None:
            stack.callback(found.close)
        yield found


def progress(row: Row) -> str:
    """One line as soon as a case is done."""
    words = [
        f"{peer} {figures(outcome.summary.median) if outcome.summary else 'fails'}"
        for peer, outcome in row.outcomes.items()
    ]
    return f"{row.case.name}: " + ", ".join(words)


if __name__ == "__main__":
    raise SystemExit(main())
