"""The environment variables of RANK, as `tinycore settings` lists them."""

from __future__ import annotations

from tinycore.config import PluginSettings, number, switch, text
from tinycore.config import settings as core_settings

__all__ = ["RankSettings", "device_name", "settings"]


class RankSettings(PluginSettings):
    """The table."""

    MPI_TIMEOUT = number(300, "Longest wait of a process for others, in seconds", 1)
    MPI_BUCKET = number(1 << 14, "Bytes of arrays to one process that are sent as one message", 0)
    MPI_EARLY = number(1 << 28, "Bytes that a process receives before they are needed", 0)
    MPI_CARDS = switch(True, "Exchange memory of cards by NCCL or RCCL, where it is found")
    RANK_DEVICE = text(
        "", "Device behind RANK in each process; empty takes that of DEV, or CPU", "a device"
    )


settings = RankSettings()


def device_name() -> tuple[str, ...]:
    """The device that RANK_DEVICE names, or else DEV, and words on it: ("CUDA", "PTX")."""
    wanted = settings.RANK_DEVICE or core_settings.DEV.partition(";")[0].rpartition("+")[2]
    return tuple(wanted.upper().split(":"))
