"""Facts of NVIDIA's architectures that plans and sources depend on, from sm_80 on.

NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities". The number of multiprocessors and the
size of their cache are those of a usual card of the architecture, by its data sheet: what is
compiled is the same for all of its cards. Rates of that cache: "NVIDIA A100 Tensor Core GPU
Architecture" says 5120 bytes in a clock; Chips and Cheese measured 5.5 TB/s of an H100.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from tiny_nv.matrix import INSTRUCTIONS
from tiny_nv.settings import cuda_settings
from tiny_nv.warpgroup import HOPPER, WARPGROUP
from tinycore.dtype import dtypes
from tinycore.errors import CompilerUnavailable
from tinycore.plugin import deferred
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit

__all__ = ["ARCHS", "Arch", "arch_of", "limits_of", "number_of", "widest_of"]

OLDEST: Final = 80
VECTOR_BYTES: Final = 16
"""Widest load of a thread: LDG.128."""
WANTED_THREADS: Final = 256
"""Threads in a group: two of them fill a multiprocessor with room for registers."""
THREADS_OF_A_UNIT: Final = 256
"""Threads that keep a multiprocessor busy."""
WARP: Final = 32
SHUFFLED: Final = (dtypes.float32, dtypes.int32, dtypes.uint32)
"""Types of one word, which shfl.sync moves between lanes."""
MOST_BUFFERS: Final = 500
"""Pointers that fit into the 4 KB of a kernel's parameters, with room for variables."""


BLOCK_RESERVE: Final = 1 << 10
REGISTERS_OF_A_UNIT: Final = 64 << 10
MOST_REGISTERS: Final = 255


@dataclass(frozen=True)
class Arch:
    """Hardware features of one compute capability."""

    shared_bytes: int
    """Shared memory that a block can have, once it asks for more than 48 KB."""
    units: int
    """Multiprocessors."""
    number: int
    """Compute capability: 90 is 9.0."""
    l2_bytes: int
    """The cache of all multiprocessors, of that card."""
    threads: int = 2048
    """The most threads that a multiprocessor has at once."""
    l2_rate: float = 0.0
    """Bytes that a multiprocessor gets from that cache in a clock, where it is published."""
    is_specific: bool = False
    """True for an architecture with features that no later one has, such as wgmma of sm_90a."""

    @property
    def shared_bytes_of_a_unit(self) -> int:
        """Shared memory of a multiprocessor, of which each block takes 1 KB more than it asks."""
        return self.shared_bytes + BLOCK_RESERVE


ARCHS: Final = {
    80: Arch(163 << 10, 108, 80, 40 << 20, l2_rate=47.4),
    86: Arch(99 << 10, 84, 86, 6 << 20, 1536),
    87: Arch(163 << 10, 16, 87, 4 << 20, 1536),
    89: Arch(99 << 10, 128, 89, 72 << 20, 1536),
    90: Arch(227 << 10, 132, 90, 50 << 20, l2_rate=22.8),
    100: Arch(227 << 10, 148, 100, 126 << 20),
    103: Arch(227 << 10, 148, 103, 126 << 20),
    110: Arch(227 << 10, 20, 110, 32 << 20, 1536),
    120: Arch(99 << 10, 170, 120, 96 << 20, 1536),
    121: Arch(99 << 10, 48, 121, 24 << 20, 1536),
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


def widest_of(name: str) -> str:
    """The architecture to compile for on a card, with the features that only it has."""
    return f"{name}a" if number_of(name) == HOPPER and not name.endswith("a") else name


def limits_of(arch: Arch, takes_maps: bool = False) -> Limits:
    """The limits of a card; `takes_maps` if the driver passes maps of tensors to programs."""
    # An H100 was no faster with clusters (benchmarks/results/2026-11-26-h100.md).
    boxes = "fill_in_clusters" if cuda_settings.CUDA_CLUSTERS else "fill_by_boxes"
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
        shuffles=SHUFFLED,
        fills=deferred(f"tiny_nv.boxes:{boxes}") if takes_maps and arch.is_specific else None,
        copies=deferred("tiny_nv.copied_fills:begin_copies"),
        strategies=(deferred("tiny_nv.window_plans:propose"),) if arch.is_specific else (),
        layout=deferred("tiny_nv.windows:copies") if arch.is_specific else None,
        units=arch.units,
        unit_threads=arch.threads,
        unit_registers=REGISTERS_OF_A_UNIT,
        unit_shared_bytes=arch.shared_bytes_of_a_unit,
        thread_registers=MOST_REGISTERS,
        l2_bytes=arch.l2_bytes,
        l2_rate=arch.l2_rate,
    )


def units_of(number: int, is_specific: bool = False) -> tuple[MatrixUnit, ...]:
    """The matrix units of a compute capability; if `is_specific`, with those that only it has."""
    own = [found.unit for found in WARPGROUP.values()] if is_specific and number == HOPPER else []
    return (*own, *(found.unit for found in INSTRUCTIONS.values() if found.since <= number))
