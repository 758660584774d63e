"""Nests of groups: the values of a group as one nest of loops over the slots of its memory.

Floor 3. The graph of a group is read backwards from its outputs (`ranges.py`), so movement ops
become index expressions. Groups that differ in memory only, as the layers of a network, share one
nest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from tinycore._lru import Lru
from tinycore.dtype import dtypes
from tinycore.schedule.dependence import KernelGroup
from tinycore.schedule.group import KernelGroups
from tinycore.schedule.kernel import (
    custom_of,
    memory_of,
    slot,
    with_slots,
)
from tinycore.schedule.partial_writes import is_ordered, is_partial, loops_over, store, values_of
from tinycore.schedule.ranges import Point, RegionReader, pixels_of
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

nests: Final[Lru[Hashable, UOp]] = Lru(512)
"""Nests by the structure of their groups."""


def in_loops(body: UOp, loops: Sequence[UOp]) -> UOp:
    """A statement in those of some counters that are loops: one of a single iteration is none."""
    return body.end(*[loop for loop in loops if loop.op is Op.RANGE])


class NestMaker:
    """Makes the nests of groups, over the slots of their memory."""

    def __init__(self, groups: KernelGroups) -> None:
        self.groups = groups

    def computed(self, group: KernelGroup) -> list[UOp]:
        """The nodes of a group and the leaves that it reads; of each output, sources last."""
        outputs = [group.computed.get(n, n) for n in group.outputs]
        return [n for output in outputs for n in reversed(self.groups.region(output))]

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
            ast = custom.arg.ast
        elif (key := self.key(group, memory)) is None:
            ast = self.loop_nest(group, memory)
        elif (found := nests.find(key)) is not None:
            ast = found
        else:
            nests.keep(key, ast := self.loop_nest(group, memory))
        ast, slots = with_slots(ast, range(len(memory)))
        return ast, [memory[number] for number in slots]

    def memory_list(self, group: KernelGroup) -> list[UOp]:
        """The memory of each slot of a kernel: its outputs, then its inputs."""
        outputs = [self.groups.output_memory(n) for n in group.outputs]
        if (custom := custom_of(group.first)) is not None:
            found = [base_of(s) for s in custom.src]
            return [
                m if (m := memory_of(n)) in outputs else self.memory_at(group.saved, n)
                for n in found
            ]
        inputs = [self.memory_at(group.saved, n) for n in group.inputs if n not in group.outputs]
        return [*dict.fromkeys((*outputs, *inputs))]

    def memory_at(self, saved: Mapping[UOp, UOp], node: UOp) -> UOp:
        """The memory that a stored node is read from, given saved copies of some versions."""
        node = saved.get(node, node)
        is_new = node in self.groups.dependences.home
        return self.groups.output_memory(node) if is_new else memory_of(node)

    def key(self, group: KernelGroup, memory: list[UOp]) -> Hashable | None:
        """The structure of a group, without its memory: what has the same one has the same nest.

        None where the nodes that are computed do not determine the nest.
        """
        groups = self.groups
        if any(is_partial(n) or groups.image_of(n) is not None for n in group.outputs):
            return None
        values = [group.computed.get(n, values_of(n)[0]) for n in group.outputs]
        nodes: dict[UOp, None] = {}
        for output, value in zip(group.outputs, values, strict=True):
            whole = value is not output and groups.is_memory(value)
            nodes |= dict.fromkeys([value] if whole else groups.region(value))
        numbers = {node: number for number, node in enumerate(nodes)}
        found: list[Hashable] = [
            (n.shape, slot(m, 0)) for n, m in zip(group.outputs, memory, strict=False)
        ]
        for node in nodes:
            if (pointer := self.pointer(group, node, memory)) is not None:
                found.append((pointer, node.shape))
                continue
            argument = node.arg.hex() if type(node.arg) is float else node.arg
            below = tuple([numbers.get(s, -1) for s in node.src if s.op is not Op.DEVICE])
            if -1 in below:
                return None
            found.append((node.op, node.dtype, argument, below))
        return (*found, *map(numbers.get, values))

    def loop_nest(self, group: KernelGroup, memory: list[UOp]) -> UOp:
        """The loops of a group over its slots."""
        point = self.point_of(group)
        reader = RegionReader(lambda n: self.pointer(group, n, memory), len(point))
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
        memory_at = self.memory_at(group.saved, node)
        place = memory.index(memory_at)
        return slot(memory_at, place)
