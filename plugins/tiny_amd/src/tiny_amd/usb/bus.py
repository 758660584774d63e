"""`UsbBus`: the way to a card over a bridge, as AM's driver uses it.

BARs are reached by PCIe requests that the bridge makes; two words of 32 bits are the most that a
64-bit access becomes, the low one first: values that only grow are never read as more than they
are, and a doorbell rings twice, with the right value when the high word stays the same (which is
not proven on a card). Memory of the system is the bridge's SRAM, which the card sees at 2 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tiny_amd.am.bus import PAGE, SystemMemory
from tiny_amd.usb.bridge import GUARD_SLOT, SECTOR_BYTES, SLOT_BYTES, Bridge
from tiny_amd.usb.pcie import EnumeratedCard
from tinycore.errors import OutOfMemory
from tinycore.plugin import lock

__all__ = ["BarView", "SramView", "UsbBus"]

SRAM_ADDRESS: Final = 0x20_0000
"""Address of SRAM as the card sees it."""
_LOW_WORD: Final = 0xFFFFFFFF


class UsbBus:
    """A card behind a bridge."""

    def __init__(self, bridge: Bridge, card: EnumeratedCard) -> None:
        self.bridge, self.card = bridge, card
        self.name = f"{card} behind {bridge.usb}"
        self.device_id = card.device
        self.bar_bytes: Mapping[int, int] = {number: bar.size for number, bar in card.bars.items()}
        self._taken = [False] * GUARD_SLOT
        self._lock = lock()

    def address(self, bar: int, offset: int) -> int:
        """Address of the bus at an offset of a BAR."""
        return self.card.bars[bar].address + offset

    # --- BARs

    def read32(self, bar: int, offset: int) -> int:
        """Read 32 bits at once."""
        return int.from_bytes(self.bridge.memory_read(self.address(bar, offset), 4), "little")

    def write32(self, bar: int, offset: int, value: int) -> None:
        """Write 32 bits at once."""
        self.bridge.memory_write(self.address(bar, offset), value.to_bytes(4, "little"))

    def write64(self, bar: int, offset: int, value: int) -> None:
        """Write 64 bits as two words, the low one first."""
        with self.bridge.lock:
            self.write32(bar, offset, value & _LOW_WORD)
            self.write32(bar, offset + 4, value >> 32)

    def read64(self, bar: int, offset: int) -> int:
        """Read 64 bits, whose high word is the same before and after the low one is read."""
        with self.bridge.lock:
            high = self.read32(bar, offset + 4)
            while True:
                low, before = self.read32(bar, offset), high
                high = self.read32(bar, offset + 4)
                if high == before:
                    return high << 32 | low

    def read_block(self, bar: int, offset: int, size: int) -> bytes:
        """Read bytes of memory."""
        return self.bridge.memory_read(self.address(bar, offset), size)

    def write_block(self, bar: int, offset: int, content: bytes | memoryview) -> None:
        """Write bytes of memory."""
        self.bridge.memory_write(self.address(bar, offset), content)

    # --- configuration space

    def read_config(self, offset: int, size: int) -> int:
        """Read 1, 2 or 4 bytes."""
        return self.bridge.config_read(self.card.bus, 0, offset, size)

    def write_config(self, offset: int, size: int, value: int) -> None:
        """Write 1, 2 or 4 bytes."""
        self.bridge.config_write(self.card.bus, 0, offset, value, size)

    # --- system memory

    def allocate(self, size: int, address: int = 0) -> SystemMemory:
        """Slots of SRAM, cleared, for copies: the host reaches them by calls, a part of a slot by
        reading and writing the whole of it. Raises OutOfMemory.
        """
        count = -(-size // SLOT_BYTES)
        with self._lock:
            first = self._find(count)
            self._taken[first : first + count] = [True] * count
        view = SramView(self.bridge, first, count * SLOT_BYTES)
        view[0 : count * SLOT_BYTES] = bytes(count * SLOT_BYTES)
        begin = SRAM_ADDRESS + first * SLOT_BYTES
        pages = tuple(range(begin, begin + count * SLOT_BYTES, PAGE))
        return SystemMemory(0, count * SLOT_BYTES, pages, view)

    def _find(self, count: int) -> int:
        for first in range(len(self._taken) - count + 1):
            if not any(self._taken[first : first + count]):
                return first
        free = self._taken.count(False) * SLOT_BYTES
        raise OutOfMemory(
            f"{self.name}: no {count * SLOT_BYTES:,} bytes of SRAM in a row are left, of {free:,} "
            "that are free: a card behind USB sees no other memory of the host"
        )

    def free(self, memory: SystemMemory) -> None:
        """Give slots back."""
        first = (memory.pages[0] - SRAM_ADDRESS) // SLOT_BYTES
        count = memory.size // SLOT_BYTES
        with self._lock:
            self._taken[first : first + count] = [False] * count

    def close(self) -> None:
        """Give the bridge back. Its slot keeps its power, and the card what it does."""
        self.bridge.usb.close()


class BarView:
    """Memory of the card through a BAR (a HostView)."""

    def __init__(self, bus: UsbBus, bar: int, start: int) -> None:
        self.bus, self.bar, self.start = bus, bar, start

    def __getitem__(self, part: slice) -> bytes:
        begin = part.start or 0
        return self.bus.read_block(self.bar, self.start + begin, part.stop - begin)

    def __setitem__(self, part: slice, content: bytes | memoryview) -> None:
        self.bus.write_block(self.bar, self.start + (part.start or 0), content)

    def word(self, offset: int) -> int:
        """The 64 bits at an offset."""
        return self.bus.read64(self.bar, self.start + offset)

    def set_word(self, offset: int, value: int) -> None:
        """Write the 64 bits at an offset, the low half first."""
        self.bus.write64(self.bar, self.start + offset, value)


class SramView:
    """Slots of SRAM (a HostView), for copies: the card must not write to a slot meanwhile."""

    def __init__(self, bridge: Bridge, slot: int, size: int) -> None:
        self.bridge, self.slot, self.size = bridge, slot, size

    def _read(self, begin: int, end: int) -> bytes:
        """Bytes from a place on, which are read from the start of its slot on."""
        if begin >= end:
            return b""
        first, inside = divmod(begin, SLOT_BYTES)
        return self.bridge.sram_read(self.slot + first, inside + end - begin)[inside:]

    def __getitem__(self, part: slice) -> bytes:
        return self._read(part.start or 0, part.stop)

    def __setitem__(self, part: slice, content: bytes | memoryview) -> None:
        begin, end = part.start or 0, part.stop
        if begin == end:
            return
        first = begin // SLOT_BYTES
        last = -(-end // SECTOR_BYTES) * SECTOR_BYTES
        with self.bridge.lock:
            before = self._read(first * SLOT_BYTES, begin)
            behind = self._read(end, last)
            self.bridge.sram_write(self.slot + first, b"".join((before, content, behind)))

    def word(self, offset: int) -> int:
        """The 64 bits at an offset."""
        return int.from_bytes(self._read(offset, offset + 8), "little")

    def set_word(self, offset: int, value: int) -> None:
        """Write the 64 bits at an offset."""
        self[offset : offset + 8] = value.to_bytes(8, "little")
