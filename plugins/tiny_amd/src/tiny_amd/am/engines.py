"""The engines of a card: the compute micro-controller (MEC) and SDMA, and one queue of each.

A queue of the MEC is a set of registers (HQD) that a descriptor in memory (MQD) fills: Linux,
drivers/gpu/drm/amd/include/v11_structs.h (its words 0x80 on are the registers from
CP_MQD_BASE_ADDR on), asic_reg/gc/gc_11_0_0_sh_mask.h (fields), amdgpu_doorbell.h (doorbells).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_amd.am import registers as r
from tiny_amd.am.bus import DOORBELL_BAR, PAGE
from tiny_amd.am.registers import Registers
from tiny_amd.am.vram import Vram
from tinycore.errors import DeviceError

__all__ = ["EngineQueue", "Engines", "RingPlaces"]

_MEC_DOORBELL: Final = 3 * 2
_SDMA_DOORBELL: Final = 0x100 * 2
"""Doorbells count words of 32 bits, and each has two: AMDGPU_NAVI10_DOORBELL_MEC_RING0 and
sDMA_ENGINE0."""
_LAST_MEC_DOORBELL: Final = 0x450
_SDMA_DOORBELL_WORDS: Final = 20
# S2A_DOORBELL_ENTRY_n_CTRL: on, the id of the port, first doorbell, doorbells, upper address
_PORT_ON: Final = 1
_PORT_UPPER: Final = 3 << 28
_MEC_PORTS: Final = {0: 3, 3: 6}
_SDMA_PORT, _SDMA_PORT_ID = 2, 0xE

_ALL_PIPES_RESET: Final = 0xF << 16
_ALL_PIPES_ACTIVE: Final = 0xF << 26
_INVALIDATE_CODE: Final = 1 << 4
_MEC_HALTED: Final = 1 << 30
# SH_MEM_CONFIG: 64-bit addresses, unaligned accesses, three lines of code read ahead
_SHADER_MEMORY: Final = 0 | 3 << 2 | 3 << 14
_APERTURES: Final = 1 << 16 | 2
"""SH_MEM_BASES: bits 63:48 of the addresses of shared and of private memory."""
_CONTEXTS: Final = 16
_FIRST_MEC: Final = 1 << 2
"""GRBM_GFX_CNTL: micro-engine 1, pipe 0, queue 0, context 0."""

_MQD_BYTES: Final = 2048
_MQD_HEADER: Final = 0xC0310800
_MQD_REGISTERS: Final = 0x80
_EOP_BYTES: Final = 4096
_DEQUEUE: Final = 1
ENGINE_SECONDS: Final = 1.0
"""Time that an engine has to take a queue, or to end it."""
_SDMA_HALTED: Final = 1
_SDMA_RESETS: Final = 1 << 9 | 1 << 13
_BEGIN: Final = 1 << 28
"""SDMA0_QUEUE0_DOORBELL: on."""


@dataclass(frozen=True)
class RingPlaces:
    """Addresses of a queue, as the card sees them."""

    ring: int
    size: int
    write_pointer: int
    read_pointer: int


class Doorbell:
    """A doorbell of BAR2, written as the first of an array of 64-bit words."""

    def __init__(self, registers: Registers, number: int) -> None:
        self.registers, self.offset = registers, number * 4

    def __setitem__(self, place: int, value: int) -> None:
        assert place == 0
        self.registers.bus.write64(DOORBELL_BAR, self.offset, value)


@dataclass(frozen=True)
class EngineQueue:
    """The queue of an engine."""

    engines: Engines
    doorbell: Doorbell
    end: Callable[[], None]

    def stop(self) -> None:
        """Take it from its engine; an engine that does not let go of it is reset at the end."""
        try:
            self.end()
        except DeviceError:
            self.engines.has_failed = True


class Engines:
    """The engines of a card whose firmware has been loaded."""

    def __init__(self, registers: Registers, vram: Vram, first: int) -> None:
        """`first` is the card's own address of the start of its memory."""
        self.registers, self.vram, self.first = registers, vram, first
        self.has_failed = False
        """True if a queue did not end: what the engine still writes is not known."""
        self.descriptor = vram.take_own(_MQD_BYTES)
        self.end_of_pipe = vram.take_own(_EOP_BYTES)

    def open_doorbells(self) -> None:
        """Let doorbells of BAR2 reach the engines. No firmware needs to run for that."""
        registers = self.registers
        registers.change(r.DOORBELL_APERTURE, 0, 1)
        for port, identity in _MEC_PORTS.items():
            control = _PORT_ON | identity << 1 | _PORT_UPPER
            registers.write(r.DOORBELL_PORT_0 + port, control)
        range_of_sdma = _SDMA_DOORBELL << 6 | _SDMA_DOORBELL_WORDS << 16
        control = _PORT_ON | _SDMA_PORT_ID << 1 | range_of_sdma | _PORT_UPPER
        registers.write(r.DOORBELL_PORT_0 + _SDMA_PORT, control)

    def start(self, mec_start: int) -> None:
        """Let both engines run their firmware, with no queue. `mec_start` is where that of the MEC
        begins.
        """
        registers = self.registers
        for context in range(_CONTEXTS):
            registers.write(r.GRBM_GFX_CNTL, context << 4)
            registers.write(r.SH_MEM_CONFIG, _SHADER_MEMORY)
            registers.write(r.SH_MEM_BASES, _APERTURES)
        registers.write(r.MEC_DOORBELLS, 0)
        registers.write(r.MEC_DOORBELLS + 1, _LAST_MEC_DOORBELL)
        self._start_mec(mec_start)
        registers.change(r.SDMA_CONTROL, _SDMA_HALTED | _SDMA_RESETS, 0)

    def _start_mec(self, start: int) -> None:
        registers = self.registers
        halted = _ALL_PIPES_RESET | _INVALIDATE_CODE | _MEC_HALTED
        registers.change(r.MEC_CONTROL, _ALL_PIPES_ACTIVE, halted)
        for pipe in range(4):
            registers.write(r.GRBM_GFX_CNTL, _FIRST_MEC | pipe)
            registers.write(r.MEC_START, start >> 2 & 0xFFFFFFFF)
            registers.write(r.MEC_START_HIGH, start >> 34)
        registers.write(r.GRBM_GFX_CNTL, 0)
        registers.change(r.MEC_CONTROL, halted, _ALL_PIPES_ACTIVE)

    def stop(self) -> None:
        """Halt both engines."""
        registers = self.registers
        registers.change(r.MEC_CONTROL, _ALL_PIPES_ACTIVE, _MEC_HALTED)
        registers.change(r.SDMA_CONTROL, 0, _SDMA_HALTED)

    # --- queues

    def open_compute(self, places: RingPlaces) -> EngineQueue:
        """A queue of PM4. Raises DeviceError when the engine does not take it."""
        words = self._mqd(places)
        self.vram.write(self.descriptor, words.tobytes())
        self.vram.flush()
        registers = self.registers
        registers.write(r.GRBM_GFX_CNTL, _FIRST_MEC)
        try:
            count = r.HQD_WPTR_HIGH.offset - r.MQD_BASE.offset + 1
            active = r.HQD_ACTIVE.offset - r.MQD_BASE.offset
            for number in range(count):
                if number != active:
                    registers.write(r.MQD_BASE + number, words[_MQD_REGISTERS + number])
            registers.write(r.HQD_ACTIVE, 1)
            what = "the queue of kernels was not taken"
            registers.wait(r.HQD_ACTIVE, lambda told: told == 1, ENGINE_SECONDS, what)
        finally:
            registers.write(r.GRBM_GFX_CNTL, 0)
        return EngineQueue(self, Doorbell(registers, _MEC_DOORBELL), self.close_compute)

    def _mqd(self, places: RingPlaces) -> array[int]:
        """The descriptor of the compute queue, in words."""
        words = array("I", bytes(_MQD_BYTES))
        own = self.first + self.descriptor
        eop = (self.first + self.end_of_pipe) >> 8
        fields = {  # offsets from CP_MQD_BASE_ADDR: gc_11_0_0_offset.h, 0x1fa9 on
            0: own & 0xFFFFFFFC,
            1: own >> 32,
            2: 1,
            3: 0,
            4: 0x55 << 8 | 1,  # CP_HQD_PERSISTENT_STATE: preloaded, as requested
            7: 0x111,  # CP_HQD_QUANTUM
            8: places.ring >> 8 & 0xFFFFFFFF,
            9: places.ring >> 40,
            11: places.read_pointer & 0xFFFFFFFC,
            12: places.read_pointer >> 32,
            13: places.write_pointer & 0xFFFFFFFC,
            14: places.write_pointer >> 32,
            15: _MEC_DOORBELL << 2 | 1 << 30,
            17: (places.size // 4).bit_length() - 2 | 5 << 8 | 1 << 28 | 1 << 30 | 1 << 31,
            21: 3 << 20,  # CP_HQD_IB_CONTROL: least room for an indirect buffer
            34: 1 << 8,  # CP_MQD_CONTROL: privileged
            37: eop & 0xFFFFFFFF,
            38: eop >> 32,
            39: (_EOP_BYTES // 4).bit_length() - 2,
        }
        words[0] = _MQD_HEADER
        for number, value in fields.items():
            words[_MQD_REGISTERS + number] = value
        return words

    def close_compute(self) -> None:
        """Take the queue from the engine."""
        registers = self.registers
        registers.write(r.GRBM_GFX_CNTL, _FIRST_MEC)
        try:
            registers.write(r.HQD_DEQUEUE, _DEQUEUE)
            what = "the queue of kernels did not end"
            registers.wait(r.HQD_ACTIVE, lambda told: not told & 1, ENGINE_SECONDS, what)
            registers.write(r.HQD_DEQUEUE, 0)
        finally:
            registers.write(r.GRBM_GFX_CNTL, 0)

    def open_copies(self, places: RingPlaces) -> EngineQueue:
        """A queue of the first SDMA engine."""
        registers = self.registers
        control = (places.size // 4).bit_length() - 1 << 1 | 1 << 12 | 1 << 23
        # log2 of its words, the read pointer written back, privileged
        registers.write(r.SDMA_RING_CONTROL, control)
        registers.write_pair(r.SDMA_RPTR, 0)
        registers.write_pair(r.SDMA_WPTR, 0)
        registers.write(r.SDMA_RPTR_ADDRESS_HIGH, places.read_pointer >> 32)
        registers.write(r.SDMA_RPTR_ADDRESS_HIGH + 1, places.read_pointer & 0xFFFFFFFC)
        registers.write(r.SDMA_WPTR_ADDRESS_HIGH, places.write_pointer >> 32)
        registers.write(r.SDMA_WPTR_ADDRESS_HIGH + 1, places.write_pointer & 0xFFFFFFFC)
        registers.write(r.SDMA_RING_BASE, places.ring >> 8 & 0xFFFFFFFF)
        registers.write(r.SDMA_RING_BASE + 1, places.ring >> 40)
        registers.write(r.SDMA_MINOR_UPDATE, 0)
        registers.write(r.SDMA_DOORBELL_OFFSET, _SDMA_DOORBELL << 2)
        registers.write(r.SDMA_DOORBELL, _BEGIN)
        registers.write(r.SDMA_RING_CONTROL, control | 1)
        registers.change(r.SDMA_BUFFERS, 0, 1)
        return EngineQueue(self, Doorbell(registers, _SDMA_DOORBELL), self.close_copies)

    def close_copies(self) -> None:
        """Take the queue from the engine."""
        self.registers.change(r.SDMA_RING_CONTROL, 1, 0)
        self.registers.change(r.SDMA_BUFFERS, 1, 0)
        self.registers.write(r.SDMA_DOORBELL, 0)


assert _MQD_BYTES <= PAGE
