"""Vendor requests of the bridge's firmware: its own memory, PCIe packets, streams, and its SRAM.

Public firmware tinygrad/asm2464pd-firmware (handmade/src/main.c, April of 2026), as facts:

    E4 in   value = address                      bytes of the chip's memory (XDATA)
    E5 out  value = address, index = byte        one byte of it
    F0 out  value = type | byte enables << 8, index = mode, data = address low, high, word
            mode 0: one packet; 1: a stream of writes, 2: of reads, where word = number of words
    F0 in   eight bytes: word, completion header (2), link status, 0 done | 1 error | FF timeout
    F2 out  value = sectors | 1 << 15 to the host, index = first slot | slots << 8
    F3 out  value = 1 on, 0 off: power, reset and training of the link; answers after 2 s at most

Words are little-endian; firmware of before streams had them big-endian, and is refused. A stream
carries no completion, so that the state of the link is read after each. Nothing says how long
SRAM takes to have what a bulk transfer brought: see `sram_write`.
"""

from __future__ import annotations

import enum
import os
import struct
import time
from typing import Final

from tiny_amd.usb.transfers import TransferError, UsbHandle
from tinycore.errors import ArgumentError, DeviceError, DeviceUnavailable
from tinycore.plugin import recursive_lock

__all__ = ["Bridge", "CompletionError", "CompletionStatus", "Packet", "VendorRequest"]

LINK_STATE: Final = 0xB450
"""Address of the state of the link's training (LTSSM)."""
LINK_UP: Final = 0x78
POWER_MS: Final = 10_000
"""Time limit of F3, which waits for the link by itself for two seconds."""
LINK_SECONDS: Final = 3.0
RETRY_SECONDS: Final = 1.0
"""Time that a function has after a reset until it answers (PCIe 5.0, 6.6.1)."""
SLOT_BYTES: Final = 16 << 10
SECTOR_BYTES: Final = 512
GUARD_SLOT: Final = 31
"""The last slot of SRAM, which tells when what was written before has arrived."""
STREAM_BYTES: Final = 64 << 10
"""Bytes of a stream: the chip's processor moves some megabytes a second, so that each ends long
before its time limit."""
_WORD: Final = 4
_ALL_BYTES: Final = 0xF
_READ_BYTES_USB2, _READ_BYTES_USB3 = 64, 255
"""Most bytes of one E4: a control packet of USB 2, and what the firmware's first version took."""
_SENTINEL: Final = struct.Struct("<I")
_SENTINEL_TRIES: Final = 50
_TO_HOST: Final = 1 << 15


class VendorRequest(enum.IntEnum):
    """Requests of the firmware."""

    READ = 0xE4
    WRITE = 0xE5
    PACKET = 0xF0
    SRAM = 0xF2
    POWER = 0xF3


class Packet(enum.IntEnum):
    """Formats and types of PCIe packets (PCIe 5.0, table 2-3). Those of memory have 64 bits of
    address.
    """

    CONFIG_READ = 0x04
    CONFIG_WRITE = 0x44
    MEMORY_READ = 0x20
    MEMORY_WRITE = 0x60


BEHIND_BRIDGE: Final = 1
"""Added to the type of a configuration packet for another bus than the first."""


class CompletionStatus(enum.IntEnum):
    """Completion statuses (PCIe 5.0, 2.2.9), and what the bridge itself says."""

    SUCCESS = 0
    UNSUPPORTED = 1
    RETRY = 2
    ABORT = 4
    TIMEOUT = 0xFF


class CompletionError(DeviceError):
    """A PCIe request that was not completed."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Bridge:
    """An ASM2464PD with the custom firmware."""

    def __init__(self, usb: UsbHandle) -> None:
        self.usb = usb
        self.lock = recursive_lock()
        self._sequence = int.from_bytes(os.urandom(4), "little")

    # --- the chip's own memory

    def read_memory(self, address: int, size: int) -> bytes:
        """Bytes of the chip's memory."""
        most = _READ_BYTES_USB3 if self.usb.is_super_speed else _READ_BYTES_USB2
        parts = []
        with self.lock:
            for start in range(0, size, most):
                count = min(most, size - start)
                parts.append(self.usb.control_in(VendorRequest.READ, address + start, 0, count))
        return b"".join(parts)

    def write_memory(self, address: int, content: bytes) -> None:
        """Write bytes of the chip's memory, one request for each."""
        with self.lock:
            for offset, byte in enumerate(content):
                self.usb.control_out(VendorRequest.WRITE, address + offset, byte)

    # --- the link

    def link_state(self) -> int:
        """State of the link's training."""
        return self.read_memory(LINK_STATE, 1)[0]

    def verify_link(self) -> None:
        """Raise DeviceError where the link is not up."""
        if (state := self.link_state()) != LINK_UP:
            raise DeviceError(
                f"{self.usb}: the link to the card is down (state {state:#04x}): the card lost "
                "its power, or was reset"
            )

    def bring_up_link(self) -> None:
        """Power the slot and train the link, unless it is up. Raises DeviceUnavailable."""
        with self.lock:
            try:
                if self.link_state() == LINK_UP:
                    return
            except TransferError as error:
                raise DeviceUnavailable(
                    f"the firmware does not answer requests of its own memory: {error}"
                ) from error
            self.power(on=True)
            limit = time.monotonic() + LINK_SECONDS
            while (state := self.link_state()) != LINK_UP:
                if time.monotonic() > limit:
                    raise DeviceUnavailable(
                        f"{self.usb}: no link to a card (state {state:#04x}). Is there one, and "
                        "does it have power?"
                    )
                time.sleep(0.01)

    def power(self, *, on: bool) -> None:
        """Turn the slot's power on or off. The bridge may come back as another device."""
        try:
            self.usb.control_out(VendorRequest.POWER, int(on), 0, limit_ms=POWER_MS)
        except TransferError as error:
            if not (on and self.usb.lost):
                raise DeviceUnavailable(f"the slot cannot be powered: {error}") from error
            self._reopen()

    def _reopen(self) -> None:
        """Open the bridge anew that left USB when it was powered."""
        limit = time.monotonic() + LINK_SECONDS
        while True:
            try:
                self.usb = self.usb.reopened()
            except DeviceUnavailable:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.05)
            else:
                return

    # --- single packets

    def config_read(self, bus: int, function: int, offset: int, size: int = 4) -> int:
        """A register of the configuration of device 0 on a bus."""
        return self._config(Packet.CONFIG_READ, bus, function, offset, size, 0)

    def config_write(self, bus: int, function: int, offset: int, value: int, size: int = 4) -> None:
        """Write a register of the configuration of device 0 on a bus."""
        self._config(Packet.CONFIG_WRITE, bus, function, offset, size, value)

    def _config(
        self, kind: Packet, bus: int, function: int, offset: int, size: int, value: int
    ) -> int:
        if offset % _WORD + size > _WORD or not 0 <= offset < 1 << 12:
            raise ArgumentError(f"{size} bytes at {offset:#x} are no register of a configuration")
        address = bus << 24 | function << 16 | offset
        limit = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return self.request(kind + (BEHIND_BRIDGE if bus else 0), address, size, value)
            except CompletionError as error:
                if error.status != CompletionStatus.RETRY or time.monotonic() > limit:
                    raise
            time.sleep(0.01)

    def request(self, kind: int, address: int, size: int, value: int = 0) -> int:
        """One packet for up to four bytes of one word, and the value of its completion.

        A write of memory has none. Raises CompletionError.
        """
        shift = address % _WORD
        enables = ((1 << size) - 1) << shift
        aligned = address - shift
        data = struct.pack("<QI", aligned, value << 8 * shift & 0xFFFFFFFF)
        with self.lock:
            self.usb.control_out(VendorRequest.PACKET, kind | enables << 8, 0, data)
            if kind == Packet.MEMORY_WRITE:
                return 0
            answer = self.usb.control_in(VendorRequest.PACKET, 0, 0, 8)
        word, header, error = int.from_bytes(answer[:4], "little"), answer[4], answer[7]
        if status := error if error in (1, 0xFF) else header >> 5:
            raise CompletionError(
                f"{self.usb}: PCIe request {kind:#04x} at {address:#x} ends in {_named(status)}",
                status,
            )
        return word >> 8 * shift & (1 << 8 * size) - 1

    # --- memory

    def memory_read(self, address: int, size: int) -> bytes:
        """Bytes at an address of the PCIe bus. Raises DeviceError."""
        parts = []
        while size:
            count = self._part(address, size)
            if count <= _WORD:
                value = self.request(Packet.MEMORY_READ, address, count)
                parts.append(value.to_bytes(count, "little"))
            else:
                parts.append(self._stream_in(address, count))
            address, size = address + count, size - count
        return b"".join(parts)

    def memory_write(self, address: int, content: bytes | memoryview) -> None:
        """Write bytes at an address of the PCIe bus. Raises DeviceError."""
        rest = memoryview(content).cast("B")
        while rest:
            count = self._part(address, len(rest))
            if count <= _WORD:
                value = int.from_bytes(rest[:count], "little")
                self.request(Packet.MEMORY_WRITE, address, count, value)
            else:
                self._stream_out(address, rest[:count])
            address, rest = address + count, rest[count:]

    def _part(self, address: int, size: int) -> int:
        """Bytes that one request moves: up to the next whole word, or whole words."""
        if (before := -address % _WORD) or size < _WORD:
            return min(before or size, size)
        return min(size - size % _WORD, STREAM_BYTES)

    def _start(self, kind: Packet, mode: int, address: int, size: int) -> None:
        data = struct.pack("<QI", address, size // _WORD)
        self.usb.control_out(VendorRequest.PACKET, kind | _ALL_BYTES << 8, mode, data)

    def _stream_in(self, address: int, size: int) -> bytes:
        with self.lock:
            self._start(Packet.MEMORY_READ, 2, address, size)
            found = self.usb.bulk_in(size)
            self.verify_link()
        return found

    def _stream_out(self, address: int, content: memoryview) -> None:
        with self.lock:
            self._start(Packet.MEMORY_WRITE, 1, address, len(content))
            self.usb.bulk_out(content)
            # The firmware looks at control transfers first, and the next F0 ends a stream whose
            # last packet it has not looked at: a harmless request lies between.
            self.verify_link()

    # --- SRAM, which the card sees as memory of the host

    def sram_read(self, slot: int, size: int) -> bytes:
        """Bytes of SRAM from a slot on."""
        _verify_slots(slot, size)
        sectors = -(-size // SECTOR_BYTES)
        with self.lock:
            self._arm(slot, sectors, _TO_HOST)
            return self.usb.bulk_in(sectors * SECTOR_BYTES)[:size]

    def sram_write(self, slot: int, content: bytes | memoryview) -> None:
        """Write bytes from a slot on, up to the end of a sector, and return when SRAM has them.

        What a bulk transfer brought lies in SRAM some time after it. So a number follows in a slot
        of its own, which is read back until it is there: as transfers arrive in their order, the
        content has arrived then. Raises DeviceError where it never is.
        """
        size = len(content)
        _verify_slots(slot, size)
        with self.lock:
            self._send(slot, content)
            self._sequence = self._sequence % 0xFFFFFFFF + 1
            mark = _SENTINEL.pack(self._sequence)
            self._send(GUARD_SLOT, mark)
            for _ in range(_SENTINEL_TRIES):
                self._arm(GUARD_SLOT, 1, _TO_HOST)
                if self.usb.bulk_in(SECTOR_BYTES)[: len(mark)] == mark:
                    return
            raise DeviceError(f"{self.usb}: {size:,} bytes did not arrive in its SRAM")

    def _send(self, slot: int, content: bytes | memoryview) -> None:
        sectors = -(-len(content) // SECTOR_BYTES)
        self._arm(slot, sectors, 0)
        self.usb.bulk_out(b"".join((content, bytes(sectors * SECTOR_BYTES - len(content)))))

    def _arm(self, slot: int, sectors: int, direction: int) -> None:
        """Have the next bulk transfer go to or from SRAM."""
        slots = -(-sectors * SECTOR_BYTES // SLOT_BYTES)
        self.usb.control_out(VendorRequest.SRAM, sectors | direction, slot | slots << 8)


def _verify_slots(slot: int, size: int) -> None:
    if not (slot >= 0 and 0 < size <= (GUARD_SLOT - slot) * SLOT_BYTES):
        raise ArgumentError(f"{size:,} bytes from slot {slot} on are not within SRAM")


def _named(status: int) -> str:
    known = status in set(CompletionStatus)
    return CompletionStatus(status).name.lower() if known else f"status {status}"
