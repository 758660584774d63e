"""Buffer limit: store values so that no kernel binds more buffers than its device can.

Floor 3. Where a fused value reads too many buffers, the operand that reads the most of them gets
memory of its own, and counts as one buffer from then on.
"""

from __future__ import annotations

from tinycore.schedule.storage import PASSED_THROUGH, Reason, Storage
from tinycore.uop.node import UOp


def limit_buffers(storage: Storage) -> Storage:
    """The storage with more values stored, so that each kernel respects the limit of its device."""
    limits = storage.buffer_limits
    reads: dict[UOp, frozenset[UOp]] = {}
    """The memory that each value reads inside of the kernel of its user."""

    def below(node: UOp) -> frozenset[UOp]:
        return frozenset((node,)) if storage.is_memory(node) else reads.get(node, frozenset())

    for node in storage.graph if limits else ():
        if (limit := limits.get(node.device_or_none or "")) is None:
            continue
        sources = [s for s in node.src if s.shape_or_none is not None]
        # A kernel has one output in addition to its inputs.
        while len(found := frozenset[UOp]().union(*map(below, sources))) >= limit:
            most = max(sources, key=lambda s: len(below(s)))
            if len(below(most)) <= 1:
                break  # the op itself needs them all
            # Its value is stored below movement ops, which are free to redo.
            moved = [most]
            while moved[-1].op in PASSED_THROUGH:
                moved.append(moved[-1].src[0])
            storage.store(moved[-1], Reason.BUFFER_LIMIT)
            storage.cuts.add(moved[-1])
            reads |= dict.fromkeys(moved, frozenset(moved[-1:]))
        reads[node] = found
    return storage
