"""Scratch: memory that waves spill to, one piece for each card, as large as its kernels need."""

from __future__ import annotations

from typing import Final

from tiny_amd.topology import Card

__all__ = ["scratch_bytes", "temporary_ring"]

LANES: Final = 64
"""Scratch is counted for waves of 64."""
UNIT: Final = 256
"""Bytes that TMPRING_SIZE.WAVESIZE counts."""
_ALIGNMENT: Final = 4
_WAVE_SIZE_SHIFT: Final = 12
_MOST_WAVES: Final = 0xFFF


def units_of_a_wave(private_bytes: int) -> int:
    """WAVESIZE for so many bytes of a work-item."""
    aligned = -(-private_bytes // _ALIGNMENT) * _ALIGNMENT
    return -(-aligned * LANES // UNIT)


def scratch_bytes(card: Card, private_bytes: int) -> int:
    """Memory for all waves that a card may run at once."""
    waves = card.scratch_slots_per_cu * card.units * card.xccs
    return units_of_a_wave(private_bytes) * UNIT * waves


def temporary_ring(card: Card, private_bytes: int, size: int) -> int:
    """TMPRING_SIZE: how large a wave's part is, and how many waves of an engine may have one."""
    units = units_of_a_wave(private_bytes)
    fitting = size // (units * UNIT) // card.engines
    waves = min(fitting, card.units * card.scratch_slots_per_cu, _MOST_WAVES)
    return waves | units << _WAVE_SIZE_SHIFT
