"""libusb-1.0 through cffi: found once, each call with one check.

The wheel `libusb-package` brings the library; else it is the system's. `LIBUSB_LIBRARY` names one
elsewhere.
"""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from tiny_amd.settings import settings
from tiny_amd.usb._native import ffi
from tiny_hcq import system
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import lock

__all__ = ["SupportsLibusb", "UsbCode", "error_name", "ffi", "libusb"]

LIBUSB_VARIABLE: Final = "LIBUSB_LIBRARY"
_WHEEL: Final = "libusb_package"
_IN_WHEEL: Final = "libusb-1.0.so"
_SONAMES: Final = ("libusb-1.0.so.0", "libusb-1.0.so")
_loaded: Final[list[Any]] = []
_loading: Final = lock()


class UsbCode(enum.IntEnum):
    """Status of a call (libusb.h, enum libusb_error)."""

    SUCCESS = 0
    IO = -1
    INVALID_PARAM = -2
    ACCESS = -3
    NO_DEVICE = -4
    NOT_FOUND = -5
    BUSY = -6
    TIMEOUT = -7
    OVERFLOW = -8
    PIPE = -9
    INTERRUPTED = -10
    NO_MEM = -11
    NOT_SUPPORTED = -12


@runtime_checkable
class SupportsLibusb(Protocol):
    """A machine that brings a libusb of its own, as stand-ins do."""

    def libusb(self) -> Any:
        """The library: an object with libusb's functions."""
        ...


def libusb() -> Any:
    """The library. Raises DeviceUnavailable with what was tried."""
    machine = system()
    if isinstance(machine, SupportsLibusb):
        return machine.libusb()
    with _loading:
        if not _loaded:
            _loaded.append(load())
        return _loaded[0]


def load() -> Any:
    """Open the first library that can be. Raises DeviceUnavailable."""
    tried = []
    for path in paths():
        try:
            return ffi.dlopen(path)
        except OSError as error:
            tried.append(f"{path} ({str(error).rpartition(': ')[2]})")
    raise DeviceUnavailable(
        'DEV=USB+AMD needs libusb-1.0: pip install "tiny-amd[usb]" brings it, or the system '
        f"(Debian: apt install libusb-1.0-0); {LIBUSB_VARIABLE} names one elsewhere. "
        f"Tried: {'; '.join(tried)}"
    )


def paths() -> Iterator[str]:
    """Candidate paths of the library."""
    if named := settings.LIBUSB_LIBRARY:
        yield named
        return
    spec = importlib.util.find_spec(_WHEEL)
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield str(Path(root) / _IN_WHEEL)
    yield from _SONAMES


def error_name(library: Any, code: int) -> str:
    """Name of a status, as libusb's documents spell it."""
    return str(ffi.string(library.libusb_error_name(code)).decode("ascii", "replace"))
