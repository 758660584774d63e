"""Discovery of cards and their properties. Makes no context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from tiny_nv._errors import ADVICE
from tiny_nv._lib import call, describe, ffi, got, library
from tiny_nv.arch import OLDEST
from tinycore.errors import DeviceError, DeviceUnavailable

__all__ = ["CardInfo", "cards", "count", "reason"]

OLDEST_DRIVER: Final = 12_000
"""CUDA 12.0: the first whose kernels' nodes in graphs are as they are asked for here."""
_NO_DEVICE: Final = 100
_STUB: Final = 34

# Values of CUdevice_attribute.
_UNITS: Final = 16
_MAJOR: Final = 75
_MINOR: Final = 76
_SHARED_BYTES: Final = 97
_NAME_ROOM: Final = 256


@dataclass(frozen=True)
class CardInfo:
    """A card: its number, and what it is."""

    number: int
    """Its CUdevice."""
    name: str
    capability: tuple[int, int]
    units: int
    """Multiprocessors."""
    shared_bytes: int
    """Shared memory that a block can have at most."""
    memory_bytes: int
    driver: tuple[int, int]
    """The version of CUDA that the driver is of."""

    @property
    def arch(self) -> str:
        """The name that compilers have for it: sm_90."""
        major, minor = self.capability
        return f"sm_{major}{minor}"


@cache
def cards_of(driver: object) -> tuple[CardInfo, ...]:
    """The cards of a driver that can be used, in its order.

    Raises DeviceUnavailable for a driver that cannot be used.
    """
    status = library().cuInit(0)
    if status == _NO_DEVICE:
        return ()
    if status:
        what = "the library is a stub to link with" if status == _STUB else describe(status)
        raise DeviceUnavailable(f"CUDA's driver does not start: cuInit returned {what}")
    version = int(got("int *", "cuDriverGetVersion"))
    if version < OLDEST_DRIVER:
        raise DeviceUnavailable(
            f"the driver is of CUDA {version // 1000}.{version % 1000 // 10}; tiny-nv needs one of "
            f"CUDA {OLDEST_DRIVER // 1000}.0 or later (525.60 on Linux). Upgrade the driver."
        )
    found = [card_at(index, version) for index in range(got("int *", "cuDeviceGetCount"))]
    return tuple(card for card in found if card.capability[0] * 10 >= OLDEST)


def card_at(index: int, version: int) -> CardInfo:
    """The facts of a card."""
    number = int(got("CUdevice *", "cuDeviceGet", index))
    name = ffi.new("char[]", _NAME_ROOM)
    call("cuDeviceGetName", name, _NAME_ROOM, number)

    def ask(attribute: int) -> int:
        return int(got("int *", "cuDeviceGetAttribute", attribute, number))

    return CardInfo(
        number=number,
        name=bytes(ffi.string(name)).decode("utf-8", "replace"),
        capability=(ask(_MAJOR), ask(_MINOR)),
        units=ask(_UNITS),
        shared_bytes=ask(_SHARED_BYTES),
        memory_bytes=int(got("size_t *", "cuDeviceTotalMem_v2", number)),
        driver=(version // 1000, version % 1000 // 10),
    )


def cards() -> tuple[CardInfo, ...]:
    """The cards of the driver. Raises DeviceUnavailable where there is none."""
    return cards_of(library())


def count() -> int:
    """Number of cards; 0 without a driver."""
    try:
        return len(cards())
    except (DeviceUnavailable, DeviceError):
        return 0


def reason() -> str:
    """Why there is no card, with what to do; empty when there is one."""
    try:
        if cards():
            return ""
    except (DeviceUnavailable, DeviceError) as error:
        return str(error)
    major, minor = divmod(OLDEST, 10)
    return (
        f"CUDA's driver finds no card of compute capability {major}.{minor} or later. "
        f"{ADVICE[_NO_DEVICE]}"
    )
