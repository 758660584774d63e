"""Rings and pointers of queues in memory that the host reaches by calls, as over USB."""

from __future__ import annotations

from typing import Final

from tiny_amd.kfd import Allocation
from tiny_hcq import HostView, bytes_at

__all__ = ["Pointer", "Ring", "WindowPointer", "WindowRing", "pointer_at", "ring_of"]

_RING_WORD: Final = 4


class WindowRing:
    """Words of 32 bits of a ring, which are written and not read."""

    def __init__(self, window: HostView, count: int) -> None:
        self.window, self.count = window, count

    def __len__(self) -> int:
        return self.count

    def __setitem__(self, part: slice, words: memoryview) -> None:
        start = part.start or 0
        self.window[start * _RING_WORD : part.stop * _RING_WORD] = words.cast("B")


class WindowPointer:
    """A pointer of a queue, as the first of an array of 64-bit words. What the host has written it
    knows without reading.
    """

    def __init__(self, window: HostView, offset: int, *, is_ours: bool) -> None:
        """`is_ours` for the one that the host writes."""
        self.window, self.offset = window, offset
        self._known = 0 if is_ours else None

    def __getitem__(self, place: int) -> int:
        return self.window.word(self.offset) if self._known is None else self._known

    def __setitem__(self, place: int, value: int) -> None:
        self._known = value
        self.window.set_word(self.offset, value)


Ring = memoryview | WindowRing
Pointer = memoryview | WindowPointer


def ring_of(allocation: Allocation, size: int) -> Ring:
    """The words of a ring."""
    if allocation.window is not None:
        return WindowRing(allocation.window, size // _RING_WORD)
    return bytes_at(allocation.address, size).cast("I")


def pointer_at(allocation: Allocation, offset: int, *, is_ours: bool) -> Pointer:
    """A pointer in a page that has been cleared."""
    if allocation.window is not None:
        return WindowPointer(allocation.window, offset, is_ours=is_ours)
    return bytes_at(allocation.address + offset, 8).cast("Q")
