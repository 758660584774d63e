"""`UsbDriver`: a card behind a bridge, with the same face as one on the PCI bus.

What both the host and the card write (rings, signals, arguments) lies in the card's memory, where
the host reaches it through BAR0; each write is flushed, so that the card sees it at once. Copies
between tensors and the host go through the bridge's SRAM. When the host has read a signal that a
copy to SRAM is done, SRAM has it: PCIe keeps the answer to a read behind writes that the card made
before it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from tiny_amd.am.bus import MEMORY_BAR, PAGE, SystemMemory
from tiny_amd.am.interface import AmDriver
from tiny_amd.am.pages import HUGE_PAGE
from tiny_amd.am.vram import Vram
from tiny_amd.kfd import Allocation, Kind, reserve_addresses
from tiny_amd.topology import Card
from tiny_amd.usb.bridge import SLOT_BYTES, Bridge
from tiny_amd.usb.bus import BarView, UsbBus
from tiny_amd.usb.pcie import enumerate_card
from tiny_amd.usb.transfers import UsbHandle
from tiny_hcq import System, system
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory

__all__ = ["UsbDriver", "VramView", "open_usb_card"]

STAGING_SLOTS: Final = 15


class VramView(BarView):
    """Memory of the card that the host writes by calls, and that the card sees at once."""

    def __init__(self, bus: UsbBus, vram: Vram, start: int) -> None:
        super().__init__(bus, MEMORY_BAR, start)
        self.vram = vram

    def __setitem__(self, part: slice, content: bytes | memoryview) -> None:
        super().__setitem__(part, content)
        self.vram.flush()

    def set_word(self, offset: int, value: int) -> None:
        """Write the 64 bits at an offset."""
        super().set_word(offset, value)
        self.vram.flush()


def open_usb_card(index: int) -> UsbDriver:
    """A card behind a bridge, with addresses given to it and brought up. Raises DeviceUnavailable,
    with the bridge given back.
    """
    bridge = Bridge(UsbHandle(index))
    try:
        bus = UsbBus(bridge, enumerate_card(bridge))
        return UsbDriver(bus, system())
    except DeviceUnavailable:
        bridge.usb.close()
        raise
    except DeviceError as error:
        bridge.usb.close()
        raise DeviceUnavailable(str(error)) from error
    except BaseException:
        bridge.usb.close()
        raise


class UsbDriver(AmDriver):
    """One card, from `DEV=USB+AMD`."""

    staging_bytes: int = STAGING_SLOTS * SLOT_BYTES
    staging_buffers: int = 2

    def __init__(self, bus: UsbBus, machine: System) -> None:
        """Bring a card up. Raises DeviceUnavailable and DeviceError, with the bus closed."""
        self.usb_bus = bus
        super().__init__(bus, machine, lambda: "")  # nobody has had it before

    def _place(self, address: int, size: int, *, is_visible: bool) -> int:
        """Map memory of the card at an address, and return where in it that lies."""
        running = self.running
        place = running.vram.take(size, HUGE_PAGE if size >= HUGE_PAGE else PAGE)
        if is_visible and place + size > self.bus.bar_bytes[MEMORY_BAR]:
            running.vram.give_back(place, size)
            raise OutOfMemory(
                f"{self.bus.name}: {size:,} bytes that the host sees as well are not left in the "
                f"{self.bus.bar_bytes[MEMORY_BAR] >> 20} MiB that it reaches"
            )
        running.pages.map_vram(address, place, size, is_uncached=is_visible)
        return place

    def allocate(self, card: Card, size: int, kind: Kind, *, is_shared: bool = False) -> Allocation:
        """Memory of the card. Raises OutOfMemory and DeviceError."""
        size = -(-size // PAGE) * PAGE
        is_visible = bool(kind & Kind.PUBLIC)
        address = reserve_addresses(self.machine, size)
        self._verify_outside(address, size)
        with self.lock, ExitStack() as undo:
            undo.callback(self.machine.unmap, address, size)
            place = self._places[address] = self._place(address, size, is_visible=is_visible)
            self.running.flush()
            undo.pop_all()
        window = VramView(self.usb_bus, self.running.vram, place) if is_visible else None
        return Allocation(address, size, 0, is_visible, [card.gpu_id], window)

    def allocate_staging(self, size: int) -> Allocation:
        """SRAM for copies. Raises OutOfMemory and DeviceError."""
        memory = self.usb_bus.allocate(size)
        assert not isinstance(memory.host, memoryview)
        address = reserve_addresses(self.machine, memory.size)
        self._verify_outside(address, memory.size)
        with self.lock:
            self.running.pages.map_system(address, memory.pages)
            self._places[address] = memory
            self.running.flush()
        return Allocation(address, memory.size, 0, is_visible=True, window=memory.host)

    def free(self, allocation: Allocation) -> None:
        """Give memory back. What a card that is out of reach still has is given to nobody."""
        with self.lock:
            place = self._places.pop(allocation.address)
            self.machine.unmap(allocation.address, allocation.size)
            try:
                self.running.pages.unmap(allocation.address, allocation.size)
                self.running.flush()
            except DeviceError:
                self.running.engines.has_failed = True
                return
            if isinstance(place, SystemMemory):
                self.usb_bus.free(place)
            else:
                self.running.vram.give_back(place, allocation.size)
