"""Grouping: stored values with the same loops and common data share a kernel (horizontal fusion).

Floor 3. A stored value joins a recent group whose loops have the same extents, if both read memory
in common, or one reads the other elementwise, and no third kernel has to run between them.
"""

from __future__ import annotations

from enum import Enum

from tinycore.schedule import explain
from tinycore.schedule.dependence import KernelGroup
from tinycore.schedule.kernel import custom_of, numel
from tinycore.schedule.nests import KernelGroups
from tinycore.schedule.partial_writes import is_partial
from tinycore.schedule.storage import SHIFTING, Storage
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

RECENT_GROUPS = 8
"""Groups with the same loops that are tried as a home for one more output."""
MOST_BUFFERS = 24
"""Buffers that a kernel with several outputs may have; each needs an address register."""


class Refusal(Enum):
    """Why a value does not join a group with the same loops, as DEBUG=3 says it."""

    UNRELATED = "they read no memory in common"
    BUFFERS = "one kernel would take too many buffers"
    CUT = "one reads the other, which is stored to end a kernel"
    MOVED = "one reads the other through movement or a reduction"
    OVERWRITTEN = "one overwrites what the other writes"
    BETWEEN = "a third kernel has to run between them"


def group_values(storage: Storage) -> KernelGroups:
    """The stored values in groups, one for each kernel."""
    groups = KernelGroups(storage)
    grouper = Grouper(groups)
    for node in filter(numel, storage.reasons):
        grouper.place(node)
    return groups


class Grouper:
    """Puts stored values into groups, one after another."""

    def __init__(self, groups: KernelGroups) -> None:
        self.groups = groups
        self.recent: dict[object, list[KernelGroup]] = {}
        """Groups by the key of their loops, oldest first."""

    def place(self, node: UOp) -> None:
        """Put a value into a group with the same loops if that is sound, else its own."""
        group = KernelGroup([node], dict.fromkeys(self.groups.reads(node)))
        key = self.loops_key(node)
        home = self.find_home(group, key) if key is not None else None
        if home is not None:
            self.groups.merge(home, group)
            return
        self.groups.add(group)
        if key is not None:
            self.recent.setdefault(key, []).append(group)

    def loops_key(self, node: UOp) -> object | None:
        """A key under which values can share loops, or None for a node that shares with none."""
        alone = node.op in (Op.COPY, Op.SCAN_AXIS) or is_partial(node)
        if alone or self.groups.image_of(node) is not None:
            return None
        if (custom := custom_of(node)) is not None:
            return custom  # the home of all that it stores
        if node.op is Op.MERGE_AXIS:
            return node.device, node.shape, node.arg, node.src[0]
        sizes = []
        for n in self.groups.region(node):
            if self.groups.is_product(n):
                return None  # operands are reused: such kernels want registers of their own
            if n.op is Op.REDUCE_AXIS:
                sizes.append(tuple(n.src[0].shape[axis] for axis in n.arg[1]))
            elif n.op is Op.GATHER:
                return None
        # What never changes is left out of replays, where it has a kernel of its own. A chain of
        # products may hold the weights of attention, which it does not store beside other values.
        is_invariant = node in self.groups.storage.invariant
        chain = self.groups.products_in_place(node)
        return node.device, node.shape, tuple(dict.fromkeys(sizes)), is_invariant, chain

    def find_home(self, group: KernelGroup, key: object) -> KernelGroup | None:
        """The latest group with the same loops that a new group may merge into."""
        for other in reversed(self.recent.get(key, [])[-RECENT_GROUPS:]):
            if isinstance(key, UOp):
                return other
            if (refusal := self.refusal(group, other)) is None:
                return other
            first, second = other.first, group.first
            self.groups.refusals.append((first, second, refusal))
            if explain.trace.on:
                pair = f"{explain.value(first)} and {explain.value(second)}"
                explain.tell("group", f"two kernels: {pair}: {refusal.value}")
        return None

    def refusal(self, group: KernelGroup, other: KernelGroup) -> Refusal | None:
        """Why a group cannot merge into another with the same loops; None if it can."""
        ours = set(other.outputs)
        direct = [n for n in group.inputs if n in ours]
        if not direct and not any(n in other.inputs for n in group.inputs):
            return Refusal.UNRELATED
        limits = self.groups.storage.buffer_limits
        most = min(MOST_BUFFERS, limits.get(group.first.single_device, MOST_BUFFERS))
        if len({*group.inputs, *other.inputs}) + len(ours) >= most:
            return Refusal.BUFFERS
        for n in direct:
            if n in self.groups.storage.cuts:
                return Refusal.CUT
            if not self.reads_in_place(group.first, n):
                return Refusal.MOVED
        if group.first.op is Op.ASSIGN:
            memory = self.groups.memory_of
            if any(n.op is Op.ASSIGN and memory(n) is memory(group.first) for n in ours):
                return Refusal.OVERWRITTEN
        waits = [g for g in self.groups.predecessors(group) if g is not other]
        return Refusal.BETWEEN if self.groups.depends(waits, other) else None

    def reads_in_place(self, node: UOp, source: UOp) -> bool:
        """True if every path from `source` to `node` is elementwise."""
        region = self.groups.region
        for n in region(node):
            if source in n.src and not (n.shape == source.shape and n.op not in SHIFTING):
                return False
            if n is not source and n.op in SHIFTING and source in region(n):
                return False
        return True
