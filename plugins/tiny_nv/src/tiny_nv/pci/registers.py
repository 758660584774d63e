"""Registers of a card, mapped from BAR0, and what they tell before anything is started.

NVIDIA/open-gpu-kernel-modules 580.142, published/*/dev_boot.h, dev_fb.h, dev_gc6_island.h,
dev_therm.h. Which of them exist differs by architecture; reading changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tiny_nv.pci.bus import PciCard
from tiny_nv.pci.machine import register_calls
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import System

__all__ = ["ARCHITECTURES", "LEAST_LOOKS", "Architecture", "Registers"]

_BOOT_0, _BOOT_42 = 0x0, 0xA00
_GONE: Final = 0xFFFFFFFF
"""Word that a function reads as which does not answer."""
_NO_ACCESS: Final = 0xBADF0000
"""Upper half of what a register reads as that may not be read."""
LEAST_LOOKS: Final = 10
"""Polls before a wait gives up, however long they took."""
_GA100: Final = 0x170
_DONE: Final = 0xFF
_MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True)
class Architecture:
    """Registers of one architecture."""

    name: str
    chip: str
    """Folder of its firmware, of the first chip."""
    started: int
    """Register whose low byte is 0xFF when the card has started by itself."""
    wpr2: int
    """Upper bound of the memory that a running GSP protects; 0 without one."""
    memory: int | None
    """Register with the memory in MiB; None where none is known."""
    signature: str
    """Suffix of the section with its signature of the GSP's firmware; "" where none is known."""
    has_fsp: bool
    """True if a security processor starts the GSP, not FWSEC and the booter."""


ARCHITECTURES: Final[Mapping[int, Architecture]] = {
    0x17: Architecture("Ampere", "ga102", 0x118234, 0x1FA828, 0x1183A4, "ga10x", has_fsp=False),
    0x18: Architecture("Hopper", "gh100", 0x200BC, 0x1FA828, 0x1183A4, "", has_fsp=True),
    0x19: Architecture("Ada", "ad102", 0x118234, 0x1FA828, 0x1183A4, "ad10x", has_fsp=False),
    0x1A: Architecture("Blackwell", "gb100", 0x200BC, 0x88A828, None, "", has_fsp=True),
    0x1B: Architecture("Blackwell", "gb202", 0xAD00BC, 0x88A828, None, "", has_fsp=True),
}
"""By the field ARCHITECTURE of BOOT_42."""


class Registers:
    """BAR0 of a card that this process has taken."""

    def __init__(self, machine: System, card: PciCard, at: int) -> None:
        """`at`: host address where BAR0 is mapped."""
        self.card, self.at = card, at
        self._load, self._store = register_calls(machine, at, card.bar_bytes[0])

    def read(self, register: int) -> int:
        """Value of a register."""
        return self._load(register)

    def write(self, register: int, value: int) -> None:
        """Set a register."""
        self._store(register, value & _GONE)

    # --- facts

    @property
    def architecture(self) -> Architecture:
        """The card's architecture. Raises DeviceUnavailable for one that is not known, and for a
        card that does not answer.
        """
        if self.read(_BOOT_0) == _GONE:
            raise DeviceUnavailable(
                f"{self.card} does not answer: it reads as ones. It may be asleep (D3), or gone "
                "from the bus."
            )
        number = self.read(_BOOT_42) >> 24 & 0x3F
        if number not in ARCHITECTURES:
            known = ", ".join(sorted({each.name for each in ARCHITECTURES.values()}))
            raise DeviceUnavailable(
                f"{self.card} is of architecture {number:#x}, which is none of {known}"
            )
        return ARCHITECTURES[number]

    @property
    def is_ga100(self) -> bool:
        """True for the chip of Ampere that has no FRTS data."""
        return self.read(_BOOT_42) >> 20 & 0x3FF == _GA100

    def memory_bytes(self, of: Architecture) -> int | None:
        """Bytes of the card's memory; None where no register tells it."""
        if of.memory is None:
            return None
        told = self.read(of.memory)
        return None if told & 0xFFFF0000 == _NO_ACCESS else told * _MEBIBYTE

    def has_protected_memory(self, of: Architecture) -> bool:
        """True if a GSP runs already, which only a reset ends."""
        told = self.read(of.wpr2)
        return told & 0xFFFF0000 != _NO_ACCESS and told != 0

    def wait_for_start(self, of: Architecture, timeout_seconds: float) -> None:
        """Wait until the card has started by itself. Raises DeviceUnavailable after the limit."""
        self.wait_until(
            lambda: self.read(of.started) & _DONE == _DONE,
            timeout_seconds,
            lambda: f"it has not started: register {of.started:#x} is {self.read(of.started):#x}",
        )

    def wait_until(
        self, is_true: Callable[[], bool], timeout_seconds: float, state: Callable[[], str]
    ) -> None:
        """Wait for something. Raises DeviceUnavailable with the state after the limit, but never
        before some looks: this process may not have run in between.
        """
        until, looks = time.monotonic() + timeout_seconds, 0
        while not is_true():
            looks += 1
            if time.monotonic() > until and looks > LEAST_LOOKS:
                raise DeviceUnavailable(
                    f"{self.card} did not get ready within {timeout_seconds:g} s: {state()}"
                )
            time.sleep(1e-3)
