"""`Lru`: a table of bounded size that drops the least recently used entry.

Floor 0. Imports nothing of tinycore. Caches whose entries are dear to make again are such tables:
loaded programs, compiled schedules, templates of kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Generic, TypeVar

versions: Final = itertools.count()
"""Numbers of tables and of their states, of which no two are the same."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Lru(dict[Key, Value], Generic[Key, Value]):
    """At most `capacity` entries, the least recently used first. Usable from several threads.

    It takes no lock, for which a signal handler might wait: each step is atomic, and between two of
    them an entry may be missed, which costs time and nothing else. What was found once and is held
    elsewhere is right as long as `version` is the same.
    """

    __slots__ = ("capacity", "version")

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity: Final = capacity
        self.version = next(versions)

    def find(self, key: Key) -> Value | None:
        """The value of a key, which becomes the most recently used; None if there is none."""
        if (found := self.pop(key, None)) is not None:
            self[key] = found
        return found

    def keep(self, key: Key, value: Value) -> None:
        """Add an entry, and drop the least recently used one beyond the capacity."""
        self[key] = value
        if len(self) > self.capacity:
            with suppress(RuntimeError):  # another thread changes it, and drops one
                self.pop(next(iter(self)), None)

    def drop(self, unwanted: Callable[[Key], bool]) -> None:
        """Remove the entries whose keys are unwanted."""
        self.version = next(versions)
        for key in filter(unwanted, list(self)):
            self.pop(key, None)

    def clear(self) -> None:
        """Remove all entries."""
        self.drop(lambda key: True)
