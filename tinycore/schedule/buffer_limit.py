"""Buffer limit: store values so that no kernel binds more buffers than its device can.

Floor 3. Where a fused value reads too many buffers, the operand that reads the most of them gets
memory of its own, and counts as one buffer from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tinycore.schedule.storage import PASSED_THROUGH, Reason, Storage
from tinycore.uop.node import UOp
from tinycore.uop.shape import DeviceLike


def limit_buffers(storage: Storage) -> Storage:
    """The storage with more values stored, until every kernel respects the limit of its device."""
    limits = storage.buffer_limits
    while limits and (excess := values_over_limit(storage.graph, storage.is_memory, limits)):
        for node in excess:
            storage.store(node, Reason.BUFFER_LIMIT)
        storage.cuts.update(excess)
    return storage


def values_over_limit(
    graph: Iterable[UOp], is_memory: Callable[[UOp], bool], limits: Mapping[DeviceLike, int]
) -> list[UOp]:
    """Values to store so that fewer kernels exceed the limit; call until it is empty.

    The graph is in topological order.
    """
    count = BufferCount(is_memory)
    found: list[UOp] = []
    for node in graph:
        limit = limits.get(node.device_or_none or "")
        found += count.cut_operands(node, limit) if limit is not None else []
    return found


class BufferCount:
    """The memory that each value reads inside the kernel of its user."""

    def __init__(self, is_memory: Callable[[UOp], bool]) -> None:
        self.is_memory = is_memory
        self.reads: dict[UOp, frozenset[UOp]] = {}
        self.cuts: set[UOp] = set()

    def below(self, node: UOp) -> frozenset[UOp]:
        """The memory that a kernel reads for a node."""
        if self.is_memory(node) or node in self.cuts:
            return frozenset((node,))
        return self.reads.get(node, frozenset())

    def cut_operands(self, node: UOp, limit: int) -> list[UOp]:
        """The operands of a node to store; its kernel has one output in addition to its inputs."""
        sources = [s for s in node.src if s.shape_or_none is not None]
        stored: list[UOp] = []
        while len(found := frozenset[UOp]().union(*map(self.below, sources))) >= limit:
            most = max(sources, key=lambda s: len(self.below(s)))
            if len(self.below(most)) <= 1:
                break  # the op itself needs them all
            stored.append(self.cut(most))
        self.reads[node] = found
        return stored

    def cut(self, node: UOp) -> UOp:
        """Make an operand one buffer: its value below movement ops, which are free to redo."""
        chain = [node]
        while chain[-1].op in PASSED_THROUGH:
            chain.append(chain[-1].src[0])
        self.cuts.add(chain[-1])
        for moved in chain[:-1]:
            self.reads[moved] = frozenset((chain[-1],))
        return chain[-1]
