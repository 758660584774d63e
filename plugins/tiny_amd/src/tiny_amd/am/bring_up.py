"""Bring-up of a card without a kernel driver: the steps in order, and the way back.

What is read comes first, and what is missing is named before anything has been changed. A card
that this driver has left running is taken over as it is (a warm start); one that another driver
has left is reset.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tiny_amd.am import registers as r
from tiny_amd.am.bus import MEMORY_BAR, REGISTER_BAR, Bus
from tiny_amd.am.discovery import (
    DISCOVERY_BYTES,
    DISCOVERY_FROM_END,
    Discovery,
    HardwareId,
    parse_discovery,
)
from tiny_amd.am.engines import Engines
from tiny_amd.am.firmware import Firmware, Versions, read_firmware
from tiny_amd.am.hubs import GFXHUB, MMHUB, Hub
from tiny_amd.am.pages import PageTables
from tiny_amd.am.psp import Psp
from tiny_amd.am.registers import GONE, MEMORY_SIZE_WORD, Registers
from tiny_amd.am.smu import Smu
from tiny_amd.am.vram import OWN_BYTES, RESERVED_BYTES, Vram
from tinycore.errors import DeviceError, DeviceUnavailable

if TYPE_CHECKING:
    from tiny_hcq import System

__all__ = ["DRIVEN_CORES", "RunningCard", "memory_bytes", "read_discovery"]

DRIVEN_CORES: Final = {(11, 0, 0): "gfx1100"}
"""Architectures that are brought up, by the version of the graphics core."""
_COMMAND: Final = 4
_MEMORY_ENABLED: Final = 1 << 1
_BUS_MASTER: Final = 1 << 2
_WARM: Final = 0x414D0001
"""Word in SCRATCH_REG7 of a card that this driver has brought up: "AM", and its layout."""
_CLEAN: Final = 1 << 31
"""Bit of SCRATCH_REG6 when its queues have ended; the rest is the size of the trusted memory."""
_MEBIBYTE: Final = 1 << 20
_MEMORY_INDEX, _MEMORY_DATA, _MEMORY_INDEX_HIGH = 0x0 * 4, 0x1 * 4, 0x6 * 4
_INDEX_VALID: Final = 1 << 31
RESET_SECONDS: Final = 0.5
BACK_SECONDS: Final = 10.0
"""Time that a reset takes, and that the card has to come back after it."""


def memory_bytes(bus: Bus) -> int:
    """Bytes of a card's memory. Raises DeviceUnavailable when it does not answer."""
    told = bus.read32(REGISTER_BAR, MEMORY_SIZE_WORD * 4)
    if told == GONE:
        raise DeviceUnavailable(
            f"{bus.name} does not answer: it reads as ones. It may be asleep (D3), or gone from "
            "the bus"
        )
    if told << 20 < OWN_BYTES + 2 * RESERVED_BYTES:
        raise DeviceUnavailable(
            f"{bus.name} has {told} MiB of memory, of which its driver needs more: its firmware "
            "has not set it up (does the card run in this machine otherwise?)"
        )
    return told << 20


def read_discovery(bus: Bus, size: int) -> Discovery:
    """The table of what a card is made of, at the end of its memory. Raises DeviceUnavailable."""
    place = size - DISCOVERY_FROM_END
    if place + DISCOVERY_BYTES <= bus.bar_bytes[MEMORY_BAR]:
        return parse_discovery(bus.read_block(MEMORY_BAR, place, DISCOVERY_BYTES), bus.name)
    words = (_read_far(bus, place + at) for at in range(0, DISCOVERY_BYTES, 4))
    return parse_discovery(b"".join(word.to_bytes(4, "little") for word in words), bus.name)


def _read_far(bus: Bus, place: int) -> int:
    """A word of memory that BAR0 does not reach."""
    bus.write32(REGISTER_BAR, _MEMORY_INDEX, place & (_INDEX_VALID - 1) | _INDEX_VALID)
    bus.write32(REGISTER_BAR, _MEMORY_INDEX_HIGH, place >> 31)
    return bus.read32(REGISTER_BAR, _MEMORY_DATA)


def versions_of(discovery: Discovery) -> Versions:
    """Versions in the names of a card's firmware."""
    names = (
        "_".join(map(str, discovery.block(block).version))
        for block in (HardwareId.MP0, HardwareId.MP1, HardwareId.SDMA0, HardwareId.GC)
    )
    return Versions(*names)


class RunningCard:
    """A card that this driver runs, from the first register to both engines."""

    def __init__(self, bus: Bus, machine: System) -> None:
        """Bring it up. Raises DeviceUnavailable before anything has been changed, and DeviceError
        when a step fails, with the card reset.
        """
        self.bus = bus
        size = memory_bytes(bus)
        if bus.bar_bytes[MEMORY_BAR] < OWN_BYTES:
            raise DeviceUnavailable(
                f"BAR0 of {bus.name} has {bus.bar_bytes[MEMORY_BAR] >> 20} MiB, and its driver "
                f"needs {OWN_BYTES >> 20}: allow larger BARs in the setup of the machine"
            )
        self.discovery = discovery = read_discovery(bus, size)
        self.arch = self._driven_arch(discovery)
        firmware = read_firmware(machine, versions_of(discovery), bus.name)
        self.registers = Registers(bus, discovery)
        self.smu = Smu(self.registers)
        self.was_warm = False
        try:
            self._start(size, firmware)
        except BaseException:
            self.give_up()
            raise

    def _driven_arch(self, discovery: Discovery) -> str:
        version = discovery.block(HardwareId.GC).version
        if version not in DRIVEN_CORES:
            known = ", ".join(
                f"{'.'.join(map(str, each))} ({DRIVEN_CORES[each]})" for each in DRIVEN_CORES
            )
            raise DeviceUnavailable(
                f"{self.bus.name} has a graphics core of version {'.'.join(map(str, version))}; "
                f"without a kernel driver tiny-amd runs {known} only. Use DEV=KFD+AMD"
            )
        return DRIVEN_CORES[version]

    def _start(self, size: int, firmware: Firmware) -> None:
        registers = self.registers
        trusted = self._take_over()
        self.set_bus_master(True)
        self.vram = Vram(self.bus, size, self._flush_writes)
        if trusted:
            self.vram.take(trusted, _MEBIBYTE)  # where the first start has put it
        self.memory_hub, self.graphics_hub = Hub(registers, MMHUB), Hub(registers, GFXHUB)
        location = self.memory_hub.location
        self.first = location[0]
        self.pages = PageTables(self.vram)
        default_page = self.first + self.vram.take_own(1)
        self.engines = Engines(registers, self.vram, self.first)
        self.engines.open_doorbells()
        self.memory_hub.program(self.pages.root.address, location, default_page)
        if not self.was_warm:
            trusted = Psp(registers, self.vram, self.first).start(firmware)
            self.smu.start()
        self.graphics_hub.program(self.pages.root.address, location, default_page)
        self.engines.start(firmware.mec_start)
        self._trusted = trusted
        registers.write(r.SCRATCH_6, 0)
        registers.write(r.SCRATCH_7, _WARM)

    def _take_over(self) -> int:
        """Bytes of trusted memory of a card that is warm; else 0, after a reset if it runs."""
        registers = self.registers
        if not Psp.is_alive_in(registers):
            return 0
        left = registers.read(r.SCRATCH_6)
        if registers.read(r.SCRATCH_7) == _WARM and left & _CLEAN and left != GONE:
            self.was_warm = True
            return (left & ~_CLEAN) * _MEBIBYTE
        self.reset()
        return 0

    def reset(self) -> None:
        """Reset the whole card: what runs in it ends, and what is in its memory is lost."""
        self.set_bus_master(False)
        self.smu.reset_card()
        time.sleep(RESET_SECONDS)
        self.registers.wait(
            r.psp_mailbox(35),
            lambda told: told != GONE and bool(told >> 31),
            BACK_SECONDS,
            "the card did not come back after a reset",
        )

    def set_bus_master(self, is_on: bool) -> None:
        """Let the card read and write memory of the system by itself, or not."""
        command = self.bus.read_config(_COMMAND, 2) & ~_BUS_MASTER | _MEMORY_ENABLED
        self.bus.write_config(_COMMAND, 2, command | (_BUS_MASTER if is_on else 0))

    def _flush_writes(self) -> None:
        """Have what the host has written to the card's memory arrive there (HDP)."""
        self.bus.write32(REGISTER_BAR, self.registers.read(r.FLUSH_REMAP) & ~3, 0)

    def flush(self) -> None:
        """Let both hubs see tables of pages that have changed."""
        self.vram.flush()
        self.graphics_hub.flush()
        self.memory_hub.flush()

    def stop(self) -> None:
        """Leave the card so that the next start is a warm one. Its queues have ended."""
        self.engines.stop()
        self.registers.write(r.SCRATCH_6, _CLEAN | self._trusted // _MEBIBYTE)
        self.set_bus_master(False)

    def give_up(self) -> None:
        """Reset a card that does not do what it should; at least, let it write no memory."""
        with suppress(DeviceError):
            self.set_bus_master(False)
        with suppress(DeviceError):
            if Psp.is_alive_in(self.registers):
                self.reset()
