"""`tinycore viz PROFILE`: the page of a profile, or with --text its costliest kernels."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from threading import Thread

from tiny_viz.export import write_trace
from tiny_viz.summary import closing_lines, summary_of, table_of
from tinycore.cli.options import Commands, subcommand
from tinycore.errors import FileFormatError, TinycoreError

__all__ = ["add", "run"]

EPILOG = """\
examples:
  VIZ=1 python train.py                     record a profile
  tinycore viz train-....tinyviz            look at it in a browser
  tinycore viz train-....tinyviz --text     the ten costliest kernels
  tinycore viz train-....tinyviz --trace trace.json    for https://ui.perfetto.dev
"""


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "viz",
        "show the profile of a program",
        "Show a profile that VIZ=1 or tinycore.profile() has recorded: in a page that "
        "this machine alone can open, or as text.",
        EPILOG,
    )
    command.add_argument("profile", metavar="PROFILE", type=Path, help="the file of a profile")
    command.add_argument("--text", action="store_true", help="print the ten costliest kernels")
    command.add_argument(
        "--trace", metavar="FILE", type=Path, help="write it in Chrome's trace format, for Perfetto"
    )
    command.add_argument("--port", type=int, default=0, help="the port; any free one unless given")
    command.add_argument(
        "--no-browser", action="store_true", help="print the address, open nothing"
    )
    command.add_argument(
        "--until-input-ends", action="store_true", help="end when standard input does"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show a profile. Raises FileFormatError for a damaged one."""
    try:
        if arguments.text:
            found = summary_of(arguments.profile)
            table_of(found).show()
            print("", *closing_lines(found), sep="\n")
        if arguments.trace:
            print(f"{write_trace(arguments.profile, arguments.trace)} events in {arguments.trace}")
    except (TinycoreError, OSError):
        raise
    except Exception as error:
        raise FileFormatError(
            f"{arguments.profile} is damaged: {type(error).__name__}: {error}"
        ) from error
    if arguments.text or arguments.trace:
        return 0
    from tiny_viz.server import serve  # noqa: PLC0415  text needs no server

    if arguments.until_input_ends:
        Thread(target=end_with_input, daemon=True).start()
    serve(arguments.profile, port=arguments.port, opens=not arguments.no_browser)
    return 0


def end_with_input() -> None:
    """End this process when its standard input does: when whoever holds the other end is gone."""
    while os.read(0, 1):
        pass
    os._exit(0)
