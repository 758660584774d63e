"""The past of memory: the node that it was computed by, or what gradients that end there missed.

Floor 5. An in-place write is done once, so after a run its node is replaced by the next version of
the memory. If the run only had to read a value, the gradient must not end there: the version knows
the node, below which walks for gradients go on. Nothing in its graph changes, as what it reads are
versions (`tinycore.tensor.autograd.versions`). See docs/aliasing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tinycore.tensor.storage.held_values import scope
from tinycore.uop.node import Reads, UOp


class Made(NamedTuple):
    """The graph by which a BUFFER, or a MULTI of some, was computed."""

    node: UOp
    sources: tuple[UOp, ...]
    """The BUFFERs that a gradient of the node goes to first."""
    inner: Mapping[UOp, UOp]
    """Nodes below that the same run computed, and their memory, as derivatives may need it."""
    reads: Reads
    """Sources of the run: what it read, and what the values held for it were read from."""
    size: int
    """A bound on the nodes in the graph, and those by which what it reads was computed."""
    marks: list[frozenset[UOp]]
    """Once somebody asked: the nodes of the graph at which gradients end or go on below memory."""


def kept_of(memory: UOp) -> Made | None:
    """The graph by which memory was computed, if it is kept."""
    past = getattr(memory, "_past", None)
    return past if type(past) is Made else None


def made_of(memory: UOp) -> Made | None:
    """The same where gradients flow on to it; not so in a capture, whose replays find memory that
    was computed otherwise.
    """
    made = kept_of(memory)
    return None if made is None or scope.ends_gradients else made


def sources_of(node: UOp) -> tuple[UOp, ...]:
    """The nodes that gradients may flow to from a node: of memory, what it was computed by."""
    made = made_of(node)
    return node.src if made is None else (made.node,)


def ordered_through(root: UOp, enter: Callable[[UOp], bool] | None = None) -> dict[UOp, None]:
    """A node and all below it, also below memory, sources first; not below what fails `enter`."""
    order: dict[UOp, None] = {}
    stack: list[UOp | None] = [root]
    open_nodes: list[UOp] = []
    while stack:
        if (node := stack.pop()) is None:  # all below the last one that is open are done
            order[open_nodes.pop()] = None
        elif node not in order:
            open_nodes.append(node)
            stack.append(None)
            if enter is None or enter(node) or made_of(node) is not None:
                stack += sources_of(node)[::-1]
    return order
