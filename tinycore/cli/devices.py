"""`tinycore devices`: what there is to compute on, and why the rest cannot be used.

Floor 6. Imports the public API. Opens no device but the one that would be used, and that in a
process of its own: a driver that hangs or crashes is a line of the list.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tinycore import Device
from tinycore.cli.isolated import Ended, Row, run_isolated
from tinycore.cli.options import Commands, seconds, subcommand
from tinycore.cli.tables import Table
from tinycore.config import settings
from tinycore.device.discovery import BUILT_IN, DENIED
from tinycore.errors import CompilerUnavailable, DeviceUnavailable, TinycoreError

__all__ = ["Survey", "add", "computing_on", "conclusion", "run", "survey", "survey_here", "table"]

SURVEY_SECONDS: Final = 10.0
"""Seconds in which a driver must answer."""

EPILOG = """\
A device is chosen by DEV=[INTERFACE+]DEVICE[:RENDERER[:ARCH]]. What is named is used or fails;
nothing else takes its place. The core alone has PYTHON, which is slow, and NULL, which compiles and
runs nothing. Others come with plugins: `pip install "tinycore[cpu]"`.
"""


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "devices",
        "list the devices, and why some cannot be used",
        "List every installed backend, its state and the reason for it.",
        EPILOG,
    )
    command.add_argument("--json", action="store_true", help="print JSON for programs")
    command.add_argument(
        "--timeout",
        type=seconds,
        default=SURVEY_SECONDS,
        metavar="SECONDS",
        help="how long each driver may take to answer (default: %(default)g)",
    )
    command.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)


@dataclass(frozen=True)
class Survey:
    """The backends, a row each, the preferred first, and the default device or why it is none."""

    default: str | None
    objection: str
    devices: list[Row]


def run(arguments: argparse.Namespace) -> int:
    """Print the list. Status 1 when there is no device to use by default."""
    if arguments.stream:
        return stream_survey()
    found = survey(arguments.timeout)
    if arguments.json:
        print(json.dumps(vars(found), indent=2))
    else:
        table(found).show()
        print(conclusion(found))
    return 0 if found.default else 1


def table(found: Survey) -> Table:
    """One row per backend, the default marked by a star, and its reason below it."""
    rows = []
    default = (found.default or "").partition(":")[0]
    for row in found.devices:
        name, interfaces = row["name"], row["interfaces"]
        notes = [interface_line(name, one) for one in interfaces if len(interfaces) > 1]
        if not (notes and repeats_interfaces(row)):  # one alone is what the reason speaks of
            notes.insert(0, row["reason"])
        origin = f"{row['distribution']} {row['version']}".strip()
        rows.append((f"{'*' if name == default else ' '} {name}", row["state"], origin, *notes))
    return Table("<device  <state  <package", rows)


def repeats_interfaces(row: Row) -> bool:
    """True if the reason of a backend is made of those of its interfaces, which are listed too."""
    reasons = [one["reason"] for one in row["interfaces"] if one["automatic"]]
    return bool(reasons) and all(reason and reason in row["reason"] for reason in reasons)


def interface_line(device: str, found: Row) -> str:
    """An interface, and why it is not available or how it is chosen."""
    name = found["name"]
    how = "" if found["automatic"] else f"; used only where it is named: DEV={name}+{device}"
    return f"{name}: {found['reason'] or 'available'}{how}"


def conclusion(found: Survey) -> str:
    """The device that is used, and who chose it; or why there is none."""
    if not found.default:
        return found.objection
    why = f", as DEV={settings.DEV} says" if settings.DEV else " unless DEV names another"
    return f"* {found.default} is used{why}"


def computing_on(name: str) -> str:
    """The device and what compiles for it: "CPU, compiled by LLVM for x86_64". Opens the device.

    Raises what `Device[name]` raises, and CompilerUnavailable when nothing can compile for it.
    """
    device = Device[name]
    toolchain = device.toolchain
    if toolchain.name == device.backend.name:  # an interpreter is its own compiler
        return device.name
    machine = toolchain.arch.partition(",")[0]
    named = bool(machine) and not machine.isdecimal()  # a number is that of a device
    return f"{device.name}, compiled by {toolchain.name}" + (f" for {machine}" if named else "")


# --- in this process


def survey_here() -> Survey:
    """The survey, made in this process: a driver may hang it, or end it."""
    try:
        default, objection = Device.DEFAULT, ""
    except TinycoreError as error:
        default, objection = None, str(error)
    rows = []
    for found in Device.states():
        known = {"state": found.state.value, "interfaces": [*map(vars, found.interfaces)]}
        rows.append(vars(found) | known)
        del rows[-1]["error"]
    return Survey(default, objection, rows)


def stream_survey() -> int:
    """Body of the surveying process: print the driver that is probed next, at last the survey."""
    warnings.showwarning = lambda message, *_: _tell({"warning": str(message)})
    try:
        for name in Device.plugins.names:
            _tell({"asking": name})
            if (claim := Device.plugins.find(name)) is not None:
                claim.check()
                claim.interface_states()
        with suppress(TinycoreError):  # open the first candidate that can be
            for name in Device.candidates():
                _tell({"asking": name})
                with suppress(CompilerUnavailable, DeviceUnavailable):
                    Device[name].toolchain  # noqa: B018  a device without a compiler is no use
                    break
        _tell(vars(survey_here()))
    except TinycoreError as error:
        _tell({"error": str(error)})
    return 0


def _tell(row: Row) -> None:
    print(json.dumps(row), flush=True)


# --- in another one


def survey(seconds: float) -> Survey:
    """The survey, made in another process.

    A backend whose driver kills that process, or says nothing for `seconds`, is left out of the
    next one. The core's own have no driver, only files that may be slow to read: they are asked
    once more.

    Raises TinycoreError when that does not help, and what the search itself raises.
    """
    lost: dict[str, str] = {}
    patience = set(BUILT_IN)
    while True:
        found, asked, ended = _surveyed(seconds, tuple(lost))
        if found is not None:
            return _with_losses(found, lost)
        if asked in lost or not asked:
            raise TinycoreError(f"looking for devices failed: {ended.manner}")
        if asked in patience:
            patience.remove(asked)
        else:
            lost[asked] = f"asked for its devices: {ended.manner}"


def _surveyed(seconds: float, without: tuple[str, ...]) -> tuple[Survey | None, str, Ended]:
    """The survey by another process, the driver it probed last, and how it ended."""
    denied = ",".join([*settings.TINYCORE_PLUGINS_DENY, *without])
    asking = run_isolated(
        ["tinycore", "devices", "--stream"], seconds, {"TINYCORE_PLUGINS_DENY": denied}
    )
    asked = ""
    for row in asking:
        if isinstance(row, Ended):
            ended = row
            break
        if "error" in row:
            raise TinycoreError(row["error"])
        if "devices" in row:
            # nothing more is awaited: a thread or a child of a plugin may keep the process
            return Survey(**row), asked, Ended(0, "", seconds)
        if "warning" in row:
            print(row["warning"], file=sys.stderr)
        asked = row.get("asking", asked)
    return None, asked, ended


def _with_losses(found: Survey, lost: dict[str, str]) -> Survey:
    """A survey that says what happened to the backends that were left out for that."""
    objection = found.objection
    for name, reason in lost.items():
        objection = objection.replace(DENIED.format(name), reason)
    told = {name: {"state": "no-hardware", "reason": reason} for name, reason in lost.items()}
    rows = [row | told.get(row["name"], {}) for row in found.devices]
    return replace(found, objection=objection, devices=rows)
