"""How many buffers a kernel may take, and where to cut what would take more.

Floor 3. Some devices bind few buffers to a kernel. Where a fused value reads too many, the source
that reads the most gets memory of its own, and is one buffer from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinycore.schedule.target import limits_of
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, SAME_VALUE

MOST_BUFFERS = 24
"""Buffers that a kernel with several outputs may have; each needs an address register."""
PASSED_THROUGH = MOVEMENT | SAME_VALUE


def limit_of(device: str) -> int | None:
    """The most buffers a kernel of a device may take; None where any number will do."""
    return limits_of(device).buffers


def limits_below(graph: Iterable[UOp]) -> dict[str, int]:
    """The limits of the devices in a graph, of those that have one."""
    devices = {n.device_or_none for n in graph} - {None}
    return {d: limit for d in devices if d is not None and (limit := limit_of(d)) is not None}


def crowded(
    graph: Iterable[UOp], is_memory: Callable[[UOp], bool], limits: dict[str, int]
) -> list[UOp]:
    """Values to give memory, so that kernels have room; asked again until there are none.

    The graph is in order, sources first.
    """
    room = Room(is_memory)
    found: list[UOp] = []
    for node in graph:
        limit = limits.get(node.device_or_none or "")
        found += room.make(node, limit) if limit is not None else []
    return found


class Room:
    """What each value reads that is computed in the kernel of its user."""

    def __init__(self, is_memory: Callable[[UOp], bool]) -> None:
        self.is_memory = is_memory
        self.reads: dict[UOp, frozenset[UOp]] = {}
        self.cuts: set[UOp] = set()

    def below(self, node: UOp) -> frozenset[UOp]:
        """The memory that reading a node reads."""
        if self.is_memory(node) or node in self.cuts:
            return frozenset((node,))
        return self.reads.get(node, frozenset())

    def make(self, node: UOp, limit: int) -> list[UOp]:
        """The values to store for the kernel of a node: it has one output beside what it reads."""
        sources = [s for s in node.src if s.shape_or_none is not None]
        made: list[UOp] = []
        while len(found := frozenset[UOp]().union(*map(self.below, sources))) >= limit:
            most = max(sources, key=lambda s: len(self.below(s)))
            if len(self.below(most)) <= 1:
                break  # the op itself needs them all
            made.append(self.cut(most))
        self.reads[node] = found
        return made

    def cut(self, node: UOp) -> UOp:
        """Make what a node reads one buffer: its value before it was moved about."""
        chain = [node]
        while chain[-1].op in PASSED_THROUGH:
            chain.append(chain[-1].src[0])
        self.cuts.add(chain[-1])
        for moved in chain[:-1]:
            self.reads[moved] = frozenset((chain[-1],))
        return chain[-1]
