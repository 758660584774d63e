"""The group of one process: it is told what it says itself, and nothing is sent."""

from __future__ import annotations

from collections import deque

from tiny_mpi.calls import check_array, check_fold, check_rank, check_rows
from tinycore.errors import GroupError
from tinycore.groups import Array

__all__ = ["Alone"]


class Alone:
    """A group of one."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.sent: deque[Array] = deque()

    def all_reduce(self, x: Array, fold: str = "sum") -> Array:
        """A copy."""
        check_fold(fold, x)
        return x.copy()

    def all_gather(self, x: Array) -> Array:
        """A copy, as the one row."""
        return check_array(x)[None].copy()

    def reduce_scatter(self, x: Array, fold: str = "sum") -> Array:
        """A copy of the one row."""
        check_fold(fold, x)
        check_rows("reduce_scatter", x, self.size)
        row: Array = x[0].copy()
        return row

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """A copy."""
        check_rank("broadcast", root, self.size)
        return check_array(x).copy()

    def all_to_all(self, x: Array) -> Array:
        """A copy."""
        check_rows("all_to_all", x, self.size)
        return x.copy()

    def send(self, x: Array, to: int) -> None:
        """Keep a copy, until it is received."""
        check_rank("send", to, self.size)
        self.sent.append(check_array(x).copy())

    def recv(self, source: int) -> Array:
        """The next array that was sent. Raises GroupError where none was."""
        check_rank("recv", source, self.size)
        if not self.sent:
            raise GroupError("recv from 0: this process is alone, and has sent itself nothing")
        return self.sent.popleft()

    def barrier(self) -> None:
        """Return at once."""
