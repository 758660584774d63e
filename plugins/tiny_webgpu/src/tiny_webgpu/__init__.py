"""The WebGPU device of tinycore. Importing this module opens no library and starts no thread.

Kernels are written in WGSL and run through Dawn, Chromium's implementation of WebGPU, on Vulkan,
Metal or Direct3D 12.
"""

import sys
from typing import Final

from tinycore.plugin import Backend, deferred

__all__ = ["BACKEND"]

_INTERFACES: Final = {"linux": ("VULKAN",), "darwin": ("METAL",), "win32": ("D3D12", "VULKAN")}
"""Graphics interfaces that Dawn reaches a GPU through, by platform, the preferred first."""
_DTYPES: Final = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 fp8e4m3 fp8e5m2 fp8e4m3fnuz fp8e5m2fnuz"
)

BACKEND = Backend(
    name="WEBGPU",
    api=(2, 0),
    count=deferred("tiny_webgpu.probe:count"),
    probe=deferred("tiny_webgpu.probe:reason"),
    open=deferred("tiny_webgpu.device:WebGpuDevice"),
    renderers={"WGSL": deferred("tiny_webgpu.device:wgsl_toolchain")},
    export=deferred("tiny_webgpu.export:write"),
    interfaces=_INTERFACES.get(sys.platform, ()),
    capabilities=frozenset({"local_memory", *_DTYPES.split()}),
    settings=deferred("tiny_webgpu.settings:WebGpuSettings"),
    priority=40,
    priority_here=deferred("tiny_webgpu.probe:priority"),
    platforms=tuple(_INTERFACES),
)
