"""Which memory holds the value of a node that stays in the graph, until one of the two changes.

Floor 5. A node that a gradient flows through is computed, and living tensors still have its graph.
What needs it next reads the memory, while `backward` sees the node. That lasts as long as the node
lives and what it was computed from stays what it is: a write to it, by a run or by the replay of
a capture, ends that, and memory that other libraries may write to is not relied on at all.
See docs/decisions/0042-held-values.md.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from tinycore._locks import recursive_lock
from tinycore.tensor import graph
from tinycore.tensor.showing import buffers_below
from tinycore.uop.node import UOp

if TYPE_CHECKING:
    from tinycore.schedule.results import HeldValue


class Holding(NamedTuple):
    """A node, its memory, and the numbers of the BUFFER nodes that must stay as they are."""

    node: weakref.ref[UOp]
    memory: UOp
    depends: frozenset[int]
    scope: object


class Known(NamedTuple):
    """What was held at some time."""

    memory: Mapping[UOp, UOp]
    time: int


class Scope(threading.local):
    """What the values of this thread belong to: nothing, or a function that is being captured."""

    def __init__(self) -> None:
        self.open: list[object] = []

    @property
    def innermost(self) -> object:
        """The scope that values are looked up in."""
        return self.open[-1] if self.open else None


class Holdings:
    """All values that are held. `holdings` is the one instance; it keeps no node alive."""

    def __init__(self) -> None:
        self.lock = recursive_lock()
        self.scope = Scope()
        self.entries: dict[int, Holding] = {}
        """By the number of the node."""
        self.lent: weakref.WeakSet[UOp] = weakref.WeakSet()
        """BUFFERs that others may write to."""
        self.time = 0
        """How often memory was written, or lent."""

    # --- reading

    def known(self) -> Known:
        """What is held now, for this thread."""
        time, scope = self.time, self.scope.innermost
        found = [(e.node(), e.memory) for e in list(self.entries.values()) if e.scope is scope]
        return Known({node: memory for node, memory in found if node is not None}, time)

    def memory_of(self, node: UOp) -> UOp | None:
        """The memory that holds a value now; None for any other."""
        entry = self.entries.get(id(node))
        return None if entry is None or entry.scope is not self.scope.innermost else entry.memory

    # --- writing

    def note(
        self,
        known: Known,
        given: Mapping[UOp, UOp],
        fresh: Sequence[HeldValue],
        written: set[UOp],
    ) -> None:
        """What a run made that began when so much was known: nodes that gave way to memory, values
        that are held, BUFFERs that were written to.

        What another thread wrote to meanwhile may have been read before or after, so then nothing
        new is held.
        """
        is_alone = known.time == self.time
        if written:
            self.drop(written)
        if not known.memory and not fresh:
            return
        moved = {old: new for old, new in given.items() if old is not new}
        nodes = [*known.memory, *(held.node for held in fresh)]
        after = dict(zip(nodes, graph.replaced(UOp.sink(*nodes), moved).src, strict=True))
        with self.lock:
            origins = self.origins() if fresh else {}
            for node in known.memory:
                if after[node] is not node and (entry := self.entries.pop(id(node), None)):
                    self.enter(after[node], entry.memory, entry.depends)
            for held in fresh if is_alone else ():
                is_after = after[held.node] is not held.node or written.isdisjoint(held.reads)
                if is_after and self.lent.isdisjoint(held.reads):
                    self.enter(after[held.node], held.memory, depends_on(held.reads, origins))

    def origins(self) -> dict[int, frozenset[int]]:
        """What the values in memory depend on, by the numbers of their BUFFERs."""
        found: dict[int, frozenset[int]] = {}
        for entry in list(self.entries.values()):
            found |= dict.fromkeys(map(id, buffers_below(entry.memory)), entry.depends)
        return found

    def enter(self, node: UOp, memory: UOp, depends: frozenset[int]) -> None:
        """Hold the value of a node that is computed from memory and is none."""
        if graph.is_memory(node) or not depends:
            return
        key, entries = id(node), self.entries

        def forget(reference: weakref.ref[UOp]) -> None:
            found = entries.get(key)
            if found is not None and found.node is reference:
                del entries[key]

        whole = depends.union(map(id, buffers_below(memory)))
        entries[key] = Holding(weakref.ref(node, forget), memory, whole, self.scope.innermost)

    def drop(self, written: Iterable[UOp]) -> None:
        """Forget all values that depend on BUFFERs, as these were or are about to be written to."""
        with self.lock:
            self.time += 1
            numbers = set(map(id, written))
            for key, entry in list(self.entries.items()):
                if not numbers.isdisjoint(entry.depends):
                    self.entries.pop(key, None)

    def lend(self, memory: UOp) -> None:
        """Rely no more on memory that others may write to from now on."""
        lent = buffers_below(memory)
        self.lent.update(lent)
        self.drop(lent)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Values inside and outside are not known to each other, and those inside end with it.

        A replay would not compute anew what was there before, and writes to all that it made.
        """
        scope = object()
        self.scope.open.append(scope)
        try:
            yield
        finally:
            self.scope.open.remove(scope)
            for key, entry in list(self.entries.items()):
                if entry.scope is scope:
                    self.entries.pop(key, None)


holdings: Final = Holdings()


def depends_on(reads: Iterable[UOp], origins: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """The numbers of BUFFERs, and of what those are computed from that hold a value."""
    numbers = frozenset(map(id, reads))
    return numbers.union(*(origins[number] for number in numbers & origins.keys()))
