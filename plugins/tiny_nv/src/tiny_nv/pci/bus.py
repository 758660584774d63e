"""Cards on the PCI bus: found in sysfs, taken from their kernel driver, and given back.

Documentation/ABI/testing/sysfs-bus-pci of Linux: `vendor`, `device`, `class`, `resource`,
`enable`, `reset`, `resourceN`; `unbind` and `bind` of a driver. Looking changes nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tiny_nv.pci.machine import holders, keep_text, lock_file, write_text
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import System

__all__ = ["CONSENT", "VFIO", "PciCard", "TakenCard", "cards_on_bus", "driver_in_the_end"]

CONSENT: Final = "NV_PCI_TAKE"
"""Environment variable that names the card which may be taken from its driver."""
VFIO: Final = "vfio-pci"
"""Driver that lets a process have a card."""
_DEVICES: Final = "/sys/bus/pci/devices"
_DRIVERS: Final = "/sys/bus/pci/drivers"
_FORMER: Final = "/run/tiny_nv-{}"
"""File with the driver that a card was taken from, until it is given back."""
_INFORMATION: Final = "/proc/driver/nvidia/gpus/{}/information"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA: Final = 0x10DE
_DISPLAY: Final = 0x03
"""Base class of display controllers, 3D controllers among them."""


@dataclass(frozen=True)
class PciCard:
    """A card of NVIDIA as sysfs lists it."""

    address: str
    device_id: int
    driver: str
    """Kernel driver that has it; "" without one."""
    bars: tuple[tuple[int, int], ...]
    """Bus address and size of each BAR; zeros for one that there is not."""
    subsystem: int = 0
    """Subsystem's device and vendor, as one word."""
    revision: int = 0

    @property
    def bar_bytes(self) -> tuple[int, ...]:
        """Size of each BAR; 0 for one that there is not."""
        return tuple(size for _, size in self.bars)

    @property
    def bus_device_function(self) -> int:
        """Its address as a number: bus, device, function; the domain above."""
        domain, bus, rest = self.address.split(":")
        device, function = rest.split(".")
        place = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        return int(domain, 16) << 32 | place

    @property
    def folder(self) -> str:
        """Its folder in sysfs."""
        return f"{_DEVICES}/{self.address}"

    def __str__(self) -> str:
        return f"card {self.address} (10de:{self.device_id:04x})"


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
    is_display = _number(machine, f"{folder}/class") >> 16 == _DISPLAY
    if _number(machine, f"{folder}/vendor") != _NVIDIA or not is_display:
        return None
    bars = []
    for line in machine.read_text(f"{folder}/resource").splitlines()[:6]:
        begin, end, _ = (int(word, 16) for word in line.split())
        bars.append((begin, end - begin + 1) if end else (0, 0))
    vendor, device = (_number(machine, f"{folder}/subsystem_{end}") for end in ("vendor", "device"))
    bound = (name for name in machine.names(_DRIVERS) if _is_bound(machine, name, address))
    return PciCard(
        address,
        _number(machine, f"{folder}/device"),
        next(bound, ""),
        tuple(bars),
        device << 16 | vendor,
        _number(machine, f"{folder}/revision"),
    )


def _is_bound(machine: System, driver: str, address: str) -> bool:
    return address in machine.names(f"{_DRIVERS}/{driver}")


def device_files(machine: System, card: PciCard) -> list[str]:
    """Device files by which programs use a card through its driver, displays among them."""
    found = [f"/dev/dri/{name}" for name in machine.names(f"{card.folder}/drm")]
    if card.driver == "nvidia":
        text = machine.read_text(_INFORMATION.format(card.address))
        told = re.search(r"Device Minor:\s*(\d+)", text)
        names = [f"nvidia{told[1]}"] if told else machine.names("/dev")
        found += [f"/dev/{name}" for name in names if re.fullmatch(r"nvidia\d+", name)]
    return found


def driver_in_the_end(machine: System, card: PciCard) -> str:
    """Driver that gets a card when it is given back: the one that has it, or had it when a process
    took it that was killed; "" for none.
    """
    former = machine.read_text(_FORMER.format(card.address)).strip()
    return card.driver or (former if former in machine.names(_DRIVERS) else "")


class TakenCard:
    """A card that this process has to itself, until `give_back`. vfio-pci keeps one that it has."""

    def __init__(self, machine: System, card: PciCard) -> None:
        """Take it from its driver. Raises DeviceUnavailable, with the card as it was."""
        self.machine, self.card = machine, card
        self.driver = driver_in_the_end(machine, card)
        self.complaint = ""
        """Work that was left to the user when the card was given back."""
        self.was_enabled = machine.read_text(f"{card.folder}/enable").strip() not in ("", "0")
        self._lock = -1
        """File that is locked while the card is taken; -1 for vfio-pci, which admits one itself."""
        if card.driver == VFIO:
            return
        try:
            self._lock = lock_file(machine, f"{card.folder}/enable")
            self._verify_unused()
            if card.driver:
                self._note(card.driver)
                write_text(machine, f"{_DRIVERS}/{card.driver}/unbind", card.address)
            write_text(machine, f"{card.folder}/enable", "1")
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
            write_text(self.machine, f"{self.card.folder}/reset", "1")
        except OSError as error:
            raise DeviceUnavailable(f"{self.card} cannot be reset: {error}") from error

    def give_back(self) -> str:
        """Let its driver have it again; what is left to do by hand, or "". Never raises."""
        try:
            return self._bind()
        finally:
            self._unlock()

    def _bind(self) -> str:
        card, machine = self.card, self.machine
        if not self.driver:
            if not self.was_enabled:
                with suppress(OSError):
                    write_text(machine, f"{card.folder}/enable", "0")
            return ""
        if _is_bound(machine, self.driver, card.address):
            return ""
        path = f"{_DRIVERS}/{self.driver}/bind"
        try:
            write_text(machine, path, card.address)
        except OSError as error:
            return (
                f" The driver {self.driver} does not take it back ({error}): "
                f"`echo {card.address} > {path}` as root, or start the machine anew."
            )
        self._note("")
        return ""
