"""Start of the GSP of Hopper and Blackwell: by one message to their security processor (FSP).

The message is a chain of trust: where the first program of the GSP (FMC) lies, with its hash, key
and signature, how much memory to leave at the end, and what the program is to start. The program
lays protected memory out by itself. NVIDIA/open-gpu-kernel-modules 570.144: dev_fsp_pri.h of gh100,
fsp_emem_channels.h, fsp_mctp_format.h, fsp_nvdm_format.h, kern_fsp_cot_payload.h, gspifpub.h,
gsp_fw_wpr_meta.h. No card was at hand: docs/hardware.md says what is uncertain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from tiny_nv.pci.falcon import GSP, Falcon
from tiny_nv.pci.firmware import FirstProgram, first_program_of
from tiny_nv.pci.images import GspFirmware, StartParts
from tiny_nv.pci.layout import WPR_META, requested_memory
from tiny_nv.pci.registers import Registers, Trust
from tiny_nv.pci.vbios import FRTS_BYTES
from tinycore.errors import DeviceError, DeviceUnavailable

__all__ = ["BOOT", "CHAIN", "FspStart", "SecurityProcessor", "boot_arguments"]

_CONTROL, _DATA = 0x8F2AC0, 0x8F2AC4
"""Window into its memory (EMEM), of the driver's channel."""
_WRITES_ADVANCE, _READS_ADVANCE = 1 << 24, 1 << 25
_COMMAND_HEAD, _COMMAND_TAIL = 0x8F2C00, 0x8F2C04
_ANSWER_HEAD, _ANSWER_TAIL = 0x8F2C80, 0x8F2C84
_WORD: Final = 4
CHANNEL_BYTES: Final = 1024
_HEADER: Final = struct.Struct("<II")
_WHOLE: Final = 1 << 31 | 1 << 30
"""Start and end of a message: one packet."""
_VENDOR: Final = 0x10DE << 8 | 0x7E
_CHAIN_OF_TRUST, _ANSWER = 0x14, 0x15
_TOLD: Final = struct.Struct("<III")
"""Task, kind of the command, error."""
CHAIN: Final = struct.Struct("<HHQQIQI48s384s384sQ")
BOOT: Final = struct.Struct("<I4x IIQQIB3x I4xQ I4xQI4x")
"""GSP_FMC_BOOT_PARAMS: 80 bytes."""
_COHERENT_SYSTEM: Final = 1
_HUGE: Final = 2 << 20
_LOCKED, _LOCKED_MASK = 0xBADF4100, 0xFFFFFF00
_SECONDS: Final = 4.0


class SecurityProcessor:
    """Messages to the FSP, one at a time, through a window into its memory."""

    def __init__(self, registers: Registers) -> None:
        self.registers = registers

    def ask(self, kind: int, content: bytes) -> None:
        """Send a message and wait for its answer. Raises DeviceUnavailable if it is refused."""
        self._send(_HEADER.pack(_WHOLE, kind << 24 | _VENDOR) + content)
        answer = self._receive()
        card = self.registers.card
        if len(answer) < _HEADER.size + _TOLD.size:
            raise DeviceUnavailable(f"the security processor of {card} answers {len(answer)} bytes")
        packet, header = _HEADER.unpack_from(answer)
        _, about, error = _TOLD.unpack_from(answer, _HEADER.size)
        if packet & _WHOLE != _WHOLE or header != _ANSWER << 24 | _VENDOR or about != kind:
            raise DeviceUnavailable(
                f"the security processor of {card} answers {packet:#x}, {header:#x} about "
                f"{about:#x}; it was asked for {kind:#x}"
            )
        if error:
            raise DeviceUnavailable(
                f"the security processor of {card} refuses message {kind:#x}: error {error:#x}"
            )

    def _send(self, message: bytes) -> None:
        registers = self.registers
        assert len(message) % _WORD == 0
        assert len(message) <= CHANNEL_BYTES
        registers.wait_until(
            lambda: registers.read(_COMMAND_HEAD) == registers.read(_COMMAND_TAIL),
            _SECONDS,
            lambda: "its security processor takes no message",
        )
        registers.write(_CONTROL, _WRITES_ADVANCE)
        for (word,) in struct.iter_unpack("<I", message):
            registers.write(_DATA, word)
        registers.write(_COMMAND_TAIL, len(message) - _WORD)
        registers.write(_COMMAND_HEAD, 0)  # this one interrupts it, so it is written last

    def _receive(self) -> bytes:
        registers = self.registers
        registers.wait_until(
            lambda: registers.read(_ANSWER_HEAD) != registers.read(_ANSWER_TAIL),
            _SECONDS,
            lambda: "its security processor does not answer",
        )
        head = registers.read(_ANSWER_HEAD)
        size = registers.read(_ANSWER_TAIL) - head + _WORD
        if not _WORD <= size <= CHANNEL_BYTES:
            raise DeviceUnavailable(
                f"the security processor of {registers.card} answers {size} bytes"
            )
        registers.write(_CONTROL, _READS_ADVANCE)
        words = [registers.read(_DATA) for _ in range(size // _WORD)]
        registers.write(_ANSWER_TAIL, head)
        registers.write(_ANSWER_HEAD, head)
        return struct.pack(f"<{len(words)}I", *words)


def chain_of_trust(trust: Trust, program: FirstProgram, program_at: int, arguments: int) -> bytes:
    """The message that has the first program verified and started."""
    reserved = trust.open_heap_bytes + trust.pmu_bytes
    return CHAIN.pack(
        trust.version,
        CHAIN.size,
        program_at,
        *(0, 0),  # no FRTS data in the system's memory
        *(-(-reserved // _HUGE) * _HUGE, FRTS_BYTES),
        program.digest,
        program.key,
        program.signature,
        arguments,
    )


def boot_arguments(meta: int, arguments: int) -> bytes:
    """Arguments of the first program: a description of the GSP's firmware, and the arguments that
    this is started with, both by bus addresses.
    """
    return BOOT.pack(
        0,
        *(_COHERENT_SYSTEM, WPR_META.size, meta, 0, 0, 1),
        *(_COHERENT_SYSTEM, arguments),
        *(0, 0, 0),
    )


class FspStart:
    """The way of a card with a security processor."""

    def __init__(self, parts: StartParts) -> None:
        """Raises DeviceUnavailable for firmware of another form, before anything is started."""
        registers, architecture, kept = parts.registers, parts.architecture, parts.kept
        assert architecture.trust is not None
        self.registers, self.architecture, self.kept = registers, architecture, kept
        self.trust = architecture.trust
        self.firmware = GspFirmware(architecture, parts.files)
        self.program = first_program_of(parts.files["fmc"], self.trust)
        self.falcon = Falcon(registers, GSP, kept.memory)
        self.memory_bytes = registers.memory_bytes(architecture)
        self.first_protected = 0
        """First byte of the card's memory that belongs to the GSP, once that runs."""

    def prepare(self) -> None:
        """There is nothing to do before the message."""

    def start(self, arguments: int, state: Callable[[], str]) -> None:
        """Start the GSP with arguments at a bus address. Raises DeviceUnavailable with `state`."""
        kept, trust, program = self.kept, self.trust, self.program
        request = requested_memory(self.memory_bytes, trust.open_heap_bytes, trust.pmu_bytes)
        meta = kept.keep(request.meta(kept.images(self.firmware))).bus()
        boot = kept.keep(boot_arguments(meta, arguments)).bus()
        at = kept.keep(program.image).bus()
        message = chain_of_trust(trust, program, at, boot)
        SecurityProcessor(self.registers).ask(_CHAIN_OF_TRUST, message)
        self._wait_until_unlocked(boot, state)
        self.falcon.set_version(self.firmware.bootloader.version)
        if not self.falcon.is_active:
            raise DeviceUnavailable(f"the GSP of {self.registers.card} does not run: {state()}")
        low, high = self.registers.protected_memory(self.architecture)
        if not trust.open_heap_bytes < low < high <= self.memory_bytes:
            raise DeviceUnavailable(
                f"the GSP of {self.registers.card} protects {low:#x} to {high:#x} of "
                f"{self.memory_bytes:#x} bytes"
            )
        self.first_protected = low - trust.open_heap_bytes

    def _wait_until_unlocked(self, boot: int, state: Callable[[], str]) -> None:
        """Wait until the first program lets the host access the GSP. Raises DeviceUnavailable,
        with the error that the program leaves in a mailbox.
        """
        falcon = self.falcon

        def is_settled() -> bool:
            locks = falcon.locks
            if not locks or locks & _LOCKED_MASK == _LOCKED:
                return False
            low, high = falcon.mailboxes
            return bool(low and (high << 32 | low) != boot) or not falcon.is_locked_down

        self.registers.wait_until(
            is_settled, _SECONDS, lambda: f"its GSP is not unlocked: {state()}"
        )
        if error := falcon.mailboxes[0]:
            raise DeviceUnavailable(
                f"the first program of the GSP of {self.registers.card} ended with error {error:#x}"
            )

    def resume(self, state: Callable[[], str]) -> None:
        """Refuse: what the GSP of such a card would have started again is not known."""
        raise DeviceError(f"the GSP of {self.registers.card} asks to be started again: {state()}")
