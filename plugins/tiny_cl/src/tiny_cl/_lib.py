"""The OpenCL library, through cffi: found once, each call with one check.

Nothing else in the plugin touches cffi objects of unknown type.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from tiny_cl._errors import ERRORS, MEMORY_IS_SHORT
from tiny_cl._native import ffi
from tiny_cl.settings import settings
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.plugin import in_child

__all__ = [
    "Object",
    "call",
    "create",
    "describe",
    "ffi",
    "is_inherited",
    "library",
    "number",
    "numbers",
    "owned",
    "text",
]

Object = Any
"""A cffi handle: a cl_mem, a cl_context, ..."""

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "darwin": ("/System/Library/Frameworks/OpenCL.framework/OpenCL",),
    "win32": ("OpenCL.dll",),
}
_LINUX_NAMES: Final = ("libOpenCL.so.1", "libOpenCL.so")
_NEEDED_FIRST: Final = (
    *("libirng.so", "libintlc.so.5", "libimf.so", "libirc.so", "libsvml.so", "libtbb.so.12"),
)
"""Libraries that a driver installed by pip does not find by itself, in the order of their needs."""
_PIP_DRIVER: Final = "libintelocl.so"
_FOR_GOOD: Final = ffi.RTLD_NOW | getattr(ffi, "RTLD_NODELETE", 0)
"""Flags of dlopen: the library stays as long as the process, as what is released with its last
reference calls a function of the library and does not keep it, and drivers have threads in theirs.
"""
_WISHES: Final = {"POCL_WORK_GROUP_SPECIALIZATION": "0"}
"""Settings of drivers, unless somebody has set them: PoCL is not to compile a kernel once more for
the number of groups of its first launch, as it is compiled for groups of the right size already.
"""


@cache
def library() -> Any:
    """The loader of OpenCL drivers. Raises DeviceUnavailable with what was tried."""
    if is_inherited():
        raise DeviceUnavailable(
            "OpenCL was used by the parent of this process, and its drivers do not work in a fork: "
            "their threads stayed behind. Use CL after fork only, or start processes by spawn."
        )
    tried = []
    for name, value in _WISHES.items():
        os.environ.setdefault(name, value)
    for path in _candidates():
        try:
            return ffi.dlopen(path, _FOR_GOOD)
        except OSError as error:
            tried.append(f"{path} ({str(error).removeprefix('cannot load library ')})")
    raise DeviceUnavailable(
        "no OpenCL library. Install your card's driver, or, to compute on the processor, "
        "`apt install pocl-opencl-icd ocl-icd-libopencl1`; OPENCL_LIBRARY names one elsewhere. "
        f"Tried: {'; '.join(tried)}"
    )


_left_behind: Final[list[Any]] = []
"""In a forked child: the library that the parent used."""


def is_inherited() -> bool:
    """True if the parent of this process used the library, which then cannot be used here."""
    return bool(_left_behind)


def _leave_behind() -> None:
    if library.cache_info().currsize:
        _left_behind.append(library())
        library.cache_clear()


in_child(_leave_behind)


def owned(release: str, made: Object) -> Object:
    """An object that is released with its last reference, in the process that made it."""
    function, inherited = getattr(library(), release), is_inherited
    return ffi.gc(made, lambda given: None if inherited() else function(given))


def _candidates() -> Iterator[str]:
    """Names and paths of the loader, the likeliest first."""
    if named := settings.OPENCL_LIBRARY:
        yield named
        return
    folder = Path(sys.prefix) / "lib"
    if (folder / _PIP_DRIVER).exists():
        _prepare_pip_driver(folder)
        yield str(folder / "libOpenCL.so.1")
    yield from _NAMES.get(sys.platform, _LINUX_NAMES)


def _prepare_pip_driver(folder: Path) -> None:
    """Name a driver that pip installed to the loader, and load what it needs but cannot find."""
    named = os.environ.get("OCL_ICD_FILENAMES", "")
    driver = str(folder / _PIP_DRIVER)
    if driver not in named.split(os.pathsep):
        os.environ["OCL_ICD_FILENAMES"] = os.pathsep.join(filter(None, (named, driver)))
    for name in _NEEDED_FIRST:
        if (folder / name).exists():
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)


# Calls


def describe(status: int) -> str:
    """A status as OpenCL's headers call it."""
    return f"{ERRORS.get(status, 'an unknown error')} ({status})"


def verify(status: int, name: str, what: str = "") -> None:
    """Raise OutOfMemory or DeviceError unless a call succeeded."""
    if status == 0:
        return
    about = f" for {what}" if what else ""
    if status in MEMORY_IS_SHORT:
        raise OutOfMemory(
            f"the device has no memory left{about}: {name} returned {describe(status)}. "
            "Free tensors, or use a smaller batch."
        )
    raise DeviceError(f"{name}{about} returned {describe(status)}")


def call(name: str, *arguments: Any, what: str = "") -> None:
    """Call a function that returns a status. Raises OutOfMemory and DeviceError."""
    verify(getattr(library(), name)(*arguments), name, what)


def create(name: str, *arguments: Any, what: str = "") -> Object:
    """Call a function that returns an object, its status last. Raises as `call` does."""
    status = ffi.new("cl_int *")
    made = getattr(library(), name)(*arguments, status)
    verify(status[0], name, what)
    return made


# Questions: clGet...Info functions take (object..., key, room, value, size)


def _answer(name: str, objects: tuple[Object, ...], key: int) -> bytes:
    """The bytes that an info function gives for a key."""
    function: Callable[..., int] = getattr(library(), name)
    size = ffi.new("size_t *")
    verify(function(*objects, key, 0, ffi.NULL, size), name)
    value = ffi.new("char[]", max(1, size[0]))
    verify(function(*objects, key, size[0], value, ffi.NULL), name)
    return bytes(ffi.buffer(value, size[0]))


def text(name: str, *objects: Object, key: int) -> str:
    """An answer that is text."""
    return _answer(name, objects, key).split(b"\0")[0].decode("utf-8", "replace").strip()


def number(name: str, *objects: Object, key: int) -> int:
    """An answer that is an unsigned number, of whatever size."""
    return int.from_bytes(_answer(name, objects, key), sys.byteorder)


def numbers(name: str, *objects: Object, key: int, size: int) -> tuple[int, ...]:
    """An answer that is an array of unsigned numbers of `size` bytes."""
    found = _answer(name, objects, key)
    parts = range(0, len(found), size)
    return tuple(int.from_bytes(found[i : i + size], sys.byteorder) for i in parts)
