"""Scratch: memory that waves spill to, one piece for each card, as large as its kernels need."""

from __future__ import annotations

from typing import Final

from tiny_amd.arch import arch_of
from tiny_amd.generation import Generation
from tiny_amd.topology import Card

__all__ = ["scratch_bytes", "temporary_ring"]

LANES: Final = 64
"""Scratch is counted for waves of 64."""
_WAVE_SIZE_SHIFT: Final = 12
_MOST_WAVES: Final = 0xFFF


def units_of_a_wave(generation: Generation, private_bytes: int) -> int:
    """WAVESIZE for so many bytes of a work-item."""
    alignment = generation.scratch_alignment
    aligned = -(-private_bytes // alignment) * alignment
    return -(-aligned * LANES // generation.scratch_unit)


def scratch_bytes(card: Card, private_bytes: int) -> int:
    """Memory for all waves that a card may run at once."""
    generation = arch_of(card.arch).generation
    waves = card.scratch_slots_per_cu * card.units * card.xccs
    return units_of_a_wave(generation, private_bytes) * generation.scratch_unit * waves


def temporary_ring(card: Card, private_bytes: int, size: int) -> int:
    """TMPRING_SIZE: how large a wave's part is, and how many waves may have one."""
    generation = arch_of(card.arch).generation
    units = units_of_a_wave(generation, private_bytes)
    fitting = size // (units * generation.scratch_unit)
    fitting //= card.engines if generation.scratch_by_engine else 1
    waves = min(fitting, card.units * card.scratch_slots_per_cu, _MOST_WAVES)
    return waves | units << _WAVE_SIZE_SHIFT
