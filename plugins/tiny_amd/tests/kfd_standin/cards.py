"""Cards as the topology describes them, and what kernels check of queues on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["NAVI31", "CardFacts"]


@dataclass(frozen=True)
class CardFacts:
    """A node of the topology. The sizes of saved waves are those seen on a machine with the card,
    not computed: two of one formula would agree in being wrong."""

    version: int
    simd_count: int
    simd_per_cu: int
    array_count: int
    arrays_per_engine: int
    control_stack: int
    saved_bytes: int
    """`ctx_save_restore_size`, the control stack included."""
    saved_buffer: int
    """What the buffer of saved waves and their debugging area must have."""
    memory_bytes: int = 4 << 30
    scratch_slots: int = 32
    engines_sdma: int = 2
    xccs: int = 1

    def properties(self, render_minor: int) -> str:
        """The file `properties` of its node."""
        facts = {
            "cpu_cores_count": 0,
            "simd_count": self.simd_count,
            "mem_banks_count": 1,
            "max_waves_per_simd": 16,
            "lds_size_in_kb": 64,
            "wave_front_size": 32,
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
