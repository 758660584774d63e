"""Message queues between the host and the GSP: two rings in pinned memory, an element a page.

Each side writes one ring, and in its header how far it has written that ring and read the other
(flag SWAP_RX). A message is an element's header, an RPC's header, and its content, in up to 16
elements; a larger content goes on in records of its own. NVIDIA/open-gpu-kernel-modules 570.144:
message_queue_priv.h, msgq_priv.h, rpc_headers.h, rpc_global_enums.h.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_hcq import fence
from tiny_nv.pci.machine import PAGE
from tiny_nv.pci.pages import SystemMemory
from tinycore.errors import DeviceError

__all__ = ["Message", "MessageQueues"]

QUEUE_BYTES: Final = 0x40000
ELEMENT_BYTES: Final = PAGE
ELEMENTS: Final = QUEUE_BYTES // ELEMENT_BYTES - 1
"""The first page of a queue is its header."""
MOST_ELEMENTS: Final = 16
CONTINUATION: Final = 0x47
_QUEUE_HEADER: Final = struct.Struct("<8I")
"""Version, bytes, bytes and number of elements, written, flags, offsets of `read` and elements."""
_WRITTEN_AT, _READ_AT = 16, 32
_SWAP_RX: Final = 1
_ELEMENT: Final = struct.Struct("<32xIIII")
"""Checksum, sequence number, elements."""
_RPC: Final = struct.Struct("<8I")
_VERSION, _SIGNATURE = 3 << 24, 0x43505256
_UNKNOWN: Final = 0xFFFFFFFF
_OVERHEAD: Final = _ELEMENT.size + _RPC.size
LARGEST_CONTENT: Final = MOST_ELEMENTS * ELEMENT_BYTES - _OVERHEAD


@dataclass(frozen=True)
class Message:
    """A message from the GSP."""

    function: int
    result: int
    content: bytes


class MessageQueues:
    """Both queues, and the page table by which the GSP finds them."""

    def __init__(self, memory: SystemMemory, ring: Callable[[], None]) -> None:
        """`ring`: the doorbell of the GSP."""
        self.system, self._ring = memory, ring
        entries = 1 + 2 * QUEUE_BYTES // PAGE
        self.page_count = entries
        self.memory = memory.allocate(entries * PAGE)
        view = self.memory.view
        view[: 8 * entries] = struct.pack(f"<{entries}Q", *self.memory.pages())
        self.command_offset, self.status_offset = PAGE, PAGE + QUEUE_BYTES
        self._commands = view[self.command_offset : self.status_offset]
        self._status = view[self.status_offset :]
        self._commands[: _QUEUE_HEADER.size] = _QUEUE_HEADER.pack(
            0, QUEUE_BYTES, ELEMENT_BYTES, ELEMENTS, 0, _SWAP_RX, _READ_AT, ELEMENT_BYTES
        )
        self._sequence = self._received = 0

    # --- sending

    def send(self, function: int, content: bytes, timeout_seconds: float) -> None:
        """Send a message, with records that go on where it is large. Raises DeviceError."""
        self._send(function, content[:LARGEST_CONTENT], timeout_seconds)
        for start in range(LARGEST_CONTENT, len(content), LARGEST_CONTENT):
            part = content[start : start + LARGEST_CONTENT]
            self._send(CONTINUATION, part, timeout_seconds)

    def _send(self, function: int, content: bytes, timeout_seconds: float) -> None:
        size = _OVERHEAD + len(content)
        count = -(-size // ELEMENT_BYTES)
        data = bytearray(count * ELEMENT_BYTES)
        rpc = (_VERSION, _SIGNATURE, _RPC.size + len(content), function, _UNKNOWN, _UNKNOWN, 0, 0)
        _ELEMENT.pack_into(data, 0, 0, self._sequence, count, 0)
        _RPC.pack_into(data, _ELEMENT.size, *rpc)
        data[_OVERHEAD:size] = content
        _ELEMENT.pack_into(data, 0, checksum(data), self._sequence, count, 0)
        self._wait_for_room(count, timeout_seconds)
        written = self._word(self._commands, _WRITTEN_AT)
        for index in range(count):
            at = ELEMENT_BYTES * (1 + (written + index) % ELEMENTS)
            part = data[index * ELEMENT_BYTES : (index + 1) * ELEMENT_BYTES]
            self._commands[at : at + ELEMENT_BYTES] = part
        fence()
        self._set_word(self._commands, _WRITTEN_AT, (written + count) % ELEMENTS)
        fence()
        self._sequence += 1
        self._ring()

    def _wait_for_room(self, count: int, timeout_seconds: float) -> None:
        until = time.monotonic() + timeout_seconds
        while True:
            written = self._word(self._commands, _WRITTEN_AT)
            read = self._word(self._status, _READ_AT)
            if (read - written - 1) % ELEMENTS >= count:
                return
            if time.monotonic() > until:
                raise DeviceError(
                    f"the GSP took no message for {timeout_seconds:g} s: it has read {read} of "
                    f"{written}"
                )
            time.sleep(1e-4)

    # --- receiving

    @property
    def is_open(self) -> bool:
        """True if the GSP has written the header of its queue."""
        head = _QUEUE_HEADER.unpack_from(self._status)
        return bool(head[1])

    def receive(self) -> Message | None:
        """The next message; None where there is none. Raises DeviceError for a damaged one."""
        if not self.is_open:
            return None
        read, written = self._word(self._commands, _READ_AT), self._word(self._status, _WRITTEN_AT)
        if written >= ELEMENTS:
            raise DeviceError(f"the GSP has written up to element {written} of {ELEMENTS}")
        if read == written:
            return None
        fence()
        first = self._elements(read, 1)
        _, sequence, count, _ = _ELEMENT.unpack_from(first)
        version, signature, length, function, result, _, _, _ = _RPC.unpack_from(
            first, _ELEMENT.size
        )
        waiting = (written - read) % ELEMENTS
        if signature != _SIGNATURE or version != _VERSION or not 0 < count <= waiting:
            raise DeviceError(
                f"message {self._received} of the GSP is damaged: signature {signature:#x}, "
                f"version {version:#x}, {count} elements of {waiting}"
            )
        data = self._elements(read, count)
        size = _ELEMENT.size + length
        if size > len(data) or length < _RPC.size or checksum(data[: -(-size // 8) * 8]):
            raise DeviceError(
                f"message {self._received} of the GSP is damaged: its checksum differs"
            )
        if sequence != self._received:
            raise DeviceError(f"message {self._received} of the GSP is lost: {sequence} came")
        self._received += 1
        self._set_word(self._commands, _READ_AT, (read + count) % ELEMENTS)
        return Message(function, result, bytes(data[_OVERHEAD:size]))

    def _elements(self, first: int, count: int) -> bytearray:
        data = bytearray()
        for index in range(count):
            at = ELEMENT_BYTES * (1 + (first + index) % ELEMENTS)
            data += self._status[at : at + ELEMENT_BYTES]
        return data

    @staticmethod
    def _word(queue: memoryview, at: int) -> int:
        return int.from_bytes(queue[at : at + 4], "little")

    @staticmethod
    def _set_word(queue: memoryview, at: int, value: int) -> None:
        queue[at : at + 4].cast("I")[0] = value


def checksum(data: bytes | bytearray) -> int:
    """The XOR of all words of 64 bits, folded: 0 for data that has its checksum in it."""
    found = 0
    for (word,) in struct.iter_unpack("<Q", data):
        found ^= word
    return found >> 32 ^ found & 0xFFFFFFFF
