"""`tinycore conformance DEVICE`: what a device claims, tried trial by trial.

Found by the entry point group `tinycore.commands`. The suite is `tiny_testing.suite`.
"""

from __future__ import annotations

from tiny_testing.suite.command import add_options, run
from tinycore.cli.options import Commands, subcommand

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "conformance",
        "prove what a device claims, level by level",
        "Try everything that tinycore promises of a device. A capability that its "
        "backend declares must be proven; one that works without being declared is reported.",
    )
    command.add_argument("device", nargs="?", help="as in DEV; the default device unless given")
    add_options(command)
