"""Held values: memory of computed nodes that stay in the graph.

Floor 5. A node that a gradient flows through keeps its graph when it is computed. It holds the
memory of its value, which the next run reads, while `backward` sees the node. A write to any BUFFER
that the value was computed from ends that, whether a run or the replay of a capture writes. Memory
that has escaped to other libraries is never relied on. See docs/decisions/0042-held-values.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tinycore._locks import recursive_lock
from tinycore.tensor import graph
from tinycore.tensor.aliases import base_of_view, buffers_below
from tinycore.tensor.graph import holding
from tinycore.tensor.storage.change_tracking import scope
from tinycore.uop.node import Held, Reads, UOp, held_by

if TYPE_CHECKING:
    from tinycore.schedule.canonical import CanonicalGraph


class Changes:
    """Count of the writes to memory, and of escapes."""

    count = 0


ending: Final = recursive_lock()
"""Held while values begin or end to be held: a write ends those of a run that it did not see."""
escaped: Final[weakref.WeakSet[UOp]] = weakref.WeakSet()
"""BUFFERs that other libraries may write to."""


def memory_held(node: UOp) -> UOp | None:
    """The memory that a node holds in the scope of this thread."""
    held = held_by(node, scope.owner)
    return None if held is None else held.memory


def hold(values: Mapping[UOp, UOp], form: CanonicalGraph, changes: int) -> None:
    """Let nodes of a run hold the memory of their values, unless others may write to what it read.

    Nor if memory was written since there were so many `changes`: by another thread, as the run read
    it before or after. A node that shows memory itself, or was computed from none, holds nothing.
    Symbolic values that a run realized are parts of their memory, which would be read for ever.
    """
    if not (values and form.memory) or not escaped.isdisjoint(form.memory):
        return
    reads = read_by(form)
    with ending:
        if changes != Changes.count:
            return
        for node, memory in values.items():
            if not graph.is_memory(base_of_view(node)):
                whole = Reads(buffers_below(memory), reads)
                graph.set_memory(node, Held(memory, form.scope, whole))


def read_by(form: CanonicalGraph) -> Reads:
    """Sources of a run: what it reads, and what the values held for it were read from."""
    held_before = [held_by(node, form.scope) for node in form.cached]
    return Reads(form.memory, *[held.depends for held in held_before if held is not None])


def holders() -> list[tuple[UOp, Held]]:
    """All nodes that hold memory, and what they hold."""
    found = [node for reference in list(holding.values()) if (node := reference()) is not None]
    return [(node, held) for node in found if type(held := node._memory) is Held]


def end(written: Iterable[UOp]) -> None:
    """End all values that depend on BUFFERs which were, or are about to be, written to."""
    with ending:
        Changes.count += 1
        if not holding:
            return
        numbers, known = Reads(written).buffers, dict[Reads, bool]()
        for node, held in holders():
            if held.depends.has(numbers, known):
                graph.set_memory(node, None)


def mark_escaped(memory: UOp) -> None:
    """Exclude memory that others may write to from now on."""
    found = buffers_below(memory)
    escaped.update(found)
    end(found)


def end_in(owner: object) -> None:
    """End all values that a capture owns: a replay overwrites all that it made."""
    for node, held in holders():
        if held.scope is owner:
            graph.set_memory(node, None)
