"""`tinycore tune`: run a script, search for better plans for its costly kernels, and keep them.

Floor 6. What is found is on disk, for every later run with TUNED=1 or BEAM.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from tinycore._locks import replaced
from tinycore.cli.options import Commands, seconds, subcommand
from tinycore.cli.tables import Table
from tinycore.config import Context, settings
from tinycore.device.protocols import Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.engine import plan_cache
from tinycore.engine.compile import programs
from tinycore.engine.counters import LaunchProfiler, profilers
from tinycore.engine.plan_cache import TunedPlan
from tinycore.engine.search import tune
from tinycore.errors import ArgumentError
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp

__all__ = ["Kernel", "add", "run"]

WIDTH = 4
SEARCH_SECONDS = 120.0
LEAST_SECONDS = 2.0
"""Least seconds of a search: a shorter one finds little."""
LEAST_SHARE = 0.005
"""A kernel with a smaller share of the time is left as it is."""

DESCRIPTION = """\
Run a Python script, note which kernels it runs and how long each takes, and search for better plans
for them, the costliest first: candidates are compiled and timed in processes of their own, on
memory of their own. What is found is kept in the on-disk cache.
"""
EPILOG = """\
examples:
  tinycore tune train.py --epochs 1       tune what one epoch runs; --epochs 1 is for the script
  tinycore tune --seconds 600 model.py    search longer
  tinycore tune --beam 8 model.py         search wider: more plans are kept at each step
  TUNED=1 python train.py                 then use what was found

good to know:
  A short run of the script is enough, as long as it runs the kernels that matter, with the shapes
  that matter: a plan is kept for one kernel, with its shapes, on one device, for one compiler.
  Nothing else should run meanwhile. Tuning again continues where it ended, and --beam larger than
  before searches again. Sums may be added in another order under another plan, which changes their
  last digits.
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel that the script ran: its graph, where, how often, and for how long in all."""

    name: str
    ast: UOp
    device: OpenDevice
    toolchain: Toolchain[Renderer]
    launches: int
    seconds: float


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "tune",
        "search for better plans for the kernels of a script",
        DESCRIPTION,
        EPILOG,
    )
    command.add_argument(
        "--seconds", type=seconds, default=SEARCH_SECONDS,
        help=f"time for searching, {SEARCH_SECONDS:.0f} unless given; "
        "the script's own comes before",
    )  # fmt: skip
    command.add_argument(
        "--beam", type=plans, metavar="N",
        help=f"plans kept at each step of a search; BEAM, or else {WIDTH}",
    )  # fmt: skip
    command.add_argument("script", help="the Python file to run")
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what the script finds in sys.argv"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the script, search, print a table. Status 1 when the script fails or runs no kernel."""
    path = Path(arguments.script)
    if not path.is_file():
        raise ArgumentError(f"there is no file {path}")
    with Context(BEAM=0, JIT=min(settings.JIT, 1) * 2):
        profiler, failed = _watched(path, arguments.arguments)
    kernels = _kernels(profiler)
    if not kernels:
        print(f"{path} ran no kernel that can be tuned", file=sys.stderr)
        return 1
    width = arguments.beam or settings.BEAM or WIDTH
    rows = list(_tuned(kernels, width, arguments.seconds))
    _show(rows, sum(kernel.seconds for kernel in kernels))
    return int(failed)


class LaunchTimes(LaunchProfiler):
    """Launch counts and times, by program."""

    def __init__(self) -> None:
        self.seen: dict[object, tuple[int, float]] = {}

    def record(self, runner: object, seconds: float | None, *about: object) -> None:
        """Add a completed launch."""
        launches, total = self.of(runner)
        self.seen[runner] = launches + 1, total + (seconds or 0.0)

    def of(self, runner: object) -> tuple[int, float]:
        """Number of launches of a program, and their total time in seconds."""
        return self.seen.get(runner, (0, 0.0))


def _watched(path: Path, arguments: Sequence[str]) -> tuple[LaunchTimes, bool]:
    """The launches of a script, and True if it failed, which it says itself."""
    profiler = LaunchTimes()
    profilers.append(profiler)
    failed = False
    try:
        folder = str(path.resolve().parent)  # as a script finds it that Python was started with
        with (
            replaced(sys, "argv", [str(path), *arguments]),
            replaced(sys, "path", [folder, *sys.path[1:]]),
        ):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        failed = end.code not in (None, 0)
    except Exception:
        sys.excepthook(*sys.exc_info())
        failed = True
    finally:
        profilers.remove(profiler)
    if failed:
        print(f"tinycore: {path} failed; tuning what it ran before that", file=sys.stderr)
    return profiler, failed


def _kernels(profiler: LaunchTimes) -> list[Kernel]:
    """The kernels that ran, the costliest first."""
    found = []
    for (ast, *_), (runner, device, toolchain) in list(programs.items()):
        launches, seconds = profiler.of(runner)
        if launches:
            found.append(Kernel(runner.name, ast, device, toolchain, launches, seconds))
    return sorted(found, key=lambda kernel: -kernel.seconds)


def _tuned(
    kernels: list[Kernel], width: int, seconds: float
) -> Iterator[tuple[Kernel, TunedPlan | None]]:
    """Each kernel with its tuned plan, within a time limit for all; None for those not searched."""
    end = time.monotonic() + seconds
    rest = total = sum(kernel.seconds for kernel in kernels)
    for kernel in tqdm(kernels, "tuning", unit=" kernels", disable=None, leave=False):
        left = end - time.monotonic()
        known = plan_cache.load_plan(kernel.ast, kernel.device, kernel.toolchain)
        if known is None or known.width < width:
            before, known = known, None
            if left > LEAST_SECONDS and kernel.seconds >= total * LEAST_SHARE:
                more = () if before is None else (before.candidate.asked,)
                limit = max(left * kernel.seconds / rest, LEAST_SECONDS)
                known = tune(kernel.ast, kernel.device, kernel.toolchain, width, more, limit)
        rest -= kernel.seconds
        yield kernel, known


def _show(rows: list[tuple[Kernel, TunedPlan | None]], total: float) -> None:
    """Print the kernels, before and after."""
    shown = []
    after = 0.0
    for kernel, found in rows:
        times = (f"{kernel.seconds / kernel.launches * 1e6:.1f} us", "not tuned", "")
        speedup = 1.0
        if found is not None:
            speedup = found.speedup
            times = (
                f"{found.before * 1e6:.1f} us", f"{found.seconds * 1e6:.1f} us", f"{speedup:.2f}x",
            )  # fmt: skip
        after += kernel.seconds / speedup
        share = f"{kernel.seconds / total if total else 0:.1%}"
        shown.append((kernel.name, kernel.device.name, str(kernel.launches), share, *times))
    Table("<kernel  <device  >runs  >share  >before  >after  >gain", shown).show()
    gain = total / after if after else 1.0
    print(f"all kernels: {total * 1e3:.2f} ms -> about {after * 1e3:.2f} ms ({gain:.2f}x)")
    print("TUNED=1 uses what was found")


def plans(text: str) -> int:
    """A number of plans that BEAM can keep."""
    number = int(text)
    if not 1 <= number <= 64:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 64")
    return number
