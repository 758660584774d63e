"""Availability of NV and number of cards, without opening the driver."""

from __future__ import annotations

import re
from typing import Final

from tiny_hcq import system
from tiny_nv.nvk.layouts import branch_of
from tiny_nv.nvk.rm import CONTROL_NODE
from tinycore.errors import DeviceUnavailable

__all__ = ["count", "reason"]

VERSION: Final = "/proc/driver/nvidia/version"
_NODE_FOLDER: Final = "/dev"


def nodes() -> list[str]:
    """The files of cards that this process may use."""
    machine = system()
    names = [
        f"{_NODE_FOLDER}/{name}"
        for name in machine.names(_NODE_FOLDER)
        if re.fullmatch(r"nvidia\d+", name)
    ]
    return [name for name in names if machine.is_usable(name)]


def count() -> int:
    """Number of cards; 0 without a driver."""
    return 0 if reason() else len(nodes())


def reason() -> str:
    """Why there is no card, with what to do; empty when there is one."""
    machine = system()
    if not machine.is_usable(CONTROL_NODE):
        return (
            f"{CONTROL_NODE} is missing, or this user may not open it: install NVIDIA's kernel "
            "driver; into a container its toolkit brings the files"
        )
    if not nodes():
        return "NVIDIA's kernel driver is there, and no /dev/nvidia0 that this user may open"
    told = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", machine.read_text(VERSION))
    try:
        if told is not None:
            branch_of(told[1])
    except DeviceUnavailable as error:
        return str(error)
    return ""
