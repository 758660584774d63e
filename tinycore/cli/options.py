"""Types of options for argparse, numbers within bounds, and parsers of subcommands.

Floor 6. argparse says which option was wrong, and calls the type by the name of its function.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from textwrap import fill
from typing import Final, TypeAlias

__all__ = ["Commands", "count", "seconds", "subcommand"]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The command line, as a subcommand is given it."""

DAY: Final = 86400.0
"""Most seconds that an option may give: waits of the system have bounds, too."""


def count(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def seconds(text: str) -> float:
    """A duration of more than 0 seconds, and a day at most."""
    number = float(text)
    if not 0 < number <= DAY:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0, and {DAY:g} at most")
    return number


def subcommand(
    commands: Commands,
    run: Callable[[argparse.Namespace], int],
    word: str,
    purpose: str,
    description: str,
    epilog: str = "",
) -> argparse.ArgumentParser:
    """A parser for a subcommand, whose epilog is printed as it is, with its examples."""
    command = commands.add_parser(
        word,
        help=purpose,
        description=fill(description, 79),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command
