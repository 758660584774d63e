"""Two trees of this project, case by case in turns: `python -m benchmarks.trees BEFORE AFTER`.

Each tree is a checkout that is imported from where it lies, with a cache of compiled kernels of its
own. Of each case a row is printed as soon as it is measured: the least and the middle time of both
trees in milliseconds, and their ratios. The least is what a machine that others use can tell.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmarks.case import Case
from benchmarks.cases import selected
from benchmarks.peers import OURS, environment_of
from benchmarks.report import figures
from benchmarks.samples import Sample, summarize
from benchmarks.session import Worker, WorkerFailed, worker

__all__ = ["main"]

HEAD: Final = (
    "| case | program | before, least | after, least | ratio "
    "| before, median | after, median | ratio |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.trees", description=__doc__)
    parser.add_argument("trees", type=Path, nargs=2, metavar="TREE", help="before, then after")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name matches")
    parser.add_argument("--peers", default=",".join(OURS), metavar="A,B", help=", ".join(OURS))
    parser.add_argument("--seconds", type=float, default=8.0, help="of turns, a case and program")
    parser.add_argument("--turn", type=float, default=0.02, help="seconds of one turn")
    parser.add_argument("--caches", type=Path, metavar="FOLDER", help="kept from run to run")
    return parser.parse_args(words)


def environment_in(tree: Path, peer: str, caches: Path) -> dict[str, str]:
    """The environment of a process that imports a tree."""
    paths = [tree, *sorted(tree.glob("plugins/*/src"))]
    own = caches / tree.name
    own.mkdir(parents=True, exist_ok=True)
    return environment_of(peer, own) | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def turns(workers: Sequence[Worker], seconds: float, turn: float) -> list[list[Sample]]:
    """The samples of each worker; whose turn comes first changes from round to round."""
    taken: list[list[Sample]] = [[] for _ in workers]
    order = list(range(len(workers)))
    end = perf_counter() + seconds
    while perf_counter() < end:
        for number in order:
            taken[number] += [Sample(*pair) for pair in workers[number].turn(turn)]
        order.reverse()
    return taken


def row(case: Case, peer: str, given: argparse.Namespace, caches: Path) -> str:
    """One line of the table."""
    with ExitStack() as stack:
        command = ("benchmarks.worker", peer, case.name)
        try:
            workers = [
                stack.enter_context(worker(command, environment_in(tree.resolve(), peer, caches)))
                for tree in given.trees
            ]
            taken = turns(workers, given.seconds, given.turn)
        except WorkerFailed as failed:
            return f"| {case.name} | {peer} | {failed} |"
    least = [min(sample.seconds for sample in samples) for samples in taken]
    middle = [summarize(samples).median for samples in taken]
    return f"| {case.name} | {peer} | {cells(least)} | {cells(middle)} |"


def cells(seconds: Sequence[float]) -> str:
    """Two times in milliseconds, and their ratio."""
    before, after = seconds
    return f"{figures(before)} | {figures(after)} | {after / before:.2f}"


def rows(given: argparse.Namespace, caches: Path) -> Iterator[str]:
    """All lines."""
    for case in selected(given.only):
        for peer in given.peers.split(","):
            if isinstance(case, Case) and case.suits(peer) and case.program_of("tinycore"):
                yield row(case, peer, given, caches)


def main() -> None:
    """Print the table."""
    given = arguments()
    print(HEAD)
    with tempfile.TemporaryDirectory() as empty:
        for line in rows(given, given.caches or Path(empty)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
