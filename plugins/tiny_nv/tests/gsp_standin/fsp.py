"""The security processor (FSP) of Hopper and Blackwell, and the GSP that it starts.

open-gpu-kernel-modules 570.144: dev_fsp_pri.h of gh100, fsp_emem_channels.h, fsp_mctp_format.h,
fsp_nvdm_format.h, kern_fsp_cot_payload.h, nvdm_payload_cmd_response.h, gspifpub.h, dev_falcon_v4.h.
Written independently of the driver under test.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rm_standin import Mistake

from gsp_standin.images import FMC, FmcForm
from gsp_standin.memory import PAGE, Memory
from gsp_standin.programs import check_request

__all__ = ["FspModel", "LockedFalcon"]

BASE, END = 0x8F2000, 0x8F3000
EMEMC, EMEMD = 0x8F2AC0, 0x8F2AC4
QUEUE_HEAD, QUEUE_TAIL, MSGQ_HEAD, MSGQ_TAIL = 0x8F2C00, 0x8F2C04, 0x8F2C80, 0x8F2C84
POINTERS: Final = (QUEUE_HEAD, QUEUE_TAIL, MSGQ_HEAD, MSGQ_TAIL)
CHANNEL: Final = 1024
HEADER: Final = (0xC0000000, 0x1410DE7E)
ANSWER: Final = (0xC0000000, 0x1510DE7E)
INVALID_DATA: Final = 0xA1
MAILBOX0, MAILBOX1, OS, HWCFG2, CPUCTL, RISCV_CPUCTL = 0x40, 0x44, 0x80, 0xF4, 0x100, 0x1388
LOCKED: Final = 0xBADF4121
MEBIBYTE: Final = 1 << 20


class LockedFalcon:
    """The GSP's registers, which the host may not read before the first program lets it."""

    def __init__(self) -> None:
        self.is_active = False
        self.version = 0
        self.reads_locked = 0
        """Reads that are refused from now on."""
        self.reads_waiting = 0
        """Reads of the lockdown until the first program is done."""
        self.arguments = 0
        self.error = 0
        """Error that the first program ends with; 0 for none."""
        self.never_unlocks = False
        self.never_runs = False

    def begin(self, arguments: int) -> None:
        """The state when the security processor has started the first program."""
        self.arguments, self.reads_locked, self.reads_waiting = arguments, 3, 4

    @property
    def is_done(self) -> bool:
        """True if the first program has ended."""
        return not self.reads_locked and not self.reads_waiting

    def read(self, register: int) -> int:
        """A register."""
        if self.reads_locked:
            self.reads_locked -= 1
            return LOCKED
        if register == HWCFG2:
            if self.reads_waiting and not self.never_unlocks:
                self.reads_waiting -= 1
            return 1 << 10 | int(not self.is_done) << 13
        if register in (MAILBOX0, MAILBOX1):
            shift = 32 * (register == MAILBOX1)
            return (self.error if self.is_done else self.arguments) >> shift & 0xFFFFFFFF
        if register == RISCV_CPUCTL:
            return int(self.is_active and not self.never_runs) << 7
        if register == CPUCTL:
            return 1 << 4
        raise Mistake(f"register {register:#x} of the GSP is read")

    def write(self, register: int, value: int) -> None:
        """Set a register."""
        if register != OS or not self.is_done or not self.is_active:
            raise Mistake(f"register {register:#x} of the GSP gets {value:#x}")
        self.version = value


@dataclass
class Window:
    """The window into its memory: where it is, and whether accesses move it."""

    at: int = 0
    writes: bool = False
    reads: bool = False


class FspModel:
    """The security processor: one message, and one answer, at a time."""

    def __init__(
        self,
        memory: Memory,
        form: FmcForm,
        falcon: LockedFalcon,
        protect: Callable[[int, int], None],
        run: Callable[[int], None],
    ) -> None:
        """`protect` is told which memory is protected, `run` where the GSP's arguments are."""
        self.memory, self.form, self.falcon = memory, form, falcon
        self.protect, self.run = protect, run
        self.content = bytearray(CHANNEL)
        self.window = Window()
        self.pointers = dict.fromkeys(POINTERS, 0)
        self.answer = b""
        self.wait = 0
        """Reads until an answer is there."""
        self.complaint = ""
        """Reason why a chain of trust was refused."""
        self.messages = 0
        self.is_silent = self.is_busy = False
        self.status = 0
        """An error that it answers with, whatever it finds."""
        self.head: tuple[int, int] = ANSWER
        self.kind = 0x14

    # --- registers

    def read(self, register: int) -> int:
        """A register."""
        if register == EMEMD:
            if not self.window.reads or not self.answer:
                raise Mistake("the security processor's memory is read without an answer")
            at, self.window.at = self.window.at, self.window.at + 4
            return int.from_bytes(self.content[at : at + 4], "little")
        if register in (MSGQ_HEAD, MSGQ_TAIL) and self.answer and self.wait:
            self.wait -= 1
            if not self.wait:
                self.content[: len(self.answer)] = self.answer
                self.pointers[MSGQ_TAIL] = len(self.answer) - 4
        if register == QUEUE_HEAD and self.is_busy:
            return 4
        if register not in self.pointers:
            raise Mistake(f"register {register:#x} of the security processor is read")
        return self.pointers[register]

    def write(self, register: int, value: int) -> None:
        """Set a register."""
        if register == EMEMC:
            self.window = Window(
                (value >> 2 & 63) * 4 + (value >> 8 & 255) * 256,
                bool(value >> 24 & 1),
                bool(value >> 25 & 1),
            )
        elif register == EMEMD:
            if not self.window.writes or self.window.at >= CHANNEL or self.answer:
                raise Mistake(f"the security processor's memory gets {value:#x}")
            self.content[self.window.at : self.window.at + 4] = value.to_bytes(4, "little")
            self.window.at += 4
        elif register in (QUEUE_TAIL, MSGQ_TAIL, MSGQ_HEAD):
            self.pointers[register] = value
            if self.answer and self.pointers[MSGQ_HEAD] == self.pointers[MSGQ_TAIL]:
                self.answer = b""
        elif register == QUEUE_HEAD:
            self.take(value)
        else:
            raise Mistake(f"register {register:#x} of the security processor gets {value:#x}")

    def take(self, head: int) -> None:
        """A message that has come."""
        size = self.pointers[QUEUE_TAIL] + 4
        if head or not 8 < size <= CHANNEL or self.answer or self.window.at != size:
            raise Mistake(f"a message of {size} bytes at {head:#x}")
        self.messages += 1
        message = bytes(self.content[:size])
        self.pointers[QUEUE_TAIL] = 0
        if struct.unpack_from("<II", message) != HEADER:
            raise Mistake(f"a message begins with {message[:8].hex()}")
        status = self.status or self.chain(message[8:])
        if self.is_silent:
            return
        self.content[:] = bytes(CHANNEL)
        self.answer = struct.pack("<IIIII", *self.head, 0, self.kind, status)
        self.wait = 3

    # --- the chain of trust

    def chain(self, message: bytes) -> int:
        """Verify and start the first program; the error it is refused with."""
        form = self.form
        if len(message) != 860 or struct.unpack_from("<HH", message) != (form.version, 860):
            raise Mistake(f"a chain of trust of {len(message)} bytes: {message[:4].hex()}")
        fmc, system, system_bytes, from_end, frts_bytes = struct.unpack_from("<QQIQI", message, 4)
        (boot,) = struct.unpack_from("<Q", message, 852)
        digest, key, signature = message[36:84], message[84:468], message[468:852]
        if fmc % PAGE or boot % PAGE:
            raise Mistake(f"the first program is at {fmc:#x}, its arguments at {boot:#x}")
        found = {
            "hash": digest == form.digest,
            "key": key == form.key.ljust(384, b"\0"),
            "signature": signature == form.signature.ljust(384, b"\0"),
            "image": self.memory.read(fmc, len(FMC)) == FMC,
            "frts": (system, system_bytes, from_end, frts_bytes) == (0, 0, form.free, MEBIBYTE),
        }
        self.complaint = ", ".join(name for name, holds in found.items() if not holds)
        if self.complaint:
            return INVALID_DATA
        self.boot(boot)
        return 0

    def boot(self, at: int) -> None:
        """The first program: lay memory out, start the GSP."""
        words = struct.unpack("<IIIIQQIIIIQIIQII", self.memory.read(at, 80))
        *head, meta, where, size, is_manager, target, _, arguments = words[1:11]
        expected = ([0, 1, 256], 0, 0, 1, 1)
        if (head, where, size, is_manager & 255, target) != expected or any(words[11:]) or words[0]:
            raise Mistake(f"the first program is started with {words}")
        self.falcon.begin(at)
        content = self.memory.read(meta, 256)
        self.complaint = check_request(self.memory, content, self.form)
        if self.complaint:
            self.falcon.error = 0x2B
        if self.falcon.error or self.falcon.never_unlocks:
            return
        frts = self.memory.size - self.form.free - MEBIBYTE
        low = frts - (160 << 20) & -(128 << 10)
        self.protect(low, frts + MEBIBYTE)
        self.falcon.is_active = True
        if not self.falcon.never_runs:
            self.run(arguments)
