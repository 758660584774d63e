"""Watching launches: how often each program ran, and how long in all.

Floor 4. While somebody watches, every launch is waited for.
"""

from __future__ import annotations

from typing import Final


class Watch:
    """Launches seen so far, by what was launched."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[object, int, float]] = {}

    def note(self, runner: object, seconds: float | None) -> None:
        """A launch that has ended."""
        _, launches, total = self.seen.get(id(runner), (runner, 0, 0.0))
        self.seen[id(runner)] = runner, launches + 1, total + (seconds or 0.0)

    def of(self, runner: object) -> tuple[int, float]:
        """How often a program was launched, and the seconds this took."""
        _, launches, seconds = self.seen.get(id(runner), (runner, 0, 0.0))
        return launches, seconds


watches: Final[list[Watch]] = []
"""Who is watching."""
