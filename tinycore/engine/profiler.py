"""Launch profiler: the number of launches of each program, and their total time.

Floor 4. While a profiler is active, every launch is synchronous.
"""

from __future__ import annotations

from typing import Final


class LaunchProfiler:
    """Launch counts and times, by program."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[object, int, float]] = {}

    def record(self, runner: object, seconds: float | None) -> None:
        """Add a completed launch; `seconds` is None for one that was not timed."""
        _, launches, total = self.seen.get(id(runner), (runner, 0, 0.0))
        self.seen[id(runner)] = runner, launches + 1, total + (seconds or 0.0)

    def of(self, runner: object) -> tuple[int, float]:
        """Number of launches of a program, and their total time in seconds."""
        _, launches, seconds = self.seen.get(id(runner), (runner, 0, 0.0))
        return launches, seconds


profilers: Final[list[LaunchProfiler]] = []
"""The active profilers."""
