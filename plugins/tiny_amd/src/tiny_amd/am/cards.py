"""Cards on the PCI bus, taken from their kernel driver and given back to it."""

from __future__ import annotations

from typing import Final

from tiny_amd.am.bus import DOORBELL_BAR, MEMORY_BAR, REGISTER_BAR, KernelBus
from tiny_hcq import PciFunction, System, pci_functions
from tinycore.errors import DeviceUnavailable

__all__ = ["CONSENT", "TakenCard", "cards_on_bus"]

CONSENT: Final = "AMD_PCI_TAKE"
"""Environment variable that names the cards which may be taken, by commas."""
_AMD: Final = 0x1002
_COMPUTING: Final = (0x03, 0x12)
"""Base classes of display controllers, and of accelerators, which have no display."""
_COMPACTION: Final = "/proc/sys/vm/compact_unevictable_allowed"


def cards_on_bus(machine: System) -> list[PciFunction]:
    """The cards there are, by address."""
    return pci_functions(machine, _AMD, _COMPUTING)


def verify_machine(machine: System, card: PciFunction) -> None:
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

    def __init__(self, machine: System, card: PciFunction) -> None:
        """Take it from its driver. Raises DeviceUnavailable, with the card as it was."""
        self.machine, self.card = machine, card
        self.was_enabled = card.is_enabled(machine)
        try:
            if card.driver:
                card.unbind(machine)
            card.enable(machine)
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
        card = self.card
        return card.give_back(self.machine, card.driver, enabled=self.was_enabled)
