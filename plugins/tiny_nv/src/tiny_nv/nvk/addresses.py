"""Addresses of cards, which this process hands out: one space for all cards of a process.

What a launch descriptor, a command buffer or a semaphore of Ampere addresses lies below 2^40.
"""

from __future__ import annotations

import bisect
from typing import Final

from tinycore.errors import OutOfMemory
from tinycore.plugin import lock

__all__ = ["HIGH", "HUGE_PAGE", "LOCAL_WINDOW", "LOW", "PAGE", "SHARED_WINDOW", "Addresses"]

PAGE: Final = 4096
HUGE_PAGE: Final = 2 << 20
LOW: Final = (0x10_0000_0000, 0x100_0000_0000)
"""For what the host sees too: below 2^40."""
HIGH: Final = (0x100_0000_0000, 0x7000_0000_0000)
LOCAL_WINDOW: Final = 0x7293_0000_0000
SHARED_WINDOW: Final = 0x7294_0000_0000
"""Windows of local and shared memory in the address space: 4 GiB each, with nothing else."""


class Addresses:
    """Spans of addresses that are free, given out from the lowest on."""

    def __init__(self, bounds: tuple[int, int]) -> None:
        self._lock = lock()
        self._free: list[tuple[int, int]] = [bounds]
        """Begin and end of each span, in order, none beside another."""

    def take(self, size: int, alignment: int) -> int:
        """`size` bytes of addresses. Raises OutOfMemory."""
        with self._lock:
            for index, (begin, end) in enumerate(self._free):
                at = -(-begin // alignment) * alignment
                if at + size <= end:
                    left = [(begin, at), (at + size, end)]
                    self._free[index : index + 1] = [span for span in left if span[0] < span[1]]
                    return at
        raise OutOfMemory(f"no {size:,} bytes of addresses are left. Free tensors first.")

    def give_back(self, begin: int, size: int) -> None:
        """Take `take` back."""
        end = begin + size
        with self._lock:
            index = bisect.bisect(self._free, (begin, end))
            if index < len(self._free) and self._free[index][0] == end:
                end = self._free.pop(index)[1]
            if index and self._free[index - 1][1] == begin:
                index -= 1
                begin = self._free.pop(index)[0]
            self._free.insert(index, (begin, end))
