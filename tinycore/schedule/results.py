"""What becomes of nodes whose value a run put into memory.

Floor 3. Some give way to the memory. Others stay in the graph, which is still needed, and the
memory may be read in their place. See docs/decisions/0042-held-values.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tinycore.uop.node import UOp
from tinycore.uop.op import Op

Replacements = dict[UOp, UOp]


class Settled(NamedTuple):
    """What becomes of nodes whose value is in memory now."""

    given: Replacements
    """Those that give way to the memory for good."""
    held: Replacements
    """Those that stay in the graph. The memory may be read in their place."""


class HeldValue(NamedTuple):
    """A node that stays in the graph, the memory of its value, and what that was computed from."""

    node: UOp
    memory: UOp
    reads: tuple[UOp, ...]
    """BUFFERs, and views of them."""


class Computed(NamedTuple):
    """What a run made."""

    given: Replacements
    held: list[HeldValue]


Told = Callable[[Computed], None]
"""Who is told what a run made. Telling it again changes nothing."""

Keep = Callable[[list[UOp], Replacements], Settled]
"""Which of the nodes that now are memory give way to it, and which may be read from it, given the
roots and all such nodes.

It may look at the graph only: what it says of one is taken to hold for all of its form.
"""


def alone_in(held: Replacements, free: set[UOp]) -> Replacements:
    """Those nodes whose value fills free memory that no other of them is in."""
    found: Replacements = {}
    for node, memory in held.items():
        below = [m for m in memory.toposort() if m.op in (Op.BUFFER, Op.BUFFER_VIEW)]
        if below and free.issuperset(below):
            free.difference_update(below)
            found[node] = memory
    return found
