"""Layout of the end of a card's memory, which its processor protects and runs from (WPR2).

NVIDIA/open-gpu-kernel-modules, gsp_fw_wpr_meta.h, whose picture says the order of the parts, and
gsp_fw_heap.h. Sizes are those of firmware 570.144 that are known to work for one card each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from tiny_nv.pci.vbios import FRTS_BYTES

__all__ = ["WPR_META", "ProtectedMemory", "protected_memory"]

_MEBIBYTE: Final = 1 << 20
_HEAP_BYTES: Final = 0x8100000
_OPEN_HEAP_BYTES: Final = _MEBIBYTE
_VGA_BYTES: Final = _MEBIBYTE
_META_BYTES: Final = 4096
_WPR_ALIGNMENT: Final = 128 << 10
_MAGIC, _REVISION = 0xDC3AAE21371A60B3, 1

WPR_META: Final = struct.Struct("<2Q2Q2Q3Q2Q Q2QQ2QQQ2QQQ2QQ Q2H5IB7xQ")
"""GspFwWprMeta, 256 bytes."""


@dataclass(frozen=True)
class ProtectedMemory:
    """Physical addresses of the parts, from the lowest on."""

    open_heap: int
    begin: int
    heap: int
    firmware: int
    bootloader: int
    frts: int
    end: int
    vga: int
    memory_bytes: int

    def meta(
        self,
        image: tuple[int, int],
        bootloader: tuple[int, int],
        offsets: tuple[int, int, int],
        signature: tuple[int, int],
    ) -> bytes:
        """GspFwWprMeta. Pairs are a bus address and a size: of the image's page table and image, of
        the bootloader, of the signature; `offsets` those of code, data and manifest in the
        bootloader.
        """
        return WPR_META.pack(
            *(_MAGIC, _REVISION),
            *image,
            *bootloader,
            *offsets,
            *signature,
            *(self.open_heap, self.open_heap, self.begin - self.open_heap),
            *(self.begin, self.heap, _HEAP_BYTES),
            *(self.firmware, self.bootloader),
            *(self.frts, FRTS_BYTES),
            *(self.end, self.memory_bytes),
            *(self.vga, self.memory_bytes - self.vga),
            *(0, 0, 0, 0),
            *(0, 0, 0, 0, 0),
            *(0, 0),
        )


def protected_memory(
    memory_bytes: int, firmware_bytes: int, bootloader_bytes: int
) -> ProtectedMemory:
    """Places of all parts, from the end of the memory down."""
    vga = memory_bytes - _VGA_BYTES
    end = vga & -_WPR_ALIGNMENT
    frts = end - FRTS_BYTES
    bootloader = frts - bootloader_bytes & -4096
    firmware = bootloader - firmware_bytes & -(64 << 10)
    heap = firmware - _HEAP_BYTES & -_MEBIBYTE
    begin = heap - _META_BYTES & -_MEBIBYTE
    return ProtectedMemory(
        begin - _OPEN_HEAP_BYTES, begin, heap, firmware, bootloader, frts, end, vga, memory_bytes
    )
