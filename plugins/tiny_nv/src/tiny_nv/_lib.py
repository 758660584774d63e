"""CUDA's driver, through cffi: opened once, each call with one check.

`library()` is all that the plugin knows of the driver. `use` puts another object with the same
functions in its place: a stand-in, in tests. Nothing else in the plugin touches cffi objects of
unknown type.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tiny_nv._errors import ADVICE, ERRORS, OUT_OF_MEMORY
from tiny_nv._native import ffi
from tiny_nv.settings import cuda_settings
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory

__all__ = ["Object", "call", "describe", "ffi", "got", "library", "use"]

Object = Any
"""A cffi handle: a CUcontext, a CUstream, ..."""

_NAMES: Final[dict[str, tuple[str, ...]]] = {"win32": ("nvcuda.dll",)}
_LINUX_NAMES: Final = (
    "libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
)

_FOR_GOOD: Final = ffi.RTLD_NOW | getattr(ffi, "RTLD_NODELETE", 0)
"""Flags of dlopen: the driver stays until the process ends, as it has threads of its own."""

_opened: list[Any] = []
"""The driver, once it is open."""


def library() -> Any:
    """The driver's library. Raises DeviceUnavailable with what was tried."""
    return _opened[-1] if _opened else _open()


def _open() -> Any:
    tried = []
    for path in _candidates():
        try:
            _opened.append(ffi.dlopen(path, _FOR_GOOD))
            return _opened[-1]
        except OSError as error:
            tried.append(f"{path} ({str(error).rpartition(': ')[2]})")
    raise DeviceUnavailable(
        "no CUDA driver. Install NVIDIA's driver for your card (its libcuda.so.1 comes with it, "
        "and into a container by NVIDIA's container toolkit); CUDA_LIBRARY names one elsewhere. "
        f"Tried: {'; '.join(tried)}"
    )


def _candidates() -> Iterator[str]:
    """Candidate paths of the driver, the likeliest first."""
    if named := cuda_settings.CUDA_LIBRARY:
        yield named
        return
    yield from _NAMES.get(sys.platform, _LINUX_NAMES)


@contextmanager
def use(driver: Any) -> Iterator[None]:
    """Have an object with the driver's functions in place of the driver."""
    _opened.append(driver)
    try:
        yield
    finally:
        _opened.remove(driver)


# Calls


def describe(status: int) -> str:
    """A status as CUDA's header calls it, with what to do about it."""
    name = f"{ERRORS.get(status) or _name_of(status)} ({status})"
    return f"{name}. {ADVICE[status]}" if status in ADVICE else name


def _name_of(status: int) -> str:
    text = ffi.new("char **")
    if library().cuGetErrorName(status, text) or text[0] == ffi.NULL:
        return "an unknown error"
    return bytes(ffi.string(text[0])).decode()


def verify(status: int, name: str, what: str = "") -> None:
    """Raise OutOfMemory or DeviceError unless a call succeeded."""
    if status == 0:
        return
    about = f" for {what}" if what else ""
    if status == OUT_OF_MEMORY:
        raise OutOfMemory(
            f"the card has no memory left{about}: {name} returned {describe(status)}. "
            "Free tensors, or use a smaller batch."
        )
    raise DeviceError(f"{name}{about} returned {describe(status)}")


def call(name: str, *arguments: Any, what: str = "") -> None:
    """Call a function of the driver. Raises OutOfMemory and DeviceError."""
    verify(getattr(library(), name)(*arguments), name, what)


def got(kind: str, name: str, *arguments: Any, what: str = "") -> Any:
    """Result that a function of the driver stores through its first argument. Raises as `call`."""
    place = ffi.new(kind)
    call(name, place, *arguments, what=what)
    return place[0]
