"""The environment variables of CUDA and NV, as `tinycore settings` lists them."""

from __future__ import annotations

from typing import Final

from tinycore.config import PluginSettings, Setting, switch, text

__all__ = ["COPY_ENGINES", "CudaSettings", "NvSettings", "cuda_settings", "nv_settings"]

COPY_ENGINES: Final = 10
"""Engines that copy which a card may have, COPY0 to COPY9."""


def copy_engine(value: object) -> int | None:
    """The number of an engine that copies; None for that of the graphics engine's group."""
    if value is None or value == "":
        return None
    number = int(str(value))
    if number not in range(COPY_ENGINES):
        raise ValueError(number)
    return number


class CudaSettings(PluginSettings):
    """The table of CUDA; NV, too, compiles by nvrtc."""

    CUDA_LIBRARY = text("", "The driver's library libcuda; empty looks for it", "a file")
    NCCL_LIBRARY = text("", "The library of collectives, NCCL; empty looks for it", "a file")
    NVRTC_LIBRARY = text("", "The compiler's library libnvrtc; empty looks for it", "a file")
    NVRTC_OPTIONS = text("", "Added to what kernels are compiled with", "options of nvrtc")
    CUDA_CLUSTERS = switch(
        True, "Have blocks of a Hopper's small products copy for each other, in clusters of four"
    )


class NvSettings(PluginSettings):
    """The table of NV."""

    NV_COPY_ENGINE = Setting(
        None, "Copy by this engine, in a channel group of its own; without it by the one "
        "of the graphics engine's group", copy_engine, f"a number from 0 to {COPY_ENGINES - 1}",
    )  # fmt: skip
    NV_INLINE_DESCRIPTORS = switch(
        False, "Put launch descriptors among the commands, not beside the arguments"
    )
    NV_SLEEP = switch(False, "Wait for a card's interrupt in the kernel, not in a loop")
    NV_PCI_TAKE = text(
        "", "The card that DEV=PCI+NV may take from its driver", "an address such as 0000:01:00.0"
    )


cuda_settings = CudaSettings()
nv_settings = NvSettings()
