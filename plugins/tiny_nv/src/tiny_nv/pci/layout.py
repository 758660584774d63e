"""Layout of the end of a card's memory, which its processor protects and runs from (WPR2).

NVIDIA/open-gpu-kernel-modules, gsp_fw_wpr_meta.h, whose picture says the order of the parts, and
gsp_fw_heap.h. Sizes are those of firmware 570.144 that are known to work for one card each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from tiny_nv.pci.images import GspImages
from tiny_nv.pci.vbios import FRTS_BYTES

__all__ = [
    "WPR_META",
    "ProtectedMemory",
    "RequestedMemory",
    "protected_memory",
    "requested_memory",
]

_MEBIBYTE: Final = 1 << 20
_HEAP_BYTES: Final = 0x8100000
_OPEN_HEAP_BYTES: Final = _MEBIBYTE
_VGA_BYTES: Final = _MEBIBYTE
_META_BYTES: Final = 4096
_WPR_ALIGNMENT: Final = 128 << 10
_MAGIC, _REVISION = 0xDC3AAE21371A60B3, 1
_WORKSPACE_BYTES: Final = 128 << 10
_SYSTEM_HEAP_BYTES: Final = 22 * _MEBIBYTE
_MANAGER_HEAP_BYTES: Final = 14 * _MEBIBYTE
_CHANNELS_HEAP_BYTES: Final = 96 * _MEBIBYTE
_HEAP_BYTES_PER_GIB: Final = 96 << 10
_LEAST_HEAP_BYTES, _MOST_HEAP_BYTES = 88 * _MEBIBYTE, 280 * _MEBIBYTE

WPR_META: Final = struct.Struct("<2Q2Q2Q3Q2Q Q2QQ2QQQ2QQQ2QQ Q2H5IB3xIQ")
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

    def meta(self, images: GspImages) -> bytes:
        """GspFwWprMeta for the booter, which copies to these places."""
        return WPR_META.pack(
            *_head(images),
            *(self.open_heap, self.open_heap, self.begin - self.open_heap),
            *(self.begin, self.heap, _HEAP_BYTES),
            *(self.firmware, self.bootloader),
            *(self.frts, FRTS_BYTES),
            *(self.end, self.memory_bytes),
            *(self.vga, self.memory_bytes - self.vga),
            *_tail(0),
        )


@dataclass(frozen=True)
class RequestedMemory:
    """Sizes of parts whose places the GSP's first program chooses."""

    open_heap_bytes: int
    heap_bytes: int
    pmu_bytes: int

    def meta(self, images: GspImages) -> bytes:
        """GspFwWprMeta without places."""
        return WPR_META.pack(
            *_head(images),
            *(0, 0, self.open_heap_bytes),
            *(0, 0, self.heap_bytes),
            *(0, 0),
            *(0, FRTS_BYTES),
            *(0, 0),
            *(0, _WORKSPACE_BYTES),
            *_tail(self.pmu_bytes),
        )


def _head(images: GspImages) -> tuple[int, ...]:
    """Head of the structure: where the firmware lies in the system's memory."""
    return (
        *(_MAGIC, _REVISION),
        *images.image,
        *images.bootloader,
        *images.offsets,
        *images.signature,
    )


def _tail(pmu_bytes: int) -> tuple[int, ...]:
    """Tail of the structure: no boot before, no partitions, nothing verified."""
    return (0, *(0, 0, 0), *(0, 0, 0, 0, 0), *(0, pmu_bytes, 0))


def requested_memory(memory_bytes: int, open_heap_bytes: int, pmu_bytes: int) -> RequestedMemory:
    """Sizes for a card, of which the heap grows with its memory (gsp_fw_heap.h)."""
    tables = -(-memory_bytes >> 30) * _HEAP_BYTES_PER_GIB
    heap = _SYSTEM_HEAP_BYTES + _MANAGER_HEAP_BYTES + _CHANNELS_HEAP_BYTES + tables
    heap = -(-heap // _MEBIBYTE) * _MEBIBYTE
    heap = min(max(heap, _LEAST_HEAP_BYTES), _MOST_HEAP_BYTES)
    return RequestedMemory(open_heap_bytes, heap, pmu_bytes)


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
