"""The devices there are, and what each can do. Opens none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from tiny_cl._lib import Object, call, ffi, library, number, numbers, text
from tinycore.errors import DeviceError, DeviceUnavailable

__all__ = ["ClInfo", "count", "devices", "priority", "reason"]

# Keys and values of CL/cl.h.
_PLATFORM: Final = "clGetPlatformInfo"
_DEVICE: Final = "clGetDeviceInfo"
_ALL_DEVICES: Final = 0xFFFFFFFF
_CPU: Final = 1 << 1
_FINE_GRAIN: Final = 1 << 1
_NO_PLATFORM: Final = -1001
_NO_DEVICE: Final = -1
_PARAMETER_BYTES: Final = 16
"""Bytes that a buffer takes of a kernel's parameters: its object and its offset."""


@dataclass(frozen=True)
class ClInfo:
    """A device: its handle, and what programs and plans depend on."""

    handle: Object
    platform: Object
    name: str
    platform_name: str
    version: str
    """All that decides what its compiler makes of a source."""
    c_version: tuple[int, int]
    """The newest OpenCL C it takes."""
    extensions: frozenset[str]
    is_processor: bool
    shares_memory: bool
    """True if the host can address a buffer while kernels use it."""
    group_threads: int
    group_axes: tuple[int, int, int]
    units: int
    """Cores, or what a card has in their place."""
    shared_bytes: int
    buffers: int
    """Most buffers of a kernel."""
    group_counts: int
    """The most groups per axis."""
    largest_image: tuple[int, int] | None
    """Columns and rows; None where there are no images."""

    @property
    def has_half(self) -> bool:
        """Half-precision arithmetic (float16)."""
        return "cl_khr_fp16" in self.extensions

    @property
    def has_double(self) -> bool:
        """Double-precision arithmetic (float64)."""
        return "cl_khr_fp64" in self.extensions


@cache
def devices() -> tuple[ClInfo, ...]:
    """Every device of every platform: processors last, else in the order of the platforms.

    Raises DeviceUnavailable when there is no library.
    """
    found = [info for platform in _platforms() for info in _devices_of(platform)]
    return tuple(sorted(found, key=lambda info: info.is_processor))


CARD_PRIORITY: Final = 205
PROCESSOR_PRIORITY: Final = 50


def priority() -> int:
    """Before the processor with a card, behind it with a driver that runs on the processor."""
    return PROCESSOR_PRIORITY if devices()[0].is_processor else CARD_PRIORITY


def count() -> int:
    """Number of devices; 0 without a driver."""
    try:
        return len(devices())
    except (DeviceUnavailable, DeviceError):
        return 0


def reason() -> str:
    """Why there is no device, with what to do; empty when there is one."""
    try:
        if devices():
            return ""
    except (DeviceUnavailable, DeviceError) as error:
        return str(error)
    return (
        "the OpenCL library finds no device: no driver is registered (in /etc/OpenCL/vendors on "
        "Linux), or its card is not there. Install your card's driver, or, to compute on the "
        "processor, `apt install pocl-opencl-icd`; `clinfo` lists what is registered."
    )


def _platforms() -> list[Object]:
    total = ffi.new("cl_uint *")
    status = library().clGetPlatformIDs(0, ffi.NULL, total)
    if status == _NO_PLATFORM or not total[0]:
        return []
    found = ffi.new("cl_platform_id[]", total[0])
    call("clGetPlatformIDs", total[0], found, ffi.NULL)
    return list(found)


def _devices_of(platform: Object) -> list[ClInfo]:
    total = ffi.new("cl_uint *")
    status = library().clGetDeviceIDs(platform, _ALL_DEVICES, 0, ffi.NULL, total)
    if status == _NO_DEVICE or not total[0]:
        return []
    found = ffi.new("cl_device_id[]", total[0])
    call("clGetDeviceIDs", platform, _ALL_DEVICES, total[0], found, ffi.NULL)
    infos = [_info(platform, device) for device in found]
    return [info for info in infos if info is not None]


def _info(platform: Object, device: Object) -> ClInfo | None:
    """The facts of a device; None where it cannot compile, as embedded ones may."""

    def ask(key: int) -> int:
        return number(_DEVICE, device, key=key)

    def read(key: int) -> str:
        return text(_DEVICE, device, key=key)

    if not ask(0x1028):  # CL_DEVICE_COMPILER_AVAILABLE
        return None
    version = read(0x102F)  # CL_DEVICE_VERSION
    axes = numbers(_DEVICE, device, key=0x1005, size=ffi.sizeof("size_t"))
    x, y, z = axes[:3]
    is_processor = bool(ask(0x1000) & _CPU)
    fine = _version(version) >= (2, 0) and bool(ask(0x1053) & _FINE_GRAIN)
    return ClInfo(
        handle=device,
        platform=platform,
        name=read(0x102B),
        platform_name=text(_PLATFORM, platform, key=0x0902),
        version=f"{text(_PLATFORM, platform, key=0x0901)}, {version}, {read(0x102D)}",
        c_version=_version(read(0x103D)),
        extensions=frozenset(read(0x1030).split()),
        is_processor=is_processor,
        shares_memory=fine,
        group_threads=ask(0x1004),
        group_axes=(x, y, z),
        units=ask(0x1002),
        shared_bytes=ask(0x1023),
        buffers=ask(0x1017) // _PARAMETER_BYTES,
        largest_image=(ask(0x1011), ask(0x1012)) if ask(0x1016) else None,
        group_counts=(1 << min(ask(0x100D), 32) - 1) // max(axes) if axes else 1,
    )


def _version(told: str) -> tuple[int, int]:
    """The numbers of a text such as `OpenCL C 1.2 PoCL`."""
    found = re.search(r"(\d+)\.(\d+)", told)
    return (int(found[1]), int(found[2])) if found else (1, 0)
