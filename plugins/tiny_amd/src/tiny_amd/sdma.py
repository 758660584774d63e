"""SDMA: packets of the engines that copy, as tables of numbers.

Linux, drivers/gpu/drm/amd/amdgpu/sdma_v6_0_0_pkt_open.h; the layouts of version 5.2 are the same.
A packet is words of 32 bits, the first with the operation; it must not straddle the end of a ring.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tiny_hcq import Number, halves

__all__ = ["LENGTHS", "Operation"]


class Operation(IntEnum):
    """The low byte of a packet."""

    NOP = 0
    COPY = 1
    FENCE = 5
    TRAP = 6
    POLL = 8
    TIMESTAMP = 13


LENGTHS: Final = {
    Operation.NOP: 1,
    Operation.COPY: 7,
    Operation.FENCE: 4,
    Operation.TRAP: 2,
    Operation.POLL: 6,
    Operation.TIMESTAMP: 3,
}
"""Words of each packet that is written here."""

_POLL_AT_LEAST: Final = 5 << 28 | 1 << 31
_WHOLE: Final = (1 << 32) - 1
_POLL_INTERVAL: Final = 4
_FOREVER: Final = 0xFFF << 16
_GLOBAL_CLOCK: Final = 2 << 8


def copy(dst: Number, src: Number, size: int, largest: int) -> list[Number]:
    """Copy bytes, in as many packets as it takes where one copies so many."""
    words: list[Number] = []
    for start in range(0, size, largest):
        count = min(largest, size - start)
        words += (Operation.COPY, count - 1, 0, *halves(src + start), *halves(dst + start))
    return words


def fence(address: Number, value: Number, bits: int) -> tuple[Number, ...]:
    """Write 32 bits after all before has been written; `bits` say that no cache keeps them."""
    low, _ = halves(value)
    return (Operation.FENCE | bits, *halves(address), low)


def interrupt(mailbox: int, event: int, bits: int) -> tuple[Number, ...]:
    """Signal an event: its id into its mailbox, then an interrupt that carries the id."""
    return (*fence(mailbox, event, bits), Operation.TRAP, event)


def wait_at_least(address: Number, value: Number) -> tuple[Number, ...]:
    """Go on when the 32 bits at an address are at least a value."""
    low, _ = halves(value)
    header = Operation.POLL | _POLL_AT_LEAST
    return (header, *halves(address), low, _WHOLE, _POLL_INTERVAL | _FOREVER)


def clock(address: Number) -> tuple[Number, ...]:
    """Write the card's clock."""
    return (Operation.TIMESTAMP | _GLOBAL_CLOCK, *halves(address))
