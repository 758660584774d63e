"""`tinycore`, the command: chooses a subcommand and turns its errors into one line and a status.

Floor 6. Imports the subcommands. Status 0 is success, 1 a failure that was explained, 2 a mistake
on the command line, 130 an interrupt from the keyboard.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tinycore.cli import (
    conformance,
    demo,
    devices,
    doctor,
    export,
    new_backend,
    settings_list,
    tune,
)
from tinycore.config import settings
from tinycore.errors import TinycoreError

__all__ = ["main", "parser"]

COMMANDS: Final = (demo, devices, settings_list, doctor, conformance, new_backend, export, tune)

DESCRIPTION: Final = "A tensor framework for any accelerator, whose core knows no accelerator."
EPILOG: Final = """\
start here:
  tinycore demo             train a small network on handwritten digits, and watch
  tinycore devices          what was found to compute on, and why not the rest
  tinycore doctor           try the device that would be used, end to end
  tinycore tune script.py   search for faster plans for the kernels of a program

choose a device with DEV, and look inside with DEBUG:
  DEV=PYTHON tinycore demo --steps 10
  DEBUG=2 tinycore demo --steps 10      one line per kernel
"""


def parser() -> argparse.ArgumentParser:
    """The command line: its subcommands, and help that teaches by example."""
    result = argparse.ArgumentParser(
        prog="tinycore",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"tinycore {_version()}")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in COMMANDS:
        command.add(commands)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, `sys.argv` unless given, and return its exit status."""
    known = parser()
    chosen = known.parse_args(arguments)
    if chosen.command is None:
        known.print_help()
        return 0
    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()
    except TinycoreError as error:
        return _explained(error)
    except KeyboardInterrupt:
        print("\ntinycore: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _explained(error: TinycoreError) -> int:
    if settings.DEBUG:
        raise error
    print(f"tinycore: {error}", file=sys.stderr)
    print("tinycore: DEBUG=1 shows where this came from", file=sys.stderr)
    return 1


def _version() -> str:
    try:
        return version("tinycore")
    except PackageNotFoundError:
        return "(not installed, run from its source)"


if __name__ == "__main__":
    sys.exit(main())
