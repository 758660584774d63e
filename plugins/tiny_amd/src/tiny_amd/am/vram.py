"""Memory of a card: spans of it that are free, and access to what BAR0 reaches.

The start of the memory holds what the driver itself writes (tables of pages, firmware, queues); it
lies in BAR0 also where that is 256 MiB. The end belongs to the card's own processors.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Final

from tiny_amd.am.bus import MEMORY_BAR, PAGE, Bus
from tinycore.errors import OutOfMemory
from tinycore.plugin import lock

__all__ = ["Vram"]

OWN_BYTES: Final = 64 << 20
"""Memory at the start, for what the driver writes."""
RESERVED_BYTES: Final = 64 << 20
"""Memory at the end that firmware keeps, the table of discovery among it."""


class Spans:
    """Free spans of addresses, merged, first fit."""

    def __init__(self, begin: int, end: int) -> None:
        self.free = [(begin, end)]

    def take(self, size: int, alignment: int) -> int | None:
        """The start of `size` bytes; None when there are none in a row."""
        for number, (begin, end) in enumerate(self.free):
            at = -(-begin // alignment) * alignment
            if at + size <= end:
                rest = [(begin, at), (at + size, end)]
                self.free[number : number + 1] = [span for span in rest if span[0] < span[1]]
                return at
        return None

    def give_back(self, begin: int, end: int) -> None:
        """Make a span free again."""
        insort(self.free, (begin, end))
        merged: list[tuple[int, int]] = []
        for span in self.free:
            if merged and merged[-1][1] == span[0]:
                merged[-1] = (merged[-1][0], span[1])
            else:
                merged.append(span)
        self.free = merged


class Vram:
    """Memory of one card. Addresses count from its start."""

    def __init__(self, bus: Bus, size: int, flush: Callable[[], None]) -> None:
        """`flush` has what the host has written arrive in the memory."""
        self.bus, self.size, self.flush = bus, size, flush
        self._own = Spans(0, OWN_BYTES)
        self._rest = Spans(OWN_BYTES, size - RESERVED_BYTES)
        self._lock = lock()

    def take_own(self, size: int, alignment: int = PAGE) -> int:
        """Memory that the host writes through BAR0, cleared; kept until the end."""
        size = -(-size // PAGE) * PAGE
        with self._lock:
            found = self._own.take(size, alignment)
        if found is None:
            raise OutOfMemory(f"{self.bus.name} has no {size:,} bytes left that its driver writes")
        self.write(found, bytes(size))
        return found

    def take(self, size: int, alignment: int) -> int:
        """Memory for tensors and code, as it is. Raises OutOfMemory."""
        with self._lock:
            found = self._rest.take(size, alignment)
        if found is None:
            raise OutOfMemory(
                f"{self.bus.name} has no {size:,} bytes of memory in a row left. Free tensors first"
            )
        return found

    def give_back(self, address: int, size: int) -> None:
        """Give back what `take` returned."""
        with self._lock:
            self._rest.give_back(address, address + size)

    def write(self, address: int, content: bytes | memoryview) -> None:
        """Write what `take_own` returned."""
        self.bus.write_block(MEMORY_BAR, address, content)

    def read(self, address: int, size: int) -> bytes:
        """Read what `take_own` returned."""
        return self.bus.read_block(MEMORY_BAR, address, size)
