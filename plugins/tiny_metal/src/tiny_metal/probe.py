"""Discovery of GPUs and their properties, and the reason if there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiny_metal._lib import NIL, Metal, Object, Pool, metal, text_of
from tiny_metal.arch import FAMILIES
from tinycore.errors import DeviceUnavailable

__all__ = ["GpuInfo", "count", "gpus", "info_of", "reason"]

_VIRTUAL: Final = "virtual"
"""In the name of a GPU that a virtual machine is given."""


@dataclass(frozen=True)
class GpuInfo:
    """A GPU: what it says of itself."""

    name: str
    family: str
    """The newest of FAMILIES that it supports."""
    registry: int
    shares_memory: bool
    """Unified memory: the host addresses the GPU's memory."""
    most_bytes: int
    """The longest buffer."""
    shared_bytes: int
    """Memory that threads of a group can share."""

    @property
    def is_virtual(self) -> bool:
        """True for a GPU in a virtual machine (paravirtual): such a GPU has no indirect command
        buffers.
        """
        return _VIRTUAL in self.name.lower()


def info_of(runtime: Metal, device: Object) -> GpuInfo | None:
    """The facts of an MTLDevice; None for one that is too old."""
    families = [
        name
        for name, facts in FAMILIES.items()
        if runtime.send(device, "supportsFamily:", facts.number)
    ]
    if not families:
        return None
    return GpuInfo(
        name=text_of(runtime, runtime.send(device, "name")),
        family=families[0],
        registry=int(runtime.send(device, "registryID")),
        shares_memory=bool(runtime.send(device, "hasUnifiedMemory")),
        most_bytes=int(runtime.send(device, "maxBufferLength")),
        shared_bytes=int(runtime.send(device, "maxThreadgroupMemoryLength")),
    )


def gpus() -> list[tuple[Object, GpuInfo]]:
    """The GPUs that can be used, the default one first; each object is to be released.

    Raises DeviceUnavailable off macOS.
    """
    runtime = metal()
    with Pool(runtime):
        first = runtime.system.MTLCreateSystemDefaultDevice()
        array = runtime.system.MTLCopyAllDevices()
        count = runtime.send(array, "count") if array != NIL else 0
        listed = [runtime.send(array, "objectAtIndex:", place) for place in range(count)]
        for device in listed:
            runtime.send(device, "retain")
        if array != NIL:
            runtime.send(array, "release")
        found: dict[int, tuple[Object, GpuInfo]] = {}
        for device in ([first] if first != NIL else []) + listed:
            info = info_of(runtime, device)
            if info is None or info.registry in found:
                runtime.send(device, "release")
            else:
                found[info.registry] = (device, info)
        return list(found.values())


def names() -> list[str]:
    """The names of the GPUs that can be used. Raises DeviceUnavailable off macOS."""
    runtime = metal()
    found = gpus()
    for device, _ in found:
        runtime.send(device, "release")
    return [info.name for _, info in found]


def count() -> int:
    """Number of GPUs; 0 off macOS."""
    try:
        return len(names())
    except DeviceUnavailable:
        return 0


def reason() -> str:
    """Why there is no GPU, with what to do; empty when there is one."""
    try:
        if names():
            return ""
    except DeviceUnavailable as error:
        return str(error)
    return (
        f"Metal finds no GPU of the families {', '.join(FAMILIES)}. A session without a screen, or "
        "a sandbox, may hide it: log in at the Mac, or allow access to its GPU"
    )
