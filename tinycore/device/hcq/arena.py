"""`ArgumentArena`: a ring buffer of arguments and commands of submissions.

Floor 1. Imports `errors`. A device has one for arguments; a driver makes others for commands that
are not bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tinycore.device.hcq.memory import HCQBuffer
from tinycore.device.hcq.signal import Moment
from tinycore.errors import UnsupportedError

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled


class ArgumentArena:
    """A ring buffer in two halves: a half is reused once all work that borrowed from it is done.

    Called with the device's lock held, or within a submission.
    """

    def __init__(
        self,
        device: HCQCompiled,
        size: int,
        *,
        purpose: str = "launch with {} bytes of arguments",
        within_submission: bool = False,
    ) -> None:
        """`purpose` is for the text of an error. An arena for commands is used `within_submission`:
        when the timeline value of the submission is taken already.
        """
        self._device = device
        self._size = size
        self._half = size // 2
        self._purpose = purpose
        self._within = within_submission
        self._next = 0
        self._limit = self._half
        """End of the half in use."""
        self._ends: list[Moment | None] = [None, None]
        """For each half the moment after which nothing uses it."""
        self._memory: HCQBuffer | None = None

    def take(self, size: int, alignment: int = 64) -> HCQBuffer:
        """`size` bytes for the submission being made, at a multiple of `alignment`.

        Raises UnsupportedError for more than there is, DeviceError when earlier work hangs.
        """
        memory = self._memory or self.memory
        start = self._next + -(memory.address + self._next) % alignment
        if start + size > self._limit:
            start = self._cross(start, size, alignment)
        self._next = start + size
        return memory.offset(start, size)

    @property
    def memory(self) -> HCQBuffer:
        """All of the memory, allocated at the first use."""
        if self._memory is None:
            self._memory = self._device.allocator.alloc_visible(self._size)
        return self._memory

    def _cross(self, start: int, size: int, alignment: int) -> int:
        """Allocate bytes that do not fit the half in use; their end may lie in the other half."""
        if start + size > self._size:
            start = -self.memory.address % alignment
            if start + size > self._size:
                raise UnsupportedError(
                    f"a {self._purpose.format(size)} does not fit the {self._size} that "
                    f"{self._device.name} has for them: compute it in several kernels"
                )
            self._enter(0)
        if start + size > self._half and self._limit == self._half:
            self._enter(1)
        return start

    def _enter(self, half: int) -> None:
        """Leave the other half, and wait for what last borrowed from this one."""
        device = self._device
        # What borrowed from the other half so far is submitted, or is the submission being made.
        upcoming = device.upcoming()
        self._ends[1 - half] = replace(upcoming, value=upcoming.value - self._within)
        end = self._ends[half]
        if end is not None and end.value < upcoming.value:  # else nothing came of that submission
            device.wait_for(end)
        elif end is not None:
            device.synchronize()
        self._limit = self._size if half else self._half

    def close(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._device.discard(self._memory, None)
            self._memory = None
