"""Cards on the PCI bus, taken from their kernel driver and given back to it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from tiny_hcq import PciFunction, System, pci_functions
from tiny_nv.pci.machine import holders, keep_text, lock_file
from tinycore.errors import DeviceUnavailable

__all__ = ["CONSENT", "VFIO", "TakenCard", "cards_on_bus", "driver_in_the_end"]

CONSENT: Final = "NV_PCI_TAKE"
"""Environment variable that names the card which may be taken from its driver."""
VFIO: Final = "vfio-pci"
"""Driver that lets a process have a card."""
_DRIVERS: Final = "/sys/bus/pci/drivers"
_FORMER: Final = "/run/tiny_nv-{}"
"""File with the driver that a card was taken from, until it is given back."""
_INFORMATION: Final = "/proc/driver/nvidia/gpus/{}/information"
_NVIDIA: Final = 0x10DE
_DISPLAY: Final = 0x03
"""Base class of display controllers, 3D controllers among them."""


def cards_on_bus(machine: System) -> list[PciFunction]:
    """The cards there are, by address."""
    return pci_functions(machine, _NVIDIA, (_DISPLAY,))


def device_files(machine: System, card: PciFunction) -> list[str]:
    """Device files by which programs use a card through its driver, displays among them."""
    found = [f"/dev/dri/{name}" for name in machine.names(f"{card.folder}/drm")]
    if card.driver == "nvidia":
        text = machine.read_text(_INFORMATION.format(card.address))
        told = re.search(r"Device Minor:\s*(\d+)", text)
        names = [f"nvidia{told[1]}"] if told else machine.names("/dev")
        found += [f"/dev/{name}" for name in names if re.fullmatch(r"nvidia\d+", name)]
    return found


def driver_in_the_end(machine: System, card: PciFunction) -> str:
    """Driver that gets a card when it is given back: the one that has it, or had it when a process
    took it that was killed; "" for none.
    """
    former = machine.read_text(_FORMER.format(card.address)).strip()
    return card.driver or (former if former in machine.names(_DRIVERS) else "")


class TakenCard:
    """A card that this process has to itself, until `give_back`. vfio-pci keeps one that it has."""

    def __init__(self, machine: System, card: PciFunction) -> None:
        """Take it from its driver. Raises DeviceUnavailable, with the card as it was."""
        self.machine, self.card = machine, card
        self.driver = driver_in_the_end(machine, card)
        self.complaint = ""
        """Work that was left to the user when the card was given back."""
        self.was_enabled = card.is_enabled(machine)
        self._lock = -1
        """File that is locked while the card is taken; -1 for vfio-pci, which admits one itself."""
        if card.driver == VFIO:
            return
        try:
            self._lock = lock_file(machine, f"{card.folder}/enable")
            self._verify_unused()
            if card.driver:
                self._note(card.driver)
                card.unbind(machine)
            card.enable(machine)
        except BlockingIOError as error:
            raise DeviceUnavailable(f"{card} is taken: another process uses PCI+NV") from error
        except OSError as error:
            complaint = self.give_back()
            raise DeviceUnavailable(
                f"{card} cannot be taken from the kernel: {error}. It needs root, and a system "
                f"that lets root do so.{complaint}"
            ) from error

    def _verify_unused(self) -> None:
        """Raise DeviceUnavailable, with the lock given up, if programs use the card."""
        card = self.card
        who = holders(self.machine, device_files(self.machine, card)) if card.driver else []
        if who:
            self._unlock()
            raise DeviceUnavailable(
                f"{card} is in use by {', '.join(who)}: end them first. Its driver {card.driver} "
                "waits for them, without a limit, before it gives the card away"
            )

    def _note(self, driver: str) -> None:
        """Keep the driver for the next process, should this one be killed. Never raises."""
        with suppress(OSError):
            keep_text(self.machine, _FORMER.format(self.card.address), driver)

    def _unlock(self) -> None:
        if self._lock >= 0:
            self.machine.close(self._lock)
            self._lock = -1

    def reset(self) -> None:
        """Reset the function. Raises DeviceUnavailable where the kernel knows no way."""
        try:
            self.card.reset(self.machine)
        except OSError as error:
            raise DeviceUnavailable(f"{self.card} cannot be reset: {error}") from error

    def give_back(self) -> str:
        """Let its driver have it again; what is left to do by hand, or "". Never raises."""
        try:
            left = self.card.give_back(self.machine, self.driver, enabled=self.was_enabled)
            if self.driver and self._lock >= 0 and not left:
                self._note("")
            return left
        finally:
            self._unlock()
