"""Protocols of a card and of its resource manager, which channels and devices are built on.

The resource manager is the same program behind both carriers: requests to NVIDIA's kernel driver
(rm.py, card.py), and messages to the card's own processor (pci/manager.py, pci/card.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from tiny_nv.nvk.classes import Control
from tiny_nv.nvk.layouts import Record

if TYPE_CHECKING:
    from tiny_nv.nvk.card import Allocation, Units
    from tiny_nv.nvk.classes import Generation

__all__ = ["Manager", "OpenCard"]


class Manager(Protocol):
    """Objects below a root, by their handles."""

    root: int

    def record(self, layout: str, **values: int | bytes) -> Record:
        """A structure of the manager's branch."""
        ...

    def alloc(self, parent: int, kind: int, params: Record | None = None, *, what: str) -> int:
        """Make an object. Raises OutOfMemory and Refused."""
        ...

    def free(self, handle: int) -> None:
        """Free an object and what lies below it. Raises Refused."""
        ...

    def control(self, target: int, command: Control, params: Record) -> Record:
        """Ask something of an object. Raises OutOfMemory and Refused."""
        ...


class OpenCard(Protocol):
    """A card that this process has open."""

    device: int
    subdevice: int
    va_space: int
    channel_class: int
    copy_class: int
    generation: Generation
    units: Units
    arch: str
    arch_number: int
    doorbell: memoryview

    @property
    def rm(self) -> Manager:
        """Manager of its objects."""
        ...

    def allocate(
        self,
        size: int,
        *,
        is_system: bool = False,
        is_visible: bool = False,
        is_contiguous: bool = False,
        is_shared: bool = False,
    ) -> Allocation:
        """Memory of the card, or of the system; which the host sees if it `is_visible`, and every
        card if it `is_shared`. Raises OutOfMemory and DeviceError.
        """
        ...

    def pin(self, address: int, size: int) -> Allocation:
        """Whole pages of this process, as memory that the card addresses. Raises OutOfMemory and
        DeviceError, where it does not take them.
        """
        ...

    def free(self, allocation: Allocation) -> None:
        """Give memory back. Its addresses may be given to others from now on."""
        ...

    def map_peer(self, allocation: Allocation) -> None:
        """Let this card address memory of another. Raises UnsupportedError."""
        ...

    def unmap_peer(self, allocation: Allocation) -> None:
        """Take `map_peer` back."""
        ...

    def describe_channel(self, params: Record, ring: Allocation, notifier: Allocation) -> ExitStack:
        """Say where a channel's memory is: how to free what was allocated for it."""
        ...

    def promote_context(self, handle: int, undo: ExitStack) -> None:
        """Give a channel that computes the memory of its context, before it has its engine."""
        ...

    @property
    def channel_error(self) -> int:
        """Code of an error that was told of beside the notifiers; 0 without one."""
        ...

    @property
    def channel_faults(self) -> Sequence[str]:
        """Accesses that were told of with it, in words."""
        ...

    def register_channel(self, handle: int, undo: ExitStack) -> None:
        """Have the contexts mapped that a channel with its engine needs."""
        ...

    def close(self) -> None:
        """Give up the card, when this was its last user."""
        ...
