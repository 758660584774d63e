"""The command line of the suite: `tinycore conformance`, and `python -m tiny_testing`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tiny_testing.suite.case import LEVELS, Level
from tiny_testing.suite.judge import Verdict
from tiny_testing.suite.report import Report, line_of
from tiny_testing.suite.run import Plan, chosen_trials, run_apart, run_here, subject_for
from tinycore.device.registry import Device
from tinycore.errors import ArgumentError

__all__ = ["add_options", "run"]

EPILOG = "levels, each of which takes the ones before it for granted:\n" + "\n".join(
    f"  {level.value}  {about}" for level, about in LEVELS.items()
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that both command lines have."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--level", type=int, default=int(Level.MODELS), choices=[int(level) for level in Level],
        help="the highest level to test, 5 unless given",
    )  # fmt: skip
    parser.add_argument("--named", default="", help="only trials whose name contains this")
    parser.add_argument(
        "--suite", type=Path, metavar="FILE", help="an author's test file, for its SKIPS"
    )
    parser.add_argument(
        "--register", action="append", default=[], metavar="PACKAGE.MODULE:BACKEND",
        help="a backend that is not installed; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--claimed", action="store_true", help="leave out trials of what is not claimed"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything; - is standard output")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a page with tables")
    parser.add_argument(
        "--in-process", action="store_true", help="run where a debugger is; a crash ends it all"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every trial")


def run(arguments: argparse.Namespace) -> int:
    """Run the trials and write the requested reports. Status 1 if the device does not conform."""
    target = arguments.device or Device.DEFAULT
    registers = tuple(arguments.register)
    plan = Plan(
        target, arguments.level, arguments.named, arguments.suite, registers, arguments.claimed
    )
    subject = subject_for(plan)
    if not (trials := chosen_trials(plan, subject)):
        raise ArgumentError(
            f"no trial up to level {plan.highest} has {plan.named!r} in its name; -v lists names"
        )
    report = Report(subject, plan.highest)
    out = sys.stderr if arguments.json == "-" else sys.stdout
    results = run_here(subject, trials) if arguments.in_process else run_apart(plan)
    for result in results:
        report.add(result)
        is_quiet = result.judgement.verdict is not Verdict.FAILED and not result.figure
        if arguments.verbose or not is_quiet:
            print(line_of(result), file=out, flush=True)
    print("\n".join(report.summary()), file=out)
    write(report, arguments.json, arguments.markdown)
    return 0 if report.is_conformant else 1


def write(report: Report, json_path: str | None, markdown_path: Path | None) -> None:
    """Write the report where it is wanted."""
    if json_path:
        text = json.dumps(report.to_json(), indent=2)
        if json_path == "-":
            print(text)
        else:
            Path(json_path).write_text(text + "\n", "utf-8")
    if markdown_path:
        markdown_path.write_text(report.to_markdown(), "utf-8")
