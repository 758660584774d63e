"""libwebgpu_dawn through cffi: where it is, the one instance of it, and waiting for what it does.

Nothing else in the plugin declares C or interprets a status. Source of the numbers: webgpu.h of
Dawn in Chromium 133.
"""

from __future__ import annotations

import ctypes
import enum
import importlib.util
import itertools
import os
import platform
import sys
from collections.abc import Callable
from functools import cache, partialmethod
from pathlib import Path
from typing import Any, Final

from tiny_webgpu._native import ffi
from tiny_webgpu.settings import settings
from tinycore.errors import DeviceError, DeviceUnavailable
from tinycore.plugin import in_child, lock

__all__ = [
    "BackendType",
    "BindingType",
    "BufferUsage",
    "Dawn",
    "Feature",
    "Pointer",
    "dawn",
    "ffi",
    "find_library",
    "is_inherited",
    "new",
    "owned",
    "string",
    "text_of",
]

Pointer = Any
"""A cffi pointer or structure."""

_WHEEL: Final = "pydawn"
_FILES: Final = {
    ("linux", "x86_64"): "libwebgpu_dawn_x86_64.so",
    ("linux", "aarch64"): "libwebgpu_dawn_aarch64.so",
    ("darwin", "arm64"): "libwebgpu_dawn_arm64.dylib",
    ("darwin", "x86_64"): "libwebgpu_dawn_x86_64.dylib",
    ("win32", "amd64"): "libwebgpu_dawn.dll",
}
_FOR_GOOD: Final = ffi.RTLD_NOW | getattr(ffi, "RTLD_NODELETE", 0)
"""Flags of dlopen: the library stays as long as the process, as what is released with its last
reference calls a function of the library and does not keep it.
"""
_NEWEST_GONE: Final = "wgpuInstanceRequestAdapter2"
"""A function that later versions of Dawn, whose structures differ, no longer have."""

_SUCCESS: Final = 1
_WAIT_ANY_ONLY: Final = 1
_FOREVER: Final = (1 << 64) - 1
_TIMED_WAIT_MOST: Final = 64


class BackendType(enum.IntEnum):
    """WGPUBackendType: what Dawn reaches a GPU through."""

    D3D12 = 4
    METAL = 5
    VULKAN = 6


class Feature(enum.IntEnum):
    """WGPUFeatureName: what a device may be asked for."""

    TIMESTAMP_QUERY = 3
    SHADER_F16 = 8


class BufferUsage(enum.IntFlag):
    """WGPUBufferUsage."""

    MAP_READ = 1
    COPY_SRC = 4
    COPY_DST = 8
    UNIFORM = 64
    STORAGE = 128
    QUERY_RESOLVE = 512


class BindingType(enum.IntEnum):
    """WGPUBufferBindingType."""

    UNIFORM = 1
    STORAGE = 2
    READ_ONLY_STORAGE = 3


# --- structures


def new(kind: str, **fields: Any) -> Pointer:
    """A structure, zero but for the fields given. The caller keeps alive what they point to."""
    return ffi.new(f"{kind} *", fields)


def string(data: Pointer) -> dict[str, Any]:
    """A WGPUStringView of the bytes of a cffi array, without the zero at its end."""
    return {"data": data, "length": len(data) - 1}


def text_of(view: Pointer) -> str:
    """The text of a WGPUStringView."""
    if view.data == ffi.NULL:
        return ""
    if view.length == _FOREVER:
        return str(ffi.string(view.data).decode("utf-8", "replace"))
    return bytes(ffi.buffer(view.data, view.length)).decode("utf-8", "replace")


# --- what callbacks bring


_tickets: Final = itertools.count(1)
_answers: Final[dict[int, tuple[Any, ...]]] = {}
"""By the ticket under which something was asked."""


def _number(ticket: Pointer) -> int:
    return int(ffi.cast("uintptr_t", ticket))


@ffi.callback("adapter_callback")  # type: ignore[untyped-decorator,unused-ignore]
def _on_object(
    status: int, found: Pointer, message: Pointer, ticket: Pointer, _unused: Pointer
) -> None:
    _answers[_number(ticket)] = (status, found, text_of(message))


@ffi.callback("message_callback")  # type: ignore[untyped-decorator,unused-ignore]
def _on_message(status: int, message: Pointer, ticket: Pointer, _unused: Pointer) -> None:
    _answers[_number(ticket)] = (status, None, text_of(message))


@ffi.callback("status_callback")  # type: ignore[untyped-decorator,unused-ignore]
def _on_status(status: int, ticket: Pointer, _unused: Pointer) -> None:
    _answers[_number(ticket)] = (status, None, "")


_errors: Final[dict[int, list[str]]] = {}
"""Errors that devices reported, by the ticket they were opened under."""


@ffi.callback("error_callback")  # type: ignore[untyped-decorator,unused-ignore]
def _on_error(
    _device: Pointer, _kind: int, message: Pointer, ticket: Pointer, _unused: Pointer
) -> None:
    _errors.setdefault(_number(ticket), []).append(text_of(message))


# --- the library


def find_library() -> Path | None:
    """The library's file: the one named by WEBGPU_LIBRARY, else that of the wheel; None if absent.

    Opens nothing.
    """
    if named := settings.WEBGPU_LIBRARY:
        return Path(named) if Path(named).is_file() else None
    wheel = importlib.util.find_spec(_WHEEL)
    name = _FILES.get((sys.platform, platform.machine().lower()))
    if wheel is None or name is None:
        return None
    for folder in wheel.submodule_search_locations or ():
        if (path := Path(folder, "lib", name)).is_file():
            return path
    return None


class Dawn:
    """The library with its instance. Calls are attributes: `dawn().lib.wgpuDeviceGetQueue`."""

    def __init__(self, path: Path) -> None:
        try:
            self.lib = ffi.dlopen(os.fspath(path), _FOR_GOOD)
            _ = getattr(self.lib, _NEWEST_GONE)
        except (OSError, AttributeError) as error:
            raise DeviceUnavailable(
                f"{path} is no library of Dawn that can be used ({error}). Install the package "
                f"dawn-python 0.3, and leave WEBGPU_LIBRARY unset."
            ) from error
        features = {"timedWaitAnyEnable": 1, "timedWaitAnyMaxCount": _TIMED_WAIT_MOST}
        self.instance = self.lib.wgpuCreateInstance(
            new("WGPUInstanceDescriptor", features=features)
        )
        if self.instance == ffi.NULL:
            raise DeviceUnavailable(f"{path} made no instance of WebGPU")

    def _answer(
        self, callback: Pointer, ask: Callable[[Any], Pointer]
    ) -> tuple[bool, Pointer, str]:
        ticket = next(_tickets)
        info = new(
            "CallbackInfo",
            mode=_WAIT_ANY_ONLY,
            callback=ffi.cast("void *", callback),
            userdata1=ffi.cast("void *", ticket),
        )
        waited = new("WGPUFutureWaitInfo", future=ask(info[0]))
        status = self.lib.wgpuInstanceWaitAny(self.instance, 1, waited, _FOREVER)
        if status != _SUCCESS:
            raise DeviceError(f"wgpuInstanceWaitAny returned {status}")
        status, found, message = _answers.pop(ticket)
        return status == _SUCCESS, found, message

    wait = partialmethod(_answer, _on_message)
    """Ask for something by a callback, wait, and return (succeeded, what came, message)."""
    wait_for_object = partialmethod(_answer, _on_object)
    """The same where an adapter or a device comes."""
    wait_for_status = partialmethod(_answer, _on_status)
    """The same where only a status comes."""

    def error_sink(self) -> tuple[dict[str, Any], list[str]]:
        """The fields of an error callback, and the list that its messages will be in."""
        ticket = next(_tickets)
        fields = {
            "callback": ffi.cast("void *", _on_error),
            "userdata1": ffi.cast("void *", ticket),
        }
        return fields, _errors.setdefault(ticket, [])


_loading: Final = lock()


@cache
def _load(path: Path) -> Dawn:
    return Dawn(path)


_left_behind: Final[list[str]] = []
"""In a forked child: that the parent used the library."""


def is_inherited() -> bool:
    """True if the parent of this process used the library, which then cannot be used here."""
    return bool(_left_behind)


def inherited() -> DeviceUnavailable:
    """The error of a forked child."""
    return DeviceUnavailable(
        "WebGPU was used by the parent of this process, and does not work in a fork: its threads "
        "stayed behind. Use WEBGPU after fork only, or start processes by spawn."
    )


def _leave_behind() -> None:
    if _load.cache_info().currsize:
        _left_behind.append("Dawn")
        # at exit, Mesa waits for its threads that stayed behind; Python has written its files then
        if hasattr(libc := ctypes.CDLL(None), "on_exit"):
            libc.on_exit(libc._exit, None)


in_child(_leave_behind)


def owned(made: Pointer, release: Callable[[Pointer], None]) -> Pointer:
    """An object that is released with its last reference, in the process that made it."""
    elsewhere = is_inherited
    return ffi.gc(made, lambda given: None if elsewhere() else release(given))


def dawn() -> Dawn:
    """The library, opened once. Raises DeviceUnavailable with what to install."""
    path = find_library()
    if path is None:
        raise DeviceUnavailable(missing_library())
    if is_inherited():
        raise inherited()
    with _loading:
        return _load(path)


def missing_library() -> str:
    """Why there is no library, and what to do; "" when there is one."""
    if find_library() is not None:
        return ""
    if named := settings.WEBGPU_LIBRARY:
        return f"WEBGPU_LIBRARY={named} names no file."
    if (sys.platform, platform.machine().lower()) not in _FILES:
        return (
            f"the package dawn-python has no library for {sys.platform} on {platform.machine()}. "
            f"Set WEBGPU_LIBRARY to a libwebgpu_dawn of Chromium 133."
        )
    return "libwebgpu_dawn is missing: run `pip install dawn-python`."
