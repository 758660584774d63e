"""The value cache: memory of computed nodes that stay in the graph.

Floor 5. A node that a gradient flows through keeps its graph when it is computed. The next run
reads its value from memory, while `backward` sees the node. An entry lives as long as its node, and
is invalidated by a write to any BUFFER that the value was computed from, whether a run or the
replay of a capture writes. Memory that has escaped to other libraries is never relied on.
See docs/decisions/0042-held-values.md.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from tinycore._locks import recursive_lock, replaced
from tinycore.tensor import graph
from tinycore.tensor.aliases import base_of_view, buffers_below
from tinycore.uop.node import UOp

if TYPE_CHECKING:
    from tinycore.schedule.retention import CachedValue


class CacheEntry(NamedTuple):
    """A node, the memory of its value, and the ids of the BUFFERs whose writes invalidate it."""

    node: weakref.ref[UOp]
    memory: UOp
    depends: frozenset[int]
    scope: object


class Snapshot(NamedTuple):
    """The entries of the cache at some time."""

    memory: Mapping[UOp, UOp]
    time: int


NO_ENTRIES: Final[Mapping[UOp, UOp]] = MappingProxyType({})


class Scope(threading.local):
    """The owner of entries that this thread adds: None, or a function that is being captured."""

    def __init__(self) -> None:
        self.open: list[object] = []
        self.ends_gradients = False
        """True in a capture: what it computes is differentiated inside."""

    @property
    def innermost(self) -> object:
        """The scope of lookups."""
        return self.open[-1] if self.open else None


class ValueCache:
    """Materialized values by node. `value_cache` is the one instance; it keeps no node alive."""

    def __init__(self) -> None:
        self.lock = recursive_lock()
        self.scope = Scope()
        self.entries: dict[int, CacheEntry] = {}
        """By the id of the node."""
        self.escaped: weakref.WeakSet[UOp] = weakref.WeakSet()
        """BUFFERs that other libraries may write to."""
        self.time = 0
        """Count of writes to memory, and of escapes."""

    # --- reading

    def snapshot(self) -> Snapshot:
        """The entries in the scope of this thread."""
        time = self.time
        if not self.entries:
            return Snapshot(NO_ENTRIES, time)
        scope = self.scope.innermost
        found = [(e.node(), e.memory) for e in list(self.entries.values()) if e.scope is scope]
        return Snapshot({node: memory for node, memory in found if node is not None}, time)

    def lookup(self, node: UOp) -> UOp | None:
        """The memory of a value; None for a node that is not cached."""
        entry = self.entries.get(id(node))
        return None if entry is None or entry.scope is not self.scope.innermost else entry.memory

    # --- writing

    def update(
        self,
        before: Snapshot,
        replaced: Mapping[UOp, UOp],
        fresh: Sequence[CachedValue],
        written: set[UOp],
    ) -> None:
        """Take in a run: nodes replaced by memory, values to cache, BUFFERs that it wrote to.

        `before` is the cache when the run began. If another thread wrote to memory since then, the
        run may have read it before or after that write, so nothing new is cached.
        """
        is_alone = before.time == self.time
        if written:
            self.invalidate(written)
        if not before.memory and not fresh:
            return
        moved = {old: new for old, new in replaced.items() if old is not new}
        nodes = [*before.memory, *(value.node for value in fresh)]
        after = dict(zip(nodes, graph.replace_nodes(UOp.sink(*nodes), moved).src, strict=True))
        with self.lock:
            dependencies = self.dependencies() if fresh else {}
            for node in before.memory:
                if after[node] is not node and (entry := self.entries.pop(id(node), None)):
                    self.insert(after[node], entry.memory, entry.depends)
            for value in fresh if is_alone else ():
                # A node that changed reads the content after the write, so its value is not stale.
                node, reads = after[value.node], value.reads
                is_valid = node is not value.node or written.isdisjoint(reads)
                if is_valid and self.escaped.isdisjoint(reads):
                    self.insert(node, value.memory, depends_on(reads, dependencies))

    def dependencies(self) -> dict[int, frozenset[int]]:
        """For the memory of each cached value, the BUFFERs that the value depends on, all by id."""
        found: dict[int, frozenset[int]] = {}
        for entry in list(self.entries.values()):
            found |= dict.fromkeys(map(id, buffers_below(entry.memory)), entry.depends)
        return found

    def insert(self, node: UOp, memory: UOp, depends: frozenset[int]) -> None:
        """Cache the value of a node, unless it shows memory itself or depends on none.

        Symbolic values that a run realized are parts of their memory, which would be read for ever.
        """
        if graph.is_memory(base_of_view(node)) or not depends:
            return
        key, entries = id(node), self.entries

        def forget(reference: weakref.ref[UOp]) -> None:
            found = entries.get(key)
            if found is not None and found.node is reference:
                del entries[key]

        whole = depends.union(map(id, buffers_below(memory)))
        entries[key] = CacheEntry(weakref.ref(node, forget), memory, whole, self.scope.innermost)

    def invalidate(self, written: Iterable[UOp]) -> None:
        """Remove all values that depend on BUFFERs which were, or are about to be, written to."""
        with self.lock:
            self.time += 1
            numbers = set(map(id, written))
            for key, entry in list(self.entries.items()):
                if not numbers.isdisjoint(entry.depends):
                    self.entries.pop(key, None)

    def mark_escaped(self, memory: UOp) -> None:
        """Exclude memory that others may write to from now on."""
        escaped = buffers_below(memory)
        self.escaped.update(escaped)
        self.invalidate(escaped)

    @contextmanager
    def isolated(self, ends_gradients: bool = True) -> Iterator[None]:
        """Give the block a separate scope, whose entries end with it.

        A replay would not recompute values from outside, and it overwrites all that it made.
        """
        scope = object()
        try:
            with (
                replaced(self.scope, "open", [*self.scope.open, scope]),
                replaced(self.scope, "ends_gradients", ends_gradients),
            ):
                yield
        finally:
            for key, entry in list(self.entries.items()):
                if entry.scope is scope:
                    self.entries.pop(key, None)


value_cache: Final = ValueCache()


def depends_on(reads: Iterable[UOp], dependencies: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """The ids of BUFFERs, including those from which cached values in them were computed."""
    numbers = frozenset(map(id, reads))
    return numbers.union(*(dependencies[number] for number in numbers & dependencies.keys()))
