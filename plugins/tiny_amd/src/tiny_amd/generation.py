"""Generations of command processors: what packets and buffers of RDNA and of CDNA differ in.

Linux, drivers/gpu/drm/amd/amdgpu/{soc15d,nvd}.h and amdkfd/kfd_queue.c. RDNA names caches one by
one (GCR_CNTL), CDNA by CP_COHER_CNTL; its waves have 64 lanes, its scratch is of larger pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tiny_amd.pm4 import ACQUIRED, EVERYTHING, RELEASED, Register

__all__ = ["CDNA", "RDNA", "RDNA2", "Generation"]

# CP_COHER_CNTL of ACQUIRE_MEM before gfx10
_TC_WRITE_BACK: Final = 1 << 18
_TCL1: Final = 1 << 22
_TC: Final = 1 << 23
_SCALARS: Final = 1 << 27
_INSTRUCTIONS: Final = 1 << 29
_CDNA_ACQUIRED: Final = _TC_WRITE_BACK | _TCL1 | _TC | _SCALARS | _INSTRUCTIONS
_CDNA_POLL_INTERVAL: Final = 10
# RELEASE_MEM, first word, before gfx10
_CDNA_RELEASED: Final = 1 << 15 | 1 << 16 | 1 << 17 | 1 << 21
"""TC_WB, TCL1, TC and TC_MD: written back, and forgotten with their metadata."""


@dataclass(frozen=True)
class Generation:
    """Packets, scratch and saved waves of one generation."""

    acquired: tuple[int, ...]
    """Body of ACQUIRE_MEM, which covers all memory and all caches."""
    released: int
    """Caches in the first word of RELEASE_MEM."""
    rsrc3: Register
    interrupt_names_event: bool
    """True if an interrupt carries the event's id; else the kernel looks through the mailboxes."""
    fence: int
    """Bits of the header of an SDMA fence, so that no cache keeps it."""
    largest_copy: int
    """Bytes of one SDMA packet."""
    scratch_unit: int
    """Bytes that TMPRING_SIZE.WAVESIZE counts."""
    scratch_alignment: int
    """Bytes of a work-item."""
    scratch_by_engine: bool
    """True if TMPRING_SIZE.WAVES counts waves of a shader engine, else of the card."""
    waves_per_unit: int
    """Waves of a compute unit whose registers are saved."""
    waves_per_engine: int
    """Most waves of a shader engine, 0 without a bound."""
    control_bytes: int
    """Bytes of a wave on the control stack."""
    most_control_bytes: int = 0
    """Most bytes of the control stack, 0 without a bound."""
    scratch_is_user_data: bool = False
    """True if a kernel finds the address of scratch in its first registers, and adds the place of
    its wave itself; the others do both (COMPUTE_DISPATCH_SCRATCH_BASE)."""


RDNA: Final = Generation(
    acquired=(0, *EVERYTHING, 0, int(ACQUIRED)),
    released=RELEASED,
    rsrc3=Register.PGM_RSRC3,
    interrupt_names_event=True,
    fence=3 << 16,
    largest_copy=1 << 30,
    scratch_unit=256,
    scratch_alignment=4,
    scratch_by_engine=True,
    waves_per_unit=32,
    waves_per_engine=0,
    control_bytes=12,
)
RDNA2: Final = replace(
    RDNA,
    scratch_unit=1024,
    scratch_by_engine=False,
    scratch_is_user_data=True,
    most_control_bytes=0x7000,
)
CDNA: Final = Generation(
    acquired=(_CDNA_ACQUIRED, *EVERYTHING, _CDNA_POLL_INTERVAL),
    released=_CDNA_RELEASED,
    rsrc3=Register.PGM_RSRC3_CDNA,
    interrupt_names_event=False,
    fence=0,
    largest_copy=1 << 22,
    scratch_unit=1024,
    scratch_alignment=16,
    scratch_by_engine=False,
    waves_per_unit=40,
    waves_per_engine=512,
    control_bytes=8,
)
