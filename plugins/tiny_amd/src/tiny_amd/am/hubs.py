"""Hubs: the two units that translate a card's addresses (GFXHUB and MMHUB), and their caches.

Both have the same registers at other places. Bits: asic_reg/gc/gc_11_0_0_sh_mask.h. What the
hubs leave to context 0 lies between START and END; what lies in the aperture is memory of the card
itself, by its own addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiny_amd.am.discovery import HardwareId
from tiny_amd.am.registers import Register, Registers
from tinycore.errors import DeviceError

__all__ = ["GFXHUB", "MMHUB", "Fault", "Hub", "HubPlaces"]

_ENGINE: Final = 17
"""Invalidation engine of drivers; the others belong to firmware."""
_CONTEXTS: Final = 16
HUB_SECONDS: Final = 1.0
"""Time that a hub has to answer."""
ADDRESS_BITS: Final = 48
_PAGE_SHIFT: Final = 12
_APERTURE_SHIFT: Final = 18
_LOCATION_SHIFT: Final = 24
# MC_VM_MX_L1_TLB_CNTL: on, system access by the aperture, the advanced model, uncached
_L1_CONTROL: Final = 1 | 3 << 3 | 1 << 6 | 3 << 11
_L1_FIELDS: Final = 1 | 3 << 3 | 1 << 5 | 1 << 6 | 7 << 11
_L2_ENABLED: Final = 1
_L2_FRAGMENTS: Final = 1 << 1
_L2_INVALIDATED: Final = 1 | 1 << 1
# VM_CONTEXT0_CNTL: on, three levels of directories, faults of every kind go to the default page
_CONTEXT_ENABLED: Final = 1
_DEPTH: Final = 3 << 1
_FAULTS: Final = sum(1 << bit for bit in (10, 12, 14, 16, 18, 20, 22, 24))
# VM_INVALIDATE_ENG_REQ
_ALL_LEVELS: Final = 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23
_CLEAR_FAULT: Final = 1


@dataclass(frozen=True)
class HubPlaces:
    """First registers of the groups that a hub has."""

    name: str
    shared: Register
    """MC_VM_FB_OFFSET, and what follows it."""
    location: Register
    """MC_VM_FB_LOCATION_BASE, and what follows it."""
    cache: Register
    """VM_L2_CNTL, and what follows it."""
    contexts: Register
    """VM_CONTEXT0_CNTL, and what follows it."""
    has_semaphore: bool
    """True if firmware uses its invalidation engine too."""


def _places(
    name: str, block: HardwareId, offsets: tuple[int, ...], *, semaphore: bool
) -> HubPlaces:
    groups = ("FB_OFFSET", "FB_LOCATION_BASE", "L2_CNTL", "CONTEXT0_CNTL")
    shared, location, cache, contexts = (
        Register(block, 0, offset, f"{name}_{group}")
        for offset, group in zip(offsets, groups, strict=True)
    )
    return HubPlaces(name, shared, location, cache, contexts, semaphore)


GFXHUB: Final = _places("GCVM", HardwareId.GC, (0x15A7, 0x1678, 0x15BC, 0x1688), semaphore=False)
MMHUB: Final = _places("MMVM", HardwareId.MMHUB, (0x8D7, 0x8EC, 0x700, 0x740), semaphore=True)

# Distances from the first register of a group
_DEFAULT_PAGE: Final = 1
"""MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_LSB, from shared."""
_AGP_TOP: Final = 2
_APERTURE_LOW: Final = 5
_L1: Final = 7
_L2_2: Final = 1
_L2_3: Final = 2
_FAULT_CONTROL: Final = 8
_FAULT_STATUS: Final = 12
_FAULT_ADDRESS: Final = 13
_FAULT_PAGE: Final = 15
_IDENTITY_LOW: Final = 18
_IDENTITY_OFFSET: Final = 22
_SEMAPHORE: Final = 17 + _ENGINE
_REQUEST: Final = 35 + _ENGINE
_ACKNOWLEDGE: Final = 53 + _ENGINE
_RANGE: Final = 71
_BASE: Final = 107
_START: Final = 139
_END: Final = 171


@dataclass(frozen=True)
class Fault:
    """An access that no table allows."""

    address: int
    is_write: bool
    permissions: int
    walker_error: int


class Hub:
    """One hub of a card."""

    def __init__(self, registers: Registers, places: HubPlaces) -> None:
        self.registers, self.places = registers, places

    @property
    def location(self) -> tuple[int, int]:
        """The card's own addresses of its memory: the first, and the one behind the last."""
        base = self.registers.read(self.places.location) & 0xFFFFFF
        top = self.registers.read(self.places.location + 1) & 0xFFFFFF
        return base << _LOCATION_SHIFT, (top + 1) << _LOCATION_SHIFT

    def program(self, root: int, location: tuple[int, int], default_page: int) -> None:
        """Set all of a hub: the aperture of the card's memory, caches, and context 0.

        `root` is the place of the first table in the card's memory; `default_page` is where what
        faults is sent, by the card's own address.
        """
        registers, places = self.registers, self.places
        begin, end = location
        registers.write(places.location + _AGP_TOP, 0)
        registers.write(places.location + _AGP_TOP + 1, 0xFFFFFF)
        registers.write(places.location + _AGP_TOP + 2, 0)
        registers.write(places.location + _APERTURE_LOW, begin >> _APERTURE_SHIFT)
        registers.write(places.location + _APERTURE_LOW + 1, (end - 1) >> _APERTURE_SHIFT)
        registers.write_pair(places.shared + _DEFAULT_PAGE, default_page >> _PAGE_SHIFT)
        registers.write_pair(places.cache + _FAULT_PAGE, default_page >> _PAGE_SHIFT)
        registers.change(places.location + _L1, _L1_FIELDS, _L1_CONTROL)
        registers.change(places.cache, _L2_FRAGMENTS, _L2_ENABLED)
        registers.change(places.cache + _L2_2, 0, _L2_INVALIDATED)
        self._program_context(root)
        registers.write_pair(places.cache + _IDENTITY_LOW, 0xF_FFFFFFFF)
        registers.write_pair(places.cache + _IDENTITY_LOW + 2, 0)
        registers.write_pair(places.cache + _IDENTITY_OFFSET, 0)
        for engine in range(_ENGINE + 1):
            registers.write_pair(places.contexts + _RANGE + 2 * engine, 0x1F_FFFFFFFF)
        self.flush()

    def _program_context(self, root: int) -> None:
        contexts = self.places.contexts
        last = (1 << ADDRESS_BITS) - 1
        self.registers.write_pair(contexts + _START, 0)
        self.registers.write_pair(contexts + _END, last >> _PAGE_SHIFT)
        self.registers.write_pair(contexts + _BASE, root | 1)
        for number in range(1, _CONTEXTS):
            self.registers.write(contexts + number, 0)
        self.registers.write(contexts, _CONTEXT_ENABLED | _DEPTH | _FAULTS)

    def flush(self) -> None:
        """Forget translations of context 0. Raises DeviceError when the hub does not answer."""
        registers, contexts = self.registers, self.places.contexts
        if self.places.has_semaphore:
            what = "the hub's semaphore was not given"
            registers.wait(contexts + _SEMAPHORE, lambda told: told & 1 == 1, HUB_SECONDS, what)
        try:
            registers.write(contexts + _REQUEST, 1 | _ALL_LEVELS)
            what = f"{self.places.name} did not forget its translations"
            registers.wait(contexts + _ACKNOWLEDGE, lambda told: told & 1 == 1, HUB_SECONDS, what)
        finally:
            if self.places.has_semaphore:
                registers.write(contexts + _SEMAPHORE, 0)

    def fault(self) -> Fault | None:
        """The first fault since the last one was read; None without one."""
        registers, cache = self.registers, self.places.cache
        status = registers.read(cache + _FAULT_STATUS)
        if not status:
            return None
        if registers.is_gone:
            raise DeviceError(f"{registers.bus.name} does not answer any more")
        low = registers.read(cache + _FAULT_ADDRESS)
        high = registers.read(cache + _FAULT_ADDRESS + 1)
        registers.change(cache + _FAULT_CONTROL, 0, _CLEAR_FAULT)
        return Fault(
            address=(low | (high & 0xF) << 32) << _PAGE_SHIFT,
            is_write=bool(status >> 18 & 1),
            permissions=status >> 4 & 0xF,
            walker_error=status >> 1 & 7,
        )
