"""Images that a card's own processor is started with, in pinned memory as long as it runs."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from tiny_nv.pci.firmware import Bootloader, bootloader_of, sections_of
from tiny_nv.pci.pages import PinnedMemory, SystemMemory
from tiny_nv.pci.registers import Architecture, Registers
from tinycore.errors import DeviceUnavailable

__all__ = ["GspFirmware", "GspImages", "KeptMemory", "StartParts"]


class GspFirmware:
    """The GSP's firmware, its bootloader, and the signature that one architecture asks for."""

    def __init__(self, architecture: Architecture, files: Mapping[str, bytes]) -> None:
        """Raises DeviceUnavailable for files of another form."""
        self.bootloader: Bootloader = bootloader_of(files["bootloader"])
        sections = sections_of(files["gsp"], "the GSP's firmware")
        self.image = _section(sections, ".fwimage")
        self.signature = _section(sections, f".fwsignature_{architecture.signature}")


def _section(sections: Mapping[str, bytes], name: str) -> bytes:
    """One section of the GSP's firmware. Raises DeviceUnavailable naming those there are."""
    if not sections.get(name):
        names = ", ".join(sorted(sections))
        raise DeviceUnavailable(f"the GSP's firmware has no section {name}; it has: {names}")
    return sections[name]


@dataclass(frozen=True)
class GspImages:
    """The firmware in memory of the system. Pairs are a bus address and a size."""

    image: tuple[int, int]
    """The page table of the firmware, and the firmware's size."""
    bootloader: tuple[int, int]
    offsets: tuple[int, int, int]
    """Offsets of code, data and manifest in the bootloader."""
    signature: tuple[int, int]


class KeptMemory:
    """Pinned memory that stays until the card is reset."""

    def __init__(self, memory: SystemMemory) -> None:
        self.memory = memory
        self._kept: list[PinnedMemory] = []

    def keep(self, content: bytes) -> PinnedMemory:
        """Content in contiguous memory. Raises DeviceUnavailable and OutOfMemory."""
        made = self.memory.allocate(len(content))
        made.view[: len(content)] = content
        self._kept.append(made)
        if not made.is_contiguous:
            raise DeviceUnavailable(f"{len(content):,} bytes of firmware lie in several pieces")
        return made

    def images(self, firmware: GspFirmware) -> GspImages:
        """The firmware of a GSP. Raises DeviceUnavailable and OutOfMemory."""
        bootloader = firmware.bootloader
        return GspImages(
            (self._radix3(firmware.image), len(firmware.image)),
            (self.keep(bootloader.image).bus(), len(bootloader.image)),
            (bootloader.code_offset, bootloader.data_offset, bootloader.manifest_offset),
            (self.keep(firmware.signature).bus(), len(firmware.signature)),
        )

    def _radix3(self, image: bytes) -> int:
        """Bus address of the root of a tree of three levels of page tables over an image."""
        memory = self.memory.allocate(len(image))
        memory.view[: len(image)] = image
        self._kept.append(memory)
        pages = memory.pages()
        for _ in range(3):
            pages = self._table_of(pages)
        assert len(pages) == 1, "the firmware is larger than three levels name"
        return pages[0]

    def _table_of(self, pages: list[int]) -> list[int]:
        table = self.memory.allocate(8 * len(pages))
        table.view[: 8 * len(pages)] = struct.pack(f"<{len(pages)}Q", *pages)
        self._kept.append(table)
        return table.pages()


@dataclass(frozen=True)
class StartParts:
    """Inputs to the start of a GSP, the same for each way that an architecture takes."""

    registers: Registers
    architecture: Architecture
    kept: KeptMemory
    files: Mapping[str, bytes]
    """Files of firmware, by what they are for."""
