"""The environment variables of CL, as `tinycore settings` lists them."""

from __future__ import annotations

from tinycore.config import PluginSettings, text

__all__ = ["ClSettings", "settings"]


class ClSettings(PluginSettings):
    """The table."""

    OPENCL_LIBRARY = text("", "The loader of OpenCL; empty looks for it", "a file")
    OPENCL_BUILD_OPTIONS = text("", "Added to what kernels are built with", "options of OpenCL")


settings = ClSettings()
