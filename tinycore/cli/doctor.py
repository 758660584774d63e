"""`tinycore doctor`: open a device, compile, run, compare, and say what to do when that fails.

Floor 6. Imports the public API.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
import traceback
from collections.abc import Callable

import numpy

from tinycore import Device, Tensor
from tinycore.cli.devices import computing_on, table
from tinycore.config import misspelt_variables
from tinycore.errors import TinycoreError

__all__ = ["add", "run"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command to the command line."""
    command = commands.add_parser(
        "doctor",
        help="try a device end to end and explain what is wrong",
        description="Open a device, compile and run on it, and compare with NumPy. "
        "What is printed can be pasted into a report.",
    )
    command.add_argument(
        "device", nargs="?", help="the device to try; the default one unless given"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report. Status 1 when a check fails."""
    print(f"python {platform.python_version()} on {platform.platform()}, numpy {numpy.__version__}")
    for name, near in misspelt_variables().items():
        print(f"{name} is no setting" + (f"; did you mean {near}?" if near else ""))
    name = arguments.device
    if name is None:
        name = Device.DEFAULT
    print("\n".join(table(name)[:-1]))
    return 0 if all(_passes(what, check, name) for what, check in CHECKS.items()) else 1


def _passes(what: str, check: Callable[[str], str], name: str) -> bool:
    start = time.perf_counter()
    try:
        detail = check(name)
    except TinycoreError as error:
        print(f"FAIL  {what}: {error}")
        return False
    except Exception:  # a plugin may raise anything, and the report must say what
        print(f"FAIL  {what}:")
        traceback.print_exc(file=sys.stdout)
        return False
    print(f"ok    {what}: {detail} ({(time.perf_counter() - start) * 1000:.0f} ms)")
    return True


def _open(name: str) -> str:
    return computing_on(name)


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


CHECKS = {"open": _open, "copy": _copy, "compute": _compute}
"""What is tried, in order; each says what it did, or raises."""
