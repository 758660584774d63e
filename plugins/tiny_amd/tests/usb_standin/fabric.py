"""PCIe behind the bridge: ports with configurations of type 1, and a card at their end.

PCI Express Base Specification 5.0: 7.5.1 (headers), 7.8.6 (resizable BARs), 2.2.9 (completions);
PCI-to-PCI Bridge Architecture Specification 1.2 for windows. Written from these, not from the
driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

SUCCESS, UNSUPPORTED, RETRY, ABORT = 0, 1, 2, 4
COMMAND_MEMORY, COMMAND_MASTER = 2, 4


class Mistake(Exception):
    """A request that hardware would take, lose, or do something else with."""


class Completed(Exception):
    """A completion that is not a success."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Memory(Protocol):
    """Memory behind the BARs of a card."""

    def read(self, bar: int, offset: int, size: int) -> bytes: ...

    def write(self, bar: int, offset: int, content: bytes) -> None: ...


class PlainMemory:
    """BARs that are memory and nothing else; bytes that were never written are zero."""

    def __init__(self) -> None:
        self.pages: dict[tuple[int, int], bytearray] = {}

    def _byte(self, bar: int, offset: int) -> tuple[bytearray, int]:
        return self.pages.setdefault((bar, offset >> 12), bytearray(4096)), offset & 4095

    def read(self, bar: int, offset: int, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            page, at = self._byte(bar, offset + len(found))
            found += page[at : at + size - len(found)]
        return bytes(found)

    def write(self, bar: int, offset: int, content: bytes) -> None:
        done = 0
        while done < len(content):
            page, at = self._byte(bar, offset + done)
            count = min(4096 - at, len(content) - done)
            page[at : at + count] = content[done : done + count]
            done += count


@dataclass
class BarShape:
    """A BAR as its card is made."""

    bits: int
    """Logarithm of its size: it has 1 << bits bytes."""
    wide: bool = False
    prefetchable: bool = False
    resizable: tuple[int, ...] = ()
    """Sizes it may have, as bits."""


@dataclass
class Function:
    """A function's configuration, with registers that hold what they can."""

    vendor: int
    device: int
    kind: int
    """Class code, 24 bits."""
    header: int = 0
    bars: dict[int, BarShape] = field(default_factory=dict)
    is_multiple: bool = False

    def __post_init__(self) -> None:
        self.made = {bar: shape.bits for bar, shape in self.bars.items()}
        self.space = bytearray(4096)
        self.masks = bytearray(4096)
        self.put(0x00, 2, self.vendor)
        self.put(0x02, 2, self.device)
        self.put(0x08, 4, self.kind << 8)
        self.put(0x0E, 1, self.header | 0x80 * self.is_multiple)
        self.put(0x06, 2, 0x10)
        self.put(0x34, 1, 0x40)
        self.put(0x40, 2, 0x10)  # PCI Express, the last of the list
        self.put(0x52, 2, 2 << 4 | 3)  # link status: two lanes, 8 GT/s
        self.allow(0x04, 2, 0x0547)
        if self.header == 1:
            self.allow(0x18, 4, 0x00FFFFFF)
            self.allow(0x20, 4, 0xFFF0FFF0)
            self.allow(0x24, 4, 0xFFF0FFF0)
            self.put(0x24, 4, 0x00010001)
            self.allow(0x28, 4, 0xFFFFFFFF)
            self.allow(0x2C, 4, 0xFFFFFFFF)
            self.allow(0x1C, 2, 0xF0F0)
            self.allow(0x30, 4, 0xFFFFFFFF)
        self._extended()
        for bar in self.bars:
            self.shape_bar(bar)

    def _extended(self) -> None:
        """Capability of resizable BARs at 0x200, behind one of another kind at 0x100."""
        resizable = [bar for bar, shape in self.bars.items() if shape.resizable]
        self.put(0x100, 4, 0x0001 | 2 << 16 | (0x200 << 20 if resizable else 0))
        if not resizable:
            return
        self.put(0x200, 4, 0x0015 | 1 << 16)
        for place, bar in enumerate(resizable):
            at, shape = 0x204 + 8 * place, self.bars[bar]
            self.put(at, 4, sum(1 << bits - 20 + 4 for bits in shape.resizable))
            self.put(at + 4, 4, bar | len(resizable) << 5 | shape.bits - 20 << 8)
            self.allow(at + 4, 4, 0x3F00)

    def put(self, offset: int, size: int, value: int) -> None:
        self.space[offset : offset + size] = value.to_bytes(size, "little")

    def allow(self, offset: int, size: int, mask: int) -> None:
        self.masks[offset : offset + size] = mask.to_bytes(size, "little")

    def get(self, offset: int, size: int) -> int:
        return int.from_bytes(self.space[offset : offset + size], "little")

    def shape_bar(self, bar: int) -> None:
        """Give a BAR the bits of its size."""
        shape = self.bars[bar]
        flags = 4 * shape.wide | 8 * shape.prefetchable
        mask = ~((1 << shape.bits) - 1) & (1 << 64 if shape.wide else 1 << 32) - 1
        size = 8 if shape.wide else 4
        self.allow(0x10 + 4 * bar, size, mask)
        self.put(0x10 + 4 * bar, size, self.get(0x10 + 4 * bar, size) & mask | flags)

    def write(self, offset: int, size: int, value: int) -> None:
        """A write of configuration; bits that cannot be written stay."""
        if self.decodes and 0x10 <= offset < (0x18 if self.header else 0x28):
            raise Mistake(f"a BAR at {offset:#x} is written while its function decodes memory")
        for number in range(size):
            mask, byte = self.masks[offset + number], value >> 8 * number & 0xFF
            kept = self.space[offset + number] & ~mask
            self.space[offset + number] = kept | byte & mask
        if 0x200 < offset < 0x300:
            self._resize()

    def _resize(self) -> None:
        for at in range(0x208, 0x238, 8):
            control = self.get(at, 4)
            bar, bits = control & 7, (control >> 8 & 0x3F) + 20
            shape = self.bars.get(bar)
            if not control or shape is None or bits == shape.bits:
                continue
            if bits not in shape.resizable:
                raise Mistake(f"BAR{bar} is resized to 1 << {bits}, which it does not offer")
            if self.get(4, 2) & COMMAND_MEMORY:
                raise Mistake(f"BAR{bar} is resized while the card decodes memory")
            shape.bits = bits
            self.shape_bar(bar)

    def bar(self, number: int) -> tuple[int, int]:
        """Address and size of a BAR."""
        shape = self.bars[number]
        value = self.get(0x10 + 4 * number, 8 if shape.wide else 4)
        return value & ~0xF, 1 << shape.bits

    @property
    def decodes(self) -> bool:
        return bool(self.get(4, 2) & COMMAND_MEMORY)

    @property
    def is_master(self) -> bool:
        return bool(self.get(4, 2) & COMMAND_MASTER)

    def windows(self) -> list[tuple[int, int]]:
        """First and last address of the windows of a port that are open."""
        base, limit = self.get(0x20, 2), self.get(0x22, 2)
        found = [((base & 0xFFF0) << 16, (limit & 0xFFF0) << 16 | 0xFFFFF)]
        base, limit = self.get(0x24, 2), self.get(0x26, 2)
        first = (base & 0xFFF0) << 16 | self.get(0x28, 4) << 32
        last = (limit & 0xFFF0) << 16 | 0xFFFFF | self.get(0x2C, 4) << 32
        found.append((first, last))
        return [window for window in found if window[0] <= window[1]]


class Fabric:
    """A chain of ports, and the functions of a card at its end."""

    def __init__(
        self, ports: list[Function], card: list[Function], memory: Memory, *, retries: int = 0
    ) -> None:
        self.ports, self.card, self.memory = ports, card, memory
        self.retries = retries
        """Configuration requests that the card answers by "later" after a reset."""
        self.waits = retries
        self.commanded: Callable[[Function], None] = lambda _: None
        """Called with a function of the card whose command register was written."""
        self.of_host: Callable[[int], tuple[bytearray | memoryview, int] | None] = lambda _: None
        """Memory of the host as the card sees it: some bytes, and the place in them."""

    # --- configuration

    def function(self, bus: int, device: int, number: int) -> Function:
        """The function that a request reaches. Raises Completed where there is none."""
        if device:
            raise Completed(UNSUPPORTED)
        if bus == 0:
            if number:
                raise Completed(UNSUPPORTED)
            return self.ports[0]
        for place, port in enumerate(self.ports):
            secondary, subordinate = port.get(0x19, 1), port.get(0x1A, 1)
            if not secondary <= bus <= subordinate or secondary == 0:
                raise Completed(UNSUPPORTED)
            if port.get(0x18, 1) != (self.ports[place - 1].get(0x19, 1) if place else 0):
                raise Mistake(f"port {place} has a primary bus that is not the one it is on")
            if bus == secondary:
                below = self.ports[place + 1 : place + 2] or self.card
                if number >= len(below):
                    raise Completed(UNSUPPORTED)
                return below[number]
        raise Completed(UNSUPPORTED)

    def configure(
        self, bus: int, device: int, number: int, offset: int, enables: int, value: int | None
    ) -> int:
        """A configuration request for the bytes of a word."""
        found = self.function(bus, device, number)
        if found in self.card and self.waits:
            self.waits -= 1
            raise Completed(RETRY)
        if value is None:
            return found.get(offset, 4)
        places = [place for place in range(4) if enables >> place & 1]
        low, count = places[0], len(places)
        found.write(offset + low, count, value >> 8 * low & (1 << 8 * count) - 1)
        if found in self.card and offset == 4:
            self.commanded(found)
            if found.decodes:
                self.verify_bars(found)
        return 0

    def verify_bars(self, function: Function) -> None:
        """BARs of a function that decodes lie in windows, and nowhere twice."""
        taken: list[tuple[int, int, str]] = []
        for port in self.ports:
            for bar in port.bars:
                at, size = port.bar(bar)
                if any(first <= at <= last for first, last in port.windows()):
                    raise Mistake("a port's own BAR lies in the window to what is behind it")
                taken.append((at, at + size, "of a port"))
        for bar in function.bars:
            at, size = function.bar(bar)
            for port in self.ports:
                if not port.decodes:
                    raise Mistake("a card decodes memory behind a port that does not")
                windows = port.windows()
                if not any(f <= at and at + size - 1 <= last for f, last in windows):
                    raise Mistake(f"BAR{bar} at {at:#x} is not in a window of each port")
            taken.append((at, at + size, f"BAR{bar}"))
        taken.sort()
        for (_, end, one), (begin, _, other) in pairwise(taken):
            if begin < end:
                raise Mistake(f"{one} and {other} overlap at {begin:#x}")

    # --- memory

    def place(self, address: int) -> tuple[int, int]:
        """BAR of the card and offset that an address reaches. Raises Completed."""
        for port in self.ports:
            if not port.decodes or not any(f <= address <= last for f, last in port.windows()):
                raise Completed(UNSUPPORTED)
        if self.card[0].decodes:
            for bar in self.card[0].bars:
                at, size = self.card[0].bar(bar)
                if at <= address < at + size:
                    return bar, address - at
        raise Completed(UNSUPPORTED)

    def span(self, address: int, size: int) -> tuple[int, int]:
        """BAR and offset of words that lie in one BAR."""
        bar, offset = self.place(address)
        if self.place(address + size - 4) != (bar, offset + size - 4):
            raise Mistake(f"{size} bytes at {address:#x} leave BAR{bar}")
        return bar, offset

    def read(self, address: int, size: int = 4) -> bytes:
        bar, offset = self.span(address, size)
        return self.memory.read(bar, offset, size)

    def write_words(self, address: int, content: bytes) -> None:
        """Posted writes of words, one after the other."""
        try:
            bar, offset = self.span(address, len(content))
        except Completed:
            raise Mistake(f"writes at {address:#x} reach nothing") from None
        self.memory.write(bar, offset, content)

    def write(self, address: int, enables: int, word: bytes) -> None:
        """A posted write: what reaches nothing would be lost without a word."""
        try:
            bar, offset = self.place(address)
        except Completed:
            raise Mistake(f"a write at {address:#x} reaches nothing") from None
        places = [place for place in range(4) if enables >> place & 1]
        low, high = places[0], places[-1] + 1
        self.memory.write(bar, offset + low, word[low:high])

    # --- the card as master

    def host_bytes(self, address: int) -> tuple[bytearray | memoryview, int]:
        """Memory of the host that the card reaches."""
        for device in (self.card[0], *self.ports):
            if not device.is_master:
                raise Mistake("the card reads or writes memory of the host, and is no bus master")
        for port in self.ports:
            if any(first <= address <= last for first, last in port.windows()):
                raise Mistake(f"{address:#x} is in a window: it never leaves the card's port")
        found = self.of_host(address)
        if found is None:
            raise Mistake(f"the card addresses memory of the host at {address:#x}: none is there")
        return found

    def read_host(self, address: int, size: int) -> bytes:
        """Bytes that the card reads."""
        memory, at = self.host_bytes(address)
        return bytes(memory[at : at + size])

    def write_host(self, address: int, content: bytes) -> None:
        """Bytes that the card writes."""
        memory, at = self.host_bytes(address)
        memory[at : at + len(content)] = content

    def reset(self) -> None:
        """Every function as after a fundamental reset."""
        for function in (*self.ports, *self.card):
            for bar, bits in function.made.items():
                function.bars[bar].bits = bits
            function.__post_init__()
        for function in self.card:
            self.commanded(function)
        self.waits = self.retries
