"""The environment variables of WEBGPU, as `tinycore settings` lists them."""

from __future__ import annotations

from tinycore.config import PluginSettings, text

__all__ = ["WebGpuSettings", "settings"]


class WebGpuSettings(PluginSettings):
    """The table."""

    WEBGPU_LIBRARY = text("", "Dawn's library; empty takes that of dawn-python", "a file")
    WEBGPU_BACKEND = text("", "Interface to GPUs; empty tries each", "Vulkan, Metal or D3D12")


settings = WebGpuSettings()
