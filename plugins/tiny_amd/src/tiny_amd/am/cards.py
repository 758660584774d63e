"""Cards on the PCI bus: found in sysfs, taken from their kernel driver, and given back.

Documentation/ABI/testing/sysfs-bus-pci of Linux: `vendor`, `device`, `class`, `resource`,
`enable`; `unbind` and `bind` of a driver. Looking changes nothing.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from tiny_amd.am.bus import DOORBELL_BAR, MEMORY_BAR, REGISTER_BAR, KernelBus
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import System

__all__ = ["CONSENT", "PciCard", "SupportsWriteText", "TakenCard", "cards_on_bus"]

CONSENT: Final = "AMD_PCI_TAKE"
"""Environment variable that names the cards which may be taken, by commas."""
_DEVICES: Final = "/sys/bus/pci/devices"
_DRIVERS: Final = "/sys/bus/pci/drivers"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_AMD: Final = 0x1002
_COMPUTING: Final = (0x03, 0x12)
"""Base classes of display controllers, and of accelerators, which have no display."""
_COMPACTION: Final = "/proc/sys/vm/compact_unevictable_allowed"


@runtime_checkable
class SupportsWriteText(Protocol):
    """A machine whose files are not this process's own."""

    def write_text(self, path: str, text: str) -> None:
        """Write a file of sysfs. Raises OSError."""
        ...


def write_text(machine: System, path: str, text: str) -> None:
    """Write a file of sysfs, which is written only, in one call. Raises OSError."""
    if isinstance(machine, SupportsWriteText):
        machine.write_text(path, text)
        return
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode("ascii"))
    finally:
        os.close(file)


@dataclass(frozen=True)
class PciCard:
    """A card of AMD as sysfs lists it."""

    address: str
    device_id: int
    driver: str
    """Kernel driver that has it; "" without one."""
    bar_bytes: tuple[int, ...]
    """Size of each BAR; 0 for one that there is not."""

    @property
    def folder(self) -> str:
        """Its folder in sysfs."""
        return f"{_DEVICES}/{self.address}"

    def __str__(self) -> str:
        return f"card {self.address} (1002:{self.device_id:04x})"


def cards_on_bus(machine: System) -> list[PciCard]:
    """The cards there are, by address."""
    return [
        found
        for name in machine.names(_DEVICES)
        if _ADDRESS.fullmatch(name) and (found := _card(machine, name)) is not None
    ]


def _number(machine: System, path: str) -> int:
    text = machine.read_text(path).strip()
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else 0


def _card(machine: System, address: str) -> PciCard | None:
    folder = f"{_DEVICES}/{address}"
    computes = _number(machine, f"{folder}/class") >> 16 in _COMPUTING
    if _number(machine, f"{folder}/vendor") != _AMD or not computes:
        return None
    bars = []
    for line in machine.read_text(f"{folder}/resource").splitlines()[:6]:
        begin, end, _ = (int(word, 16) for word in line.split())
        bars.append(end - begin + 1 if end else 0)
    bound = (name for name in machine.names(_DRIVERS) if _is_bound(machine, name, address))
    bars += [0] * (6 - len(bars))
    return PciCard(address, _number(machine, f"{folder}/device"), next(bound, ""), tuple(bars))


def _is_bound(machine: System, driver: str, address: str) -> bool:
    return address in machine.names(f"{_DRIVERS}/{driver}")


def verify_machine(machine: System, card: PciCard) -> None:
    """Raise DeviceUnavailable where the card's accesses would not reach this process's memory."""
    kind = machine.read_text(f"{card.folder}/iommu_group/type").strip()
    if kind not in ("", "identity"):
        raise DeviceUnavailable(
            f"an IOMMU translates what {card} reads and writes ({card.folder}/iommu_group/type is "
            f"{kind!r}): start the kernel with iommu=pt, or switch the IOMMU off"
        )
    if machine.read_text(_COMPACTION).strip() != "0":
        raise DeviceUnavailable(
            f"the kernel may move memory that {card} reads and writes: sudo sysctl "
            "vm.compact_unevictable_allowed=0"
        )
    missing = [n for n in (MEMORY_BAR, DOORBELL_BAR, REGISTER_BAR) if not card.bar_bytes[n]]
    if missing:
        names = ", ".join(f"BAR{number}" for number in missing)
        raise DeviceUnavailable(f"{card} has no {names}: the system has given it no addresses")


class TakenCard:
    """A card that this process has to itself, until `give_back`."""

    def __init__(self, machine: System, card: PciCard) -> None:
        """Take it from its driver. Raises DeviceUnavailable, with the card as it was."""
        self.machine, self.card = machine, card
        self.was_enabled = machine.read_text(f"{card.folder}/enable").strip() not in ("", "0")
        try:
            if card.driver:
                write_text(machine, f"{_DRIVERS}/{card.driver}/unbind", card.address)
            write_text(machine, f"{card.folder}/enable", "1")
        except OSError as error:
            complaint = self.give_back()
            raise DeviceUnavailable(
                f"{card} cannot be taken from the kernel: {error}. It needs root, and a system "
                f"that lets root do so.{complaint}"
            ) from error

    def open_bus(self) -> KernelBus:
        """The way to it. Raises DeviceUnavailable."""
        card = self.card
        return KernelBus(self.machine, card.folder, str(card), card.device_id, card.bar_bytes)

    def give_back(self) -> str:
        """Let its driver have it again; what is left to do by hand, or "". Never raises."""
        card, machine = self.card, self.machine
        if not card.driver:
            if not self.was_enabled:
                with suppress(OSError):
                    write_text(machine, f"{card.folder}/enable", "0")
            return ""
        if _is_bound(machine, card.driver, card.address):
            return ""
        path = f"{_DRIVERS}/{card.driver}/bind"
        try:
            write_text(machine, path, card.address)
        except OSError as error:
            return (
                f" The driver {card.driver} does not take it back ({error}): "
                f"`echo {card.address} > {path}` as root, or start the machine anew."
            )
        return ""
