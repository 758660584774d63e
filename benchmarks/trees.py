"""Two trees of this project, case by case in turns: `python -m benchmarks.trees BEFORE AFTER`.

Each tree is a checkout that is imported from where it lies, with a cache of compiled kernels of its
own. Of each case a row is printed as soon as it is measured: the least and the middle time of both
trees in milliseconds, and their ratios. The least is what a machine that others use can tell.
With `--beside torch,jax` peers take turns with the trees: a column each, of their least time and of
that of the second tree by it.
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

COLUMNS: Final = (
    "before, least", "after, least", "ratio", "before, median", "after, median", "ratio",
)  # fmt: skip
"""Columns of the two trees."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.trees", description=__doc__)
    parser.add_argument("trees", type=Path, nargs=2, metavar="TREE", help="before, then after")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name matches")
    parser.add_argument("--peers", default=",".join(OURS), metavar="A,B", help=", ".join(OURS))
    parser.add_argument(
        "--beside", default="", metavar="A,B", help="peers that take turns, too: torch,jax,..."
    )
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
    command = ("benchmarks.worker", peer, case.name)
    with ExitStack() as stack:
        try:
            workers = [
                stack.enter_context(worker(command, environment_in(tree.resolve(), peer, caches)))
                for tree in given.trees
            ]
            others = {
                other: started
                for other in words_of(given.beside)
                if (started := other_worker(stack, other, case, caches)) is not None
            }
            taken = turns([*workers, *others.values()], given.seconds, given.turn)
        except WorkerFailed as failed:
            return f"| {case.name} | {peer} | {failed} |"
    least = [min(sample.seconds for sample in samples) for samples in taken]
    middle = [summarize(samples).median for samples in taken[:2]]
    beside = dict(zip(others, least[2:], strict=True))
    columns = [
        f"{figures(beside[other])} ({least[1] / beside[other]:.2f})" if other in beside else ""
        for other in words_of(given.beside)
    ]
    return "| " + " | ".join([case.name, peer, cells(least[:2]), cells(middle), *columns]) + " |"


def other_worker(stack: ExitStack, peer: str, case: Case, caches: Path) -> Worker | None:
    """The process of a peer; None where it cannot do the case."""
    command = ("benchmarks.worker", peer, case.name)
    try:
        return stack.enter_context(worker(command, environment_of(peer, caches)))
    except WorkerFailed:
        return None


def words_of(text: str) -> list[str]:
    """Words between commas."""
    return [word for word in text.split(",") if word]


def head(beside: Sequence[str]) -> str:
    """The first two lines of the table."""
    columns = ["case", "program", *COLUMNS, *(f"{peer} (after by it)" for peer in beside)]
    rule = ["---", "---", *["---:"] * (len(columns) - 2)]
    return f"| {' | '.join(columns)} |\n| {' | '.join(rule)} |"


def cells(seconds: Sequence[float]) -> str:
    """Two times in milliseconds, and their ratio."""
    before, after = seconds
    return f"{figures(before)} | {figures(after)} | {after / before:.2f}"


def rows(given: argparse.Namespace, caches: Path) -> Iterator[str]:
    """All lines."""
    for case in selected(given.only):
        for peer in words_of(given.peers):
            if isinstance(case, Case) and case.suits(peer) and case.program_of("tinycore"):
                yield row(case, peer, given, caches)


def main() -> None:
    """Print the table."""
    given = arguments()
    print(head(words_of(given.beside)))
    with tempfile.TemporaryDirectory() as empty:
        for line in rows(given, given.caches or Path(empty)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
