"""Enumeration of PCIe behind the bridge: bus numbers, BARs and windows, as firmware of a PC does.

PCI Express Base Specification 5.0, 7.5.1 (headers), 7.5.3 (PCI Express capability) and 7.8.6
(resizable BARs); PCI-to-PCI Bridge Architecture Specification 1.2, 3.2.5. A chain of ports leads
to the card: only device 0 of each bus is asked, as there is no other on a link, and the bridge's
own first port answers for all 32 of its bus (which is told by tools of its firmware, and not
proven here). What ports have for I/O stays closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiny_amd.usb.bridge import Bridge, CompletionError, CompletionStatus
from tinycore.errors import DeviceUnavailable

__all__ = ["AssignedBar", "EnumeratedCard", "enumerate_card"]

WINDOW_START: Final = 0x1000_0000
"""Addresses of 32 bits: above SRAM, which the card sees at 2 MiB."""
WINDOW_END: Final = 0xE000_0000
PREFETCHABLE_START: Final = 32 << 30
LARGEST_BAR: Final = 64 << 30
"""BARs are made no larger: more than the memory of every card of RDNA."""
_WINDOW_BYTES: Final = 1 << 20
_ASMEDIA, _AMD = 0x1B21, 0x1002
_PORT_CLASS: Final = 0x0604
_COMPUTES: Final = (0x03, 0x12)
"""Base classes of display controllers and of accelerators."""
_DEEPEST: Final = 8
_LAST_BUS: Final = 0xFF
_COMMAND, _CLASS, _HEADER, _BARS = 0x04, 0x0A, 0x0E, 0x10
_BUSES, _MEMORY_WINDOW, _PREFETCHABLE_WINDOW = 0x18, 0x20, 0x24
_PREFETCHABLE_HIGH, _IO_WINDOW, _IO_HIGH = 0x28, 0x1C, 0x30
_DECODE_AND_MASTER: Final = 0x6
_CAPABILITIES, _PCI_EXPRESS, _LINK_STATUS = 0x34, 0x10, 0x12
_EXTENDED, _RESIZABLE = 0x100, 0x15
_BAR_COUNT: Final = 6
_PORT_BAR_COUNT: Final = 2


@dataclass(frozen=True)
class AssignedBar:
    """A BAR of memory at the address that it was given."""

    address: int
    size: int
    is_wide: bool
    """With 64 bits of address."""
    is_prefetchable: bool


@dataclass(frozen=True)
class EnumeratedCard:
    """The card at the end of the chain, reached through all ports before it."""

    bus: int
    vendor: int
    device: int
    bars: dict[int, AssignedBar]
    lanes: int
    """Width of its own link."""
    generation: int
    """Generation of its own link's speed: 3 for 8 GT/s."""

    def __str__(self) -> str:
        return f"card {self.vendor:04x}:{self.device:04x} on bus {self.bus}"


def enumerate_card(bridge: Bridge, *, resize: bool = True) -> EnumeratedCard:
    """Number the buses, find the card, and give it and the ports before it their addresses.

    `resize` makes its memory's BAR as large as it offers. Raises DeviceUnavailable where there is
    no card of AMD, or no room for it.
    """
    bridge.bring_up_link()
    verify_words(bridge)
    ports = number_buses(bridge)
    card = ports[-1] + 1
    vendor, device = verify_card(bridge, card)
    silence(bridge, card, len(ports))
    if resize:
        resize_memory(bridge, card)
    bars = assign(bridge, ports, card)
    for bus in (*ports, card):
        bridge.config_write(bus, 0, _COMMAND, _DECODE_AND_MASTER, 2)
    lanes, generation = link_of(bridge, card)
    return EnumeratedCard(card, vendor, device, bars, lanes, generation)


def verify_words(bridge: Bridge) -> None:
    """Raise DeviceUnavailable unless the first port is the bridge's own, read as words of ours."""
    try:
        found = bridge.config_read(0, 0, 0, 2)
    except CompletionError as error:
        raise DeviceUnavailable(f"the bridge's own port does not answer: {error}") from error
    if found != _ASMEDIA:
        raise DeviceUnavailable(
            f"{bridge.usb}: its own port says vendor {found:04x} and not {_ASMEDIA:04x}: the "
            "firmware has another order of bytes, which those of before 2026 have. Flash a newer "
            "one (github.com/tinygrad/asm2464pd-firmware)"
        )


def number_buses(bridge: Bridge) -> list[int]:
    """Give each port its buses, from the first on; the buses that ports are on."""
    ports: list[int] = []
    for bus in range(_DEEPEST):
        if not is_port(bridge, bus):
            break
        # All that is behind may be behind this port until its end is known.
        bridge.config_write(bus, 0, _BUSES, bus | bus + 1 << 8 | _LAST_BUS << 16)
        ports.append(bus)
    else:
        raise DeviceUnavailable(f"{bridge.usb}: more than {_DEEPEST} ports behind each other")
    for bus in ports:
        bridge.config_write(bus, 0, _BUSES + 2, ports[-1] + 1, 1)
    return ports


def is_port(bridge: Bridge, bus: int) -> bool:
    """True if device 0 of a bus is a port, behind which there is another bus."""
    try:
        return bridge.config_read(bus, 0, _CLASS, 2) == _PORT_CLASS
    except CompletionError as error:
        if error.status != CompletionStatus.UNSUPPORTED:
            raise
        return False


def verify_card(bridge: Bridge, bus: int) -> tuple[int, int]:
    """Vendor and device of the card. Raises DeviceUnavailable where it is none of AMD's."""
    try:
        found = bridge.config_read(bus, 0, 0)
        kind = bridge.config_read(bus, 0, _CLASS + 1, 1)
    except CompletionError as error:
        raise DeviceUnavailable(f"no card answers on bus {bus}: {error}") from error
    vendor, device = found & 0xFFFF, found >> 16
    if vendor != _AMD or kind not in _COMPUTES:
        raise DeviceUnavailable(
            f"the device behind {bridge.usb} is {vendor:04x}:{device:04x} of class {kind:#04x}, "
            "which is no card of AMD"
        )
    return vendor, device


def silence(bridge: Bridge, card: int, ports: int) -> None:
    """Have nothing decode addresses or read memory while they are given out."""
    functions = 8 if bridge.config_read(card, 0, _HEADER, 1) & 0x80 else 1
    for function in range(functions):
        try:
            bridge.config_write(card, function, _COMMAND, 0, 2)
        except CompletionError as error:
            if error.status != CompletionStatus.UNSUPPORTED:
                raise
    for bus in reversed(range(ports)):
        bridge.config_write(bus, 0, _COMMAND, 0, 2)


# --- capabilities


def link_of(bridge: Bridge, bus: int) -> tuple[int, int]:
    """Lanes and generation of the link of device 0 of a bus; zeros where it does not tell."""
    at = bridge.config_read(bus, 0, _CAPABILITIES, 1) & 0xFC
    for _ in range(48):  # as many as there is room for, so that a loop ends
        if not at:
            break
        if bridge.config_read(bus, 0, at, 1) == _PCI_EXPRESS:
            status = bridge.config_read(bus, 0, at + _LINK_STATUS, 2)
            return status >> 4 & 0x3F, status & 0xF
        at = bridge.config_read(bus, 0, at + 1, 1) & 0xFC
    return 0, 0


def extended_capability(bridge: Bridge, bus: int, wanted: int) -> int:
    """Offset of an extended capability; 0 where there is none."""
    at = _EXTENDED
    for _ in range(240):
        header = bridge.config_read(bus, 0, at)
        if header & 0xFFFF == wanted:
            return at
        at = header >> 20 & 0xFFC
        if at < _EXTENDED:
            break
    return 0


def resize_memory(bridge: Bridge, bus: int) -> None:
    """Make BAR0 as large as it offers, up to LARGEST_BAR; it stays as it is where it cannot be."""
    at = extended_capability(bridge, bus, _RESIZABLE)
    if not at:
        return
    count = bridge.config_read(bus, 0, at + 8) >> 5 & 7
    for entry in range(at + 4, at + 4 + 8 * count, 8):
        control = bridge.config_read(bus, 0, entry + 4)
        if control & 7:
            continue
        offered = bridge.config_read(bus, 0, entry) >> 4  # bit n: 1 MiB << n
        sizes = [n for n in range(28) if offered >> n & 1 and 1 << n + 20 <= LARGEST_BAR]
        if sizes:
            bridge.config_write(bus, 0, entry + 4, control & ~0x3F00 | sizes[-1] << 8)


# --- addresses


def sized_bars(bridge: Bridge, bus: int, count: int) -> dict[int, AssignedBar]:
    """BARs of memory of device 0 of a bus, without addresses: those that hold only ones of them."""
    found: dict[int, AssignedBar] = {}
    number = 0
    while number < count:
        offset = _BARS + 4 * number
        bridge.config_write(bus, 0, offset, 0xFFFFFFFF)
        held = bridge.config_read(bus, 0, offset)
        is_wide = held & 0x7 == 0x4
        if is_wide:
            bridge.config_write(bus, 0, offset + 4, 0xFFFFFFFF)
            mask = held & ~0xF | bridge.config_read(bus, 0, offset + 4) << 32
            bridge.config_write(bus, 0, offset + 4, 0)
        else:
            mask = held & ~0xF | 0xFFFFFFFF << 32 if held & ~0xF else 0
        bridge.config_write(bus, 0, offset, 0)
        if mask and not held & 1:  # bit 0 is that of I/O
            size = -mask & (1 << 64) - 1
            found[number] = AssignedBar(0, size, is_wide, bool(held & 8))
        number += 2 if is_wide else 1
    return found


def assign(bridge: Bridge, ports: list[int], card: int) -> dict[int, AssignedBar]:
    """Addresses of all BARs, and of the windows of ports that lead to them.

    A port's own BARs come before its window, in that of the port above it. So all windows end
    together, and each begins where the port's own BARs end.
    """
    near = WINDOW_START
    windows = []
    for bus in ports:
        for number, bar in descending(sized_bars(bridge, bus, _PORT_BAR_COUNT)):
            near = aligned(near, bar.size)
            place(bridge, bus, number, near, bar)
            near += bar.size
        near = aligned(near, _WINDOW_BYTES)
        windows.append(near)
    far = PREFETCHABLE_START
    bars = {}
    for number, bar in descending(sized_bars(bridge, card, _BAR_COUNT)):
        if bar.is_wide and bar.is_prefetchable:
            at = far = aligned(far, bar.size)
            far += bar.size
        else:
            at = near = aligned(near, bar.size)
            near += bar.size
        bars[number] = place(bridge, card, number, at, bar)
    near, far = aligned(near, _WINDOW_BYTES), aligned(far, _WINDOW_BYTES)
    if near > WINDOW_END:
        raise DeviceUnavailable(f"BARs of the card need {near - WINDOW_START:,} bytes of 32 bits")
    for bus, start in zip(ports, windows, strict=True):
        open_windows(bridge, bus, (start, near), (PREFETCHABLE_START, far))
    return dict(sorted(bars.items()))


def descending(bars: dict[int, AssignedBar]) -> list[tuple[int, AssignedBar]]:
    """BARs by size, the largest first: so none leaves a gap before the next."""
    return sorted(bars.items(), key=lambda entry: (-entry[1].size, entry[0]))


def aligned(address: int, size: int) -> int:
    """The next address that is a multiple of a size."""
    return -(-address // size) * size


def place(bridge: Bridge, bus: int, number: int, address: int, bar: AssignedBar) -> AssignedBar:
    """Give a BAR its address."""
    offset = _BARS + 4 * number
    bridge.config_write(bus, 0, offset, address & 0xFFFFFFFF)
    if bar.is_wide:
        bridge.config_write(bus, 0, offset + 4, address >> 32)
    return AssignedBar(address, bar.size, bar.is_wide, bar.is_prefetchable)


def open_windows(
    bridge: Bridge, bus: int, memory: tuple[int, int], prefetchable: tuple[int, int]
) -> None:
    """Have a port pass on requests to two spans, each from a start to an end; close its I/O."""
    last = memory[1] - 1
    words = memory[0] >> 16 & 0xFFF0 | (last & 0xFFF00000)
    if memory[0] >= memory[1]:
        words = 0x0000FFF0  # a base above the limit closes a window
    bridge.config_write(bus, 0, _MEMORY_WINDOW, words)
    first, last = prefetchable[0], prefetchable[1] - 1
    if first > last:
        bridge.config_write(bus, 0, _PREFETCHABLE_WINDOW, 0x0000FFF0)
        bridge.config_write(bus, 0, _PREFETCHABLE_HIGH, 0)
        bridge.config_write(bus, 0, _PREFETCHABLE_HIGH + 4, 0)
    else:
        words = first >> 16 & 0xFFF0 | (last & 0xFFF00000)
        bridge.config_write(bus, 0, _PREFETCHABLE_WINDOW, words)
        bridge.config_write(bus, 0, _PREFETCHABLE_HIGH, first >> 32)
        bridge.config_write(bus, 0, _PREFETCHABLE_HIGH + 4, last >> 32)
    bridge.config_write(bus, 0, _IO_WINDOW, 0x00F0, 2)
    bridge.config_write(bus, 0, _IO_HIGH, 0)
