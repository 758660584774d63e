"""Memory as a channel addresses it: accesses that page tables do not allow are MMU faults."""

from __future__ import annotations

import numpy

from rm_standin.gpu import Array
from rm_standin.objects import VaSpace
from rm_standin.status import Mistake

__all__ = ["MmuFault", "View"]

NOT_MAPPED, READ_ONLY = 2, 6
READ, WRITE = 0, 1


class MmuFault(Exception):
    """An access that the page table does not allow."""

    def __init__(self, address: int, access: int, kind: int = NOT_MAPPED) -> None:
        action = "write" if access == WRITE else "read"
        super().__init__(f"{action} at {address:#x}")
        self.address, self.access, self.kind = address, access, kind


class View:
    """Memory by the addresses of one address space."""

    def __init__(self, space: VaSpace) -> None:
        self.space = space

    def span(self, address: int, size: int, access: int = READ) -> Array:
        """Bytes in one mapping. Raises MmuFault."""
        region = self.space.memory.region_at(address)
        if region is None:
            raise MmuFault(address, access)
        start = address - region.address
        if start + size > region.data.nbytes:
            raise MmuFault(region.address + region.data.nbytes, access)
        if access == WRITE and not region.data.flags.writeable:
            raise MmuFault(address, access, READ_ONLY)
        found: Array = region.data[start : start + size]
        return found

    def words(self, address: int, count: int) -> Array:
        """Words of 32 bits."""
        found: Array = self.span(address, 4 * count).view(numpy.uint32)
        return found

    def load(self, address: int, width: int) -> int:
        """A number of 32 or 64 bits."""
        return int.from_bytes(self.span(address, width).tobytes(), "little")

    def store(self, address: int, value: int, width: int) -> None:
        """A number of 32 or 64 bits."""
        aligned(address, width, "a number")
        number = (value % (1 << 8 * width)).to_bytes(width, "little")
        self.span(address, width, WRITE)[:] = list(number)

    def release(self, address: int, payload: int, is_long: bool, clock: int | None) -> None:
        """A semaphore's value; with a time, the value has 64 bits in any case."""
        if clock is None:
            self.store(address, payload, 8 if is_long else 4)
            return
        aligned(address, 16, "a semaphore with a time")
        self.store(address + 8, clock, 8)
        self.store(address, payload if is_long else payload & 0xFFFFFFFF, 8)


def aligned(address: int, bytes_at_once: int, what: str) -> None:
    """Raise Mistake for an address that is no multiple."""
    if address % bytes_at_once:
        raise Mistake(f"{what} at {address:#x}, which is no multiple of {bytes_at_once}")
