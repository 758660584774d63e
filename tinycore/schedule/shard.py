"""Sharding: a graph over several devices becomes a graph per device, with collectives.

Floor 3. The frontend builds nodes of full shape on a group of devices, over MULTIs that hold the
shards (GSPMD calls this partitioning). Here each such node becomes a MULTI of its shards, sources
first, so that later passes meet single devices only. Every op keeps its operands where they lie if
it can; where it cannot, they are resharded (`shard_rules.py`, `collectives.py`). Results that are
partial on each device are folded where they arise, into everything on each, unless all who use them
take a shard of one axis: that is known once the layouts are, so layouts are then found again.
See docs/decisions/0021-sharded-tensors.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tinycore.errors import UnsupportedError
from tinycore.schedule.collectives import all_gather, folded
from tinycore.schedule.shard_rules import SHARD_RULES, is_memory
from tinycore.schedule.storage import is_leaf, is_stored
from tinycore.uop.movement import axis_after, base_of, below_movement, is_divisible
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, SAME_VALUE, Op
from tinycore.uop.shape import is_group


class ShardedGraph:
    """The graph below some roots, with every node on a group of devices replaced by its shards.

    `done` maps each node to its replacement: a MULTI for a node on a group, else a node.
    """

    def __init__(self, roots: Iterable[UOp]) -> None:
        self.roots = list(roots)
        self.done: dict[UOp, UOp] = {}
        order = UOp.sink(*self.roots).toposort(lambda n: not is_leaf(n))[:-1]
        self.several = any(n.op is Op.MULTI or is_on_group(n) for n in order)
        self.folds: dict[UOp, int | None] = {}
        """The axis of which each device gets a shard of a node whose results are partial."""
        if self.several:
            self.lay_out(order)
            if self.folds and self.choose_folds(order):
                self.lay_out(order)

    def lay_out(self, order: list[UOp]) -> None:
        """Replace all nodes."""
        for node in order:
            found = self.shard(node)
            if found.op is Op.MULTI and isinstance(found.arg, Op):
                found = folded(found, self.folds.setdefault(node, None))
            self.done[node] = found

    def choose_folds(self, order: list[UOp]) -> bool:
        """Fold into shards where nobody uses anything else. True if there is such a place."""
        used: dict[UOp, set[int | None]] = defaultdict(set)
        roots = set(self.roots)
        for node in reversed(order):
            if node in roots and not used[node]:
                used[node].add(None)
            fixed = self.done[node.src[0] if node.op is Op.ASSIGN else node]
            axis = fixed.arg if fixed.op is Op.MULTI else None
            own = used[node] if axis is None and node.op is not Op.ASSIGN else {axis}
            for source in node.src:
                if (given := self.done.get(source, source)).op is Op.MULTI:
                    base = base_of(source) if node.op is Op.RESHAPE else source
                    used[base] |= axes_used(node, base, own, len(given.src))
        for node in self.folds:
            if len(used[node]) == 1:
                (self.folds[node],) = used[node]
        return any(axis is not None for axis in self.folds.values())

    def shard(self, node: UOp) -> UOp:
        """The replacement of a node, after those of its sources."""
        sources = [self.done.get(s, s) for s in node.src]
        if node.op is Op.CUSTOM and is_on_group(node):
            raise UnsupportedError(
                f"a kernel of one's own runs on one device, and its tensors are on {node.device}: "
                "move them with .to(device)"
            )
        if is_on_group(node) and node.shape_or_none is not None:
            if node.op is Op.RESHAPE:  # several in a row are one: what lies between may not fit
                base = base_of(node)
                sources = [self.done[base]]
                if base.shape == node.shape:
                    return sources[0]
            return SHARD_RULES[node.op](node, sources)
        if node.op is Op.COPY and sources[0].op is Op.MULTI:
            return all_gather(sources[0], node.single_device)
        return node if is_leaf(node) else node.with_src(tuple(sources))

    @property
    def parts(self) -> list[UOp]:
        """The roots on single devices: the shards of all roots."""
        if not self.several:
            return self.roots
        found = (self.done[viewed(root)] for root in self.roots)
        return [part for n in found for part in (n.src if n.op is Op.MULTI else (n,))]

    def unshard(self, memory: dict[UOp, UOp]) -> dict[UOp, UOp]:
        """The memory of nodes on groups, given that of shards: of roots, and of fully stored nodes.

        A view of memory stays a view, so that it shows later assignments.
        """
        if not self.several:
            return memory
        found = dict(memory)
        computed = {viewed(root) for root in self.roots}
        for node, new in self.done.items():
            parts = new.src if new.op is Op.MULTI else (new,)
            known = all(p in memory or is_stored(base_of(p)) for p in parts)
            if node in computed or (known and node.op not in MOVEMENT):
                found[node] = new.substitute(memory)
        for root in self.roots:
            if (below := viewed(root)) is not root:
                found[root] = root.substitute({below: found[below]})
        return {old: new for old, new in found.items() if old is not new}


def axes_used(node: UOp, source: UOp, axes: set[int | None], count: int) -> set[int | None]:
    """Axes of which a node takes shards of a source, where shards of `axes` are used of the node.

    None stands for everything. No axis is given where any layout serves.
    """
    if node.op is Op.REDUCE_AXIS:
        return set()
    if node.op not in MOVEMENT:
        return axes if node.op in PART_BY_PART else {None}
    sound = [a for a in range(len(source.shape)) if is_divisible(source.shape, a, count)]
    if node.op is Op.SHRINK:
        for axis in sound:
            start, stop = node.arg[axis]
            if (stop - start) * count == source.shape[axis] and start % (stop - start) == 0:
                return {axis}
    after = {axis_after(node, source.shape, a, count): a for a in sound}
    return {None if a is None else after.get(a) for a in axes}


def viewed(node: UOp) -> UOp:
    """The memory that a node is a view of, before or after an assignment; else the node."""
    base = below_movement(node)
    parts = base.src if base.op is Op.MULTI else (base,)
    return base if all(is_memory(p) for p in parts) else node


PART_BY_PART: Final = ALU | SAME_VALUE | {Op.CONTIGUOUS, Op.VALUE, Op.ASSIGN}
"""Ops whose result has the layout of their operands."""


def is_on_group(node: UOp) -> bool:
    """True if a node is on more than one device."""
    device = node.device_or_none
    return device is not None and is_group(device)


def axis_of(node: UOp) -> int | None:
    """The axis along which a node on a group is sharded; None if it is replicated."""
    axis: int | None = ShardedGraph([node]).done[node].arg
    return axis
