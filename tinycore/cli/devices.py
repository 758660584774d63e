"""`tinycore devices`: what there is to compute on, and why the rest cannot be used.

Floor 6. Imports the public API. Opens no device but the one that would be used.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from tinycore import Device
from tinycore.config import settings
from tinycore.errors import TinycoreError

__all__ = ["add", "computing_on", "rows", "run", "table"]

EPILOG = """\
A device is chosen by DEV=[INTERFACE+]DEVICE[:RENDERER[:ARCH]]. What is named is used or fails;
nothing else takes its place. The core alone has PYTHON, which is slow, and NULL, which compiles and
runs nothing. Others come with plugins: `pip install "tinycore[cpu]"`.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command to the command line."""
    command = commands.add_parser(
        "devices",
        help="list the devices, and why some cannot be used",
        description="List every installed backend, its state and the reason for it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print JSON for programs")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the list. Status 1 when there is no device to use by default."""
    default, objection = _default()
    if arguments.json:
        print(json.dumps({"default": default, "objection": objection, "devices": rows()}, indent=2))
    else:
        print("\n".join(table(default, objection)))
    return 0 if default else 1


def table(default: str | None, objection: str = "") -> list[str]:
    """One line per backend, the default marked by a star, and its reason below it."""
    lines = []
    for row in rows():
        mark = "*" if default and row["name"] == default.partition(":")[0] else " "
        origin = f"{row['distribution']} {row['version']}".strip()
        lines.append(f"{mark} {row['name']:<8} {row['state']:<14} {origin}")
        lines += textwrap.wrap(
            row["reason"], 90, initial_indent=" " * 11, subsequent_indent=" " * 11
        )
    return [*lines, f"* {default} {_why_default()}" if default else objection]


def computing_on(name: str) -> str:
    """The device and what compiles for it: "CPU, compiled by LLVM for x86_64". Opens the device.

    Raises what `Device[name]` raises, and CompilerUnavailable when nothing can compile for it.
    """
    device = Device[name]
    toolchain = device.toolchain
    if toolchain.name == device.backend.name:  # an interpreter is its own compiler
        return device.name
    machine = toolchain.arch.partition(",")[0]
    return f"{device.name}, compiled by {toolchain.name}" + (f" for {machine}" if machine else "")


def _why_default() -> str:
    if settings.DEV:
        return f"is used, as DEV={settings.DEV} says"
    return "is used unless DEV names another"


def rows() -> list[dict[str, Any]]:
    """What is known of each backend, the preferred first."""
    return [
        {
            "name": found.name,
            "state": found.state.value,
            "reason": found.reason,
            "distribution": found.distribution,
            "version": found.version,
        }
        for found in Device.states()
    ]


def _default() -> tuple[str | None, str]:
    """The default device, or why there is none."""
    try:
        return Device.DEFAULT, ""
    except TinycoreError as error:
        return None, str(error)
