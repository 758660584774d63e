"""The adapters there are: GPUs, or drivers in software, that Dawn can reach.

Dawn gives one adapter for each way of asking, so it is asked in every way; those that are the same
are told apart from those that differ by what they say of themselves. The Null backend, which runs
nothing and says it succeeded, is never asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final

from tiny_webgpu._lib import (
    BackendType,
    Feature,
    Pointer,
    dawn,
    missing_library,
    new,
    owned,
    text_of,
)
from tiny_webgpu._rounds import LLVMPIPE_ROUNDS
from tiny_webgpu.arch import Arch
from tiny_webgpu.settings import settings
from tinycore.errors import DeviceUnavailable

__all__ = ["Adapter", "adapters", "count", "priority", "reason", "request"]

INTERFACES: Final = {
    "linux": (BackendType.VULKAN,),
    "darwin": (BackendType.METAL,),
    "win32": (BackendType.D3D12, BackendType.VULKAN),
}
"""Graphics interfaces that Dawn reaches a GPU through, by platform, the preferred first."""
_CPU: Final = 3
"""WGPUAdapterType_CPU. There, threads that share a sum only wait for each other."""
_UNSET, _LOW_POWER, _HIGH_PERFORMANCE = 0, 1, 2
_WAYS: Final = ((_HIGH_PERFORMANCE, 0), (_LOW_POWER, 0), (_UNSET, 1))
"""(power preference, whether a driver in software is asked for): each may give another adapter."""
_NO_DEVICE_SELECT: Final = "NODEVICE_SELECT"
_DEVICE_SELECT: Final = (
    *("XDG_RUNTIME_DIR", "DRI_PRIME", "MESA_VK_DEVICE_SELECT"),
    *("MESA_VK_DEVICE_SELECT_FORCE_DEFAULT_DEVICE", _NO_DEVICE_SELECT),
)
"""Environment variables that decide what Mesa's layer device_select does."""
_ADVICE: Final = {
    "linux": "Install a Vulkan driver and the loader libvulkan.so.1; the Debian packages "
    "libvulkan1 and mesa-vulkan-drivers hold one in software, too.",
    "darwin": "It needs macOS 11 or newer, with Metal.",
    "win32": "Install the driver of the graphics card.",
}


@dataclass(frozen=True)
class Adapter:
    """An adapter as it describes itself, and how to ask for it again."""

    backend: BackendType
    way: tuple[int, int]
    name: str
    identity: tuple[int, int, str]
    arch: Arch
    has_timestamps: bool


def request(backend: BackendType, way: tuple[int, int]) -> tuple[Pointer, str]:
    """An adapter, released with the last reference to it, or None and why there is none."""
    library = dawn()
    preference, software = way
    options = new(
        "WGPURequestAdapterOptions",
        powerPreference=preference,
        backendType=int(backend),
        forceFallbackAdapter=software,
    )
    with without_device_select():
        found, adapter, message = library.wait_for_object(
            lambda info: library.lib.wgpuInstanceRequestAdapter2(library.instance, options, info)
        )
    if not found:
        return None, message
    return owned(adapter, library.lib.wgpuAdapterRelease), ""


@contextmanager
def without_device_select() -> Iterator[None]:
    """Leave out Mesa's Vulkan layer device_select where there is no desktop whose card it finds.

    It asks Wayland, which writes to stderr that XDG_RUNTIME_DIR is missing. A user who names a card
    by one of the layer's own variables keeps it.
    """
    if any(name in os.environ for name in _DEVICE_SELECT):
        yield
        return
    os.environ[_NO_DEVICE_SELECT] = "1"
    try:
        yield
    finally:
        os.environ.pop(_NO_DEVICE_SELECT, None)


def described(pointer: Pointer, backend: BackendType, way: tuple[int, int]) -> Adapter:
    """The properties of an adapter."""
    lib = dawn().lib
    info, limits = new("WGPUAdapterInfo"), new("WGPUSupportedLimits")
    lib.wgpuAdapterGetInfo(pointer, info)
    lib.wgpuAdapterGetLimits(pointer, limits)
    name = text_of(info.device) or text_of(info.description)
    identity = (info.vendorID, info.deviceID, name)
    in_software = info.adapterType == _CPU
    lib.wgpuAdapterInfoFreeMembers(info[0])
    given = limits.limits
    arch = Arch(
        float16=bool(lib.wgpuAdapterHasFeature(pointer, Feature.SHADER_F16)),
        threads=given.maxComputeInvocationsPerWorkgroup,
        grid=given.maxComputeWorkgroupsPerDimension,
        shared_bytes=given.maxComputeWorkgroupStorageSize,
        software=in_software,
        buffers=given.maxStorageBuffersPerShaderStage,
        rounds=LLVMPIPE_ROUNDS if name.lower().startswith("llvmpipe") else 0,
    )
    has_timestamps = bool(lib.wgpuAdapterHasFeature(pointer, Feature.TIMESTAMP_QUERY))
    return Adapter(backend, way, name, identity, arch, has_timestamps)


def asked_interface() -> str:
    """Interface that WEBGPU_BACKEND names, as Vulkan or WGPUBackendType_Vulkan; "" if not set.

    Raises DeviceUnavailable for what this platform does not have.
    """
    given = settings.WEBGPU_BACKEND
    name = given.removeprefix("WGPUBackendType_").upper()
    here = [backend.name for backend in INTERFACES.get(sys.platform, ())]
    if name and name not in here:
        raise DeviceUnavailable(
            f"WEBGPU_BACKEND={given}: Dawn reaches GPUs through {' or '.join(here)} here. "
            f"Set it to {here[0]}, or leave it unset."
            if here
            else f"WEBGPU_BACKEND={given}: Dawn reaches no GPU on {sys.platform}."
        )
    return name


def adapters(interface: str = "") -> tuple[Adapter, ...]:
    """The adapters behind an interface: that of WEBGPU_BACKEND, or all of this platform's, if none
    is named.

    Raises DeviceUnavailable without the library, and for a WEBGPU_BACKEND that is not here.
    """
    return found_behind(interface or asked_interface())


@cache
def found_behind(interface: str) -> tuple[Adapter, ...]:
    """The adapters behind an interface, or all."""
    found: dict[tuple[BackendType, tuple[int, int, str]], Adapter] = {}
    for backend in INTERFACES.get(sys.platform, ()):
        for way in _WAYS if interface in ("", backend.name) else ():
            pointer, _ = request(backend, way)
            if pointer is not None:
                adapter = described(pointer, backend, way)
                found.setdefault((backend, adapter.identity), adapter)
    return tuple(found.values())


CARD_PRIORITY: Final = 200
SOFTWARE_PRIORITY: Final = 40


def priority() -> int:
    """Before the processor with a card, behind it with a driver in software."""
    return SOFTWARE_PRIORITY if adapters()[0].arch.software else CARD_PRIORITY


def count() -> int:
    """Number of adapters, 0 without the library or a driver."""
    try:
        return len(adapters())
    except DeviceUnavailable:
        return 0


def reason() -> str:
    """Why there is no adapter, with what to do; empty when there is one."""
    if problem := missing_library():
        return problem
    try:
        return "" if adapters() else no_adapter()
    except DeviceUnavailable as error:
        return str(error)


def no_adapter(interface: str = "") -> str:
    """The reason that Dawn gives for having no adapter, and the remedy."""
    interface = interface or asked_interface()
    backends = [b for b in INTERFACES.get(sys.platform, ()) if interface in ("", b.name)]
    said = "; ".join(f"{b.name}: {request(b, _WAYS[0])[1].strip()}" for b in backends)
    return f"Dawn finds no adapter ({said}). {_ADVICE.get(sys.platform, '')}"
