"""Spans of numbers: offsets in a file that are free, addresses that are mapped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

__all__ = ["Spans"]


class Spans:
    """Half-open ranges in ascending order, none of which touches another."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.begins, self.ends, strict=True)

    def add(self, begin: int, end: int) -> None:
        """Have a range, merged with those that it overlaps or touches."""
        first, last = bisect_left(self.ends, begin), bisect_right(self.begins, end)
        if first < last:
            begin, end = min(begin, self.begins[first]), max(end, self.ends[last - 1])
        self.begins[first:last], self.ends[first:last] = [begin], [end]

    def remove(self, begin: int, end: int) -> None:
        """Have nothing of a range."""
        first, last = bisect_right(self.ends, begin), bisect_left(self.begins, end)
        if first >= last:
            return
        left = [(self.begins[first], begin), (end, self.ends[last - 1])]
        kept = [span for span in left if span[0] < span[1]]
        self.begins[first:last] = [span[0] for span in kept]
        self.ends[first:last] = [span[1] for span in kept]

    def take(self, size: int) -> int | None:
        """Begin of the lowest `size` numbers, which are had no more; None without so many."""
        for index, begin in enumerate(self.begins):
            if begin + size <= self.ends[index]:
                self.remove(begin, begin + size)
                return begin
        return None
