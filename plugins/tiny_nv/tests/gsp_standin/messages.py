"""The GSP's side of the message queues.

open-gpu-kernel-modules 570.144: message_queue_priv.h, msgq_priv.h, rpc_headers.h.
"""

from __future__ import annotations

import struct
from typing import Final

from rm_standin import Mistake

from gsp_standin.memory import PAGE, Memory

__all__ = ["Queues"]

QUEUE: Final = 0x40000
COUNT: Final = 63
LIMIT: Final = 16 * PAGE - 80


class Queues:
    """Both queues, found by the page table that the arguments name."""

    def __init__(self, memory: Memory, arguments: bytes) -> None:
        self.memory = memory
        table, count, commands, status = struct.unpack_from("<QI4xQQ", arguments)
        if any(arguments[32:45]):
            raise Mistake("the GSP is told to resume")
        pages = struct.unpack(f"<{count}Q", memory.read(table, 8 * count))
        if pages[0] != table or count != 1 + 2 * QUEUE // PAGE:
            raise Mistake(f"the page table of the queues has {count} entries")
        self.commands = pages[commands // PAGE :][: QUEUE // PAGE]
        self.status = pages[status // PAGE :][: QUEUE // PAGE]
        if commands % PAGE or status % PAGE or {*self.commands} & {*self.status}:
            raise Mistake("the queues overlap")
        header = struct.unpack("<8I", memory.read(self.commands[0], 32))
        if header[:4] + header[5:] != (0, QUEUE, PAGE, COUNT, 1, 32, PAGE):
            raise Mistake(f"the queue of commands begins with {header}")
        self.sequence = self.received = self.read = self.written = 0
        memory.write(self.status[0], struct.pack("<8I", 0, QUEUE, PAGE, COUNT, 0, 1, 32, PAGE))
        self.parts: list[tuple[int, bytes]] = []
        """Records of a message that goes on."""
        self.damage = 0
        """Bits that are changed in the next message that is sent."""

    def word(self, page: int, at: int) -> int:
        """A word of a header."""
        return int(struct.unpack("<I", self.memory.read(page + at, 4))[0])

    def set_word(self, page: int, at: int, value: int) -> None:
        """Set a word of a header."""
        self.memory.write(page + at, struct.pack("<I", value))

    def receive(self) -> tuple[int, bytes] | None:
        """Function and content of the next command."""
        while (found := self.one()) is not None:
            if (found[0] == 0x47) != bool(self.parts):
                raise Mistake(f"message {self.received} does not go on where it should")
            self.parts.append(found)
            if len(found[1]) < LIMIT:
                parts, self.parts = self.parts, []
                return parts[0][0], b"".join(content for _, content in parts)
        return None

    def one(self) -> tuple[int, bytes] | None:
        """One message of the queue of commands."""
        written = self.word(self.commands[0], 16)
        if written >= COUNT:
            raise Mistake(f"the queue of commands is written up to {written}")
        if written == self.read:
            return None
        first = self.memory.read(self.commands[1 + self.read], PAGE)
        checksum, sequence, count, _ = struct.unpack_from("<4I", first, 32)
        rpc = struct.unpack_from("<8I", first, 48)
        if sequence != self.received or not 0 < count <= min((written - self.read) % COUNT, 16):
            raise Mistake(f"message {self.received} has number {sequence} and {count} elements")
        places = [self.commands[1 + (self.read + n) % COUNT] for n in range(count)]
        data = b"".join(self.memory.read(place, PAGE) for place in places)
        if rpc[:2] != (3 << 24, 0x43505256) or any(data[:32]) or count != -(-(48 + rpc[2]) // PAGE):
            raise Mistake(
                f"message {sequence} begins with {rpc[0]:#x}, {rpc[1]:#x}, {rpc[2]} bytes"
            )
        if folded(data[: 48 + rpc[2] + 7 & -8]):
            raise Mistake(f"message {sequence} has checksum {checksum:#x}")
        self.read = (self.read + count) % COUNT
        self.set_word(self.status[0], 32, self.read)
        self.received += 1
        return rpc[3], data[80 : 48 + rpc[2]]

    def send(self, function: int, content: bytes, result: int = 0) -> None:
        """Send a message, if there is room."""
        size = 80 + len(content)
        count = -(-size // PAGE)
        if (self.word(self.commands[0], 32) - self.written - 1) % COUNT < count:
            raise Mistake("the host reads no messages")
        data = bytearray(count * PAGE)
        struct.pack_into("<4I", data, 32, 0, self.sequence, count, 0)
        head = (3 << 24, 0x43505256, 32 + len(content), function, result, result, 0, 0)
        struct.pack_into("<8I", data, 48, *head)
        data[80:size] = content
        struct.pack_into("<I", data, 32, folded(data) ^ self.damage)
        self.damage = 0
        for index in range(count):
            page = self.status[1 + (self.written + index) % COUNT]
            self.memory.write(page, bytes(data[index * PAGE : (index + 1) * PAGE]))
        self.written = (self.written + count) % COUNT
        self.set_word(self.status[0], 16, self.written)
        self.sequence += 1


def folded(data: bytes | bytearray) -> int:
    """The checksum of data."""
    found = 0
    for (word,) in struct.iter_unpack("<Q", data):
        found ^= word
    return found >> 32 ^ found & 0xFFFFFFFF
