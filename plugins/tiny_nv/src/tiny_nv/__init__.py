"""NVIDIA cards for tinycore. Importing this module opens no library."""

from tinycore.plugin import Backend, Interface, deferred

__all__ = ["CUDA", "NV"]

_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 float64 fp8e4m3 fp8e5m2 fp8e4m3fnuz fp8e5m2fnuz"
)
_CARD_MEMORY, _PINNED, _MANAGED = 2, 3, 13
"""DLDeviceTypes."""

CUDA = Backend(
    name="CUDA",
    api=(2, 0),
    count=deferred("tiny_nv.probe:count"),
    probe=deferred("tiny_nv.probe:reason"),
    open=deferred("tiny_nv.device:CudaDevice"),
    renderers={
        "NVRTC": deferred("tiny_nv.device:toolchain"),
        "PTX": deferred("tiny_nv.device:ptx_toolchain"),
    },
    capabilities=frozenset(
        {"exchange", "external_pointer", "graph", "local_memory", "peer_copy"} | {*_DTYPES.split()}
    ),
    settings=deferred("tiny_nv.settings:CudaSettings"),
    priority=220,
    dlpack=(_CARD_MEMORY, _PINNED, _MANAGED),
)

_NVK = Interface(
    probe=deferred("tiny_nv.nvk.probe:reason"), count=deferred("tiny_nv.nvk.probe:count")
)
"""NVIDIA's kernel driver, by its own files."""
_PCI = Interface(
    probe=deferred("tiny_nv.pci.bring_up:obstacle"),
    count=deferred("tiny_nv.pci.bring_up:card_count"),
    automatic=False,
)
"""Registers of a card that is taken from its kernel driver."""

NV = Backend(
    name="NV",
    api=(2, 0),
    count=deferred("tiny_nv.nvk.probe:count"),
    open=deferred("tiny_nv.nvk.device:NvDevice"),
    renderers={
        "NVRTC": deferred("tiny_nv.nvk.device:toolchain"),
        "PTX": deferred("tiny_nv.nvk.device:ptx_toolchain"),
    },
    interfaces={"NVK": _NVK, "PCI": _PCI},
    capabilities=frozenset({"graph", "local_memory", "peer_copy", "queues"} | {*_DTYPES.split()}),
    platforms=("linux",),
    settings=deferred("tiny_nv.settings:NvSettings"),
    priority=215,
)
