"""AMD cards behind USB bridges, as `DEV=USB+AMD` has them: libusb, bridge, PCIe and card are
stand-ins; everything between the driver and libusb is what a bridge would have.

    export PYTHONPATH=tests/support:plugins/tiny_amd/tests
    tinycore conformance AMD --level 1 --register simulated_usb:BACKEND
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pci_standin.card import PciGpu
from pci_standin.machine import PciMachine
from usb_standin.fabric import BarShape, Fabric, Function
from usb_standin.firmware import SRAM, Firmware
from usb_standin.library import Libusb, UsbModel
from usb_standin.machine import ports, usb_files

from tiny_amd import BACKEND as PLUGIN
from tiny_amd.device import AmdDevice
from tiny_hcq import use_system
from tinycore.plugin import Backend, Interface

__all__ = ["BACKEND", "UsbCards", "backend_of", "opened"]

PAGE: Final = 4096
SRAM_ADDRESS: Final = 0x200000


class GpuMemory:
    """BARs of a card of the PCI stand-in."""

    def __init__(self, gpu: PciGpu) -> None:
        self.gpu = gpu
        self.doorbells: dict[int, int] = {}

    def read(self, bar: int, offset: int, size: int) -> bytes:
        if bar == 5:
            words = range(offset // 4, (offset + size) // 4)
            return b"".join(self.gpu.read32(word).to_bytes(4, "little") for word in words)
        if bar == 0:
            return self.gpu.read_memory(offset, size)
        raise AssertionError(f"BAR{bar} is read")

    def write(self, bar: int, offset: int, content: bytes) -> None:
        if bar == 0:
            self.gpu.write_memory(offset, content)
            return
        for place in range(0, len(content), 4):
            value = int.from_bytes(content[place : place + 4], "little")
            if bar == 5:
                self.gpu.write32((offset + place) // 4, value)
            else:
                self.ring(offset + place, value)

    def ring(self, offset: int, value: int) -> None:
        """Half of a doorbell is written."""
        slot, high = divmod(offset, 8)
        before = self.doorbells.get(slot, 0)
        keep, shift = (0xFFFFFFFF, 32) if high else (0xFFFFFFFF << 32, 0)
        self.doorbells[slot] = before & keep | value << shift
        self.gpu.ring_doorbell(slot, self.doorbells[slot])


def card_of(gpu: PciGpu) -> list[Function]:
    """The configuration of a card, whose BAR0 may be as large as its memory."""
    bars = {
        0: BarShape(28, wide=True, prefetchable=True, resizable=(28, 29, 30)),
        2: BarShape(21, wide=True, prefetchable=True),
        5: BarShape(20),
    }
    return [Function(0x1002, 0x744C, 0x030000, bars=bars)]


class UsbCards(PciMachine):
    """A machine without cards on its own bus, and with some behind USB bridges."""

    def __init__(self, cards: int = 1, **facts: Any) -> None:
        self.devices: list[UsbModel] = []
        super().__init__(cards, driver="")
        self.bridges = [self.bridge_of(gpu, facts) for gpu in self.gpus]
        self.devices = [
            UsbModel(bridge, ports=(1, 4 + number), address=7 + number)
            for number, bridge in enumerate(self.bridges)
        ]
        self.library = Libusb(self.devices)

    def bridge_of(self, gpu: PciGpu, facts: dict[str, Any]) -> Firmware:
        """A bridge with a card behind it, which addresses its SRAM."""
        fabric = Fabric(ports(), card_of(gpu), GpuMemory(gpu))
        made = Firmware(fabric, **facts)
        place = self.backing.take(SRAM)
        made.sram = self.backing.data[place : place + SRAM].data
        for at in range(0, SRAM, PAGE):
            gpu.windows[SRAM_ADDRESS + at] = place + at
        chain = (fabric.card[0], *fabric.ports)

        def commanded(_: Function) -> None:
            gpu.is_bus_master = all(function.is_master for function in chain)

        fabric.commanded = commanded
        return made

    def libusb(self) -> Any:
        return self.library

    def texts(self) -> dict[str, str]:
        return {**usb_files(self.devices), **self.extra}

    def is_usable(self, path: str) -> bool:
        return path.startswith("/dev/bus/usb/")


def opened(machine: UsbCards, index: int = 0, interface: str = "USB") -> AmdDevice:
    """A card of a stand-in, opened as the plugin opens one."""
    with use_system(machine):
        return AmdDevice(index, interface, aql=False)


def backend_of(machine: UsbCards) -> Backend:
    """The plugin's backend on a stand-in."""
    return replace(
        PLUGIN,
        open=lambda index, interface: opened(machine, index, interface or "USB"),
        count=lambda: len(machine.gpus),
        probe=lambda: "",
        interfaces={"USB": Interface()},
    )


BACKEND: Final = backend_of(UsbCards(2))
