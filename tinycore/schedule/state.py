"""`State`: the decisions of scheduling about a graph so far.

Floor 3. See `pipeline.py` for the passes that fill it in.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tinycore.schedule.access import Launch
from tinycore.schedule.items import Step
from tinycore.schedule.memory_plan import Layout
from tinycore.schedule.nests import KernelGroups
from tinycore.schedule.retention import Realized, Replacements, RetentionPolicy
from tinycore.schedule.shard import ShardedGraph
from tinycore.schedule.storage import Storage
from tinycore.uop.node import UOp


def replace_all(roots: list[UOp], memory: Replacements) -> Realized:
    """The retention policy that replaces every node by its memory."""
    return Realized(memory, {})


@dataclass(frozen=True)
class State:
    """A graph on its way to launches. Each pass fills in its decisions and changes none before."""

    roots: tuple[UOp, ...]
    policy: RetentionPolicy = replace_all
    parameters: tuple[UOp, ...] = ()
    """Memory that exists before the launches, which is numbered first."""
    known: Replacements = field(default_factory=dict)
    """The nodes whose replacement matters, and those that they stand for; passes create others."""
    sharded: ShardedGraph = field(default_factory=lambda: ShardedGraph(()))
    rewritten: Replacements = field(default_factory=dict)
    """Every node below the roots on single devices, with partial writes assigned to memory."""
    storage: Storage = field(default_factory=Storage)
    groups: KernelGroups = field(default_factory=lambda: KernelGroups(Storage()))
    stored: Replacements = field(default_factory=dict)
    """Nodes with memory, and that memory."""
    memory: tuple[UOp, ...] = ()
    """All memory by number, parameters first."""
    launches: tuple[Launch, ...] = ()
    """The kernels in their order, each with its groups of values."""
    steps: tuple[Step, ...] = ()
    """The same, each with its KERNEL."""
    cut: Replacements = field(default_factory=dict)
    """Nodes with memory, and ASSIGN(BUFFER, KERNEL) for each, or a BUFFER of no elements."""
    results: Replacements = field(default_factory=dict)
    """Nodes that are replaced by memory, and that memory."""
    cached: Replacements = field(default_factory=dict)
    """Nodes that stay in the graph, and temporary memory that may cache their value."""
    persistent: frozenset[int] = frozenset()
    """New memory, by number, that is read when all launches are done."""
    needed: Collection[UOp] = ()
    """The nodes with memory that are read later."""
    varying: frozenset[int] | None = None
    """Parameters that differ between the replays of a pruned capture; None if nothing is pruned."""
    layout: Layout | None = None
