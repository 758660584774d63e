"""Grouping: stored values with the same loops and common data share a kernel (horizontal fusion).

Floor 3. A stored value joins a recent group whose loops have the same extents, if both read memory
in common, or one reads the other elementwise, and no third kernel has to run between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from tinycore.dtype import ImageDType
from tinycore.schedule.dependence import DependenceGraph, KernelGroup
from tinycore.schedule.kernel import custom_of, image_of, new_buffer, numel
from tinycore.schedule.limits import chained_types
from tinycore.schedule.partial_writes import is_partial, values_of
from tinycore.schedule.storage import Storage, is_leaf, region_of
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op

RECENT_GROUPS = 8
"""Groups with the same loops that are tried as a home for one more output."""
MOST_BUFFERS = 24
"""Buffers that a kernel with several outputs may have; each needs an address register."""
MOVED = MOVEMENT | {Op.REDUCE_AXIS, Op.GATHER}
"""Ops that read their source at another point than the one they are read at."""


class Refusal(Enum):
    """Why a value does not join a group with the same loops, as DEBUG=3 says it."""

    UNRELATED = "they read no memory in common"
    BUFFERS = "one kernel would take too many buffers"
    CUT = "one reads the other, which is stored to end a kernel"
    MOVED = "one reads the other through movement or a reduction"
    OVERWRITTEN = "one overwrites what the other writes"
    BETWEEN = "a third kernel has to run between them"
    SCORES = "one reads a product in its place, and may be in one kernel with that instead"


class KernelGroups:
    """The groups of a graph, and what determines their kernels: regions, loops, output memory."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.is_memory = storage.is_memory
        self.dependences = DependenceGraph()
        self.regions: dict[UOp, list[UOp]] = {}
        self.outputs: dict[UOp, UOp] = {}
        """New BUFFERs by the node they are for."""
        self.targets: dict[UOp, UOp] = {}
        """The memory of ASSIGNs."""
        self.refusals: list[tuple[UOp, UOp, Refusal]] = []
        """Pairs of values with the same loops in two kernels, and the reason."""

    def region(self, node: UOp) -> list[UOp]:
        """The nodes computed in the kernel of `node`, and the leaves they read."""
        if node not in self.regions:
            self.regions[node] = region_of(node, self.is_memory)
        return self.regions[node]

    def reads(self, node: UOp) -> list[UOp]:
        """The memory that the kernel of `node` loads; the target of an ASSIGN is not read."""
        found: dict[UOp, None] = {}
        for value in values_of(node):
            whole = value is not node and self.is_memory(value)
            read = [value] if whole else self.region(value)
            found |= dict.fromkeys(n for n in read if n is not node and self.is_memory(n))
        return list(found)

    def image_of(self, node: UOp) -> ImageDType | None:
        """The image that a node is stored in, None for plain memory."""
        return image_of(self.output_memory(node)) if node.op in (Op.ASSIGN, Op.CONTIGUOUS) else None

    def output_memory(self, node: UOp) -> UOp:
        """The memory a node is stored in: the target of an ASSIGN, else a new buffer."""
        if node.op is Op.ASSIGN:
            return self.memory_of(node)
        if node not in self.outputs:
            self.outputs[node] = new_buffer(node)
        return self.outputs[node]

    def memory_of(self, node: UOp) -> UOp:
        """The memory behind a stored value, memoized: it may have a thousand versions."""
        passed = []
        while node not in self.targets and node.op in (Op.ASSIGN, Op.RESHAPE):
            passed.append(node)
            node = node.src[0]
        memory = self.targets.get(node, node)
        self.targets.update(dict.fromkeys(passed, memory))
        return memory

    def products_in_place(self, node: UOp, inputs: Iterable[UOp]) -> frozenset[UOp]:
        """The products whose elements a kernel makes operands of a chain of products from."""
        if node.op is not Op.CAST or node.dtype not in chained_types(node.single_device):
            return frozenset()
        same = [n for n in inputs if n.shape_or_none == node.shape and not is_leaf(n)]
        return frozenset(n for n in same if self.is_product(n))

    def is_product(self, node: UOp) -> bool:
        """True if the kernel of a node reduces operands that it reads several times."""
        return any(n.op is Op.REDUCE_AXIS and self.expands(n) for n in self.region(node))

    def expands(self, node: UOp) -> bool:
        """True if a kernel reads something several times for a node."""
        return any(m.op is Op.EXPAND and numel(m) > numel(m.src[0]) for m in self.region(node))


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
        self.dependences = groups.dependences
        self.recent: dict[object, list[KernelGroup]] = {}
        """Groups by the key of their loops, oldest first."""

    def place(self, node: UOp) -> None:
        """Put a value into a group with the same loops if that is sound, else its own."""
        group = KernelGroup([node], dict.fromkeys(self.groups.reads(node)))
        key = self.loops_key(node)
        home = self.find_home(group, key) if key is not None else None
        if home is not None:
            self.dependences.merge(home, group)
            return
        self.dependences.add(group)
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
            if n.op is Op.REDUCE_AXIS:
                if self.groups.expands(n):
                    return None  # operands are reused: such kernels want registers of their own
                sizes.append(tuple(n.src[0].shape[axis] for axis in n.arg[1]))
            elif n.op is Op.GATHER:
                return None
        # What never changes is left out of replays, where it has a kernel of its own.
        is_invariant = node in self.groups.storage.invariant
        return node.device, node.shape, tuple(dict.fromkeys(sizes)), is_invariant

    def find_home(self, group: KernelGroup, key: object) -> KernelGroup | None:
        """The latest group with the same loops that a new group may merge into."""
        for other in reversed(self.recent.get(key, [])[-RECENT_GROUPS:]):
            if isinstance(key, UOp):
                return other
            if (refusal := self.refusal(group, other)) is None:
                return other
            self.groups.refusals.append((other.first, group.first, refusal))
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
        if self.are_of_two_chains(group, other):
            return Refusal.SCORES
        waits = [g for g in self.dependences.predecessors(group) if g is not other]
        return Refusal.BETWEEN if self.dependences.depends(waits, other) else None

    def are_of_two_chains(self, group: KernelGroup, other: KernelGroup) -> bool:
        """True if one of two groups may be inside of a chain of products without the other.

        As the weights of attention, and the mask of dropout: a chain stores neither.
        """
        ours, theirs = (self.groups.products_in_place(g.first, g.inputs) for g in (group, other))
        return bool(ours or theirs) and not ours & theirs

    def reads_in_place(self, node: UOp, source: UOp) -> bool:
        """True if every path from `source` to `node` is elementwise."""
        region = self.groups.region
        for n in region(node):
            if source in n.src and not (n.shape == source.shape and n.op not in MOVED):
                return False
            if n is not source and n.op in MOVED and source in region(n):
                return False
        return True
