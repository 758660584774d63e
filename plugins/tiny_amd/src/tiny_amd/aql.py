"""AQL: packets of 64 bytes, by which a card's own firmware launches kernels.

HSA Platform System Architecture Specification 1.2, section 2.9. What is no launch, such as waiting
for a signal, is PM4 in a packet of AMD's own.
"""

from __future__ import annotations

from typing import Final

from tiny_amd import pm4
from tiny_hcq import Number, halves

__all__ = ["INVALID", "PACKET_WORDS", "commands", "dispatch"]

PACKET_WORDS: Final = 16
_VENDOR, INVALID, _DISPATCH = 0, 1, 2
_BARRIER: Final = 1 << 8
"""Begin when all packets before have ended."""
_SYSTEM: Final = 2
_SYSTEM_SCOPES: Final = _SYSTEM << 9 | _SYSTEM << 11
"""Acquire and release so that the host and other cards are meant too."""
_HEADER: Final = _BARRIER | _SYSTEM_SCOPES
_DIMENSIONS: Final = 3 << 16
_PM4_FORMAT: Final = 1 << 16
_REMAINING_WORDS: Final = 10


def dispatch(
    groups: tuple[Number, ...],
    group: tuple[int, int, int],
    private_bytes: int,
    shared_bytes: int,
    descriptor: int,
    arguments: int,
) -> list[Number]:
    """Launch groups of a kernel. A packet counts threads, not groups."""
    x, y, z = group
    return [
        _DISPATCH | _HEADER | _DIMENSIONS,
        x | y << 16,
        z,
        *(count * size for count, size in zip(groups, group, strict=True)),
        private_bytes,
        shared_bytes,
        *halves(descriptor),
        *halves(arguments),
        *(0, 0, 0, 0),
    ]


def commands(address: int, words: int) -> list[Number]:
    """Execute the PM4 at an address."""
    packet = pm4.indirect_buffer(address, words)
    return [_VENDOR | _HEADER | _PM4_FORMAT, *packet, _REMAINING_WORDS, *[0] * 10]
