"""Facts of AMD's architectures that plans and sources depend on.

AMD, "RDNA3 Instruction Set Architecture" (2023), chapters 2 and 12; "AMD Instinct MI300 Instruction
Set Architecture" (2024). The number of compute units and the size of their cache are those of the
product page of the largest card of the architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiny_amd.generation import CDNA, RDNA, RDNA2, Generation
from tiny_amd.matrix import CDNA2, CDNA3, CDNA4, RDNA3, RDNA4, Instruction
from tinycore.dtype import dtypes
from tinycore.errors import CompilerUnavailable
from tinycore.render.base import Limits

__all__ = ["ARCHS", "DRIVEN", "Arch", "arch_of", "limits_of"]

VECTOR_BYTES: Final = 16
"""Widest load of a lane: global_load_b128."""
SHARED_BYTES: Final = 64 << 10
WANTED_THREADS: Final = 256
SHUFFLED: Final = (dtypes.float32, dtypes.int32, dtypes.uint32)
"""Types of one word, which ds_swizzle and ds_bpermute move between lanes."""
RDNA_REGISTERS: Final = 247
"""Vector registers of a thread of RDNA that plans count on: with more of the 256 LLVM 22 spills."""
FEW_REGISTERS: Final = 215
"""The same of a card with 1024 registers for each lane of a SIMD, not 1536."""
WAVES_OF_A_UNIT: Final = 32
"""The most waves that a compute unit has at once."""
THREADS_OF_A_UNIT: Final = 256
"""Threads that keep a compute unit busy."""


@dataclass(frozen=True)
class Arch:
    """Hardware features of one architecture."""

    units: int
    """Compute units."""
    vector_bytes_per_unit: int = 0x60000
    """Vector registers of a compute unit: what its waves leave when they are put aside."""
    matrix: tuple[Instruction, ...] = RDNA3
    """Its matrix instructions."""
    wave: int = 32
    """Threads of a wave."""
    generation: Generation = RDNA
    """Its packets, and the buffers of its queues."""
    l2_bytes: int = 4 << 20
    """The cache that its compute units share: of an Instinct MI300, those of one die."""
    is_driven: bool = True
    """True if the plugin drives cards of it; kernels are compiled for all."""

    @property
    def features(self) -> tuple[str, ...]:
        """LLVM's features that its kernels need: to spill by addresses in scratch, where LLVM would
        want a description of it as a buffer."""
        return ("+enable-flat-scratch",) if self.generation.scratch_is_user_data else ()

    @property
    def thread_registers(self) -> int:
        """Vector registers of a thread that plans count on; of CDNA half are accumulators."""
        if self.generation is CDNA:
            return 512
        return RDNA_REGISTERS if self.vector_bytes_per_unit == 0x60000 else FEW_REGISTERS


ARCHS: Final = {
    "gfx1100": Arch(96, l2_bytes=6 << 20),
    "gfx1101": Arch(60),
    "gfx1102": Arch(32, 0x40000, l2_bytes=2 << 20),
    "gfx1151": Arch(40, 0x60000, l2_bytes=2 << 20),
    "gfx1030": Arch(80, 0x40000, (), generation=RDNA2),
    "gfx1200": Arch(32, 0x60000, RDNA4),
    "gfx1201": Arch(64, 0x60000, RDNA4, l2_bytes=8 << 20),
    "gfx90a": Arch(104, 0x80000, CDNA2, 64, CDNA, l2_bytes=8 << 20, is_driven=False),
    "gfx942": Arch(304, 0x80000, CDNA3, 64, CDNA),
    "gfx950": Arch(256, 0x80000, CDNA4, 64, CDNA, is_driven=False),
}
"""By the name that LLVM knows them by; the first are those of RDNA3."""
DRIVEN: Final = tuple(name for name, arch in ARCHS.items() if arch.is_driven)


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
        grid_varies=True,
        block=(1024, 1024, 1024),
        block_threads=1024,
        block_wanted=WANTED_THREADS,
        shared_bytes=SHARED_BYTES,
        subgroup=arch.wave,
        shuffles=SHUFFLED,
        matrix=tuple(instruction.unit for instruction in arch.matrix),
        units=arch.units,
        unit_threads=WAVES_OF_A_UNIT * arch.wave,
        unit_registers=arch.vector_bytes_per_unit // 4,
        unit_shared_bytes=SHARED_BYTES,
        thread_registers=arch.thread_registers,
        l2_bytes=arch.l2_bytes,
    )
