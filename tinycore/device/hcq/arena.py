"""`ArgumentArena`: memory for the arguments of launches, of which each device has one.

Floor 1. Imports `errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tinycore.device.hcq.memory import HCQBuffer
from tinycore.errors import UnsupportedError

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled

__all__ = ["ArgumentArena"]

_ARGUMENT_ALIGNMENT: Final = 64


class ArgumentArena:
    """Memory for the arguments of launches, taken in a ring: the oldest is used again."""

    def __init__(self, device: HCQCompiled, size: int) -> None:
        self._device = device
        self._size = size
        self._next = 0
        self._memory: HCQBuffer | None = None

    def take(self, size: int) -> HCQBuffer:
        """`size` bytes for one launch. Called with the device's lock held.

        At the end of the ring it waits for the launches before. Raises DeviceError when they hang.
        """
        if size > self._size:
            raise UnsupportedError(
                f"a launch with {size} bytes of arguments does not fit the {self._size} that "
                f"{self._device.name} has for them: compute it in several kernels"
            )
        if self._memory is None:
            self._memory = self._device.allocator.alloc_visible(self._size)
        if self._next + size > self._size:
            self._device.synchronize()
            self._next = 0
        taken = self._memory.offset(self._next, size)
        self._next += -(-size // _ARGUMENT_ALIGNMENT) * _ARGUMENT_ALIGNMENT
        return taken

    def close(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._device.discard(self._memory, None)
            self._memory = None
