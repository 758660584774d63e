"""`tinycore doctor`: open a device, compile, run, compare, and say what to do when that fails.

Floor 6. Imports the public API. The checks run in a process of their own, so that a driver which
kills it is told like any other failure.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Final

import numpy

from tinycore import Tensor
from tinycore.cli.devices import Survey, computing_on, survey, survey_here, table
from tinycore.cli.isolated import Ended, Row, run_isolated
from tinycore.cli.options import Commands, seconds, subcommand
from tinycore.config import misspellings, misspelt_variables
from tinycore.device.hooks import hooks
from tinycore.errors import DeviceUnavailable, TinycoreError

__all__ = ["CHECKS", "add", "run"]

Check = Callable[[str], str]
CHECK_SECONDS: Final = 60.0
"""Most seconds of a check."""


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "doctor",
        "try a device end to end and explain what is wrong",
        "Open a device, compile and run on it, and compare with NumPy. "
        "What is printed can be pasted into a report.",
    )
    command.add_argument(
        "device", nargs="?", help="the device to try; the default one unless given"
    )
    command.add_argument("--json", action="store_true", help="print JSON for programs")
    command.add_argument(
        "--in-process", action="store_true", help="check in this process; a crash ends it"
    )
    command.add_argument(
        "--timeout",
        type=seconds,
        default=CHECK_SECONDS,
        metavar="SECONDS",
        help="how long a check may take in a process of its own (default: %(default)g)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report. Status 1 when a check fails."""
    if arguments.in_process and arguments.json:
        return stream_checks(arguments.device)
    found = survey_here() if arguments.in_process else survey(arguments.timeout)
    name = arguments.device or found.default
    if name is None:
        raise DeviceUnavailable(found.objection)
    report = facts(name, found)
    if not arguments.json:
        print("\n".join(heading(report)))
        table(found).show()
    report["checks"] = []
    rows = run_checks(name) if arguments.in_process else checked_apart(name, arguments.timeout)
    for row in rows:
        report["checks"].append(row)
        if not arguments.json:
            print(line_of(row), flush=True)
    report["ok"] = row["passed"]
    if arguments.json:
        print(json.dumps(report, indent=2))
    return 0 if report["ok"] else 1


# --- what is known without trying


def facts(name: str, found: Survey) -> Row:
    """The versions, the settings that are none, what observers add, and every device's state."""
    header = hooks.active("tinycore_report_header")
    return {
        "device": name,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "numpy": numpy.__version__,
        "misspelt": dict(misspelt_variables()),
        "header": [str(line) for line in header()] if header else [],
        "devices": found.devices,
    }


def heading(report: Row) -> list[str]:
    """The facts as lines, but for the devices."""
    first = f"python {report['python']} on {report['platform']}, numpy {report['numpy']}"
    return [first, *report["header"], *misspellings()]


# --- the checks


def _copy(name: str) -> str:
    sent = numpy.arange(1 << 18, dtype=numpy.float32)
    if not numpy.array_equal(Tensor(sent, device=name).numpy(), sent):
        raise TinycoreError("what came back is not what was sent")
    return "1 MiB to the device and back"


def _compute(name: str) -> str:
    a = numpy.linspace(-1, 1, 32 * 48, dtype=numpy.float32).reshape(32, 48)
    b = numpy.linspace(2, -1, 48 * 16, dtype=numpy.float32).reshape(48, 16)
    found = (Tensor(a, device=name) @ Tensor(b, device=name)).relu().sum(0).numpy()
    expected = numpy.maximum(a @ b, 0).sum(0)
    worst = float(numpy.abs(found - expected).max())
    if worst > 1e-3:
        raise TinycoreError(f"a matrix product is off by {worst:g}")
    return f"a matrix product agrees with NumPy to {worst:.1g}"


CHECKS: Final[dict[str, Check]] = {"open": computing_on, "copy": _copy, "compute": _compute}
"""The checks in order; each returns what it did, or raises."""


def all_checks() -> dict[str, Check]:
    """The checks, and those of observers."""
    more = hooks.active("tinycore_doctor_checks")
    found = dict(CHECKS)
    for checks in more() if more else ():
        found.update(checks)
    return found


def run_checks(name: str) -> Iterator[Row]:
    """Each check's row, as soon as it is there; the first failure is the last check."""
    for what, check in all_checks().items():
        row = tried(what, check, name)
        yield row
        if not row["passed"]:
            return


def tried(what: str, check: Check, name: str) -> Row:
    """The row of one check."""
    start = time.perf_counter()
    try:
        detail, passed = check(name), True
    except TinycoreError as error:
        detail, passed = str(error), False
    except KeyboardInterrupt:
        raise
    except BaseException:  # a plugin may raise anything, sys.exit() too: the report says what
        detail, passed = "\n" + traceback.format_exc().rstrip(), False
    seconds = time.perf_counter() - start
    return {"what": what, "passed": passed, "detail": detail, "seconds": round(seconds, 4)}


def line_of(row: Row) -> str:
    """A check for people."""
    if row["passed"]:
        return f"ok    {row['what']}: {row['detail']} ({row['seconds'] * 1000:.0f} ms)"
    return f"FAIL  {row['what']}: {row['detail']}"


# --- in a process of their own


def stream_checks(name: str) -> int:
    """Body of the checking process: print each check's row as a line of JSON."""
    for row in run_checks(name):
        print(json.dumps(row), flush=True)
    return 0 if row["passed"] else 1


def checked_apart(name: str, seconds: float) -> Iterator[Row]:
    """The rows of checks made by another process; one that kills it, or does not end in `seconds`,
    is a failure.
    """
    known = list(all_checks())
    count = 0
    for row in run_isolated(["tinycore", "doctor", name, "--json", "--in-process"], seconds):
        if isinstance(row, Ended):
            if row.status != 0 or count < len(known):
                what = known[count] if count < len(known) else "close"
                yield {"what": what, "passed": False, "detail": row.manner, "seconds": 0.0}
        elif "what" in row:
            yield row
            if not row["passed"]:  # a thread or a child of a plugin may keep the process
                return
            count += 1
