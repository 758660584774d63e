"""Mapping of memory into cards' address spaces, by nvidia-uvm or the resource manager alone.

Unified memory manages the page tables of all cards of a process: one range, mapped for each. Where
there is no nvidia-uvm, each card's address space is the resource manager's own, and memory is
mapped into each one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from tiny_nv.nvk.classes import Escape
from tiny_nv.nvk.rm import Refused, ResourceManager
from tiny_nv.nvk.uvm import UnifiedMemory
from tinycore.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    from tiny_nv.nvk.card import Card

__all__ = ["DmaMapping", "Mapping", "Unmanaged", "UvmMapping", "mapping_of"]

FIRST_ADDRESS: Final = 0x1000
ADDRESS_BYTES: Final = 0x1FFFFFB000000
_OWNED_BY_UVM: Final = 0x48
"""IS_EXTERNALLY_OWNED and ENABLE_PAGE_FAULTING."""
_NOT_SUPPORTED: Final = 0x56
_SMALL_PAGES_SNOOPED_FIXED: Final = 1 << 8 | 1 << 4 | 1 << 15


class Unmanaged(Refused):
    """nvidia-uvm is there, and cannot manage this card, as those of some virtual machines."""


class UvmMapping:
    """Map by the driver `nvidia-uvm`."""

    space_flags: Final = _OWNED_BY_UVM
    has_peers: Final = True
    """True if one card's memory can be mapped for another, and the system's for all."""

    def __init__(self, uvm: UnifiedMemory) -> None:
        self.uvm = uvm
        self._peers: set[frozenset[bytes]] = set()

    def enter(self, card: Card) -> None:
        """Manage a card. Raises Unmanaged."""
        try:
            self.uvm.register_gpu(card.uuid)
            self.uvm.register_va_space(card.uuid, card.va_space)
        except Refused as error:
            if error.status == _NOT_SUPPORTED:
                raise Unmanaged(str(error), error.status) from error
            raise

    def leave(self, card: Card) -> None:
        """Take `enter` back."""
        with suppress(DeviceError):
            self.uvm.unregister(card.uuid)
        self._peers = {pair for pair in self._peers if card.uuid not in pair}

    def register_channel(self, card: Card, channel: int, base: int, size: int) -> None:
        """Have the contexts of a channel mapped."""
        self.uvm.register_channel(card.uuid, channel, base, size)

    def unregister_channel(self, card: Card, channel: int) -> None:
        """Take `register_channel` back. Never raises."""
        with suppress(DeviceError):
            self.uvm.unregister_channel(card.uuid, channel)

    def create(self, address: int, size: int) -> None:
        """Take addresses."""
        self.uvm.create_range(address, size)

    def map(self, address: int, size: int, memory: int, cards: Sequence[Card]) -> None:
        """Let cards see memory."""
        self.uvm.map(address, size, memory, [card.uuid for card in cards])

    def meet(self, first: Card, second: Card) -> None:
        """Let two cards address each other's memory. Raises UnsupportedError."""
        pair = frozenset({first.uuid, second.uuid})
        if pair in self._peers:
            return
        try:
            self.uvm.enable_peer(first.uuid, second.uuid)
        except Refused as error:
            raise UnsupportedError(
                f"{first} and {second} cannot address each other's memory: {error}"
            ) from error
        self._peers.add(pair)

    def unmap(self, address: int, size: int, memory: int, card: Card) -> None:
        """Take memory away from a card."""
        self.uvm.unmap(address, size, card.uuid)

    def destroy(self, address: int, size: int, memory: int, cards: Sequence[Card]) -> None:
        """Take the addresses back."""
        with suppress(DeviceError):
            self.uvm.free(address, size)


class DmaMapping:
    """By the resource manager: RM_MAP_MEMORY_DMA into each card's own address space."""

    space_flags: Final = 0
    has_peers: Final = False

    def __init__(self, rm: ResourceManager) -> None:
        self.rm = rm

    def enter(self, card: Card) -> None:
        """There is nothing to do."""

    def leave(self, card: Card) -> None:
        """There is nothing to do."""

    def register_channel(self, card: Card, channel: int, base: int, size: int) -> None:
        """The resource manager does that itself."""

    def unregister_channel(self, card: Card, channel: int) -> None:
        """There is nothing to do."""

    def create(self, address: int, size: int) -> None:
        """Addresses are taken by `map`."""

    def map(self, address: int, size: int, memory: int, cards: Sequence[Card]) -> None:
        """Let cards see memory."""
        for card in cards:
            what = f"to map {size:,} bytes at {address:#x} for {card}"
            record = self.rm.record(
                "NVOS46",
                hClient=self.rm.root,
                hDevice=card.device,
                hDma=card.va_space,
                hMemory=memory,
                length=size,
                flags=_SMALL_PAGES_SNOOPED_FIXED,
                dmaOffset=address,
            )
            self.rm.request(Escape.RM_MAP_MEMORY_DMA, record, what)
            self.rm.verify(record, what)
            if record.number("dmaOffset") != address:
                raise DeviceError(f"{what}: it was mapped at {record.number('dmaOffset'):#x}")

    def meet(self, first: Card, second: Card) -> None:
        """Cards do not see each other's memory without nvidia-uvm."""
        raise UnsupportedError(
            f"{first} and {second} cannot address each other's memory without /dev/nvidia-uvm"
        )

    def unmap(self, address: int, size: int, memory: int, card: Card) -> None:
        """Take memory away from a card."""
        record = self.rm.record(
            "NVOS47",
            hClient=self.rm.root,
            hDevice=card.device,
            hDma=card.va_space,
            hMemory=memory,
            dmaOffset=address,
        )
        self.rm.request(Escape.RM_UNMAP_MEMORY_DMA, record, f"to unmap {size:,} bytes")
        self.rm.verify(record, f"to unmap {size:,} bytes at {address:#x}")

    def destroy(self, address: int, size: int, memory: int, cards: Sequence[Card]) -> None:
        """Take memory away from all cards."""
        for card in cards:
            with suppress(DeviceError):
                self.unmap(address, size, memory, card)


Mapping: TypeAlias = UvmMapping | DmaMapping
"""Owner of the page tables."""


def mapping_of(rm: ResourceManager) -> Mapping:
    """Mapping by the driver `nvidia-uvm` where there is one that this process may use."""
    try:
        return UvmMapping(UnifiedMemory(rm))
    except (OSError, Refused):
        return DmaMapping(rm)
