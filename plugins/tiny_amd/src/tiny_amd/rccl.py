"""RCCL for groups of processes with a card each, where the library is found (`tiny_mpi.cards`).

RCCL takes memory and streams of HIP's runtime and knows no others, so collectives go through memory
of its own: HIP's documentation, "Memory management" and "Stream management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p
from functools import cache, partial
from typing import Any, Final

import numpy

from tiny_amd.settings import settings
from tiny_hcq import is_library
from tinycore.errors import DeviceError, OutOfMemory

__all__ = ["RcclCard", "collectives"]

HIP_NAMES: Final = tuple(f"libamdhip64.so{version}" for version in (".7", ".6", ".5", ""))
RCCL_NAME: Final = "librccl.so.1"
OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600
COPY_TO_DEVICE: Final = 1
COPY_TO_HOST: Final = 2


class Hip:
    """HIP's runtime."""

    def __init__(self, path: str) -> None:
        self.functions: Any = ctypes.CDLL(path)

    def call(self, name: str, *arguments: Any, expected: tuple[int, ...] = (0,)) -> int:
        """The status of a function. Raises OutOfMemory and DeviceError for one not expected."""
        status = int(getattr(self.functions, name)(*arguments))
        if status not in expected:
            kind = OutOfMemory if status == OUT_OF_MEMORY else DeviceError
            raise kind(f"{name} returned status {status} of HIP (hipError_t)")
        return status


class RcclCard:
    """A card as HIP has it, with a stream for collectives."""

    def __init__(self, hip: Hip, index: int) -> None:
        self.hip, self.index = hip, index
        self.enter()
        stream = c_void_p()
        hip.call("hipStreamCreate", byref(stream))
        self.stream = stream.value or 0

    def enter(self) -> None:
        """Make it the current card of this thread."""
        self.hip.call("hipSetDevice", self.index)

    def alloc(self, size: int) -> int:
        """The address of memory. Raises OutOfMemory."""
        address = c_void_p()
        self.hip.call("hipMalloc", byref(address), c_size_t(size))
        return address.value or 0

    def free(self, address: int) -> None:
        """Release memory."""
        self.hip.call("hipFree", c_void_p(address))

    def write(self, address: int, content: memoryview) -> None:
        """Copy from the host, in order with the stream."""
        self.copy(c_void_p(address), place(content), content.nbytes, COPY_TO_DEVICE)

    def read(self, content: memoryview, address: int) -> None:
        """Copy to the host, and wait."""
        self.copy(place(content), c_void_p(address), content.nbytes, COPY_TO_HOST)
        self.hip.call("hipStreamSynchronize", c_void_p(self.stream))

    def copy(self, target: Any, source: Any, size: int, kind: int) -> None:
        """Ask the stream for a copy."""
        stream = c_void_p(self.stream)
        self.hip.call("hipMemcpyAsync", target, source, c_size_t(size), c_int(kind), stream)

    def is_idle(self) -> bool:
        """True if the stream is empty. Raises DeviceError if what it was asked failed."""
        return not self.hip.call("hipStreamQuery", c_void_p(self.stream), expected=(0, NOT_READY))


def place(content: memoryview) -> c_void_p:
    """Memory of the host, as HIP takes it."""
    return c_void_p(numpy.frombuffer(content, numpy.uint8).ctypes.data)


def collectives(index: int, sharing: int) -> tuple[str, Callable[[], RcclCard]] | None:
    """The path of RCCL, and what opens a card; None where it, or a card for each, is missing.

    `index` is the number of a process among the `sharing` ones of its machine.
    """
    path, hip = settings.RCCL_LIBRARY or RCCL_NAME, opened_hip()
    if hip is None or not is_library(path):
        return None
    count = c_int()
    hip.functions.hipGetDeviceCount(byref(count))
    return None if count.value < sharing else (path, partial(RcclCard, hip, index))


@cache
def opened_hip() -> Hip | None:
    """HIP's runtime, or None where it is not installed."""
    names = (settings.HIP_LIBRARY,) if settings.HIP_LIBRARY else HIP_NAMES
    found = next(filter(is_library, names), None)
    return None if found is None else Hip(found)
