"""Cards as numbers: rates, sizes and latencies, from public tables.

Sources, by card:
H200: NVIDIA, "H200 Tensor Core GPU" data sheet, and "H100 Tensor Core GPU Architecture" for one
multiprocessor; mma.sync reaches .63 of the peak that wgmma has (Luo et al., "Benchmarking and
Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024); what the cache gives
as is counted here was measured (benchmarks/results/2026-11-26-h200.md). 7900 XTX: AMD, "RDNA3
Instruction Set Architecture", its product page, and Chips and Cheese's measurements of caches. M3:
Apple's product page, and P. Turner, "metal-benchmarks", for a core. Adreno 640: Qualcomm's product
brief of the Snapdragon 855 and Mesa's `freedreno_devices.py`.

Loads that compilers join are those seen in what NVRTC 13 (`ld.shared.v4`) and LLVM 22
(`ds_load_2addr_b32`) write for these products. The 7900 XTX is counted with one multiply-add of a
lane in a clock, half of what its page states: two are begun together (VOPD) where a compiler finds
pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tinycore.uop.matrix import MatrixDescriptor, MatrixUnit

__all__ = ["CARDS", "Card"]


@dataclass(frozen=True)
class Card:
    """One machine. Rates of a unit (multiprocessor, compute unit, core) are for one clock."""

    name: str
    target: str
    """Text of DEV after NULL."""
    units: int
    hertz: float
    subgroup: int
    """Threads of a warp, wave or SIMD group."""
    lanes: int
    """Threads of which a unit computes one float32 multiply-add in a clock."""
    issued: float
    """Instructions of subgroups that a unit begins in a clock."""
    dram: float
    """Bytes of memory in a second."""
    cache: float
    """Bytes from the last cache that all units share in a second."""
    cache_bytes: int
    """Size of that cache."""
    latency: float
    """Seconds that a load from memory takes."""
    shared_bytes: int
    """Shared memory of a unit."""
    registers: int
    """Bytes of registers of a unit."""
    threads: int
    """The most threads resident in a unit."""
    most_registers: int
    """Registers of a thread."""
    matrix: Mapping[str, float] = field(default_factory=dict)
    """Operations of its matrix instructions in a second, by the type of operands."""
    reached: float = 1.0
    """Fraction of that peak that matrix instructions reach which take operands of threads."""
    half: float = 1.0
    """Multiply-adds of float16 for one of float32, without matrix instructions."""
    banks: int = 32
    """Words of 4 bytes that shared memory moves in a clock."""
    has_lds: bool = False
    """True if shared memory is a memory beside the near cache, and both are busy at once."""
    joined_bytes: int = 0
    """Bytes of neighboring loads from shared memory that its compiler makes one instruction of."""
    joins_apart: bool = False
    """True if they need not be neighbors."""

    def reached_by(self, unit: MatrixUnit) -> float:
        """Fraction of the peak that a matrix instruction reaches."""
        return 1.0 if isinstance(unit.load, MatrixDescriptor) else self.reached

    @property
    def vector_rate(self) -> float:
        """Operations of float32 in a second, without matrix instructions."""
        return 2 * self.lanes * self.units * self.hertz

    def peak(self, dtype: str) -> float:
        """The most operations in a second on operands of a type."""
        vector = self.vector_rate * (self.half if dtype == "float16" else 1)
        return max(self.matrix.get(dtype, 0.0), vector)


CARDS: Final = (
    Card(
        "H200",
        "NVRTC:sm_90a",
        units=132,
        hertz=1.83e9,
        subgroup=32,
        lanes=128,
        issued=4,
        dram=4.8e12,
        cache=8.0e12,
        cache_bytes=50 << 20,
        latency=700e-9,
        shared_bytes=228 << 10,
        registers=256 << 10,
        threads=2048,
        most_registers=255,
        matrix={"float16": 989e12, "bfloat16": 989e12, "int8": 1979e12, "fp8e4m3": 1979e12},
        reached=0.63,
        joined_bytes=16,
    ),
    Card(
        "RX 7900 XTX",
        "LLVM:gfx1100",
        units=96,
        hertz=2.5e9,
        subgroup=32,
        lanes=64,
        issued=2,
        dram=960e9,
        cache=3.5e12,
        cache_bytes=96 << 20,
        latency=600e-9,
        shared_bytes=64 << 10,
        registers=384 << 10,
        threads=1024,
        most_registers=256,
        matrix={"float16": 122.9e12, "bfloat16": 122.9e12},
        has_lds=True,
        joined_bytes=8,
        joins_apart=True,
    ),
    Card(
        "M3",
        "MSL:apple9",
        units=10,
        hertz=1.38e9,
        subgroup=32,
        lanes=128,
        issued=4,
        dram=100e9,
        cache=400e9,
        cache_bytes=8 << 20,
        latency=500e-9,
        shared_bytes=60 << 10,
        registers=208 << 10,
        threads=1024,
        most_registers=128,
        matrix={"float16": 3.5e12, "bfloat16": 3.5e12, "float32": 3.5e12},
    ),
    Card(
        "Adreno 640",
        "IR3:a640",
        units=2,
        hertz=585e6,
        subgroup=64,
        lanes=384,
        issued=6,
        dram=34e9,
        cache=140e9,
        cache_bytes=1 << 20,
        latency=600e-9,
        shared_bytes=32 << 10,
        registers=96 * 16 * 64 * 2,
        threads=2048,
        most_registers=192,
        half=2.0,
    ),
)
