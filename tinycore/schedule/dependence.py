"""The dependence graph of kernel groups: which kernel must run before which.

Floor 3. A group depends on the groups that store what it reads (read after write), on the version
of memory that it overwrites (write after write), and on the readers of that version (write after
read).

Each group has a level above the levels of all it depends on, maintained while groups are added and
merged (an incremental topological order). Whether one group depends on another is then a search
between their two levels, not of all that came before. Only a cycle has no such levels: groups that
wait for each other until one of them reads a saved copy (`hazards.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tinycore.errors import ScheduleError
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


@dataclass(eq=False)
class KernelGroup:
    """Values that one kernel stores, and the stored values that it reads."""

    outputs: list[UOp]
    inputs: dict[UOp, None]
    """Stored nodes read, as nodes of the tensor graph, in order."""
    saved: dict[UOp, UOp] = field(default_factory=dict)
    """Versions of memory that are overwritten too early, and the saved copies read instead."""
    level: int = 0

    @property
    def first(self) -> UOp:
        """The output that gave the group its loops."""
        return self.outputs[0]


class DependenceGraph:
    """All kernel groups of one scheduling, and their dependences."""

    def __init__(self) -> None:
        self.groups: list[KernelGroup] = []
        self.home: dict[UOp, KernelGroup] = {}
        """The group that stores a node."""
        self.reading: dict[UOp, list[KernelGroup]] = defaultdict(list)
        """The groups that read a node."""
        self.writing: dict[UOp, list[KernelGroup]] = defaultdict(list)
        """The groups that overwrite a version of memory."""
        self.has_levels = True

    def add(self, group: KernelGroup) -> None:
        """Add a group."""
        self.groups.append(group)
        self.note(group, group.outputs, group.inputs)

    def merge(self, home: KernelGroup, group: KernelGroup) -> None:
        """Let one group store the values of another, which has not been added."""
        more = [n for n in group.inputs if n not in home.inputs]
        home.outputs += group.outputs
        home.inputs.update(group.inputs)
        self.note(home, group.outputs, more)

    def note(self, group: KernelGroup, outputs: Iterable[UOp], inputs: Iterable[UOp]) -> None:
        """Record new outputs and inputs of a group."""
        self.home.update(dict.fromkeys(outputs, group))
        for node in inputs:
            self.reading[node].append(group)
        for node in outputs:
            for version in self.overwritten(node):
                self.writing[version].append(group)
        if self.has_levels:
            self.raise_level(group)

    def raise_level(self, group: KernelGroup) -> None:
        """Put a group above all its predecessors, then its successors above it.

        A chain has at most as many levels as there are groups, so a level beyond that proves a
        cycle, and levels are given up.
        """
        stack = [group]
        while stack:
            raised = stack.pop()
            level = 1 + max([g.level for g in self.predecessors(raised)], default=0)
            if level > len(self.groups):
                self.has_levels = False
                return
            if level > raised.level or raised is group:
                raised.level = max(level, raised.level)
                stack += self.successors(raised)

    def successors(self, group: KernelGroup) -> list[KernelGroup]:
        """The groups that must run after a group."""
        found = [g for node in group.outputs for g in self.reading.get(node, ())]
        found += [g for node in group.inputs for g in self.writing.get(node, ())]
        found += [g for node in group.outputs for g in self.writing.get(node, ())]
        return [g for g in found if g is not group]

    def readers(self, version: UOp) -> list[KernelGroup]:
        """The groups that read memory in the version that a given ASSIGN, or none, left."""
        return [g for g in self.reading.get(version, ()) if version not in g.saved]

    def depends(self, later: Iterable[KernelGroup], group: KernelGroup) -> bool:
        """True if one of some groups is `group`, or depends on it."""
        seen: set[int] = set()
        stack = list(later)
        while stack:
            found = stack.pop()
            if found is group:
                return True
            if id(found) not in seen and not (self.has_levels and found.level <= group.level):
                seen.add(id(found))
                stack.extend(self.predecessors(found))
        return False

    def predecessors(self, group: KernelGroup) -> list[KernelGroup]:
        """The groups that must run before a group."""
        found = [self.home.get(group.saved.get(n, n)) for n in group.inputs]
        for node in group.outputs:
            if node.op is Op.ASSIGN:
                for version in self.overwritten(node):
                    found += [self.home.get(version), *self.readers(version)]
        return [g for g in found if g is not None and g is not group]

    def overwritten(self, node: UOp) -> Iterator[UOp]:
        """The versions of the memory of an ASSIGN before it, back to the last that a group stores.

        That group depends on all versions before, and on their readers.
        """
        while node.op is Op.ASSIGN:
            node = base_of(node.src[0])
            yield node
            if node in self.home:
                return

    def topological_order(self, roots: Sequence[UOp]) -> list[KernelGroup]:
        """The groups that roots need, each after its predecessors. Raises ScheduleError for a
        cycle."""
        ordered: dict[int, KernelGroup] = {}
        open_: set[int] = set()
        stack = [self.home[root] for root in reversed(roots) if root in self.home]
        while stack:
            group = stack[-1]
            waiting = [g for g in self.predecessors(group) if id(g) not in ordered]
            if id(group) in ordered or not waiting:
                ordered.setdefault(id(group), stack.pop())
                continue
            if id(group) in open_:
                names = ", ".join(n.op.name for n in group.outputs)
                raise ScheduleError(
                    f"kernels that wait for each other, at the one that stores {names}"
                )
            open_.add(id(group))
            stack.extend(reversed(waiting))
        return list(ordered.values())
