"""Kernel emission: each group becomes a KERNEL node, a loop nest over the slots of its memory.

Floor 3. The graph of a group is read backwards from its outputs (`ranges.py`), so movement ops
become index expressions. Groups that differ only in constants and memory share one template
(`templates.py`). Emission is in topological order: the sources of each KERNEL are its memory, then
all else that it must run after, so the node graph holds every dependence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain

from tinycore.dtype import dtypes
from tinycore.schedule.dependence import KernelGroup
from tinycore.schedule.group import KernelGroups
from tinycore.schedule.kernel import (
    Kernel,
    custom_of,
    memory_of,
    new_buffer,
    numel,
    slot,
    without_unread,
)
from tinycore.schedule.partial_writes import is_ordered, is_partial, loops_over, store, values_of
from tinycore.schedule.ranges import Point, RegionReader, pixels_of
from tinycore.schedule.storage import is_stored
from tinycore.schedule.templates import Region, kernel_of, region_of
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, PARTIAL_WRITES, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

NAMED_OPS = (
    frozenset({Op.REDUCE_AXIS, Op.SCAN_AXIS, Op.MERGE_AXIS, Op.GATHER, Op.COPY, Op.CONTIGUOUS})
    | PARTIAL_WRITES
)
"""Ops that are no arithmetic but are named in a kernel's metadata."""


def in_loops(body: UOp, loops: Sequence[UOp]) -> UOp:
    """A statement in those of some counters that are loops: one of a single iteration is none."""
    return body.end(*[loop for loop in loops if loop.op is Op.RANGE])


class KernelEmitter:
    """Builds the kernels of groups, in topological order.

    `roots` are those of the graph, which holds kernels of earlier calls that have not run yet.
    `origins` says of nodes where a user made them.
    """

    def __init__(
        self, groups: KernelGroups, roots: Iterable[UOp], origins: Mapping[UOp, str]
    ) -> None:
        self.groups = groups
        self.dependences = groups.dependences
        self.roots = tuple(roots)
        self.origins = origins
        self.built: dict[UOp, UOp] = {}
        """Stored node -> BUFFER, or ASSIGN(BUFFER, KERNEL)."""
        self.groups_of: dict[UOp, KernelGroup] = {}
        """The group that a KERNEL computes, but for those by hand."""

    def run(self) -> dict[UOp, UOp]:
        """Each stored node's memory: ASSIGN(BUFFER, KERNEL), or a BUFFER of no elements."""
        empty = [n for n in self.groups.storage.ordered() if numel(n) == 0]
        self.built = {node: new_buffer(node) for node in empty}
        for group in self.dependences.topological_order():
            self.build(group)
        return self.built

    def build(self, group: KernelGroup) -> None:
        """Make the KERNEL of a group, and point its outputs at it."""
        ast, memory = self.lower(group)
        waits = [self.built[n] for g in self.dependences.predecessors(group) for n in g.outputs]
        waits += [
            v
            for n in group.outputs
            for v in self.dependences.overwritten(n)
            if is_stored(v) and v.op is Op.ASSIGN
        ]
        waits += [r for n in group.outputs if n.op is Op.ASSIGN for r in self.pending_readers(n)]
        later = dict.fromkeys(w for w in waits if w not in memory)
        kernel = UOp(Op.KERNEL, dtypes.void, (*memory, *later), Kernel(ast, self.metadata(group)))
        if custom_of(group.first) is None:
            self.groups_of[kernel] = group
        for node in group.outputs:
            target = self.groups.output_memory(node)
            self.built[node] = UOp(Op.ASSIGN, target.dtype, (target, kernel))

    def pending_readers(self, node: UOp) -> list[UOp]:
        """ASSIGNs of pending kernels that read an earlier version of the memory of an ASSIGN."""
        if not self.pending:
            return []
        old = set(self.dependences.overwritten(node))
        return [n for n in self.pending if not old.isdisjoint(n.src[1].src)]

    @cached_property
    def pending(self) -> list[UOp]:
        """The ASSIGNs of kernels of earlier calls that have not run."""
        return [n for n in UOp.sink(*self.roots).toposort() if n.op is Op.ASSIGN and is_stored(n)]

    def metadata(self, group: KernelGroup) -> tuple[str, ...]:
        """The operations a group computes, the last one first."""
        if (custom := custom_of(group.first)) is not None:
            return (*custom.arg.metadata, *filter(None, map(self.origins.get, group.outputs)))
        computed = self.computed(group)
        named = [n for n in computed if n.op in ALU or n.op in NAMED_OPS]
        places = [*filter(None, map(self.origins.get, named or computed))]
        if not places:  # of nodes that passes have made, the operands tell it
            places += filter(None, map(self.origins.get, chain(*(n.src for n in computed))))
        return tuple(dict.fromkeys([*[n.op.name.lower() for n in named], *places]))

    def computed(self, group: KernelGroup) -> list[UOp]:
        """The nodes of a group and the leaves that it reads; of each output, sources last."""
        outputs = [group.computed.get(n, n) for n in group.outputs]
        return [n for output in outputs for n in reversed(self.groups.region(output))]

    # --- the graph of a kernel

    def point_of(self, group: KernelGroup) -> Point:
        """The counters of the loops of a group."""
        is_plain = self.groups.image_of(group.first) is None
        first = group.computed.get(group.first, group.first)
        return loops_over(first) if is_plain else pixels_of(first)

    def lower(self, group: KernelGroup) -> tuple[UOp, list[UOp]]:
        """The graph of a group over its slots, and the memory in those slots."""
        memory = self.memory_list(group)
        if group.first.op is Op.COPY:
            return UOp(Op.COPY, dtypes.void, (slot(memory[0], 0), slot(memory[1], 1))), memory
        if (custom := custom_of(group.first)) is not None:
            return without_unread(custom.arg.ast, memory)
        region = self.dedup_key(group, memory)
        if region is None:
            ast = self.loop_nest(group, memory, {})
        else:
            ast = kernel_of(region, lambda numbers: self.loop_nest(group, memory, numbers))
        return without_unread(ast, memory)

    def memory_list(self, group: KernelGroup) -> list[UOp]:
        """The memory of each slot of a kernel: its outputs, then its inputs."""
        outputs = [self.groups.output_memory(n) for n in group.outputs]
        if (custom := custom_of(group.first)) is not None:
            found = [base_of(s) for s in custom.src]
            saved = group.saved
            return [m if (m := memory_of(n)) in outputs else self.resolve(saved, n) for n in found]
        inputs = [self.resolve(group.saved, n) for n in group.inputs if n not in group.outputs]
        targets = {memory_of(m) for m in outputs}
        return outputs + list(dict.fromkeys(m for m in inputs if memory_of(m) not in targets))

    def resolve(self, saved: Mapping[UOp, UOp], node: UOp) -> UOp:
        """The memory that a stored node is read from, given saved copies of some versions."""
        node = saved.get(node, node)
        if node in self.built:
            return self.built[node]
        return self.groups.output_memory(node) if node in self.dependences.home else node

    def dedup_key(self, group: KernelGroup, memory: list[UOp]) -> Region | None:
        """The key under which identical kernels are shared; None if a kernel must not be."""
        groups = self.groups
        if any(is_partial(n) or groups.image_of(n) is not None for n in group.outputs):
            return None
        values = [group.computed.get(n, values_of(n)[0]) for n in group.outputs]
        nodes: list[UOp] = []
        for output, value in zip(group.outputs, values, strict=True):
            whole = value is not output and groups.is_memory(value)
            nodes += [value] if whole else groups.region(value)
        shapes = tuple([n.shape for n in group.outputs])
        slots = tuple([slot(m, i) for i, m in enumerate(memory)])
        pointers: dict[UOp, UOp | None] = {}

        def pointer(node: UOp) -> UOp | None:
            if node not in pointers:
                pointers[node] = self.pointer(group, node, memory)
            return pointers[node]

        return region_of(values, nodes, pointer, (shapes, slots))

    def loop_nest(self, group: KernelGroup, memory: list[UOp], numbers: Mapping[UOp, UOp]) -> UOp:
        """The loops of a group over its slots; `numbers` replaces constants by holes."""
        point = self.point_of(group)
        reader = RegionReader(lambda n: self.pointer(group, n, memory), len(point), numbers)
        stores = [
            store(reader, group.computed.get(n, n), point, slot(memory[i], i))
            for i, n in enumerate(group.outputs)
        ]
        ranges = sorted((p for p in point if p.op is Op.RANGE), key=is_ordered)
        end = in_loops(UOp.group(*stores), ranges)
        return rewrite(UOp.sink(end), simplify, name="simplify kernel")

    def pointer(self, group: KernelGroup, node: UOp, memory: list[UOp]) -> UOp | None:
        """The slot that a node is loaded from, or None if the group computes it."""
        if node in group.outputs or not self.groups.is_memory(node):
            return None
        found = self.resolve(group.saved, node)
        where = next(
            (i for i, m in enumerate(memory) if m is found or memory_of(m) is memory_of(found)),
            None,
        )
        assert where is not None, f"{node!r} is read by no slot"
        return slot(memory[where], where)
