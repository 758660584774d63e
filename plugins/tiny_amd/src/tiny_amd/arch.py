"""Facts of AMD's architectures that plans and sources depend on.

AMD, "RDNA3 Instruction Set Architecture" (2023), chapters 2 and 12; the number of compute units is
that of the largest card of the architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.errors import CompilerUnavailable
from tinycore.render.base import Limits

__all__ = ["ARCHS", "Arch", "arch_of", "limits_of"]

VECTOR_BYTES: Final = 16
"""Widest load of a lane: global_load_b128."""
SHARED_BYTES: Final = 64 << 10
WANTED_THREADS: Final = 256
THREADS_OF_A_UNIT: Final = 256
"""Threads that keep a compute unit busy."""


@dataclass(frozen=True)
class Arch:
    """Hardware features of one architecture."""

    units: int
    """Compute units."""
    vector_bytes_per_unit: int = 0x60000
    """Vector registers of a compute unit: what its waves leave when they are put aside."""


ARCHS: Final = {
    "gfx1100": Arch(96),
    "gfx1101": Arch(60),
    "gfx1102": Arch(32, 0x40000),
    "gfx1151": Arch(40, 0x60000),
}
"""By the name that LLVM knows them by; all of RDNA3, in waves of 32."""


def arch_of(name: str) -> Arch:
    """The facts of an architecture. Raises CompilerUnavailable for one that is not known."""
    if name not in ARCHS:
        raise CompilerUnavailable(
            f"{name!r} is no architecture that tiny-amd compiles for; these are {', '.join(ARCHS)}"
        )
    return ARCHS[name]


def limits_of(arch: Arch) -> Limits:
    """Limits of a card, which plans respect."""
    return Limits(
        threads=arch.units * THREADS_OF_A_UNIT,
        vector_bytes=VECTOR_BYTES,
        access_alignment=VECTOR_BYTES,
        grid=((1 << 31) - 1, 65_535, 65_535),
        block=(1024, 1024, 1024),
        block_threads=1024,
        block_wanted=WANTED_THREADS,
        shared_bytes=SHARED_BYTES,
    )
