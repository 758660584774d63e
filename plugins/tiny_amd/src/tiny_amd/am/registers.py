"""Registers of a card: numbers by block and segment, and their places, which the card tells itself.

Linux, drivers/gpu/drm/amd/include/asic_reg: gc/gc_11_0_0_offset.h, mmhub/mmhub_3_0_0_offset.h,
mp/mp_13_0_0_offset.h, nbio/nbio_4_3_0_offset.h. Offsets count words of 32 bits from a segment of a
block; where the segments lie is in the table of discovery.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tiny_amd.am.bus import REGISTER_BAR, Bus
from tiny_amd.am.discovery import HardwareId
from tinycore.errors import DeviceError

if TYPE_CHECKING:
    from tiny_amd.am.discovery import Discovery

__all__ = ["Register", "Registers"]

GONE: Final = 0xFFFFFFFF
"""Word that a card reads as which does not answer."""
MEMORY_SIZE_WORD: Final = 0xDE3
"""RCC_CONFIG_MEMSIZE, in MiB: at this place before discovery has been read."""
_INDEX, _DATA = 0x14 * 4, 0x15 * 4
"""BIF_BX_PF0_RSMU_INDEX and its DATA: registers that BAR5 does not reach."""
_POLL_SECONDS: Final = 1e-4


@dataclass(frozen=True)
class Register:
    """A register, or the first of several."""

    block: HardwareId
    segment: int
    offset: int
    name: str

    def __add__(self, number: int) -> Register:
        return Register(self.block, self.segment, self.offset + number, f"{self.name}+{number}")


def gc(segment: int, offset: int, name: str) -> Register:
    """A register of the graphics and compute core."""
    return Register(HardwareId.GC, segment, offset, name)


def psp_mailbox(number: int) -> Register:
    """MP0_SMN_C2PMSG: a word between the host and the security processor."""
    return Register(HardwareId.MP0, 0, 0x60 + number - 32, f"MP0_SMN_C2PMSG_{number}")


def smu_mailbox(number: int) -> Register:
    """MP1_SMN_C2PMSG: a word between the host and the power controller."""
    return Register(HardwareId.MP1, 0, 0x260 + number - 32, f"MP1_SMN_C2PMSG_{number}")


DOORBELL_APERTURE: Final = Register(HardwareId.NBIF, 2, 0xC0, "RCC_DOORBELL_APER_EN")
DOORBELL_PORT_0: Final = Register(HardwareId.NBIF, 2, 0x1CB, "S2A_DOORBELL_ENTRY_0_CTRL")
FLUSH_REMAP: Final = Register(HardwareId.NBIF, 2, 0x12D, "REMAP_HDP_MEM_FLUSH_CNTL")

GRBM_GFX_CNTL: Final = gc(1, 0x900, "GRBM_GFX_CNTL")
SH_MEM_BASES: Final = gc(1, 0x9E3, "SH_MEM_BASES")
SH_MEM_CONFIG: Final = gc(1, 0x9E4, "SH_MEM_CONFIG")
SCRATCH_6: Final = gc(1, 0x2046, "SCRATCH_REG6")
SCRATCH_7: Final = gc(1, 0x2047, "SCRATCH_REG7")
MEC_START: Final = gc(1, 0x2900, "CP_MEC_RS64_PRGRM_CNTR_START")
MEC_CONTROL: Final = gc(1, 0x2904, "CP_MEC_RS64_CNTL")
MEC_START_HIGH: Final = gc(1, 0x2938, "CP_MEC_RS64_PRGRM_CNTR_START_HI")
BOOTLOAD_STATUS: Final = gc(1, 0x4E82, "RLC_RLCS_BOOTLOAD_STATUS")
MEC_DOORBELLS: Final = gc(0, 0x1DFC, "CP_MEC_DOORBELL_RANGE_LOWER")
MQD_BASE: Final = gc(0, 0x1FA9, "CP_MQD_BASE_ADDR")
HQD_ACTIVE: Final = gc(0, 0x1FAB, "CP_HQD_ACTIVE")
HQD_RPTR: Final = gc(0, 0x1FB3, "CP_HQD_PQ_RPTR")
HQD_DEQUEUE: Final = gc(0, 0x1FC1, "CP_HQD_DEQUEUE_REQUEST")
HQD_WPTR_HIGH: Final = gc(0, 0x1FE0, "CP_HQD_PQ_WPTR_HI")

SDMA_CONTROL: Final = gc(1, 0x589A, "SDMA0_F32_CNTL")
SDMA_TRAPS: Final = gc(0, 0x1C, "SDMA0_CNTL")
SDMA_RING_CONTROL: Final = gc(0, 0x80, "SDMA0_QUEUE0_RB_CNTL")
SDMA_RING_BASE: Final = gc(0, 0x81, "SDMA0_QUEUE0_RB_BASE")
SDMA_RPTR: Final = gc(0, 0x83, "SDMA0_QUEUE0_RB_RPTR")
SDMA_WPTR: Final = gc(0, 0x85, "SDMA0_QUEUE0_RB_WPTR")
SDMA_RPTR_ADDRESS_HIGH: Final = gc(0, 0x88, "SDMA0_QUEUE0_RB_RPTR_ADDR_HI")
SDMA_BUFFERS: Final = gc(0, 0x8A, "SDMA0_QUEUE0_IB_CNTL")
SDMA_DOORBELL: Final = gc(0, 0x92, "SDMA0_QUEUE0_DOORBELL")
SDMA_DOORBELL_OFFSET: Final = gc(0, 0xAB, "SDMA0_QUEUE0_DOORBELL_OFFSET")
SDMA_WPTR_ADDRESS_HIGH: Final = gc(0, 0xB2, "SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_HI")
SDMA_MINOR_UPDATE: Final = gc(0, 0xB5, "SDMA0_QUEUE0_MINOR_PTR_UPDATE")


class Registers:
    """Registers of one card, by the places that its table of discovery tells."""

    def __init__(self, bus: Bus, discovery: Discovery) -> None:
        self.bus, self.discovery = bus, discovery
        self._words = bus.bar_bytes[REGISTER_BAR] // 4
        self._places: dict[Register, int] = {}

    def place(self, register: Register) -> int:
        """Its number among all registers of the card. Raises DeviceError for a missing segment."""
        found = self._places.get(register)
        if found is None:
            bases = self.discovery.block(register.block).bases
            if register.segment >= len(bases):
                raise DeviceError(
                    f"{self.bus.name}: {register.name} is in segment {register.segment} of "
                    f"{register.block.name}, which has {len(bases)}"
                )
            found = self._places[register] = bases[register.segment] + register.offset
        return found

    def read(self, register: Register) -> int:
        """The value of a register."""
        place = self.place(register)
        if place < self._words:
            return self.bus.read32(REGISTER_BAR, place * 4)
        self.bus.write32(REGISTER_BAR, _INDEX, place * 4)
        return self.bus.read32(REGISTER_BAR, _DATA)

    def write(self, register: Register, value: int) -> None:
        """Set a register."""
        place = self.place(register)
        if place < self._words:
            self.bus.write32(REGISTER_BAR, place * 4, value)
            return
        self.bus.write32(REGISTER_BAR, _INDEX, place * 4)
        self.bus.write32(REGISTER_BAR, _DATA, value)

    def write_pair(self, low: Register, value: int) -> None:
        """Set two registers side by side to the halves of 64 bits, the low half first."""
        self.write(low, value & 0xFFFFFFFF)
        self.write(low + 1, value >> 32)

    def change(self, register: Register, clear: int, to: int) -> None:
        """Set some bits, and keep the others."""
        self.write(register, self.read(register) & ~clear | to)

    def wait(
        self, register: Register, holds: Callable[[int], bool], seconds: float, what: str
    ) -> int:
        """Wait until a register holds something, and return it. Raises DeviceError, naming the
        register and its value, after the limit, or at once when the card is gone.
        """
        until = time.monotonic() + seconds
        while True:
            value = self.read(register)
            if value == GONE:
                self.verify_present()
            if holds(value):
                return value
            if time.monotonic() > until:
                raise DeviceError(
                    f"{self.bus.name}: {what} within {seconds:g} s: {register.name} is {value:#x}"
                )
            time.sleep(_POLL_SECONDS)

    def verify_present(self) -> None:
        """Raise DeviceError when the card does not answer any more."""
        if self.is_gone:
            raise DeviceError(
                f"{self.bus.name} does not answer: it reads as ones. It has lost power or its link"
            )

    @property
    def is_gone(self) -> bool:
        """True if the card reads as ones, which the size of its memory never is."""
        return self.bus.read32(REGISTER_BAR, MEMORY_SIZE_WORD * 4) == GONE
