"""Strips of rows: groups of values as one kernel, with memory of a strip for what only they read.

Floor 3. The regions of the groups are read from the tensor graph, each in a nest of its own, at
points of the same loops over rows (Halide's `compute_at` and `store_at`). `row_fusion.py` decides
which groups gain by it, and that no access leaves its row.
See docs/decisions/0033-strips.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tinycore.render.base import pointer_of
from tinycore.schedule.access import Launch, row_size
from tinycore.schedule.candidates import Memory
from tinycore.schedule.dependence import KernelGroup
from tinycore.schedule.explain import tell, value
from tinycore.schedule.inlining import Joined
from tinycore.schedule.kernel import numel
from tinycore.schedule.nests import in_loops
from tinycore.schedule.partial_writes import store
from tinycore.schedule.ranges import ZERO, Place, RegionReader, flatten
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rebuilt, rewrite
from tinycore.uop.symbolic import simplify

COSTLY: Final = frozenset({Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.THREEFRY})
"""Ops that cost more to compute twice than to store in a near cache and load."""


class Strips(Joined):
    """The kernel of some others: their nests, in turn, inside of one loop over strips."""

    def __init__(
        self,
        memory: Memory,
        launches: Sequence[Launch],
        shape: tuple[int, ...],
        cut: tuple[int, int],
    ) -> None:
        """`shape` has the extents of the loops over rows; `cut` is (how many of these remain, rows
        of a strip of the last). Memory that only these kernels use is a strip's own.
        """
        super().__init__(memory, launches)
        depth, self.rows = cut
        self.kept, self.shape = memory.kept(launches), shape[:depth]
        sizes = (*self.shape[:-1], self.shape[-1] // self.rows)
        self.loops = [UOp.range(n, axis) if n > 1 else ZERO for axis, n in enumerate(sizes)]
        self.number = depth
        self.locals: dict[UOp, UOp] = {}
        """The pointer of each memory of a strip."""
        self.after: dict[UOp, UOp] = {}
        """Memory written so far, and its pointer after the loops that wrote it."""
        self.shared: dict[UOp, UOp] = {}
        """Costly values that were stored for several members, and their memory."""

    def build(self) -> Launch:
        """The nests of all kernels, in their order.

        A costly value that several of them compute is stored before the first of these.
        """
        costly = [self.costly_values(member) for member in self.members]
        count = Counter(node for found in costly for node in found)
        nests: list[UOp] = []
        for member, found in zip(self.members, costly, strict=True):
            for node in found:
                if count[node] > 1 and node not in self.shared:
                    nests.append(self.nest(KernelGroup([node], {})))
                    self.shared[node] = self.groups.output_memory(node)
                    told = f"{value(node)} is in shared loops: dear, and several nests compute it"
                    tell("row fusion", told)
            nests.append(self.nest(member))
        stored = [self.memory.numbers.get(memory, -1) for memory in self.after]
        return self.launch(self.with_locals(in_loops(UOp.group(*nests), self.loops)), stored)

    def costly_values(self, group: KernelGroup) -> list[UOp]:
        """The costly values that a group computes, with several elements in each row.

        None that is computed from an output of the group, which is stored later.
        """
        found: dict[UOp, None] = {}
        for node in reversed(self.groups.computed(group)):
            sizes = tuple([n for n in node.shape if n != 1])
            is_wide = len(sizes) > len(self.shape) and sizes[: len(self.shape)] == self.shape
            is_costly = node.op in COSTLY and is_wide and not self.groups.is_memory(node)
            if is_costly and {*group.outputs}.isdisjoint(self.groups.reads(node)):
                found[node] = None
        return [*found]

    def written(self, memory: UOp) -> UOp:
        """The pointer to memory that a member writes: of a strip, if nobody else reads it."""
        if self.memory.numbers.get(memory) in self.kept:
            return self.pointer_to(memory)
        kind = memory.dtype.ptr(numel(memory) // math.prod(self.shape) * self.rows, "local")
        return self.locals.setdefault(memory, UOp(Op.DEFINE_LOCAL, kind, (), len(self.locals)))

    def read(self, group: KernelGroup, shared: Mapping[UOp, UOp], node: UOp) -> UOp | None:
        """The pointer that a group loads a node by, of which some are `shared`; None for what it
        computes."""
        memory = shared.get(node, self.read_from.get(node))
        if memory is None or node in group.outputs:
            return None
        return self.after[memory] if memory in self.after else self.pointer_to(memory)

    def nest(self, group: KernelGroup) -> UOp:
        """The loops of one group over a strip."""
        row = self.fresh(self.rows, AxisKind.LOOP)
        rows = [*self.loops[:-1], self.loops[-1] * self.rows + row]
        own, point = [row], []
        for counter in self.groups.point_of(group):
            if counter.op is Op.RANGE and rows:
                counter = rows.pop(0)
            elif counter.op is Op.RANGE:
                counter = self.fresh(counter.extent, counter.arg.kind)
                own.append(counter)
            point.append(counter)
        memories = [self.groups.output_memory(node) for node in group.outputs]
        pointers = [self.written(memory) for memory in memories]
        for shared in (self.shared, {}):
            reader = RegionReader(partial(self.read, group, shared), self.number + 1)
            pairs = zip(group.outputs, pointers, strict=True)
            stores = [store(reader, value, tuple(point), pointer) for value, pointer in pairs]
            if all(self.stays(place, row) for place in reader.done if place.node in shared):
                break
        self.number = reader.next_range - 1
        end = in_loops(UOp.group(*stores), own)
        for memory, pointer in zip(memories, pointers, strict=True):
            self.after[memory] = pointer.after(end)
        return end

    def fresh(self, extent: int, kind: AxisKind) -> UOp:
        """A loop with an unused number; none for a single iteration."""
        self.number += 1
        return UOp.range(extent, self.number, kind) if extent > 1 else ZERO

    def stays(self, place: Place, row: UOp) -> bool:
        """True if an element is in the current row."""
        offset = flatten(place.point, place.node.shape)
        offset = rewrite(offset, simplify, name="simplify a place")
        loops = tuple([loop for loop in (*self.loops, row) if loop is not ZERO])
        return row_size(offset, numel(place.node), loops) is not None

    def with_locals(self, body: UOp) -> UOp:
        """A statement whose memory of strips is addressed from the beginning of the strip."""
        begin = dict.fromkeys(self.loops, ZERO)

        def change(_: UOp, node: UOp) -> UOp:
            if node.op is Op.INDEX and pointer_of(node).op is Op.DEFINE_LOCAL:
                return node.with_src((node.src[0], node.src[1].substitute(begin), *node.src[2:]))
            return node

        return rebuilt(body, change)
