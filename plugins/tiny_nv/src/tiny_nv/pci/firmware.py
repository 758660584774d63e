"""Firmware of a card's own processor (GSP): files of linux-firmware, by chip.

The files are NVIDIA's, and are redistributable; tiny-nv brings none of them.
"""

from __future__ import annotations

from typing import Final

from tiny_nv.pci.registers import Architecture
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import System

__all__ = ["FIRMWARE_VERSION", "firmware_files", "verify_firmware"]

FIRMWARE_VERSION: Final = "570.144"
"""The release whose structures are known."""
_FIRMWARE_FOLDERS: Final = ("/lib/firmware/nvidia", "/usr/lib/firmware/nvidia")
_COMPRESSIONS: Final = ("", ".zst", ".xz")
_BY_FSP: Final = ("bootloader", "fmc", "gsp")
_BY_BOOTER: Final = ("booter_load", "bootloader", "gsp")


def firmware_files(of: Architecture) -> list[str]:
    """Files that an architecture needs, below a folder of firmware."""
    names = _BY_FSP if of.has_fsp else _BY_BOOTER
    return [f"{of.chip}/gsp/{name}-{FIRMWARE_VERSION}.bin" for name in names]


def verify_firmware(machine: System, of: Architecture) -> list[str]:
    """Paths of the firmware. Raises DeviceUnavailable naming what is missing."""
    found: list[str] = []
    missing: list[str] = []
    for name in firmware_files(of):
        places = (
            f"{folder}/{name}{form}" for folder in _FIRMWARE_FOLDERS for form in _COMPRESSIONS
        )
        path = next((place for place in places if machine.exists(place)), "")
        (found if path else missing).append(path or name)
    if missing:
        raise DeviceUnavailable(
            f"the firmware of a card of {of.name} is missing in {_FIRMWARE_FOLDERS[0]}: "
            f"{', '.join(missing)}. Install linux-firmware (Debian: firmware-nvidia-graphics), of "
            f"{FIRMWARE_VERSION}."
        )
    return found
