"""Cards as the topology describes them, and what kernels check of queues on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MI300", "NAVI21", "NAVI31", "NAVI48", "CardFacts"]


@dataclass(frozen=True)
class CardFacts:
    """A node of the topology. Sizes of saved waves are numbers, those of NAVI31 seen on a machine
    with the card: two of one formula would agree in being wrong."""

    version: int
    simd_count: int
    simd_per_cu: int
    array_count: int
    arrays_per_engine: int
    control_stack: int
    saved_bytes: int
    """`ctx_save_restore_size`, the control stack included."""
    saved_buffer: int
    """Required bytes of the buffer of saved waves and of their debugging area."""
    memory_bytes: int = 4 << 30
    scratch_slots: int = 32
    engines_sdma: int = 2
    xccs: int = 1
    wave: int = 32

    @property
    def is_rdna2(self) -> bool:
        """True if kernels place their scratch themselves."""
        return self.version // 100 == 1003

    @property
    def is_cdna(self) -> bool:
        """True if its packets are those of CDNA."""
        return self.version < 100000

    def properties(self, render_minor: int) -> str:
        """The file `properties` of its node."""
        facts = {
            "cpu_cores_count": 0,
            "simd_count": self.simd_count,
            "mem_banks_count": 1,
            "max_waves_per_simd": 16,
            "lds_size_in_kb": 64,
            "wave_front_size": self.wave,
            "array_count": self.array_count,
            "simd_arrays_per_engine": self.arrays_per_engine,
            "cu_per_simd_array": 8,
            "simd_per_cu": self.simd_per_cu,
            "max_slots_scratch_cu": self.scratch_slots,
            "gfx_target_version": self.version,
            "vendor_id": 0x1002,
            "device_id": 0x744C,
            "drm_render_minor": render_minor,
            "hive_id": 0,
            "num_sdma_engines": self.engines_sdma,
            "num_sdma_queues_per_engine": 6,
            "num_xcc": self.xccs,
        }
        return "".join(f"{key} {value}\n" for key, value in facts.items())


NAVI31: Final = CardFacts(
    version=110000,
    simd_count=192,
    simd_per_cu=2,
    array_count=12,
    arrays_per_engine=2,
    control_stack=0xA000,
    saved_bytes=0x2BEA000,
    saved_buffer=0x2C02000,
)
"""A Radeon RX 7900 XTX."""
NAVI21: Final = CardFacts(
    version=100300,
    simd_count=160,
    simd_per_cu=2,
    array_count=8,
    arrays_per_engine=2,
    control_stack=0x7000,
    saved_bytes=0x1A97000,
    saved_buffer=0x1AAB000,
)
"""A Radeon RX 6900 XT; its sizes are computed as those of NAVI48."""
NAVI48: Final = CardFacts(
    version=120001,
    simd_count=128,
    simd_per_cu=2,
    array_count=8,
    arrays_per_engine=2,
    control_stack=0x7000,
    saved_bytes=0x1D47000,
    saved_buffer=0x1D57000,
)
"""A Radeon RX 9070 XT; its sizes are computed by the kernel's formula, and were not seen."""
MI300: Final = CardFacts(
    version=90402,
    simd_count=152,
    simd_per_cu=4,
    array_count=4,
    arrays_per_engine=1,
    control_stack=0x3000,
    saved_bytes=0x1621000,
    saved_buffer=0x162D000,
    wave=64,
)
"""One of the eight partitions of an Instinct MI300X; its sizes are computed as those of NAVI48."""
