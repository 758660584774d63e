"""Engines that copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kfd_standin.gpu import Gpu, Mistake
from kfd_standin.pm4 import check, compare
from kfd_standin.queues import Ring, RingPlace

if TYPE_CHECKING:
    from kfd_standin.machine import Machine

__all__ = ["SdmaRing"]

WORDS: Final = {0: 1, 1: 7, 5: 4, 6: 2, 8: 6, 13: 3}
"""Words of each operation."""


class SdmaRing(Ring):
    """A queue of SDMA. Pointers count bytes."""

    UNIT = 1

    def __init__(self, machine: Machine, gpu: Gpu, place: RingPlace) -> None:
        super().__init__(machine, gpu, place)
        self.operations: dict[int, Callable[[int, list[int]], bool]] = {
            0: lambda header, body: True,
            1: self.copy,
            5: self.fence,
            6: self.trap,
            8: self.poll,
            13: self.timestamp,
        }

    def step(self) -> bool:
        """Execute one packet."""
        left = (self.written - self.read) // 4
        if not left:
            return False
        header = int(self.take(1)[0])
        operation = header & 0xFF
        if operation not in WORDS:
            raise Mistake(f"SDMA operation {operation} is not known here ({header:#010x})")
        length = WORDS[operation] + (header >> 16 & 0x3FFF if operation == 0 else 0)
        begin = self.read // 4 % len(self.ring)
        if begin + length > len(self.ring):
            raise Mistake(f"SDMA operation {operation} goes around the end of its ring")
        if length > left:
            raise Mistake(f"a packet of {length} words, of which {left} are written")
        body = [int(word) for word in self.take(length)[1:]]
        if not self.operations[operation](header, body):
            return False
        self.advance(length)
        return True

    def copy(self, header: int, body: list[int]) -> bool:
        check(header >> 8 == 0, "a copy that is not linear:", [header])
        field = 0x3FFFFF if self.gpu.facts.is_cdna else 0x3FFFFFFF
        check(body[0] <= field, "a copy of more bytes than its field holds:", body)
        size = body[0] + 1
        src, dst = body[2] | body[3] << 32, body[4] | body[5] << 32
        source = self.gpu.span(src, size, "read")
        self.gpu.span(dst, size, "write")[:] = source.copy()
        return True

    def fence(self, header: int, body: list[int]) -> bool:
        kept = 0 if self.gpu.facts.is_cdna else 3  # before version 5 the field is reserved
        check(header >> 16 & 7 == kept, "a fence that caches may keep:", [header])
        self.gpu.store(body[0] | body[1] << 32, body[2], 4)
        return True

    def trap(self, header: int, body: list[int]) -> bool:
        self.machine.interrupt(body[0] & 0x0FFFFFFF)
        return True

    def poll(self, header: int, body: list[int]) -> bool:
        check(header >> 31 == 1, "a poll of no memory:", [header])
        check(body[4] >> 16 == 0xFFF, "a poll that gives up:", body)
        value = self.gpu.load(body[0] | body[1] << 32) & body[3]
        return compare(header >> 28 & 7, value, body[2])

    def timestamp(self, header: int, body: list[int]) -> bool:
        check(header >> 8 & 0xFF == 2, "a timestamp that is not the clock:", [header])
        self.gpu.store(body[0] | body[1] << 32, self.gpu.clock(), 8)
        return True
