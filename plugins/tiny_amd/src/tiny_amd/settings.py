"""The environment variables of AMD, as `tinycore settings` lists them."""

from __future__ import annotations

from tinycore.config import PluginSettings, switch, text

__all__ = ["AmdSettings", "settings"]


class AmdSettings(PluginSettings):
    """The table."""

    AMD_AQL = switch(False, "Give kernels to queues of AQL packets, not of PM4")
    AMD_PCI_TAKE = text(
        "", "The cards that DEV=PCI+AMD may take from their driver",
        "addresses such as 0000:03:00.0, with commas between",
    )  # fmt: skip
    COMGR_LIBRARY = text("", "AMD's compiler library COMGR; empty looks for it", "a file")
    HIP_LIBRARY = text("", "HIP's runtime, for RCCL; empty looks for it", "a file")
    RCCL_LIBRARY = text("", "The library of collectives, RCCL; empty looks for it", "a file")
    LIBUSB_LIBRARY = text("", "libusb-1.0 for DEV=USB+AMD; empty looks for it", "a file")


settings = AmdSettings()
