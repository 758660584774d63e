"""Copies of host memory by threads that take unequally long, for tests of their order."""

from __future__ import annotations

import itertools
import time

import pytest

from tinycore.device import host_copies

__all__ = ["DelayedCopies"]


class DelayedCopies:
    """In place of `host_copies.move`: some pieces take longer than those behind them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.001) -> None:
        self.seconds = seconds
        self.begun = itertools.count()
        self.under_way: list[int] = []
        """Numbers of the pieces that threads copy now."""
        monkeypatch.setattr(host_copies, "move", self.move)

    def move(self, target: memoryview, source: memoryview) -> None:
        """Copy a piece, after a delay that its number decides."""
        number = next(self.begun)
        self.under_way.append(number)
        time.sleep(self.seconds * (number * 7 % 5))
        target[: len(source)] = source
        self.under_way.remove(number)
