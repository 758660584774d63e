"""Gradient sources: the BUFFERs of floats, and the tensors, that the gradient of a node goes to.

Floor 5. Memory may know the node that it was computed by (`Made`), through which gradients flow on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from tinycore.tensor import graph
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.grad import is_data_written, passes_gradient
from tinycore.tensor.autograd.versions import (
    BY_CALL,
    NOBODY,
    NOTHING_KNOWN,
    Homes,
    Known,
    known_of,
    living,
    made_of,
)
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, is_gradient_leaf
from tinycore.uop.op import Op

NO_SOURCES: Final[frozenset[UOp]] = frozenset()
FEWEST_DROPPED: Final = 64
"""Sources of realized memory between two looks at which of them are still there."""


def reached(root: UOp) -> list[UOp]:
    """The nodes that a gradient of a node reaches, among which is no memory that is only written:
    what it held before has no part in the value.
    """
    found = {root: None}
    stack = [root]
    while stack:
        made = made_of(node := stack.pop())
        if made:
            below: Sequence[UOp] = [made.node]
        elif passes_gradient(node):
            below = node.src[node.op is ASSIGN :]
        else:
            continue
        new = [n for n in below if n not in found]
        found |= dict.fromkeys(new)
        stack += new
    return list(found)


MARKED: Final = frozenset({Op.ASSIGN, Op.DETACH, Op.MULTI})
"""Ops of nodes at which gradients may end, or go on below memory."""
ENDS: Final = versions.HOMED
"""Ops of memory, and of identities of tensors with nodes of their own."""


def reached_from(nodes: Collection[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For some nodes, and each below them, the BUFFERs of floats that a gradient goes to, the
    identities of tensors with nodes of their own, and on the way those of the nodes and what is
    MARKED. One walk for all, as the values of a run share their graphs.
    """
    asked = frozenset(nodes)
    found: dict[UOp, frozenset[UOp]] = {}
    passing: set[UOp] = set()

    def enter(node: UOp) -> bool:
        if node.op is SINK or passes_gradient(node):
            passing.add(node)
        return node in passing

    for node in UOp.sink(*nodes).toposort(enter):
        if memory := sources_at(node):
            reached = frozenset(memory)
        elif node not in passing:
            reached = NO_SOURCES
        elif node.op is ASSIGN:
            reached = found[node.src[1]]
            if not any(n.op in ENDS for n in reached):  # numbers alone, into memory that may ask
                reached |= {*buffers_below(node)}
        else:
            reached = union([found[s] for s in node.src])
        if node.op is OWN:  # whose tensor may get other memory than what is below
            reached |= {graph.identity(node.arg)}
        found[node] = reached | {node} if node in asked or node.op in MARKED else reached
    return found


def union(sets: Iterable[frozenset[UOp]]) -> frozenset[UOp]:
    """The union of some sets: one of them, if that has all."""
    whole = NO_SOURCES
    for each in sets:
        if each is not whole and not each <= whole:
            whole = each if whole <= each else whole | each
    return whole


def homes_at(nodes: Iterable[UOp]) -> Homes:
    """The homes of some memory and identities themselves, whatever values they have."""
    return NOBODY.union(*[known_of(node).home.alone for node in nodes])


def still_there(memory: UOp) -> list[UOp]:
    """The memory, in its present versions, and identities where gradients of memory ended."""
    return present(ended_at(memory))


class Pasts:
    """Count of the changes that replays have made to what memory was computed from."""

    count = 0


def present(homes: Homes) -> list[UOp]:
    """The memory with some homes, in its present versions, and the nodes of values and tensors."""
    return [node for home in living(homes) for node in home.present()]


def ended_at(memory: UOp) -> Homes:
    """The memory that a realized one was computed from, where gradients end."""
    known: Known = getattr(memory, "_past", NOTHING_KNOWN)
    if (made := known.made) is None or made_of(memory):
        return known.ended
    return ended_below(made.sources) - known.home.alone  # but not its former content


def ended_below(memory: Iterable[UOp]) -> Homes:
    """The same for a node whose gradient goes to some BUFFERs first, also through kept graphs.

    Nobody can want a gradient of memory that is gone. So now and then that is left out, or
    each step of `x = f(x).realize()` would take longer than the one before.
    """
    seen = dict.fromkeys(memory)
    nodes = [*seen]
    parts = []
    for node in nodes:
        known: Known = getattr(node, "_past", NOTHING_KNOWN)
        if made := known.made:
            new = [n for n in made.sources if n not in seen]
            seen |= dict.fromkeys(new)
            nodes += new
        elif ended := known.ended:
            parts.append(ended)
    found = versions.references(nodes).union(*parts)
    if parts and len(found) // FEWEST_DROPPED > max(map(len, parts)) // FEWEST_DROPPED:
        return frozenset([reference for reference in found if reference() is not None])
    return found


def ended_below_buffer(memory: UOp) -> Homes:
    """The same for one BUFFER, which mostly has no past."""
    known = known_of(memory)
    return ended_below([memory]) if known.made or known.ended else known.home.alone


def end_at(memory: UOp, origins: Homes, shown: Iterable[UOp] = ()) -> None:
    """Record what memory was computed from, at which gradients end: that is neither its former
    content, nor the tensor itself, by the identities `shown`.
    """
    buffers = buffers_below(memory)
    ended = origins - homes_at([*buffers, *shown])
    if ended == BY_CALL:  # which tells of other homes
        ended = NOBODY
    for known in map(known_of, buffers):
        known.made, known.ended = None, ended


def origin(node: UOp) -> UOp:
    """The memory that a node is, or has written to in place."""
    while node.op is Op.ASSIGN:
        node = base_of(node.src[0])
    return node


def is_filled(node: UOp) -> bool:
    """True if a node is memory that a kernel is to write, through which no gradient flows."""
    return node.op is Op.ASSIGN and node.src[1].op is Op.KERNEL


def sources_at(node: UOp) -> list[UOp]:
    """The BUFFERs that a gradient goes to at a node: it is one, or a leaf that is written to, or is
    filled by a kernel, or is the first one below a detached leaf.
    """
    op, found = node.op, [node]
    if op is ASSIGN and (is_data_written(node) or is_filled(node)):
        found = buffers_below(node)
    elif op is OWN and is_gradient_leaf(node):
        found = buffers_below(node)[:1]
    return [n for n in found if n.op is BUFFER and n.dtype.kind == "float"]


ASSIGN, BUFFER, OWN, SINK = Op.ASSIGN, Op.BUFFER, Op.OWN, Op.SINK
