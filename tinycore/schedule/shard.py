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
from functools import cached_property
from typing import Final

from tinycore.errors import UnsupportedError
from tinycore.schedule.collectives import all_gather, folded
from tinycore.schedule.shard_rules import SHARD_RULES, is_memory
from tinycore.schedule.storage import above_leaves, is_leaf
from tinycore.uop.movement import axis_after, base_of, below_movement, is_divisible
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, SAME_VALUE, Op
from tinycore.uop.shape import Axes, Axis, mesh_of


class ShardedGraph:
    """The graph below some roots, with every node on a group of devices replaced by its shards.

    `done` maps each node to its replacement: a MULTI for a node on a group, else a node. Of a mesh
    the members are taken for devices at first; then `inner` is the graph over each of them.
    """

    def __init__(self, roots: Iterable[UOp]) -> None:
        self.roots = list(roots)
        self.done: dict[UOp, UOp] = {}
        order = above_leaves(self.roots)
        self.depth = max(map(depth_of, order), default=0)
        self.folds: dict[UOp, int | None] = {}
        """The axis of which each device gets a shard of a node whose results are partial."""
        if self.depth:
            self.lay_out(order)
            if self.folds and self.choose_folds(order):
                self.lay_out(order)

    @cached_property
    def inner(self) -> ShardedGraph | None:
        """The graph over each member, if those are groups."""
        return ShardedGraph(self.members) if self.depth > 1 else None

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
            # of an ASSIGN that is a leaf the memory may be none of them
            fixed = self.done.get(node.src[0] if node.op is Op.ASSIGN else node, node)
            axis = fixed.arg if fixed.op is Op.MULTI else None
            own = used[node] if axis is None and node.op is not Op.ASSIGN else {axis}
            for source in node.src:
                if (given := self.done.get(source, source)).op is Op.MULTI:
                    base = base_of(source) if node.op is Op.RESHAPE else source
                    used[base] |= axes_used(node, base, own, len(given.src))
        for node in self.folds:
            if len(used[node]) == 1:
                (self.folds[node],) = used[node]
        return {*self.folds.values()} != {None}

    def shard(self, node: UOp) -> UOp:
        """The replacement of a node, after those of its sources."""
        sources = [self.done.get(s, s) for s in node.src]
        here = depth_of(node) == self.depth
        if node.op is Op.CUSTOM and here:
            raise UnsupportedError(
                f"a kernel of one's own runs on one device, and its tensors are on {node.device}: "
                "move them with .to(device)"
            )
        if here and node.shape_or_none is not None:
            if node.op is Op.RESHAPE:  # several in a row are one: what lies between may not fit
                base = base_of(node)
                sources = [self.done[base]]
                if base.shape == node.shape:
                    return sources[0]
            return SHARD_RULES[node.op](node, sources)
        if node.op is Op.COPY and depth_of(node.src[0]) == self.depth:
            return all_gather(sources[0], node.device)
        return node if is_leaf(node) else node.with_src(tuple(sources))

    @property
    def members(self) -> list[UOp]:
        """The roots on members of the group: the shards of all roots."""
        roots = map(viewed, self.roots)
        return [part for root in roots for part in self.shards(root, self.done[root])]

    @property
    def parts(self) -> list[UOp]:
        """The roots on single devices."""
        if not self.depth:
            return self.roots
        return self.inner.parts if self.inner else self.members

    def shards(self, node: UOp, found: UOp) -> tuple[UOp, ...]:
        """The parts of the replacement of a node."""
        return found.src if depth_of(node) == self.depth else (found,)

    def unshard(self, memory: dict[UOp, UOp]) -> dict[UOp, UOp]:
        """The memory of nodes on groups, given that of shards: of roots, and of fully stored nodes.

        A view of memory stays a view, so that it shows later assignments.
        """
        if not self.depth:
            return memory
        if self.inner:
            memory = memory | self.inner.unshard(memory)
        found = dict(memory)
        computed = {viewed(root) for root in self.roots}
        for node, new in self.done.items():
            known = all(p in memory or is_memory(p) for p in self.shards(node, new))
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
    return base if is_memory(base) else node


PART_BY_PART: Final = ALU | SAME_VALUE | {Op.CONTIGUOUS, Op.VALUE, Op.ASSIGN}
"""Ops whose result has the layout of their operands."""


def depth_of(node: UOp) -> int:
    """Number of dimensions of the devices of a node: 0 on one device, 2 on a mesh."""
    return len(mesh_of(node.device_or_none or ""))


def axis_of(node: UOp) -> Axis:
    """The axis along which a node on a group is sharded; None if it is replicated.

    On a mesh, the axes along each of its dimensions.
    """
    graph = ShardedGraph([node])
    found = graph.done[node]
    if depth_of(node) != graph.depth:
        return axis_of(found)
    return (found.arg, *axes_of(found.src[0])) if graph.depth > 1 else found.arg


def axes_of(node: UOp) -> Axes:
    """The axes along which a node is sharded, by dimension of its devices."""
    axis = axis_of(node)
    return axis if isinstance(axis, tuple) else (axis,)
