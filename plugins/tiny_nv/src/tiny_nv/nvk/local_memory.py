"""Local memory: what threads spill to, one piece for each card, as large as its kernels need."""

from __future__ import annotations

from typing import Final

from tiny_nv.nvk.card import Units

__all__ = ["bytes_of_thread", "bytes_of_tpc", "total_bytes"]

SYSTEM_BYTES: Final = 0x240
"""Reserved bytes at the end of a thread's stack."""
_THREADS: Final = 32


def rounded(number: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-number // unit) * unit


def bytes_of_thread(stack_bytes: int) -> int:
    """Local memory of a thread; none for one without a stack."""
    return rounded(stack_bytes + SYSTEM_BYTES, 32) if stack_bytes else 0


def bytes_of_tpc(units: Units, thread_bytes: int) -> int:
    """Local memory of the multiprocessors that share it."""
    warp = rounded(thread_bytes * _THREADS, 0x200)
    return rounded(warp * units.warps_per_sm * units.sms_per_tpc, 0x8000)


def total_bytes(units: Units, tpc_bytes: int) -> int:
    """Local memory of a card."""
    return rounded(tpc_bytes * units.tpcs_per_gpc * units.gpcs, 0x20000)
