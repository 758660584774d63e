"""AMD cards for tinycore. Importing this module opens no driver and loads no library."""

from tinycore.plugin import Backend, Interface, deferred

__all__ = ["BACKEND"]

_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 float64 fp8e4m3 fp8e5m2 fp8e4m3fnuz fp8e5m2fnuz"
)

_KFD = Interface(
    probe=deferred("tiny_amd.topology:reason"), count=deferred("tiny_amd.topology:count")
)
"""The kernel driver amdgpu, by /dev/kfd."""
_PCI = Interface(
    probe=deferred("tiny_amd.am.interface:obstacle"),
    count=deferred("tiny_amd.am.interface:card_count"),
    automatic=False,
)
"""Registers of a card that is taken from its kernel driver."""
_USB = Interface(
    probe=deferred("tiny_amd.usb.sysfs:bridge_obstacle"),
    count=deferred("tiny_amd.usb.sysfs:bridge_count"),
    automatic=False,
)
"""A card behind an ASM2464PD bridge, by libusb."""

BACKEND = Backend(
    name="AMD",
    api=(2, 0),
    count=deferred("tiny_amd.topology:count"),
    open=deferred("tiny_amd.device:AmdDevice"),
    renderers={
        "LLVM": deferred("tiny_amd.device:toolchain"),
        "HIP": deferred("tiny_amd.device:toolchain_hip"),
    },
    interfaces={"KFD": _KFD, "PCI": _PCI, "USB": _USB},
    capabilities=frozenset({"graph", "local_memory", "peer_copy", "queues", *_DTYPES.split()}),
    platforms=("linux",),
    settings=deferred("tiny_amd.settings:AmdSettings"),
    priority=210,
)
