"""Bank 0 of constants, as code finds it: what the driver says of a launch, then the parameters.

The places are those that ptxas 13.0 reads (SASS for sm_80, sm_90, sm_100 and sm_120).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tiny_nv.arch import number_of
from tiny_nv.nvk.addresses import LOCAL_WINDOW, SHARED_WINDOW

__all__ = ["Bank", "bank_of"]

STACK: Final = 0xFFFDC0
"""Initial stack pointer of a thread: the end of its window, less what the system reserves."""
_ALIGNMENT: Final = 256


@dataclass(frozen=True)
class Bank:
    """Offsets of the driver's words in constant bank 0."""

    block: int
    grid: int
    shared_window: int
    local_window: int
    stack: int
    own_address: int | None
    """Offset of the bank's own address, by which code finds parameters whose address it takes."""
    parameters: int

    def content(self, grid: tuple[int, ...], block: tuple[int, ...], size: int) -> bytes:
        """The bank for a launch, with room for parameters, without addresses."""
        memory = bytearray(self.total(size))
        struct.pack_into("<III", memory, self.block, *block)
        struct.pack_into("<III", memory, self.grid, *grid)
        struct.pack_into("<Q", memory, self.shared_window, SHARED_WINDOW)
        struct.pack_into("<Q", memory, self.local_window, LOCAL_WINDOW)
        struct.pack_into("<I", memory, self.stack, STACK)
        return bytes(memory)

    def total(self, parameter_bytes: int) -> int:
        """Bytes of the bank with so many bytes of parameters."""
        return -(-(self.parameters + parameter_bytes) // _ALIGNMENT) * _ALIGNMENT


BANKS: Final[Mapping[int, Bank]] = {
    80: Bank(0x0, 0xC, 0x18, 0x20, 0x28, None, 0x160),
    90: Bank(0x0, 0xC, 0x18, 0x20, 0x28, 0x198, 0x210),
    100: Bank(0x360, 0x370, 0x2F0, 0x2F8, 0x37C, 0x348, 0x380),
}
"""By the first architecture that has it."""


def bank_of(arch: str) -> Bank:
    """The bank of an architecture."""
    number = number_of(arch)
    return BANKS[max(each for each in BANKS if each <= number)]
