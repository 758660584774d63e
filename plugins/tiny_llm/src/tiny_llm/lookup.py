"""Speculation by prompt lookup: what followed the same few tokens before may follow them again.

A draft is checked in one call of the decoder, which costs less than a call for each token of it. So
names, code and sentences that an answer repeats come several tokens at a time. The text is the same
with drafts and without: only tokens that the model chooses itself are kept.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Lookup"]

LONGEST_KEY: Final = 4
SHORTEST_KEY: Final = 2
"""Tokens that have to be the same. One alone, as a comma, says little of what follows."""
DRAFTS: Final = (3, 7)
"""Tokens of a draft, so that 4 or 8 are computed: the longer one after a draft that was right."""
LONGEST_PAUSE: Final = 64
"""Most tokens without a draft after several in a row that were wrong."""


class Lookup:
    """Index of the places where each short run of tokens was seen last."""

    def __init__(self, ids: list[int]) -> None:
        self._ids: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}
        """The token after the last occurrence but the newest, which ends the text."""
        self._newest: dict[tuple[int, ...], int] = {}
        self._size = DRAFTS[0]
        self._pause, self._rest = 1, 0
        self.counts = (0, 0)
        """Tokens that were drafted, and that were accepted."""
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        """Go on by a token."""
        self._ids.append(token)
        self._rest = max(0, self._rest - 1)
        end = len(self._ids)
        for length in range(SHORTEST_KEY, min(LONGEST_KEY, end) + 1):
            key = tuple(self._ids[end - length :])
            if key in self._newest:
                self._places[key] = self._newest[key]
            self._newest[key] = end

    def draft(self, most: int) -> list[int]:
        """Tokens that followed the longest suffix of the text that occurred before."""
        end = len(self._ids)
        if self._rest:
            return []
        for length in range(min(LONGEST_KEY, end), SHORTEST_KEY - 1, -1):
            place = self._places.get(tuple(self._ids[end - length :]))
            if place is not None:
                return self._ids[place : place + max(0, min(self._size, most))]
        return []

    def learn(self, drafted: int, accepted: int) -> None:
        """Lengthen drafts that are right, and pause after those that are wrong."""
        self.counts = self.counts[0] + drafted, self.counts[1] + accepted
        self._size = DRAFTS[-1] if accepted == drafted else DRAFTS[0]
        if accepted:
            self._pause = 1
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._rest = self._pause
