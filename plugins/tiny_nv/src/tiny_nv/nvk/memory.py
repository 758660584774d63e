"""Memory of a card for tensors and programs, and memory of the host that cards see."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from tiny_hcq import HCQAllocator, HCQBuffer, address_of, bytes_at
from tiny_nv.nvk.addresses import PAGE
from tiny_nv.nvk.card import Allocation
from tiny_nv.nvk.protocols import OpenCard
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError

__all__ = ["NvAllocator"]

STAGING_BYTES: Final = 2 << 20


class NvAllocator(HCQAllocator):
    """Memory of one card. What the host sees lies in the system's memory, all else on the card."""

    def __init__(self, card: OpenCard) -> None:
        super().__init__(staging_bytes=STAGING_BYTES)
        self.card = card

    def allocate(self, size: int, visible: bool) -> HCQBuffer:
        """`size` bytes. Raises OutOfMemory."""
        made = self.card.allocate(size, is_system=visible, is_visible=visible, is_shared=visible)
        view = bytes_at(made.host, size) if visible else None
        return HCQBuffer(made.address, size, self.device, view=view, meta=made)

    def release(self, buffer: HCQBuffer) -> None:
        """Give an allocation back."""
        buffer.view = None
        with suppress(DeviceError):  # of a card that was lost
            self.card.free(buffer.meta)

    def pin(self, memory: memoryview) -> HCQBuffer | None:
        """Memory of this process, whose pages the card addresses; None where the driver does not
        take them, as those of a file that may only be read.
        """
        start = address_of(memory)
        begin, end = start // PAGE * PAGE, -(-(start + memory.nbytes) // PAGE) * PAGE
        try:
            made = self.card.pin(begin, end - begin)
        except (DeviceError, OutOfMemory):
            return None
        pages = HCQBuffer(made.address, made.size, self.device, meta=made)
        return pages.offset(start - begin, memory.nbytes)

    def unpin(self, buffer: HCQBuffer) -> None:
        """Give pages of this process back."""
        self.release(buffer.root)

    def map_peer(self, buffer: HCQBuffer) -> None:
        """Let this card address memory of another. Raises UnsupportedError where it cannot."""
        made: Allocation = buffer.root.meta
        try:
            self.card.map_peer(made)
        except DeviceError as error:
            raise UnsupportedError(
                f"{self.device.name} cannot address memory of {buffer.owner.name}: {error}"
            ) from error

    def unmap_peer(self, buffer: HCQBuffer) -> None:
        """Take `map_peer` back."""
        with suppress(DeviceError):
            self.card.unmap_peer(buffer.root.meta)
