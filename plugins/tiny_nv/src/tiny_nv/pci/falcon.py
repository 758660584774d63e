"""Falcons, small processors of a card: reset, DMA of a signed program, and its run.

NVIDIA/open-gpu-kernel-modules, published/ampere/ga102: dev_falcon_v4.h, dev_falcon_second_pri.h,
dev_fbif_v4.h, dev_riscv_pri.h, dev_gsp.h, dev_sec_pri.h; Linux, Documentation/gpu/nova/core/
falcon.rst. Which signature a fuse asks for is in no header: see docs/hardware.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_nv.pci.firmware import SecureImage
from tiny_nv.pci.pages import SystemMemory
from tiny_nv.pci.registers import Registers
from tinycore.errors import DeviceUnavailable

__all__ = ["GSP", "SEC2", "Falcon", "FalconPlace"]

BLOCK: Final = 256
"""Bytes that one DMA moves."""
_MAILBOX_0, _MAILBOX_1, _OS = 0x40, 0x44, 0x80
_HARDWARE_CONFIG_2: Final = 0xF4
_HAS_RISCV, _IS_SCRUBBING, _IS_LOCKED_DOWN = 1 << 10, 1 << 12, 1 << 13
_CPU_CONTROL, _BOOT_VECTOR, _DMA_CONTROL, _CPU_CONTROL_ALIAS = 0x100, 0x104, 0x10C, 0x130
_START, _HALTED, _HAS_ALIAS = 1 << 1, 1 << 4, 1 << 6
_DMA_BASE, _DMA_TO, _DMA_COMMAND, _DMA_FROM, _DMA_BASE_HIGH = 0x110, 0x114, 0x118, 0x11C, 0x128
_DMA_FULL, _DMA_IDLE = 1 << 0, 1 << 1
_SECURE, _TO_CODE, _OF_256_BYTES, _SET_DATA_TAG = 1 << 2, 1 << 4, 6 << 8, 1 << 16
_ENGINE: Final = 0x3C0
_PHYSICAL_COHERENT: Final = 1 << 2 | 1
_ALLOW_PHYSICAL: Final = 1 << 7
_BUS_CONTROL: Final = 0x24
_ALGORITHM, _PROGRAM, _ENGINE_MASK, _SIGNATURE_AT = 0x180, 0x198, 0x19C, 0x210
_RSA_3K: Final = 1
_RISCV_CPU_CONTROL, _RISCV_BOOT = 0x388, 0x668
_RISCV_ACTIVE: Final = 1 << 7
_SELECT_FALCON, _BOOT_VALID = 0 << 4, 1 << 0
_SECONDS: Final = 4.0


@dataclass(frozen=True)
class FalconPlace:
    """Registers of one falcon."""

    name: str
    base: int
    bus: int
    """Its interface to memory (FBIF)."""
    second: int
    """Its boot ROM and RISC-V core."""
    fuses: int
    """Fuses with the oldest versions allowed of each program."""


GSP: Final = FalconPlace("GSP", 0x110000, 0x110600, 0x111000, 0x8241C0)
SEC2: Final = FalconPlace("SEC2", 0x840000, 0x840600, 0x841000, 0x824140)


class Falcon:
    """One falcon of a card."""

    def __init__(self, registers: Registers, place: FalconPlace, memory: SystemMemory) -> None:
        self.registers, self.place, self.memory = registers, place, memory

    def _read(self, register: int) -> int:
        return self.registers.read(self.place.base + register)

    def _write(self, register: int, value: int) -> None:
        self.registers.write(self.place.base + register, value)

    def _wait(self, is_true: Callable[[], bool], what: str) -> None:
        self.registers.wait_until(
            is_true, _SECONDS, lambda: f"{self.place.name} {what}: {self.state()}"
        )

    def state(self) -> str:
        """Processor, mailboxes, in words."""
        return (
            f"CPUCTL {self._read(_CPU_CONTROL):#x}, mailboxes {self._read(_MAILBOX_0):#x} and "
            f"{self._read(_MAILBOX_1):#x}"
        )

    # --- steps

    def reset(self) -> None:
        """Reset the engine, and wait until its memory is scrubbed; with the falcon's core chosen
        where there are two. Raises DeviceUnavailable.
        """
        self._write(_ENGINE, 1)
        self._read(_ENGINE)  # the reset lasts as long as reads of it
        self._write(_ENGINE, 0)
        self._wait(
            lambda: not self._read(_HARDWARE_CONFIG_2) & _IS_SCRUBBING, "still clears its memory"
        )
        if self._read(_HARDWARE_CONFIG_2) & _HAS_RISCV:
            boot = self.place.second + _RISCV_BOOT
            self.registers.write(boot, _SELECT_FALCON)
            self._wait(lambda: bool(self.registers.read(boot) & _BOOT_VALID), "chooses no core")

    def run(self, program: SecureImage, mailboxes: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Load a signed program, run it until it halts, and return its mailboxes.

        Raises DeviceUnavailable.
        """
        self.reset()
        image = bytearray(program.image)
        signature = self._signature(program)
        image[program.patch_at : program.patch_at + len(signature)] = signature
        memory = self.memory.allocate(len(image) + BLOCK)
        try:
            memory.view[: len(image)] = image
            self._allow_dma()
            at = memory.bus()
            code = at + program.code_offset - program.code_at
            self._move(code, program.code_at, program.code_bytes, _TO_CODE | _SECURE)
            data = at + program.data_offset
            self._move(data, 0, program.data_bytes, _SET_DATA_TAG)
            self._prepare(program, mailboxes)
            self.start()
            self.wait_for_halt()
        finally:
            self.memory.free(memory)
        return self.mailboxes

    def _allow_dma(self) -> None:
        """Let it read coherent memory of the system by bus addresses."""
        bus = self.place.bus
        self.registers.write(bus + _BUS_CONTROL, _ALLOW_PHYSICAL)
        self._write(_DMA_CONTROL, 0)
        self.registers.write(bus, _PHYSICAL_COHERENT)

    def _move(self, base: int, source: int, size: int, form: int) -> None:
        """DMA to the start of code or data memory, from an offset, the virtual address of code."""
        if base % BLOCK:
            raise DeviceUnavailable(
                f"a program of {self.place.name} lies at {base:#x}, no multiple of {BLOCK}"
            )
        self._wait(lambda: not self._read(_DMA_COMMAND) & _DMA_FULL, "takes no DMA")
        self._write(_DMA_BASE, base >> 8)
        self._write(_DMA_BASE_HIGH, base >> 40)
        for offset in range(0, size, BLOCK):
            self._wait(lambda: not self._read(_DMA_COMMAND) & _DMA_FULL, "takes no DMA")
            self._write(_DMA_TO, offset)
            self._write(_DMA_FROM, source + offset)
            self._write(_DMA_COMMAND, form | _OF_256_BYTES)
        self._wait(lambda: bool(self._read(_DMA_COMMAND) & _DMA_IDLE), "ends no DMA")

    def _signature(self, program: SecureImage) -> bytes:
        """The signature that the fuse for the program asks for."""
        fuse = self.registers.read(self.place.fuses + 4 * (program.program - 1))
        oldest = fuse.bit_length()
        if program.versions:
            wanted = 1 << oldest
            place = (program.versions & wanted - 1).bit_count()
            known = bool(program.versions & wanted)
        else:
            place = program.fuse_version - oldest
            known = 0 <= place < len(program.signatures)
        if not known or place >= len(program.signatures):
            raise DeviceUnavailable(
                f"the card allows program {program.program} of {self.place.name} from version "
                f"{oldest} on, and there is no signature of it: the firmware is too old"
            )
        return program.signatures[place]

    def _prepare(self, program: SecureImage, mailboxes: tuple[int, int]) -> None:
        second = self.place.second
        signature_at = program.patch_at - program.data_offset
        self.registers.write(second + _SIGNATURE_AT, signature_at)
        self.registers.write(second + _ENGINE_MASK, program.engine_mask)
        self.registers.write(second + _PROGRAM, program.program)
        self.registers.write(second + _ALGORITHM, _RSA_3K)
        self._write(_MAILBOX_0, mailboxes[0])
        self._write(_MAILBOX_1, mailboxes[1])
        self._write(_BOOT_VECTOR, program.code_at)

    def start(self) -> None:
        """Start the falcon's core."""
        has_alias = self._read(_CPU_CONTROL) & _HAS_ALIAS
        self._write(_CPU_CONTROL_ALIAS if has_alias else _CPU_CONTROL, _START)

    def wait_for_halt(self) -> None:
        """Wait until the falcon's core has halted. Raises DeviceUnavailable."""
        self._wait(lambda: bool(self._read(_CPU_CONTROL) & _HALTED), "does not halt")

    # --- the RISC-V core

    def write_mailboxes(self, low: int, high: int) -> None:
        """Leave an address for a program that others start."""
        self._write(_MAILBOX_0, low)
        self._write(_MAILBOX_1, high)

    def set_version(self, version: int) -> None:
        """Tell the version of the program that runs on the other core."""
        self._write(_OS, version)

    @property
    def mailboxes(self) -> tuple[int, int]:
        """Both mailboxes, where programs leave results."""
        return self._read(_MAILBOX_0), self._read(_MAILBOX_1)

    @property
    def locks(self) -> int:
        """Register that says who may access it: no value of its own where the host may not."""
        return self._read(_HARDWARE_CONFIG_2)

    @property
    def is_locked_down(self) -> bool:
        """True if its boot ROM keeps the host from most registers."""
        return bool(self.locks & _IS_LOCKED_DOWN)

    @property
    def is_active(self) -> bool:
        """True if the RISC-V core runs."""
        return bool(self.registers.read(self.place.second + _RISCV_CPU_CONTROL) & _RISCV_ACTIVE)
