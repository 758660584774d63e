"""`tinycore settings`: every setting (environment variable), its value, and its origin.

Floor 6. Imports the settings, and those that installed backends state.
"""

from __future__ import annotations

import argparse

from tinycore.cli.options import Commands, subcommand
from tinycore.config import misspellings, settings_table
from tinycore.device.registry import Device

__all__ = ["add", "run"]


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    subcommand(
        commands,
        run,
        "settings",
        "list the settings with their values",
        "List every setting, its value, where that came from, and what it does; "
        "those of tinycore first, then those of each installed backend.",
        "Set one for a command (DEBUG=2 tinycore demo), or for a block of a program\n"
        "(with Context(DEBUG=2): ...). TINYCORE_DEBUG is the same as DEBUG, and wins.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the table, and the variables that look like a setting and are none."""
    print(settings_table())
    for name, stated in Device.plugins.settings().items():
        print(f"\nOf {name}:")
        if isinstance(stated, Exception):
            print(f"    its settings cannot be listed: {type(stated).__name__}: {stated}")
        else:
            print(settings_table(stated.table()))
    for line in misspellings():
        print(line)
    return 0
