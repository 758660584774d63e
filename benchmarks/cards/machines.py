"""Cards as numbers: rates, sizes and latencies, from public tables.

Sources, by card:
H200: NVIDIA, "H200 Tensor Core GPU" data sheet, and "H100 Tensor Core GPU Architecture" for one
multiprocessor; mma.sync reaches .63 of the peak that wgmma has (Luo et al., "Benchmarking and
Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024). Results of a clock that
are fewer than multiply-adds: NVIDIA, "CUDA C++ Programming Guide", table "Throughput of Native
Arithmetic Instructions": 64 comparisons, conversions and additions of integers, 16 exponentials; a
conversion makes two halves (`F2FP.BF16.F32.PACK_AB` in what NVRTC 13 compiles). What its cache
gives is the most that a product took of it as it is counted here, 13.0 GB in 1,482.7 us
(benchmarks/results/2026-11-26-h200.md), and may be more: groups that share what they read by
multicast were not faster (2026-11-26-h100.md), and NVIDIA's "Nsight Compute" names a unit that
makes one read of several at the same time ("L2 Request Coalescer"). 7900 XTX: AMD, "RDNA3
Instruction Set Architecture", its product page, and Chips and Cheese's measurements of caches. M3:
Apple's product page, and P. Turner, "metal-benchmarks", for a core. Adreno 640: Mesa's
`freedreno_devices.py` for registers and waves, Chips and Cheese, "Inside the Snapdragon 855's iGPU"
and "Correction on Qualcomm iGPUs" (2024), for its parts, and what ArchProbe measured on a Pixel 4
(R. Liang et al., "Romou", MobiCom 2022; github.com/microsoft/ArchProbe, examples/adreno640) for its
caches and its memories: 194.5 GB/s of images that lie in the texture cache of 1 KB, 100 GB/s of
those in the second one of 128 KB, 96.3 GB/s of buffers there, 103 GB/s of shared memory (139.8
where all threads read the same 64 bytes), 890 GFLOPS of float32. Chips and Cheese measured 192 GB/s
of the texture cache and 88 of shared memory. A unit is a uSPTP: two partitions of 64 lanes, with
registers and texture units of its own; three share a shared memory and are one core to OpenCL.

Loads that compilers join are those seen in what NVRTC 13 (`ld.shared.v4`) and LLVM 22
(`ds_load_2addr_b32`) write for these products. The 7900 XTX is counted with one multiply-add of a
lane in a clock, half of what its page states: two are begun together (VOPD) where a compiler finds
pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tinycore.uop.matrix import MatrixUnit

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
    """Words of 4 bytes that shared memory moves in a turn."""
    has_lds: bool = False
    """True if shared memory is a memory beside the near cache, and both are busy at once."""
    joined_bytes: int = 0
    """Bytes of neighboring loads from shared memory that its compiler makes one instruction of."""
    joins_apart: bool = False
    """True if they need not be neighbors."""
    turn: float = 1.0
    """Clocks that a turn of shared memory takes of a unit, if all do the same."""
    same: float = 1.0
    """The same where a subgroup reads within 64 bytes."""
    line: int = 128
    """Bytes of a line of the near cache, or of what buffers are read from where there is none."""
    line_clocks: float = 1.0
    """Clocks of a unit for such a line."""
    is_cached: bool = True
    """True if a unit has a cache for what it reads of buffers."""
    texels: float = 0.0
    """Pixels that the texture units of a unit give its threads in a clock; 0: it has none."""
    integer: float = 1.0
    """Cost of an operation on integers, in those on float32."""
    note: str = ""
    """Text for readers of its rows."""
    half_cast: int = 1
    """Operations of a conversion of float16 to float32 or back; if several, on integers."""
    special: float = 0.0
    """Results of the special function unit of a unit in a clock, beside arithmetic; 0: it is no
    part of its own."""
    compared: float = 1.0
    """Cost of a comparison, of a maximum and of a conversion to 16 bits, in multiply-adds."""
    converts: int = 1
    """Values of float32 that an instruction converts to 16 bits."""

    def reached_by(self, unit: MatrixUnit) -> float:
        """Fraction of the peak that a matrix instruction reaches."""
        return 1.0 if unit.is_described else self.reached

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
        cache=8.7e12,
        cache_bytes=50 << 20,
        latency=700e-9,
        shared_bytes=228 << 10,
        registers=256 << 10,
        threads=2048,
        most_registers=255,
        matrix={"float16": 989e12, "bfloat16": 989e12, "int8": 1979e12, "fp8e4m3": 1979e12},
        reached=0.63,
        joined_bytes=16,
        integer=2.0,
        special=16.0,
        compared=2.0,
        converts=2,
        note="""\
What the count does not know [a card](2026-11-26-h200.md) shows: attention of 64 features had 431
TFLOP/s there, .44 of the matrix peak, since products and exponentials of a subgroup wait for each
other; products of 4,096 had .66 of that peak, those of 8,192 .67 to .75.

A product of 512 in halves has 64 tiles of 64 x 64, which four groups copy for each other; no card
has timed that. A convolution of halves turns images as its groups fill shared memory; the kernel
before it copies weights along their channels, for a latency of memory.""",
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
        note="""\
Products of 512 in halves have 64 groups for 96 units, which load the operands of a step before they
multiply those of another; LLVM keeps that order (`tiny_amd/edges.py`). Smaller tiles for all units
read more of the cache than it gives.""",
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
        units=6,
        hertz=585e6,
        subgroup=64,
        lanes=128,
        issued=2,
        dram=34e9,
        cache=100e9,
        cache_bytes=128 << 10,
        latency=600e-9,
        shared_bytes=(32 << 10) // 3,
        registers=96 * 16 * 64 * 2,
        threads=16 * 64,
        most_registers=192,
        half=2.0,
        turn=128 * 6 * 585e6 / 103e9,
        same=128 * 6 * 585e6 / 139.8e9,
        line=64,
        line_clocks=64 * 6 * 585e6 / 96.3e9,
        is_cached=False,
        texels=194.5e9 / 16 / (6 * 585e6),  # of four floats; that those of halves come no faster
        # is an estimate, by what all texture units do: a texel a clock, whatever its format
        half_cast=13,  # of tiny_qcom.halves
        note="""\
Rates are what ArchProbe and Chips and Cheese measured of an Adreno 640: a unit is one of six
uSPTPs, the second cache has 128 KB and 100 GB/s, texture caches give 194 and shared memory 103.
Loads of four numbers in loops go through texture units, also those of plain buffers
(`tiny_qcom/texels.py`). Where neither operand of a product has neighbors along a side, one is
copied so: weights along filters, keys along places. Nothing of this ran on a device.

Rows of float16 have two shares. Sums of halves are promised in float32 (`docs/numerics.md`), and no
instruction adds products of halves to floats: all three operands of `mad.f16` are halves, only its
result can be widened (Mesa's encoding of ir3), those of `mad.f32` floats. So the second share, of
float32's peak, is what such a row can reach; the first is of a peak that would take sums of halves.

What keeps others below: two subgroups at once fill a unit, twelve the card, and a thread of these
has 5 outputs of a product of 64, 43 of one of 64 rows and 85 of one of 256. Tiles of so few need
more operands than both memories give, 84 bytes a clock of a unit for its 128 multiply-adds, .66 for
each: it takes .83 bytes in a tile of 12 columns and 8 rows, 1 in one of 8 and 8, 3 in one of 4 and
2. More threads to an output exchange sums through the same shared memory. Of all tiles of up to 20
columns and 16 rows of a thread, in groups of up to 128 threads of any shape, those of least cost by
the planner were counted (`python -m benchmarks.cards --card Adreno --only matmul --space 60`). The
best of 150 of 8,976 plans has .44 of the limit of a product of 64, the best of 60 of 50,385 .67 of
one of 256, whose last tile of columns is two thirds full, and the best of 60 of 40,419 .61 of one
of 64 rows, in two parts of the sum. The planner's have .96 of the first, and as much as the others.

Attention is four kernels. Keys are copied along their places. Scores go to memory once, in float32,
and one kernel reads them for the maxima and totals of rows. The product with values reads scores
again, and computes weights as it stages them. Both products in one kernel would need 256 sums of a
thread, or tiles of 8 x 8, which are slower than memory
(`docs/floors/schedule.md`). The 32 groups of the second product take turns
on twelve places, a third of which the last turn leaves empty. An exponential is an instruction,
counted as 8 multiply-adds, an estimate.""",
        integer=408 / 188,  # additions, as Chips and Cheese measured both
    ),
)
