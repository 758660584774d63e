"""Memory of a card for tensors and programs, and memory of the host that cards see."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Protocol, runtime_checkable

from tiny_amd.hardware_queue import Memory
from tiny_amd.kfd import OF_HOST, ON_CARD, Allocation
from tiny_amd.topology import Card
from tiny_hcq import HCQAllocator, HCQBuffer, Place, bytes_at
from tinycore.errors import DeviceError, UnsupportedError

__all__ = ["AmdAllocator", "SupportsStaging"]

STAGING_BYTES: Final = 2 << 20


@runtime_checkable
class SupportsStaging(Protocol):
    """A driver with memory of its own for copies, which is little."""

    staging_bytes: int
    """Bytes of one staging buffer."""
    staging_buffers: int

    def allocate_staging(self, size: int) -> Allocation:
        """One staging buffer. Raises OutOfMemory."""
        ...


class AmdAllocator(HCQAllocator):
    """Memory of one card. What the host sees lies in its own memory, all else on the card."""

    def __init__(self, driver: Memory, card: Card) -> None:
        if isinstance(driver, SupportsStaging):
            super().__init__(
                staging_bytes=driver.staging_bytes, staging_buffers=driver.staging_buffers
            )
        else:
            super().__init__(staging_bytes=STAGING_BYTES)
        self.driver, self.card = driver, card

    def allocate(self, size: int, visible: bool) -> HCQBuffer:
        """`size` bytes. Raises OutOfMemory."""
        made = self.driver.allocate(
            self.card, size, OF_HOST if visible else ON_CARD, is_shared=visible
        )
        if made.window is not None:
            window = made.window
            return HCQBuffer(
                made.address, size, self.device, meta=made, window=window, readable=False
            )
        view = bytes_at(made.address, size) if visible else None
        return HCQBuffer(made.address, size, self.device, view=view, meta=made)

    def allocate_at(self, size: int, place: Place) -> HCQBuffer:
        """Memory for copies where a driver has some of its own; else as `allocate`."""
        if place is Place.STAGING and isinstance(self.driver, SupportsStaging):
            made = self.driver.allocate_staging(size)
            return HCQBuffer(made.address, size, self.device, meta=made, window=made.window)
        return super().allocate_at(size, place)

    def release(self, buffer: HCQBuffer) -> None:
        """Give an allocation back."""
        buffer.view = None
        with suppress(DeviceError):  # of a card that was reset
            self.driver.free(buffer.meta)

    def map_peer(self, buffer: HCQBuffer) -> None:
        """Let this card address memory of another. Raises UnsupportedError where it cannot."""
        made: Allocation = buffer.root.meta
        if self.card.gpu_id in made.mapped:
            return
        try:
            self.driver.map(made, self.card.gpu_id)
        except DeviceError as error:
            raise UnsupportedError(
                f"{self.device.name} cannot address memory of {buffer.owner.name}: {error}"
            ) from error

    def unmap_peer(self, buffer: HCQBuffer) -> None:
        """Take `map_peer` back."""
        made: Allocation = buffer.root.meta
        if self.card.gpu_id in made.mapped and made.address not in self.driver.shared:
            with suppress(DeviceError):
                self.driver.unmap(made, self.card.gpu_id)
