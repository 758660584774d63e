"""`tinycore conformance DEVICE`: what a device claims, tried trial by trial.

Found by the entry point group `tinycore.commands`. The suite is `tiny_testing.suite`.
"""

from __future__ import annotations

import argparse

from tiny_testing.suite.command import add_options, run

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command to the command line."""
    command = commands.add_parser(
        "conformance",
        help="prove what a device claims, level by level",
        description="Try everything that tinycore promises of a device. A capability that its "
        "backend declares must be proven; one that works without being declared is reported.",
    )
    command.add_argument("device", nargs="?", help="as in DEV; the default device unless given")
    add_options(command)
    command.set_defaults(run=run)
