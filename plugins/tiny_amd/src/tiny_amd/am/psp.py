"""The security processor (PSP): its own firmware, then that of all others, through a ring.

Linux, drivers/gpu/drm/amd/amdgpu/psp_gfx_if.h (structures of commands, by their offsets here) and
psp_v13_0.c (mailboxes of the boot loader). Addresses in commands are the card's own.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

from tiny_amd.am.registers import BOOTLOAD_STATUS, GONE, Registers, psp_mailbox
from tiny_amd.am.vram import Vram
from tinycore.errors import DeviceError

if TYPE_CHECKING:
    from tiny_amd.am.firmware import Firmware, Image

__all__ = ["Psp"]

_BOOT_COMMAND, _BOOT_ADDRESS, _ALIVE = psp_mailbox(35), psp_mailbox(36), psp_mailbox(81)
_RING_COMMAND, _RING_WRITTEN = psp_mailbox(64), psp_mailbox(67)
_RING_ADDRESS, _RING_SIZE = psp_mailbox(69), psp_mailbox(71)
_READY: Final = 1 << 31
_STATUS: Final = 0xFFFF
_MEBIBYTE: Final = 1 << 20
BUFFER_BYTES: Final = 16 << 20
"""Largest image that the security processor is given."""
_ADDRESS_UNIT: Final = 20
"""The boot loader is given addresses in MiB."""

SOS, SYSTEM_DRIVER, KEYS, TABLE, SPL = 1, 2, 3, 4, 5
SOC_DRIVER, INTERFACE_DRIVER, DEBUG_DRIVER, RAS_DRIVER = 7, 8, 9, 10
"""Components of the file psp_..._sos.bin."""
_BOOT_ORDER: Final = (
    (KEYS, 0x80000),
    (SPL, 0x10000000),
    (SYSTEM_DRIVER, 0x10000),
    (SOC_DRIVER, 0xB0000),
    (INTERFACE_DRIVER, 0xD0000),
    (DEBUG_DRIVER, 0xC0000),
    (RAS_DRIVER, 0xE0000),
    (SOS, 0x20000),
)
"""Components and their commands, in the order in which each one checks the next."""
_RING_BYTES: Final = 0x10000
_KERNEL_RING: Final = 2 << 16
_RING_FRAME: Final = struct.Struct("<9I28x")
"""psp_gfx_rb_frame."""
_COMMAND_BYTES: Final = 1024
_COMMAND_ID: Final = 8
_COMMAND_BODY: Final = 28
_RESPONSE: Final = 864
_TMR_SIZE: Final = 16
"""psp_gfx_resp: status, then the size of the trusted memory at this offset."""
_LOAD_TOC, _SETUP_TMR, _LOAD_IP, _AUTOLOAD_RLC = 0x20, 5, 6, 0x21
_TMR_BOTH_ADDRESSES: Final = 2
BOOT_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 10.0
"""Time that it has to boot, and to answer a command."""
_POLL_SECONDS: Final = 1e-4


class Psp:
    """The security processor of a card."""

    def __init__(self, registers: Registers, vram: Vram, first: int) -> None:
        """`first` is the card's own address of the start of its memory."""
        self.registers, self.vram, self.first = registers, vram, first
        self._fences = 0

    @staticmethod
    def is_alive_in(registers: Registers) -> bool:
        """True if its operating system runs, ours or that of a driver before us."""
        return registers.read(_ALIVE) not in (0, GONE)

    def start(self, firmware: Firmware) -> int:
        """Load all firmware of a card that has just been reset, and return the bytes of memory that
        it keeps for itself. Raises DeviceError.
        """
        self.buffer = self.vram.take_own(BUFFER_BYTES, _MEBIBYTE)
        self._boot(dict(firmware.sos))
        self._make_ring()
        trusted = self._make_trusted_memory(dict(firmware.sos)[TABLE])
        for image in firmware.images:
            self._load(image)
        self._submit(_AUTOLOAD_RLC, "start of the graphics core's firmware")
        self.registers.wait(
            BOOTLOAD_STATUS,
            lambda told: told != GONE and bool(told & _READY),
            BOOT_SECONDS,
            "the graphics core did not load its firmware",
        )
        return trusted

    # --- its own firmware, through mailboxes

    def _boot(self, components: dict[int, bytes]) -> None:
        for kind, command in _BOOT_ORDER:
            if kind not in components:
                continue
            self._wait_for_loader()
            self._put(components[kind])
            self.registers.write(_BOOT_ADDRESS, (self.first + self.buffer) >> _ADDRESS_UNIT)
            self.registers.write(_BOOT_COMMAND, command)
        self.registers.wait(
            _ALIVE,
            lambda told: told not in (0, GONE),
            BOOT_SECONDS,
            "the security processor's system did not start",
        )

    def _wait_for_loader(self) -> None:
        self.registers.wait(
            _BOOT_COMMAND,
            lambda told: told != GONE and bool(told & _READY),
            BOOT_SECONDS,
            "the security processor's boot loader did not get ready",
        )

    def _put(self, content: bytes) -> None:
        """Put an image where the security processor reads it."""
        if len(content) > BUFFER_BYTES:
            raise DeviceError(
                f"firmware of {len(content):,} bytes is larger than the {BUFFER_BYTES:,} that "
                f"{self.registers.bus.name} is given at once"
            )
        self.vram.write(self.buffer, content + bytes(-len(content) % 4))
        self.vram.flush()

    # --- the firmware of others, through a ring

    def _make_ring(self) -> None:
        self.ring = self.vram.take_own(_RING_BYTES)
        self.command = self.vram.take_own(_COMMAND_BYTES)
        self.fence = self.vram.take_own(8)
        registers = self.registers
        registers.write_pair(_RING_ADDRESS, self.first + self.ring)
        registers.write(_RING_SIZE, _RING_BYTES)
        registers.write(_RING_COMMAND, _KERNEL_RING)
        told = registers.wait(
            _RING_COMMAND,
            lambda told: told != GONE and bool(told & _READY),
            COMMAND_SECONDS,
            "the security processor made no ring",
        )
        if told & _STATUS:
            raise DeviceError(
                f"{registers.bus.name}: the security processor refuses a ring: {told & _STATUS:#x}"
            )

    def _make_trusted_memory(self, table: bytes) -> int:
        """Let it say how much memory it wants for itself, and give that; the bytes of it."""
        self._put(table)
        body = (*self._address(self.buffer), len(table))
        answer = self._submit(_LOAD_TOC, "the table of contents", *body)
        size = int.from_bytes(answer[_TMR_SIZE : _TMR_SIZE + 4], "little")
        size = -(-size // _MEBIBYTE) * _MEBIBYTE
        if not size or size > self.vram.size // 2:
            raise DeviceError(
                f"{self.registers.bus.name}: the security processor wants {size:,} bytes for itself"
            )
        place = self.vram.take(size, _MEBIBYTE)
        address = self._address(place)
        what = f"{size:,} bytes of memory"
        self._submit(
            _SETUP_TMR, what, *address, size, _TMR_BOTH_ADDRESSES, place & 0xFFFFFFFF, place >> 32
        )
        return size

    def _load(self, image: Image) -> None:
        self._put(image.content)
        body = (*self._address(self.buffer), len(image.content), image.kind)
        self._submit(_LOAD_IP, image.name, *body)

    def _address(self, place: int) -> tuple[int, int]:
        address = self.first + place
        return address & 0xFFFFFFFF, address >> 32

    def _submit(self, command: int, what: str, *body: int) -> bytes:
        """Give a command, and return its response. Raises DeviceError with what it was about."""
        content = bytearray(_COMMAND_BYTES)
        struct.pack_into("<3I", content, 0, _COMMAND_BYTES, 1, command)
        struct.pack_into(f"<{len(body)}I", content, _COMMAND_BODY, *body)
        self.vram.write(self.command, bytes(content))
        self._fences += 1
        written = self.registers.read(_RING_WRITTEN)
        frame = _RING_FRAME.pack(
            *self._address(self.command),
            _COMMAND_BYTES,
            *self._address(self.fence),
            self._fences,
            0,
            0,
            0,
        )
        self.vram.write(self.ring + written * 4 % _RING_BYTES, frame)
        self.vram.flush()
        self.registers.write(_RING_WRITTEN, (written + len(frame) // 4) % (_RING_BYTES // 4))
        self._wait_for_fence(what)
        answer = self.vram.read(self.command + _RESPONSE, _COMMAND_BYTES - _RESPONSE)
        status = int.from_bytes(answer[:4], "little")
        if status:
            raise DeviceError(
                f"{self.registers.bus.name}: the security processor refuses {what}: status "
                f"{status:#x}"
            )
        return answer

    def _wait_for_fence(self, what: str) -> None:
        until = time.monotonic() + COMMAND_SECONDS
        while int.from_bytes(self.vram.read(self.fence, 4), "little") != self._fences:
            self.registers.verify_present()
            if time.monotonic() > until:
                raise DeviceError(
                    f"{self.registers.bus.name}: the security processor did not answer about "
                    f"{what} within {COMMAND_SECONDS:g} s"
                )
            time.sleep(_POLL_SECONDS)
