"""Registers of a card, mapped from BAR0, and what they tell before anything is started.

NVIDIA/open-gpu-kernel-modules 580.142, published/*/dev_boot.h, dev_fb.h, dev_gc6_island.h,
dev_therm.h. Which of them exist differs by architecture; reading changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE
from typing import Final

from tiny_nv.pci.bus import PciCard
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import System, bytes_at

__all__ = ["ARCHITECTURES", "Architecture", "Registers"]

_BOOT_0, _BOOT_42 = 0x0, 0xA00
_GONE: Final = 0xFFFFFFFF
"""Word that a function reads as which does not answer."""
_NO_ACCESS: Final = 0xBADF0000
"""Upper half of what a register reads as that may not be read."""
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
    has_fsp: bool
    """True if a security processor starts the GSP, not FWSEC and the booter."""


ARCHITECTURES: Final[Mapping[int, Architecture]] = {
    0x17: Architecture("Ampere", "ga102", 0x118234, 0x1FA828, 0x1183A4, has_fsp=False),
    0x18: Architecture("Hopper", "gh100", 0x200BC, 0x1FA828, 0x1183A4, has_fsp=True),
    0x19: Architecture("Ada", "ad102", 0x118234, 0x1FA828, 0x1183A4, has_fsp=False),
    0x1A: Architecture("Blackwell", "gb100", 0x200BC, 0x88A828, None, has_fsp=True),
    0x1B: Architecture("Blackwell", "gb202", 0xAD00BC, 0x88A828, None, has_fsp=True),
}
"""By the field ARCHITECTURE of BOOT_42."""


class Registers:
    """BAR0 of a card that this process has taken."""

    def __init__(self, machine: System, card: PciCard) -> None:
        self.machine, self.card = machine, card
        self.size = card.bar_bytes[0] if card.bar_bytes else 0
        path = f"{card.folder}/resource0"
        try:
            file = machine.open(path)
        except OSError as error:
            raise DeviceUnavailable(f"{path} cannot be opened: {error}") from error
        try:
            self.at = machine.map(0, self.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
        except OSError as error:
            raise DeviceUnavailable(
                f"the registers of {card} cannot be mapped: {error}. A kernel that is locked down "
                "(secure boot) allows nobody to."
            ) from error
        finally:
            machine.close(file)
        self._words = bytes_at(self.at, self.size).cast("I")

    def read(self, register: int) -> int:
        """A register."""
        return self._words[register // 4]

    def close(self) -> None:
        """Take the mapping back."""
        self._words.release()
        self.machine.unmap(self.at, self.size)

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
        """Wait for something. Raises DeviceUnavailable with the state after the limit."""
        until = time.monotonic() + timeout_seconds
        while not is_true():
            if time.monotonic() > until:
                raise DeviceUnavailable(
                    f"{self.card} did not get ready within {timeout_seconds:g} s: {state()}"
                )
            time.sleep(1e-3)
