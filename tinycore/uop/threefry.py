"""Threefry-2x32 with 20 rounds, the counter-based random generator, on numbers of any kind.

Floor 1. Constant folding calls it with Python ints, the interpreter with NumPy arrays, and lowering
with nodes. Salmon, Moraes, Dror & Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (2011),
section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

ROUNDS: Final = 20
ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY: Final = 0x1BD11BDA
WORD_BITS: Final = 32

Words = tuple[Any, Any]
"""A number of 64 bits as two words of 32, the low one first."""


def threefry_words(counter: Words, key: Words, wrap: Callable[[Any], Any]) -> Words:
    """The random words of a counter; `wrap` keeps the low 32 bits of a sum or of a shift."""
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    low, high = wrap(counter[0] + keys[0]), wrap(counter[1] + keys[1])
    for group in range(ROUNDS // 4):
        for rotation in ROTATIONS[group % 2]:
            low = wrap(low + high)
            high = wrap((high << rotation) | (high >> (WORD_BITS - rotation))) ^ low
        low = wrap(low + keys[(group + 1) % 3])
        high = wrap(high + keys[(group + 2) % 3] + (group + 1))
    return low, high
