"""USB bridges as Linux lists them in sysfs: which there are, and why none can be used.

Documentation/ABI/testing/sysfs-bus-usb: `idVendor`, `idProduct`, `product`, `busnum`, `devnum`,
`speed` of each device. Reading them opens no device and loads no library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tiny_hcq import system

__all__ = [
    "FIRMWARE",
    "IDS",
    "ListedBridge",
    "bridge_count",
    "bridge_inputs",
    "bridge_obstacle",
    "listed_bridges",
    "permission_advice",
]

IDS: Final = ((0xADD1, 0x0001), (0x3801, 0x0001))
"""Vendor and product of bridges with the custom firmware."""
STOCK_IDS: Final = ((0x174C, 0x2463), (0x174C, 0x2464))
"""Vendor and product of ASMedia's own firmware, and of the chip's boot ROM."""
FIRMWARE: Final = ("custom", "AS2462")
"""Beginnings of the product string of the custom firmware."""
USB_DEVICES: Final = "/sys/bus/usb/devices"
USB_NODES: Final = "/dev/bus/usb"
_DEVICE: Final = re.compile(r"\d+-\d+(?:\.\d+)*")
"""Names of devices; those of interfaces have a colon, root hubs are `usb1`."""


@dataclass(frozen=True, order=True)
class ListedBridge:
    """A device of sysfs that is a bridge by its ids."""

    bus: int
    ports: tuple[int, ...]
    """Port of the root hub, and those of the hubs behind it."""
    address: int
    vendor: int
    product: int
    text: str
    """Product string."""

    @property
    def node(self) -> str:
        """The file by which it is opened."""
        return f"{USB_NODES}/{self.bus:03}/{self.address:03}"

    def __str__(self) -> str:
        ports = ".".join(map(str, self.ports))
        return f"bridge {self.bus}-{ports} ({self.vendor:04x}:{self.product:04x} {self.text!r})"


def _hexadecimal(path: str) -> int:
    text = system().read_text(path).strip()
    return int(text, 16) if re.fullmatch(r"[0-9a-fA-F]{1,4}", text) else -1


def listed(ids: tuple[tuple[int, int], ...]) -> list[ListedBridge]:
    """Devices of sysfs with one of the ids, by bus and ports."""
    machine, found = system(), []
    for name in machine.names(USB_DEVICES):
        folder = f"{USB_DEVICES}/{name}"
        pair = _hexadecimal(f"{folder}/idVendor"), _hexadecimal(f"{folder}/idProduct")
        if not _DEVICE.fullmatch(name) or pair not in ids:
            continue
        bus, ports = name.split("-")
        number = machine.read_text(f"{folder}/devnum").strip()
        text = machine.read_text(f"{folder}/product").strip()
        address = int(number) if number.isdigit() else 0
        found.append(
            ListedBridge(int(bus), tuple(map(int, ports.split("."))), address, *pair, text)
        )
    return sorted(found)


def listed_bridges() -> list[ListedBridge]:
    """Bridges with the ids of the custom firmware, by bus and ports."""
    return listed(IDS)


def permission_advice(vendor: int, product: int) -> str:
    """Text of the rule of udev that lets this user open a bridge."""
    return (
        "Let its users have it: write the line "
        f'SUBSYSTEM=="usb", ATTR{{idVendor}}=="{vendor:04x}", ATTR{{idProduct}}=="{product:04x}", '
        'MODE="0660", TAG+="uaccess" into /etc/udev/rules.d/70-asm2464.rules, run sudo udevadm '
        "control --reload, and plug the bridge in anew"
    )


def bridge_obstacle() -> str:
    """Why no bridge can be used, and what to do; "" when one can. Opens nothing."""
    bridges = listed_bridges()
    if not bridges:
        if stock := listed(STOCK_IDS):
            return (
                f"{stock[0]} has ASMedia's own firmware or none, which passes no PCIe requests on; "
                "it needs the custom one (github.com/tinygrad/asm2464pd-firmware)"
            )
        ids = " or ".join(f"{vendor:04x}:{product:04x}" for vendor, product in IDS)
        return f"no ASM2464PD bridge with the custom firmware ({ids}) in {USB_DEVICES}"
    if not any(bridge.text.startswith(FIRMWARE) for bridge in bridges):
        return f"{bridges[0]} has another firmware than {' or '.join(FIRMWARE)}...: flash that"
    if not any(system().is_usable(bridge.node) for bridge in bridges):
        first = bridges[0]
        advice = permission_advice(first.vendor, first.product)
        return f"{first} at {first.node} cannot be opened by this user. {advice}"
    return ""


def bridge_count() -> int:
    """Number of bridges with the custom firmware; 0 where none can be opened."""
    if bridge_obstacle():
        return 0
    return sum(bridge.text.startswith(FIRMWARE) for bridge in listed_bridges())


def bridge_inputs() -> tuple[str, ...]:
    """Files whose change renews the count of bridges."""
    return (USB_DEVICES, USB_NODES)
