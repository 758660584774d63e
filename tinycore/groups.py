"""Groups of processes: the protocol, and the group that this process was started in.

Floor 6. A package offers groups by an entry point in `tinycore.groups`: a function that gives the
`Group` of this process, or None where nothing of its kind started the process. `tiny_mpi` has
the reference, a group of threads, and the conformance suite.

**Order.** Every process calls the same collectives in the same order, with arrays of one shape and
dtype; what differs raises GroupError in all of them, and names both. What one process sends to
another is received in that order. Calls return when their arrays may be used again.

**Failure.** A process that ends or dies, and a call that others never join, raise GroupError in
those that wait. A group is of no use after that.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy

from tinycore._deferred import Deferred
from tinycore.device.discovery import entry_points
from tinycore.errors import PluginError

__all__ = ["Array", "Group", "group"]

Array: TypeAlias = numpy.ndarray[Any, numpy.dtype[Any]]


class Group(Protocol):
    """Processes that exchange arrays. With one of them alone, nothing is sent."""

    rank: int
    """Number of this process, from 0."""
    size: int
    """Number of processes."""

    def all_reduce(self, x: Array, fold: str = "sum") -> Array:
        """The sum, "prod", "min" or "max" of the arrays of all, the same bits in each process."""

    def all_gather(self, x: Array) -> Array:
        """(...) -> (size, ...): the arrays of all, in the order of ranks."""

    def reduce_scatter(self, x: Array, fold: str = "sum") -> Array:
        """(size, ...) -> (...): the row of this rank of what `all_reduce` gives."""

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """The array of one rank; those of the others say its shape and dtype."""

    def all_to_all(self, x: Array) -> Array:
        """(size, ...) -> (size, ...): row j goes to rank j, row i of the result is from rank i."""

    def send(self, x: Array, to: int) -> None:
        """Send an array; may return before it is received."""

    def recv(self, source: int) -> Array:
        """The next array that a rank sends to this one, in its shape and dtype."""

    def barrier(self) -> None:
        """Wait until all processes are here."""


def group() -> Group:
    """The largest group that this process was started in. Raises PluginError without a package."""
    found = [Deferred(entry.reference).resolve()() for entry in entry_points("tinycore.groups")]
    if not found:
        raise PluginError('groups of processes come with `pip install "tinycore[mpi]"`')
    largest: Group = max(filter(None, found), key=lambda group: group.size)
    return largest
