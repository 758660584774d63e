"""Facts of NVIDIA's architectures that plans and sources depend on, from sm_80 on.

NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities". The number of multiprocessors is that
of a usual card of the architecture: what is compiled is the same for all of its cards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from tiny_nv.matrix import units_of
from tinycore.errors import CompilerUnavailable
from tinycore.render.base import Limits

__all__ = ["ARCHS", "Arch", "arch_of", "limits_of", "number_of"]

OLDEST: Final = 80
VECTOR_BYTES: Final = 16
"""Widest load of a thread: LDG.128."""
WANTED_THREADS: Final = 256
"""Threads in a group: two of them fill a multiprocessor with room for registers."""
THREADS_OF_A_UNIT: Final = 256
"""Threads that keep a multiprocessor busy."""
WARP: Final = 32
ASYNC_BYTES: Final = (4, 8, 16)
"""Sizes that cp.async copies."""
MOST_BUFFERS: Final = 500
"""Pointers that fit into the 4 KB of a kernel's parameters, with room for variables."""


@dataclass(frozen=True)
class Arch:
    """Hardware features of one compute capability."""

    shared_bytes: int
    """Shared memory that a block can have, once it asks for more than 48 KB."""
    units: int
    """Multiprocessors."""
    number: int
    """Compute capability: 90 is 9.0."""
    is_specific: bool = False
    """True for what no later card has, as sm_90a: wgmma."""


ARCHS: Final = {
    80: Arch(163 << 10, 108, 80),
    86: Arch(99 << 10, 84, 86),
    87: Arch(163 << 10, 16, 87),
    89: Arch(99 << 10, 128, 89),
    90: Arch(227 << 10, 132, 90),
    100: Arch(227 << 10, 148, 100),
    103: Arch(227 << 10, 148, 103),
    110: Arch(227 << 10, 20, 110),
    120: Arch(99 << 10, 170, 120),
    121: Arch(99 << 10, 48, 121),
}
"""By compute capability: 90 is 9.0."""


def number_of(name: str) -> int:
    """90 for sm_90 and sm_90a. Raises CompilerUnavailable for what is no architecture of NVIDIA."""
    found = re.fullmatch(r"sm_(\d{2,3})|sm_90a", name)
    if found is not None and found[1] is None:
        return 90
    if found is None or int(found[1]) < OLDEST:
        known = ", ".join(f"sm_{number}" for number in ARCHS)
        raise CompilerUnavailable(
            f"{name!r} is no architecture that tiny-nv compiles for; these are {known}, and later"
        )
    return int(found[1])


def arch_of(name: str) -> Arch:
    """The facts of an architecture; of one that is not known, those of the one before it."""
    number = number_of(name)
    found = ARCHS[max(known for known in ARCHS if known <= number)]
    return replace(found, is_specific=True) if name.endswith("a") else found


def limits_of(arch: Arch) -> Limits:
    """Limits of a card, which plans respect."""
    return Limits(
        threads=arch.units * THREADS_OF_A_UNIT,
        vector_bytes=VECTOR_BYTES,
        access_alignment=VECTOR_BYTES,
        grid=((1 << 31) - 1, 65_535, 65_535),
        grid_varies=True,
        block=(1024, 1024, 64),
        block_threads=1024,
        block_wanted=WANTED_THREADS,
        shared_bytes=arch.shared_bytes,
        buffers=MOST_BUFFERS,
        subgroup=WARP,
        matrix=units_of(arch.number, arch.is_specific),
        async_bytes=ASYNC_BYTES,
    )
