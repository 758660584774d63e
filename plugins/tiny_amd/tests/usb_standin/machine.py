"""A machine with bridges on USB: files of sysfs, libusb, firmware, ports and a card."""

from __future__ import annotations

from typing import Any

from files_alone import FilesAlone

from usb_standin.fabric import BarShape, Fabric, Function, Memory, PlainMemory
from usb_standin.firmware import Firmware
from usb_standin.library import Libusb, UsbModel

USB_DEVICES = "/sys/bus/usb/devices"
ASMEDIA, AMD = 0x1B21, 0x1002


def ports() -> list[Function]:
    """Two ports of the bridge, and the two of the switch that cards of RDNA3 have."""
    switch = {0: BarShape(14)}
    return [
        Function(ASMEDIA, 0x2463, 0x060400, header=1),
        Function(ASMEDIA, 0x2463, 0x060400, header=1),
        Function(AMD, 0x1478, 0x060400, header=1, bars=switch),
        Function(AMD, 0x1479, 0x060400, header=1),
    ]


def navi31() -> list[Function]:
    """A 7900 XTX: 256 MiB of its 24 GiB until it is resized, doorbells, registers; sound."""
    bars = {
        0: BarShape(28, wide=True, prefetchable=True, resizable=tuple(range(28, 36))),
        2: BarShape(21, wide=True, prefetchable=True, resizable=(21,)),
        5: BarShape(20),
    }
    card = Function(AMD, 0x744C, 0x030000, bars=bars, is_multiple=True)
    return [card, Function(AMD, 0xAB30, 0x040300, bars={0: BarShape(14)})]


def bridge(memory: Memory | None = None, *, retries: int = 0, **facts: Any) -> Firmware:
    """A bridge with a card behind it."""
    fabric = Fabric(ports(), navi31(), memory or PlainMemory(), retries=retries)
    return Firmware(fabric, **facts)


def usb_files(devices: list[UsbModel]) -> dict[str, str]:
    """Files of sysfs by path, for a root hub and the devices on USB."""
    found = {f"{USB_DEVICES}/usb2/idVendor": "1d6b", f"{USB_DEVICES}/usb2/idProduct": "0003"}
    for device in devices:
        if not device.is_present:
            continue
        name = f"{device.bus}-{'.'.join(map(str, device.ports))}"
        folder = f"{USB_DEVICES}/{name}"
        text = device.firmware.product if device.firmware else "ASM2464PD NVME"
        found |= {
            f"{folder}/idVendor": f"{device.vendor:04x}\n",
            f"{folder}/idProduct": f"{device.product:04x}\n",
            f"{folder}/devnum": f"{device.address}\n",
            f"{folder}/product": f"{text}\n",
            f"{folder}:1.0/bInterfaceClass": "ff\n",
        }
    return found


class UsbMachine(FilesAlone):
    """The operating system, for `use_system`."""

    def __init__(self, *devices: UsbModel | Firmware) -> None:
        super().__init__()
        found = [d if isinstance(d, UsbModel) else UsbModel(d) for d in devices]
        for place, device in enumerate(found):
            if place and device.ports == found[0].ports:
                device.ports = (1, 4 + place)
        self.library = Libusb(found)

    @property
    def firmware(self) -> Firmware:
        """Firmware of the first device."""
        firmware = self.library.devices[0].firmware
        assert firmware is not None
        return firmware

    def libusb(self) -> Any:
        return self.library

    def texts(self) -> dict[str, str]:
        return usb_files(self.library.devices)

    def is_usable(self, path: str) -> bool:
        return any(
            device.is_allowed and path == f"/dev/bus/usb/{device.bus:03}/{device.address:03}"
            for device in self.library.devices
        )
