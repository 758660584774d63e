"""Availability of an Adreno through the KGSL driver. Opens nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["DEVICE_FILE", "count", "reason"]

DEVICE_FILE: Final = Path("/dev/kgsl-3d0")


def reason() -> str:
    """Why no device can be used, and what to do; "" when one can."""
    if not DEVICE_FILE.exists():
        return (
            f"{DEVICE_FILE} is not there: this machine has no Adreno, or its kernel drives it by "
            "another driver than Qualcomm's KGSL (msm of the upstream kernel is not supported)"
        )
    if not os.access(DEVICE_FILE, os.R_OK | os.W_OK):
        return (
            f"{DEVICE_FILE} may not be read and written by this user: add the user to the group "
            f"that owns it (`ls -l {DEVICE_FILE}`), or `chmod 666 {DEVICE_FILE}` as root"
        )
    return ""


def count() -> int:
    """1 where the device file can be used, else 0."""
    return 0 if reason() else 1
