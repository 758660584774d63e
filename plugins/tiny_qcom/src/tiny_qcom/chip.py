"""Facts of Adreno 6xx chips that plans and launches depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.errors import CompilerUnavailable, DeviceUnavailable
from tinycore.plugin import deferred
from tinycore.render.base import Limits

__all__ = ["CHIPS", "Chip", "chip_of", "chip_of_id", "limits_of", "waves_of"]

TICKS_PER_SECOND: Final = 19.2e6
"""Rate of CP_ALWAYS_ON_COUNTER."""
SHARED_BYTES: Final = 32 << 10
CONSTANT_VECTORS: Final = 256
WAVE: Final = 64
BLOCK_THREADS: Final = 256
"""A group of 4 waves fits beside the most registers that code may use."""
LARGEST_IMAGE: Final = 16_384
MOST_TEXTURES: Final = 16
"""Images that a kernel may read: instructions name so many samplers, and launches load so many."""
REGISTER_FILE: Final = 96
MOST_WAVES: Final = 16
VECTOR_WORDS: Final = 4
MOST_VECTORS: Final = 48
"""Registers of four words that ir3 gives a thread."""
PRIVATE_GRANULE: Final = 512
"""Private memory of a thread is a power of two of so many bytes."""
INSTRUCTION_GROUP_BYTES: Final = 128
PRELOADED_GROUPS: Final = 64
"""The most instruction groups that a launch loads beforehand."""
LANES: Final = 128
"""Multiply-adds of float32 that a uSPTP, a unit with registers of its own, begins in a clock."""
SHARED_RATE: Final = 29.0
"""Bytes that a uSPTP gets of shared memory in a clock when all do: 103 GB/s of the six of an a640
at 585 MHz, as ArchProbe measured them on a Pixel 4 (R. Liang et al., "Romou", MobiCom 2022)."""
TEXTURE_RATE: Final = 55.0
"""The same of textures, measured alike: 194.5 GB/s of four texels a clock."""
L2_BYTES: Final = 128 << 10
L2_RATE: Final = 28.0
"""The same of buffers and textures that the second cache holds: 96 to 100 GB/s."""


STRATEGIES: Final = (deferred("tiny_qcom.textures:propose"),)
LAYOUT: Final = deferred("tiny_qcom.layout:copies")


@dataclass(frozen=True)
class Chip:
    """One kind of Adreno."""

    name: str
    id: int
    """As KGSL says it: core, major, minor and patch number, a byte each."""
    cores: int
    """Shader processors."""
    threads_of_a_core: int
    """Threads that a shader processor keeps private memory for."""
    parts: int
    """uSPTPs of a shader processor, which share its shared memory: a group runs on one of them.
    Published GFLOPS say how many there are."""

    def private_bytes(self, per_thread: int) -> tuple[int, int]:
        """Private memory of a thread, and of a shader processor, in bytes."""
        granules = -(-per_thread // PRIVATE_GRANULE)
        thread = PRIVATE_GRANULE << max(granules - 1, 0).bit_length()
        return thread, thread * self.threads_of_a_core


CHIPS: Final = {
    "a618": Chip("a618", 0x0601_0800, 1, 2048, 2),
    "a630": Chip("a630", 0x0603_0001, 2, 2048, 2),
    "a640": Chip("a640", 0x0604_0001, 2, 8192, 3),
}
"""By name. Later ones of the family (a650 on) want registers that nobody here could try."""
DEFAULT: Final = "a630"


def chip_of(name: str) -> Chip:
    """The facts of a chip. Raises CompilerUnavailable for one that is not known."""
    if name not in CHIPS:
        raise CompilerUnavailable(
            f"{name!r} is no Adreno that tiny-qcom compiles for; these are {', '.join(CHIPS)}"
        )
    return CHIPS[name]


def chip_of_id(number: int) -> Chip:
    """The chip with this number, whatever its patch. Raises DeviceUnavailable."""
    for chip in CHIPS.values():
        if chip.id >> 16 == number >> 16:
            return chip
    core, major, minor = number >> 24, number >> 16 & 0xFF, number >> 8 & 0xFF
    raise DeviceUnavailable(
        f"the Adreno of this machine says chip {number:#010x} (core {core}, version "
        f"{major}.{minor}), and tiny-qcom drives {', '.join(CHIPS)}. DEV=CL reaches it through "
        "Qualcomm's OpenCL, if that is installed."
    )


def waves_of(full: int, half: int, merged: bool) -> int:
    """Number of resident waves of a group, by the registers that code uses."""
    used = full if merged else full + -(-half // 2)
    return min(REGISTER_FILE // max(used, 1) * 2, MOST_WAVES)


def limits_of(chip: Chip, images: bool = True, textures: bool = False) -> Limits:
    """Limits of a chip, which plans respect; `textures`: of buffers, as `texels.py` reads them."""
    units = chip.cores * chip.parts
    return Limits(
        threads=units * MOST_WAVES * WAVE,
        vector_bytes=16,
        access_alignment=16,
        grid=(65_535, 65_535, 65_535),
        grid_varies=True,
        block=(BLOCK_THREADS, BLOCK_THREADS, 64),
        block_threads=BLOCK_THREADS,
        block_wanted=128,
        subgroup=WAVE,
        shared_bytes=SHARED_BYTES,
        buffers=MOST_TEXTURES + 1,  # any of them may be images, and one is written
        image=(LARGEST_IMAGE, LARGEST_IMAGE) if images else None,
        units=units,
        unit_threads=MOST_WAVES * WAVE,
        unit_registers=REGISTER_FILE * VECTOR_WORDS * WAVE * 2,
        unit_shared_bytes=SHARED_BYTES // chip.parts,
        l2_bytes=L2_BYTES,
        l2_rate=L2_RATE,
        thread_registers=MOST_VECTORS * VECTOR_WORDS,
        strategies=STRATEGIES if textures else (),
        layout=LAYOUT if textures else None,
    )
