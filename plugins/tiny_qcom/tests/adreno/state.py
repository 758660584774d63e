"""A launch of the compute shader: values of registers, and the loaded state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy

Array = numpy.ndarray[Any, Any]

POISON: Final = 0xDEAD_BEEF
"""In registers and constants that nobody wrote: as a float -6.3e18, as an address none."""


@dataclass
class Launch:
    """A grid of groups, the code they run, and what it may use."""

    is_blob: bool
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]
    machine: bytes
    address: int
    entry: int
    constants: Array
    """The constant file, as words."""
    constant_words: int
    """Number of them that code may read."""
    full_registers: int
    half_registers: int
    merged: bool
    demotes: bool
    """True if a half constant is the lower half of a constant."""
    branch_stack: int
    shared_bytes: int
    private_bytes: int
    group_register: int
    thread_register: int
    textures: list[Array] = field(default_factory=list)
    """Descriptors, of 16 words."""
    samplers: list[Array] = field(default_factory=list)
    images: list[Array] = field(default_factory=list)

    @property
    def block_threads(self) -> int:
        """Threads of a group."""
        x, y, z = self.threads
        return x * y * z


def bits(word: int, first: int, count: int) -> int:
    """A field of a word."""
    return int(word) >> first & ((1 << count) - 1)
