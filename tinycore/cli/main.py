"""`tinycore`, the command: chooses a subcommand and turns its errors into one line and a status.

Floor 6. Imports the one subcommand that is asked for. Status 0 is success, 1 a failure that was
explained, 2 a mistake on the command line, 130 an interrupt from the keyboard.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from tinycore import __version__
from tinycore.cli.commands import add_commands
from tinycore.config import settings
from tinycore.errors import TinycoreError

__all__ = ["main", "parser"]

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


def parser(word: str | None = None) -> argparse.ArgumentParser:
    """The command line: the subcommand of that name, else all, and help that teaches by example."""
    result = argparse.ArgumentParser(
        prog="tinycore",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="store_true", help="show the version, and exit")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    add_commands(commands, word)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, `sys.argv` unless given, and return its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    word = next((each for each in given if not each.startswith("-")), None)
    try:
        known = parser(word)  # the one that is asked for: the others' imports take 0.3 s
    except TinycoreError as error:
        return _explained(error)
    chosen = known.parse_args(given)
    if chosen.version:
        print(f"tinycore {__version__}")
        return 0
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
    except OSError as error:
        try:
            print(end="", flush=True)
        except OSError:  # what cannot be written shall not be tried again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # where the pipe is broken, the reader of our output, such as `head`, has seen enough
        return 1 if isinstance(error, BrokenPipeError) else _explained(error)
    return status


def _explained(error: Exception) -> int:
    if settings.DEBUG:
        raise error
    print(f"tinycore: {error}", file=sys.stderr)
    print("tinycore: DEBUG=1 shows where this came from", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
