"""Nests of groups: the values of a group as one nest of loops over the slots of its memory.

Floor 3. `KernelGroups` holds the groups of a graph, and answers what determines their kernels. The
graph of a group is read backwards from its outputs (`ranges.py`), so movement ops
become index expressions. Groups that differ in memory only, as the layers of a network, share one
nest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import Final

from tinycore._lru import Lru
from tinycore.dtype import ImageDType, dtypes
from tinycore.schedule.dependence import DependenceGraph, KernelGroup
from tinycore.schedule.kernel import (
    custom_of,
    image_of,
    memory_of,
    new_buffer,
    numel,
    slot,
    with_slots,
)
from tinycore.schedule.limits import chained_types
from tinycore.schedule.partial_writes import is_ordered, is_partial, loops_over, store, values_of
from tinycore.schedule.ranges import Point, RegionReader, pixels_of
from tinycore.schedule.storage import Storage, is_leaf, region_of
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, device_node
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

ANY_DEVICE: Final = device_node("")
"""The device of all nests, in their keys."""
nests: Final[Lru[Hashable, UOp]] = Lru(512)
"""Nests by the structure of their groups."""


def in_loops(body: UOp, loops: Sequence[UOp]) -> UOp:
    """A statement in those of some counters that are loops: one of a single iteration is none."""
    return body.end(*[loop for loop in loops if loop.op is Op.RANGE])


class KernelGroups(DependenceGraph):
    """The groups of a graph, and what determines their kernels: regions, loops, memory, nests."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self.storage = storage
        self.is_memory = storage.is_memory
        self.regions: dict[UOp, list[UOp]] = {}
        self.outputs: dict[UOp, UOp] = {}
        """New BUFFERs by the node they are for."""
        self.targets: dict[UOp, UOp] = {}
        """The memory of ASSIGNs."""
        self.refusals: list[tuple[UOp, UOp, Enum]] = []
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

    def products_in_place(self, node: UOp) -> frozenset[UOp]:
        """The products whose elements a kernel makes operands of a chain of products from."""
        if node.op is not Op.CAST or node.dtype not in chained_types(node.single_device):
            return frozenset()
        same = [n for n in self.reads(node) if n.shape_or_none == node.shape and not is_leaf(n)]
        return frozenset(n for n in same if any(map(self.is_product, self.region(n))))

    def is_product(self, node: UOp) -> bool:
        """True if a node reduces operands that its kernel reads several times."""
        return node.op is Op.REDUCE_AXIS and self.expands(node)

    def expands(self, node: UOp) -> bool:
        """True if a kernel reads something several times for a node."""
        return any(m.op is Op.EXPAND and numel(m) > numel(m.src[0]) for m in self.region(node))

    # --- nests

    def computed(self, group: KernelGroup) -> list[UOp]:
        """The nodes of a group and the leaves that it reads; of each output, sources last."""
        return [n for output in group.outputs for n in reversed(self.region(output))]

    def point_of(self, group: KernelGroup) -> Point:
        """The counters of the loops of a group."""
        is_plain = self.image_of(group.first) is None
        return loops_over(group.first) if is_plain else pixels_of(group.first)

    def lower(self, group: KernelGroup) -> tuple[UOp, list[UOp]]:
        """The graph of a group over its slots, and the memory in those slots."""
        outputs, custom = [*map(self.output_memory, group.outputs)], custom_of(group.first)
        others = [n for n in group.inputs if n not in group.outputs]
        read = {n: self.memory_at(group.saved, n) for n in others}
        memory = [*dict.fromkeys((*outputs, *read.values()))]
        stored = [slot(m, number) for number, m in enumerate(outputs)]
        loaded = {n: slot(m, memory.index(m)) for n, m in read.items()}
        if custom is not None:
            ast = custom.arg.ast
            found = map(base_of, custom.src)
            memory = [m if (m := memory_of(n)) in outputs else read[n] for n in found]
        elif group.first.op is Op.COPY:
            ast = UOp(Op.COPY, dtypes.void, (*stored, *loaded.values()))
        elif (key := self.key(group, stored, loaded)) is None:
            ast = self.loop_nest(group, stored, loaded)
        elif (known := nests.find(key)) is not None:
            ast = known
        else:
            nests.keep(key, ast := self.loop_nest(group, stored, loaded))
        ast, slots = with_slots(ast, range(len(memory)))
        return ast, [memory[number] for number in slots]

    def memory_at(self, saved: Mapping[UOp, UOp], node: UOp) -> UOp:
        """The memory that a stored node is read from, given saved copies of some versions."""
        node = saved.get(node, node)
        return self.output_memory(node) if node in self.home else memory_of(node)

    def key(
        self, group: KernelGroup, stored: Sequence[UOp], loaded: dict[UOp, UOp]
    ) -> Hashable | None:
        """The values of a group over the slots of its memory: equal ones have the same nest.

        None where the values do not determine the nest.
        """
        if any(is_partial(n) or self.image_of(n) is not None for n in group.outputs):
            return None
        changes = {n: UOp(Op.RESHAPE, n.dtype, (slot,), n.shape) for n, slot in loaded.items()}
        changes[device_node(group.first.single_device)] = ANY_DEVICE
        values = [values_of(n)[0] for n in group.outputs]
        return UOp.sink(*values).substitute(changes), *stored

    def loop_nest(
        self, group: KernelGroup, stored: Sequence[UOp], loaded: Mapping[UOp, UOp]
    ) -> UOp:
        """The loops of a group over its slots."""
        point = self.point_of(group)
        reader = RegionReader(loaded.get, len(point))
        pairs = zip(group.outputs, stored, strict=True)
        stores = [store(reader, node, point, pointer) for node, pointer in pairs]
        ranges = sorted((p for p in point if p.op is Op.RANGE), key=is_ordered)
        end = in_loops(UOp.group(*stores), ranges)
        return rewrite(UOp.sink(end), simplify, name="simplify kernel")
