"""`PciFunction`: functions on the PCI bus as sysfs lists them, and their binding to drivers.

For backends that drive a card without its kernel driver. Linux,
Documentation/ABI/testing/sysfs-bus-pci: `vendor`, `device`, `class`, `resource`, `enable`, `reset`,
and `bind` and `unbind` of a driver. Listing changes nothing; the rest needs root.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tiny_hcq.system import System, write_text

__all__ = ["PciFunction", "pci_functions"]

_DEVICES: Final = "/sys/bus/pci/devices"
_DRIVERS: Final = "/sys/bus/pci/drivers"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BARS: Final = 6
"""Base address registers of a function's header (type 0)."""


@dataclass(frozen=True)
class PciFunction:
    """A function on the PCI bus, such as a graphics card, when it was listed."""

    address: str
    """Domain, bus, device and function: "0000:03:00.0"."""
    vendor_id: int
    device_id: int
    driver: str
    """Kernel driver that it is bound to; "" for none."""
    bars: tuple[tuple[int, int], ...]
    """Bus address and size of each of its six BARs; zeros for one that it does not have."""
    subsystem: int = 0
    """Device and vendor of the subsystem, as one word."""
    revision: int = 0

    @property
    def bar_bytes(self) -> tuple[int, ...]:
        """Size of each BAR; 0 for one that it does not have."""
        return tuple(size for _, size in self.bars)

    @property
    def bus_device_function(self) -> int:
        """The address as a number: bus, device, function; the domain from bit 32 on."""
        domain, bus, rest = self.address.split(":")
        device, function = rest.split(".")
        place = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        return int(domain, 16) << 32 | place

    @property
    def folder(self) -> str:
        """The folder of the function in sysfs."""
        return f"{_DEVICES}/{self.address}"

    def __str__(self) -> str:
        return f"card {self.address} ({self.vendor_id:04x}:{self.device_id:04x})"

    def is_enabled(self, machine: System) -> bool:
        """True if the function decodes its addresses."""
        return machine.read_text(f"{self.folder}/enable").strip() not in ("", "0")

    def enable(self, machine: System) -> None:
        """Have the function decode its addresses, without a driver. Raises OSError."""
        write_text(machine, f"{self.folder}/enable", "1")

    def reset(self, machine: System) -> None:
        """Reset the function. Raises OSError, also where the kernel has no method for it."""
        write_text(machine, f"{self.folder}/reset", "1")

    def unbind(self, machine: System) -> None:
        """Take the function from `driver`. Waits for the driver without a limit. Raises OSError."""
        write_text(machine, f"{_DRIVERS}/{self.driver}/unbind", self.address)

    def give_back(self, machine: System, driver: str, *, enabled: bool) -> str:
        """Bind the function to a driver again; without one, leave it enabled or not.

        Returns what is left for the user to do, or "". Never raises.
        """
        if not driver:
            if not enabled:
                with suppress(OSError):
                    write_text(machine, f"{self.folder}/enable", "0")
            return ""
        if self.address in machine.names(f"{_DRIVERS}/{driver}"):
            return ""
        path = f"{_DRIVERS}/{driver}/bind"
        try:
            write_text(machine, path, self.address)
        except OSError as error:
            return (
                f" The driver {driver} does not take it back ({error}): "
                f"`echo {self.address} > {path}` as root, or start the machine anew."
            )
        return ""


def pci_functions(machine: System, vendor: int, classes: Collection[int]) -> list[PciFunction]:
    """Functions of one vendor and of some base classes (3 for display controllers), by address."""
    return [
        _function(machine, address)
        for address in machine.names(_DEVICES)
        if _ADDRESS.fullmatch(address)
        and _number(machine, address, "vendor") == vendor
        and _number(machine, address, "class") >> 16 in classes
    ]


def _number(machine: System, address: str, name: str) -> int:
    """Hexadecimal number in a file of a function; 0 if it is missing."""
    text = machine.read_text(f"{_DEVICES}/{address}/{name}").strip()
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else 0


def _function(machine: System, address: str) -> PciFunction:
    drivers = machine.names(_DRIVERS)
    bound = (name for name in drivers if address in machine.names(f"{_DRIVERS}/{name}"))
    subsystem = _number(machine, address, "subsystem_device") << 16
    return PciFunction(
        address,
        _number(machine, address, "vendor"),
        _number(machine, address, "device"),
        next(bound, ""),
        _bars(machine.read_text(f"{_DEVICES}/{address}/resource")),
        subsystem | _number(machine, address, "subsystem_vendor"),
        _number(machine, address, "revision"),
    )


def _bars(resource: str) -> tuple[tuple[int, int], ...]:
    """Bus address and size of each BAR, from lines of first address, last address and flags."""
    found = [(0, 0)] * _BARS
    for number, line in enumerate(resource.splitlines()[:_BARS]):
        first, last, _ = (int(word, 16) for word in line.split())
        found[number] = (first, last - first + 1) if last else (0, 0)
    return tuple(found)
