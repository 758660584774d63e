"""Registers of a card, mapped from BAR0, and what they tell before anything is started.

NVIDIA/open-gpu-kernel-modules 580.142, published/*/dev_boot.h, dev_fb.h, dev_gc6_island.h,
dev_therm.h. Which of them exist differs by architecture; reading changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tiny_hcq import PciFunction, System
from tiny_nv.pci.machine import register_calls
from tinycore.errors import DeviceUnavailable

__all__ = ["ARCHITECTURES", "LEAST_LOOKS", "Architecture", "Registers", "Trust"]

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
_WORD: Final = 4


@dataclass(frozen=True)
class Trust:
    """Chain of trust of a security processor, and what its program is asked to leave free."""

    version: int
    key_bytes: int
    signature_bytes: int
    open_heap_bytes: int
    """Memory for the GSP in front of what is protected."""
    pmu_bytes: int
    """Memory for the power management unit behind it."""


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
    memory: int
    """Register with the memory in MiB."""
    config: int
    """Registers that mirror its configuration space."""
    signature: str
    """Suffix of the section with its signature of the GSP's firmware."""
    trust: Trust | None = None
    """Chain of trust, where a security processor starts the GSP; None for FWSEC and the booter."""


_PCFG, _PCFGM = 0x88000, 0x92000
_PMU_BYTES: Final = 0x1820000
_GH100: Final = Trust(1, 384, 384, 0x200000, 0)
_GB10X: Final = Trust(2, 97, 96, 0x200000, _PMU_BYTES)
_GB20X: Final = Trust(2, 97, 96, 0x220000, _PMU_BYTES)

ARCHITECTURES: Final[Mapping[int, Architecture]] = {
    0x17: Architecture("Ampere", "ga102", 0x118234, 0x1FA828, 0x1183A4, _PCFG, "ga10x"),
    0x18: Architecture("Hopper", "gh100", 0x200BC, 0x1FA828, 0x1183A4, _PCFGM, "gh100", _GH100),
    0x19: Architecture("Ada", "ad102", 0x118234, 0x1FA828, 0x1183A4, _PCFG, "ad10x"),
    0x1A: Architecture("Blackwell", "gb100", 0x200BC, 0x88A828, 0x1183A4, _PCFGM, "gb10x", _GB10X),
    0x1B: Architecture("Blackwell", "gb202", 0xAD00BC, 0x88A828, 0x1183A4, _PCFGM, "gb20x", _GB20X),
}
"""By the field ARCHITECTURE of BOOT_42."""


class Registers:
    """BAR0 of a card that this process has taken."""

    def __init__(self, machine: System, card: PciFunction, at: int) -> None:
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

    def memory_bytes(self, of: Architecture) -> int:
        """Bytes of the card's memory. Raises DeviceUnavailable for a card that does not tell."""
        told = self.read(of.memory)
        if not told or told & 0xFFFF0000 == _NO_ACCESS:
            raise DeviceUnavailable(f"{self.card} does not tell how much memory it has: {told:#x}")
        return told * _MEBIBYTE

    def protected_memory(self, of: Architecture) -> tuple[int, int]:
        """First and last addresses of the memory that a GSP protects, 0 and 0 without one."""
        low, high = self.read(of.wpr2 - _WORD), self.read(of.wpr2)
        return low >> 4 << 12, high >> 4 << 12

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
