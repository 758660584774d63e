"""Retention policy: which computed nodes are replaced by memory, which only cached in it.

Floor 3. A replaced node is gone: its tensors show the memory. A cached node stays in the graph,
which is still needed, and its memory is read in its place. See docs/decisions/0042-held-values.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tinycore.uop.node import UOp
from tinycore.uop.op import Op

Replacements = dict[UOp, UOp]


class Realized(NamedTuple):
    """Nodes whose value is in memory now: the decision of a retention policy, a result of a run."""

    replaced: Replacements
    """Nodes that give way to their memory for good."""
    cached: Replacements
    """Nodes that stay in the graph. Their memory may be read in their place."""


OnResult = Callable[[Realized], None]
"""Callback with the result of a run. It is idempotent."""

RetentionPolicy = Callable[[list[UOp], Replacements], Realized]
"""Function from the roots of a graph and all its nodes with memory to those replaced and cached.

It may look at the graph only: its answer is reused for every graph with the same canonical form.
"""


def select_exclusive(cached: Replacements, free: set[UOp]) -> Replacements:
    """Cached values that fill free memory which no other one occupies."""
    found: Replacements = {}
    for node, memory in cached.items():
        below = [m for m in memory.toposort() if m.op in (Op.BUFFER, Op.BUFFER_VIEW)]
        if below and free.issuperset(below):
            free.difference_update(below)
            found[node] = memory
    return found
