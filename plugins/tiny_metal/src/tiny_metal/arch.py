"""Facts of Apple's GPU families that plans and sources depend on.

Metal Feature Set Tables (Apple, 2024), and the Metal Shading Language Specification 3.2, section
2.1 for bfloat. An architecture is written as a family with the version of the language that the
system compiles: `apple7,3.1`; the family alone stands for a system of macOS 14 or later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tiny_metal.matrix import LANES, UNITS
from tinycore.dtype import dtypes
from tinycore.errors import CompilerUnavailable
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit

__all__ = ["ARCHS", "FAMILIES", "LANGUAGES", "Arch", "Family", "limits_of", "parsed"]

NEWEST: Final = (3, 1)
"""The newest version of the language that anything here needs: the first with bfloat."""
LANGUAGES: Final = ((3, 1), (3, 0), (2, 4), (2, 3), (2, 2))
"""The versions that are tried, the newest first. 2.2 is the first whose long is whole."""
FIRST_WITH_MATRICES: Final = (2, 3)
"""The first version of the language with simdgroup_matrix."""
VECTOR_BYTES: Final = 16
"""Widest load of a thread: float4."""
WANTED_THREADS: Final = 128
"""Threads in a group: four SIMD groups."""
THREADS_OF_A_CORE: Final = 384
"""Threads that keep a GPU core busy."""
THREADS_AT_ONCE: Final = 1024
"""Threads that a core of Apple has at once: P. Turner, "metal-benchmarks", of M1 and M2."""
REGISTER_BYTES: Final = 208 << 10
"""Registers of such a core, by the same measurements."""
MOST_REGISTERS: Final = 128
FIRST_OF_OTHERS: Final = 2000
"""The least value of MTLGPUFamily that is not of Apple's own GPUs."""
MOST_BUFFERS: Final = 30
"""The table of buffers has 31 entries, of which one is for the values of variables."""


@dataclass(frozen=True)
class Family:
    """Hardware features of one GPU family."""

    number: int
    """The value of MTLGPUFamily."""
    cores: int
    """GPU cores of the smallest that runs macOS."""
    has_bfloat: bool
    """Support for the type bfloat: Metal Shading Language 3.1 and later."""
    has_matrices: bool
    """True if SIMD groups multiply matrices of 8 by 8."""
    shared_bytes: int = 32 << 10

    @property
    def is_apple(self) -> bool:
        """True if its cores are Apple's."""
        return self.number < FIRST_OF_OTHERS


FAMILIES: Final = {
    "apple10": Family(1010, 10, True, True),
    "apple9": Family(1009, 8, True, True),
    "apple8": Family(1008, 8, True, True),
    "apple7": Family(1007, 7, True, True),
    "mac2": Family(2002, 16, False, False),
}
"""By name, the newest first: M5, M3 and M4, M2, M1, and GPUs of AMD and Intel in Macs."""


@dataclass(frozen=True)
class Arch:
    """A family with the version of the language."""

    family: str
    language: tuple[int, int]

    @property
    def facts(self) -> Family:
        """Features of its family."""
        return FAMILIES[self.family]

    @property
    def has_bfloat(self) -> bool:
        """True if kernels can compute with bfloat."""
        return self.facts.has_bfloat and self.language >= NEWEST

    @property
    def units(self) -> tuple[MatrixUnit, ...]:
        """The matrix units whose operands kernels can name."""
        if not self.facts.has_matrices or self.language < FIRST_WITH_MATRICES:
            return ()
        return tuple(u for u in UNITS if u.a is not dtypes.bfloat16 or self.has_bfloat)

    def __str__(self) -> str:
        if self.language == NEWEST:
            return self.family
        return f"{self.family},{self.language[0]}.{self.language[1]}"


ARCHS: Final = (*FAMILIES, "apple7,3.0", "mac2,2.4")
"""Architectures that tests write kernels for."""


def parsed(name: str) -> Arch:
    """The architecture of a name such as apple7 or mac2,2.4.

    Raises CompilerUnavailable for one that is not known.
    """
    family, comma, version = name.partition(",")
    found = re.fullmatch(r"(\d)\.(\d)", version)
    language = (int(found[1]), int(found[2])) if found else (0, 0) if comma else NEWEST
    if family not in FAMILIES or language not in LANGUAGES:
        versions = ", ".join(f"{major}.{minor}" for major, minor in LANGUAGES)
        raise CompilerUnavailable(
            f"{name!r} is no architecture that tiny-metal writes for. These are "
            f"{', '.join(FAMILIES)}, each alone or with a version of the language ({versions}), "
            "such as apple7,3.0"
        )
    return Arch(family, language)


SHUFFLED: Final = (dtypes.float32, dtypes.int32, dtypes.uint32)
"""Types that simd_shuffle_xor exchanges, of those that are summed most."""


def limits_of(arch: Arch) -> Limits:
    """Limits of a GPU, which plans respect."""
    return Limits(
        threads=arch.facts.cores * THREADS_OF_A_CORE,
        vector_bytes=VECTOR_BYTES,
        access_alignment=VECTOR_BYTES,
        grid=((1 << 31) - 1, 65_535, 65_535),
        grid_varies=True,
        block=(1024, 1024, 1024),
        block_threads=1024,
        block_wanted=WANTED_THREADS,
        shared_bytes=arch.facts.shared_bytes,
        buffers=MOST_BUFFERS,
        subgroup=LANES if arch.units else 1,
        shuffles=SHUFFLED if arch.units else (),
        matrix=arch.units,
        units=arch.facts.cores,
        unit_threads=THREADS_AT_ONCE if arch.facts.is_apple else 0,
        unit_registers=REGISTER_BYTES // 4 if arch.facts.is_apple else 0,
        thread_registers=MOST_REGISTERS if arch.facts.is_apple else 0,
    )
