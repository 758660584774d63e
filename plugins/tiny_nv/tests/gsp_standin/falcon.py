"""Falcons: engine reset, DMA into code and data memory, the boot ROM's checks, and two cores.

open-gpu-kernel-modules, published/ampere/ga102: dev_falcon_v4.h, dev_fbif_v4.h,
dev_falcon_second_pri.h, dev_riscv_pri.h. Written independently of the driver under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rm_standin import Mistake

from gsp_standin.images import FUSE, Program
from gsp_standin.memory import Memory

__all__ = ["FalconModel"]

MAILBOX0, MAILBOX1, OS, HWCFG2, CPUCTL, BOOTVEC, DMACTL = (
    0x40,
    0x44,
    0x80,
    0xF4,
    0x100,
    0x104,
    0x10C,
)
TRFBASE, TRFMOFFS, TRFCMD, TRFFBOFFS, TRFBASE1, ALIAS, ENGINE = (
    0x110, 0x114, 0x118, 0x11C, 0x128, 0x130, 0x3C0,
)  # fmt: skip
FBIF, FBIF_CTL = 0x600, 0x624
MOD_SEL, UCODE_ID, ENGIDMASK, PARAADDR = 0x1180, 0x1198, 0x119C, 0x1210
RISCV_CPUCTL, BCR_CTRL = 0x1388, 0x1668
SIGNATURE_BYTES: Final = 384
MEMORY_BYTES: Final = 1 << 16
PLAIN: Final = {MAILBOX0, MAILBOX1, OS, BOOTVEC, DMACTL, TRFBASE, TRFMOFFS, TRFFBOFFS, TRFBASE1}
PLAIN_ELSEWHERE: Final = {FBIF, FBIF_CTL, MOD_SEL, UCODE_ID, ENGIDMASK, PARAADDR}


class FalconModel:
    """One falcon, which runs the one program it is made for."""

    def __init__(
        self, memory: Memory, program: Program, run: Callable[[FalconModel], None], *, riscv: bool
    ) -> None:
        self.memory, self.program, self.run = memory, program, run
        self.has_riscv = riscv
        self.is_active = False
        """True if the RISC-V core runs."""
        self.refused = ""
        """Reason why the boot ROM did not run a program."""
        self.version = 0
        """Version of the other core's program, which the host tells."""
        self.runs = 0
        self.never_halts = False
        self.resets = 0
        self.clear()

    def clear(self) -> None:
        """The state after a reset."""
        self.registers: dict[int, int] = dict.fromkeys(PLAIN | PLAIN_ELSEWHERE, 0)
        self.code = bytearray(MEMORY_BYTES)
        self.tags: dict[int, int] = {}
        self.data = bytearray(MEMORY_BYTES)
        self.scrubbing = 0
        self.in_reset = False
        self.is_halted = False
        self.busy = 0
        self.core = -1
        self.is_active = False

    def read(self, register: int) -> int:
        """A register."""
        if self.in_reset:
            return 0xBADF5040 if register != ENGINE else 1
        if register == HWCFG2:
            self.scrubbing = max(self.scrubbing - 1, 0)
            return int(self.has_riscv) << 10 | int(self.scrubbing > 0) << 12
        if register == CPUCTL:
            return int(self.is_halted) << 4 | 1 << 6
        if register == TRFCMD:
            self.busy = max(self.busy - 1, 0)
            return int(self.busy > 1) | int(not self.busy) << 1
        if register == RISCV_CPUCTL:
            return int(self.is_active) << 7
        if register == BCR_CTRL:
            return max(self.core, 0) << 4 | int(self.core >= 0)
        if register == ENGINE:
            return 0
        if register not in self.registers:
            raise Mistake(f"register {register:#x} of {self.program.name}'s falcon is read")
        return self.registers[register]

    def write(self, register: int, value: int) -> None:
        """Set a register."""
        if register == ENGINE:
            self.engine(value)
            return
        if self.in_reset or self.scrubbing:
            raise Mistake(f"register {register:#x} is written while the falcon is being reset")
        if register in (CPUCTL, ALIAS):
            if register != ALIAS or value != 2:
                raise Mistake(f"register {register:#x} of a secure falcon gets {value:#x}")
            self.start()
        elif register == BCR_CTRL:
            self.core = value >> 4 & 1
        elif register == TRFCMD:
            self.transfer(value)
        elif register in self.registers:
            self.registers[register] = value
            if register == OS:
                self.version = value
        else:
            raise Mistake(f"register {register:#x} of {self.program.name}'s falcon gets {value:#x}")

    def engine(self, value: int) -> None:
        """The reset, which a read in between has to hold."""
        if value & 1:
            self.clear()
            self.in_reset = True
            self.resets += 1
        elif self.in_reset:
            self.in_reset = False
            self.scrubbing = 3

    def transfer(self, command: int) -> None:
        """One DMA of 256 bytes."""
        r = self.registers
        if self.busy > 1:
            raise Mistake("a DMA is asked for while there is one")
        if not r[FBIF_CTL] >> 7 & 1 or r[FBIF] != 5 or r[DMACTL]:
            raise Mistake("a DMA without physical access to coherent memory of the system")
        if command >> 8 & 7 != 6 or command >> 5 & 1 or command >> 12 & 7:
            raise Mistake(f"a DMA by command {command:#x}")
        base = (r[TRFBASE1] & 0x1FF) << 40 | r[TRFBASE] << 8
        source, target = r[TRFFBOFFS], r[TRFMOFFS]
        content = self.memory.read(base + source, 256)
        if target % 256 or source % 256 or target + 256 > MEMORY_BYTES:
            raise Mistake(f"a DMA from {source:#x} to {target:#x}")
        if command >> 4 & 1:
            if command >> 2 & 3 != 1:
                raise Mistake("secure code is loaded as if it were not")
            self.code[target : target + 256] = content
            self.tags[source] = target
        else:
            self.data[target : target + 256] = content
        self.busy = 3

    # --- programs

    def expected(self) -> Mapping[int, int]:
        """Registers of the boot ROM for the program."""
        p = self.program
        return {MOD_SEL: 1, UCODE_ID: p.number, ENGIDMASK: p.engine_mask, PARAADDR: p.patch}

    def fault(self) -> str:
        """The fault that the boot ROM finds; "" for none."""
        p = self.program
        if self.has_riscv and self.core:
            return "the falcon's core is not chosen"
        for register, value in self.expected().items():
            if self.registers[register] != value:
                return f"register {register:#x} is {self.registers[register]:#x}"
        if self.registers[BOOTVEC] != p.code_at:
            return f"the boot vector is {self.registers[BOOTVEC]:#x}"
        loaded = bytearray()
        for at in range(p.code_at, p.code_at + p.code_bytes, 256):
            if at not in self.tags:
                return f"there is no code for {at:#x}"
            loaded += self.code[self.tags[at] : self.tags[at] + 256]
        if loaded[: p.code_bytes] != p.code:
            return "the code is not what was signed"
        data, signed = bytearray(self.data[: p.data_bytes]), bytearray(p.data)
        signature = bytes(data[p.patch : p.patch + SIGNATURE_BYTES])
        for part in p.may_change:
            data[part] = signed[part] = bytes(len(signed[part]))
        if data != signed:
            return "the data is not what was signed"
        if signature != p.signature(FUSE):
            return "the signature is of no version that the fuse allows"
        return ""

    def start(self) -> None:
        """Start the falcon's core."""
        if self.busy > 1:
            raise Mistake("a program is started before its DMA has ended")
        self.is_halted = not self.never_halts
        self.refused = self.fault()
        if not self.refused:
            self.runs += 1
            self.run(self)
