"""Memory of a card for tensors and programs, and memory of the host that cards see."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from tiny_amd.kfd import OF_HOST, ON_CARD, Allocation, Kfd
from tiny_amd.topology import Card
from tinycore.errors import DeviceError, UnsupportedError
from tinycore.plugin import HCQAllocator, HCQBuffer, bytes_at

__all__ = ["AmdAllocator"]

STAGING_BYTES: Final = 2 << 20


class AmdAllocator(HCQAllocator):
    """Memory of one card. What the host sees lies in its own memory, all else on the card."""

    def __init__(self, kfd: Kfd, card: Card) -> None:
        super().__init__(staging_bytes=STAGING_BYTES)
        self.kfd, self.card = kfd, card

    def allocate(self, size: int, visible: bool) -> HCQBuffer:
        """`size` bytes. Raises OutOfMemory."""
        made = self.kfd.allocate(
            self.card, size, OF_HOST if visible else ON_CARD, is_shared=visible
        )
        view = bytes_at(made.address, size) if visible else None
        return HCQBuffer(made.address, size, self.device, view=view, meta=made)

    def release(self, buffer: HCQBuffer) -> None:
        """Give an allocation back."""
        buffer.view = None
        with suppress(DeviceError):  # of a card that was reset
            self.kfd.free(buffer.meta)

    def map_peer(self, buffer: HCQBuffer) -> None:
        """Let this card address memory of another. Raises UnsupportedError where it cannot."""
        made: Allocation = buffer.root.meta
        if self.card.gpu_id in made.mapped:
            return
        try:
            self.kfd.map(made, self.card.gpu_id)
        except DeviceError as error:
            raise UnsupportedError(
                f"{self.device.name} cannot address memory of {buffer.owner.name}: {error}"
            ) from error

    def unmap_peer(self, buffer: HCQBuffer) -> None:
        """Take `map_peer` back."""
        made: Allocation = buffer.root.meta
        if self.card.gpu_id in made.mapped and made.address not in self.kfd.shared:
            with suppress(DeviceError):
                self.kfd.unmap(made, self.card.gpu_id)
