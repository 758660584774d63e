"""Run many random programs of one kind, and report the failing ones as small as they get.

A module of random programs declares a `Fuzzer`: how the program of a seed is made,
checked, reduced and shown. `run` is the command line of all, in one process or several.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tqdm import tqdm

from tinycore.config import Context, settings

__all__ = ["FRONTEND", "RIGHT", "Fuzzer", "Outcome", "Verdict", "run", "smallest", "without_a_line"]

P = TypeVar("P")

RIGHT: Final = "right"
COMPILED: Final = ("CPU:LLVM",)
"""A device with its compiler in this process: starting a clang for each kernel takes 20 times as
long as most kernels, and two thirds of the time of a program.
"""
FRONTEND: Final = (*("PYTHON",) * 7, *COMPILED)
"""Devices of one seed after the other where kernels are not the subject: programs of tensors this
small take half as long where nothing is compiled.
"""
SAME_DEVICE: Final = 8
"""Seeds in a row with one device, as other properties of programs depend on the seed as well."""


class Verdict(NamedTuple):
    """The kind of error in a program, "" if there is none, and how it was seen."""

    kind: str
    message: str = ""


class Outcome(NamedTuple):
    """The kind of a seed's verdict, and the text to print: "" unless it is a failure."""

    seed: int
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Fuzzer(Generic[P]):
    """Random programs of one kind, by functions of a module, which several processes may run."""

    name: str
    """The module that `python -m` runs."""
    doc: str | None
    program: Callable[[int], P]
    """The program of a seed."""
    check: Callable[[P], Verdict]
    """Run a program on the default device."""
    shown: Callable[[P, Verdict], str]
    """The text of a failure, which shows it again."""
    smaller: Callable[[P], Iterable[P]] | None = None
    """Candidates with one thing less, of which the first that fails alike is reduced further."""
    accepted: frozenset[str] = frozenset()
    """Kinds that are no failure, in addition to ""."""
    printed: frozenset[str] = frozenset()
    """Kinds that are accepted and printed nevertheless."""
    devices: tuple[str, ...] = COMPILED
    """Devices for one seed after the other, unless the command names one."""

    def outcome(self, seed: int, shrink: bool = True) -> Outcome:
        """Check the program of one seed, and reduce it if it fails."""
        program = self.program(seed)
        verdict = self.check(program)
        if not verdict.kind:
            return Outcome(seed, RIGHT)
        if verdict.kind in self.accepted:
            text = self.shown(program, verdict) if verdict.kind in self.printed else ""
            return Outcome(seed, verdict.kind, text)
        if shrink and self.smaller is not None:
            program, verdict = smallest(program, verdict, self.smaller, self.check)
        return Outcome(seed, verdict.kind, self.shown(program, verdict))


def smallest(
    program: P,
    verdict: Verdict,
    smaller: Callable[[P], Iterable[P]],
    check: Callable[[P], Verdict],
) -> tuple[P, Verdict]:
    """A program that fails in the same way and of which no smaller candidate does.

    A candidate whose check raises is none: a line is missing that the check itself needs.
    """
    while True:
        for candidate in smaller(program):
            try:
                again = check(candidate)
            except Exception:
                continue
            if again.kind == verdict.kind:
                program, verdict = candidate, again
                break
        else:
            return program, verdict


def without_a_line(lines: tuple[str, ...], first: int = 0) -> Iterator[tuple[str, ...]]:
    """The lines but for one, the last left out first; those before `first` stay."""
    for place in reversed(range(first, len(lines))):
        yield lines[:place] + lines[place + 1 :]


def run(fuzzer: Fuzzer[Any], arguments: list[str] | None = None) -> int:
    """Check many programs as the command line says; 1 if any failed."""
    options = parser_of(fuzzer).parse_args(arguments)
    kinds: Counter[str] = Counter()
    began = time.perf_counter()
    for outcome in tqdm(outcomes(fuzzer, options), total=options.count, disable=None):
        kinds[outcome.kind] += 1
        if outcome.text:
            report(outcome, options.report)
        if options.seconds and time.perf_counter() - began > options.seconds:
            break
    seconds = time.perf_counter() - began
    rate = f"{seconds:.0f} s, {kinds.total() / seconds:.1f} a second"
    print(f"{kinds.total()} programs from seed {options.seed} in {rate}: {dict(kinds)}")
    return 1 if kinds.keys() - {RIGHT, *fuzzer.accepted} else 0


def parser_of(fuzzer: Fuzzer[Any]) -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog=fuzzer.name, description=fuzzer.doc)
    parser.add_argument("--count", type=int, default=200, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--device", help="as in DEV (default: one of several for each seed)")
    parser.add_argument("--seconds", type=float, default=0, help="stop after that long")
    parser.add_argument("--no-shrink", action="store_true", help="report programs as they are")
    parser.add_argument("--report", type=Path, help="folder for the texts of failures")
    return parser


def outcomes(fuzzer: Fuzzer[Any], options: argparse.Namespace) -> Iterator[Outcome]:
    """Outcome of each seed, in this process or in several."""
    seeds = range(options.seed, options.seed + options.count)
    check = partial(outcome_on, fuzzer, options.device, not options.no_shrink)
    if options.jobs <= 1:
        yield from map(check, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(check, seeds, chunksize=4)


def outcome_on(fuzzer: Fuzzer[Any], device: str | None, shrink: bool, seed: int) -> Outcome:
    """Check the program of one seed on a device, whose kernels are compiled one at a time; those of
    PYTHON are sooner planned than read from disk.

    Afterwards memory is collected: functions and globals of a program are cycles that hold tensors.
    What remains, modules and caches, is left out of later collections, which cost more than most
    programs otherwise.
    """
    device = device or fuzzer.devices[seed // SAME_DEVICE % len(fuzzer.devices)]
    with Context(PARALLEL=1, DEV=device, CCACHE=int(settings.CCACHE and device != "PYTHON")):
        try:
            outcome = fuzzer.outcome(seed, shrink)
        except Exception as error:
            error.add_note(f"{fuzzer.name}, seed {seed} on {device}")
            raise
    gc.collect()
    gc.freeze()
    return outcome


def report(outcome: Outcome, folder: Path | None) -> None:
    """Print a failure, or write it to a folder."""
    if folder is None:
        tqdm.write(outcome.text)
        return
    tqdm.write(f"seed {outcome.seed}: {outcome.kind}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{outcome.kind}_{outcome.seed}.py").write_text(outcome.text, "utf-8")
