"""Gradient sources: the BUFFERs of floats, and the tensors, that the gradient of a node goes to.

Floor 5. Memory may know the node that it was computed by (`Made`), through which gradients flow on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Final

from tinycore.tensor import graph
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.grad import is_data_written, passes_gradient
from tinycore.tensor.autograd.past import kept_of, made_of
from tinycore.tensor.autograd.versions import Home
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, is_gradient_leaf
from tinycore.uop.op import Op

NO_SOURCES: Final[frozenset[UOp]] = frozenset()
BufferSet = frozenset[weakref.ref[Home]]
"""Memory, and identities of tensors, that are not kept alive by it."""
NOBODY: Final[BufferSet] = frozenset()
FEWEST_DROPPED: Final = 64
"""Sources of realized memory between two looks at which of them are still there."""
Walked = dict[UOp, frozenset[UOp]]
"""Nodes below each node, as far as a walk has found them."""


def reached(root: UOp) -> list[UOp]:
    """The nodes that a gradient of a node reaches, among which is no memory that is only written:
    what it held before has no part in the value.
    """
    found = {root: None}
    stack = [root]
    while stack:
        made = made_of(node := stack.pop())
        new = [n for n in (next_to(node) if made is None else [made.node]) if n not in found]
        found.update(dict.fromkeys(new))
        stack += new
    return list(found)


def next_to(node: UOp) -> tuple[UOp, ...]:
    """The nodes that a gradient goes on to from a node, as far as no memory is between."""
    if not passes_gradient(node):
        return ()
    return node.src[1:] if node.op is ASSIGN else node.src


ENDING: Final = frozenset({Op.ASSIGN, Op.DETACH})
"""Ops of nodes at which gradients may end."""


def marked_below(root: UOp, is_told: Callable[[UOp], bool], found: Walked) -> frozenset[UOp]:
    """The nodes that a gradient of a node reaches, and where it may end, goes on below memory, or
    that are to be told; not those below memory. `found` are the answers so far, as the nodes of a
    run share their graphs.
    """
    opened: dict[UOp, tuple[UOp, ...]] = {}
    marks: set[UOp] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        if (below := opened.get(node)) is None:
            is_made = made_of(node) is not None
            if is_made or node.op in ENDING or is_told(node):
                marks.add(node)
            below = opened[node] = () if is_made else next_to(node)
            if new := [n for n in below if n not in found]:
                stack += new
                continue
        marked = union([found[n] for n in below]) if below else NO_SOURCES
        found[stack.pop()] = marked | {node} if node in marks else marked
    return found[root]


def sources_below(nodes: Iterable[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For each node, the BUFFERs of floats that a gradient goes to, and the identities of tensors
    with nodes of their own. One walk for all, as the writes of a run share their graphs.
    """
    found: dict[UOp, frozenset[UOp]] = {}
    passing: set[UOp] = set()

    def enter(node: UOp) -> bool:
        if node.op is SINK or passes_gradient(node):
            passing.add(node)
        return node in passing

    for node in UOp.sink(*nodes).toposort(enter):
        if memory := sources_at(node):
            found[node] = frozenset(memory)
        elif node not in passing:
            found[node] = NO_SOURCES
        elif node.op is ASSIGN:  # of numbers alone, into memory that may ask
            found[node] = found[node.src[1]] or frozenset(buffers_below(node))
        else:
            found[node] = union([found[s] for s in node.src])
        if node.op is OWN:  # whose tensor may get other memory than what is below
            found[node] |= {graph.identity(node.arg)}
    return found


def union(sets: Iterable[frozenset[UOp]]) -> frozenset[UOp]:
    """The union of some sets: one of them, if that has all."""
    whole = NO_SOURCES
    for each in sets:
        if each is not whole and not each <= whole:
            whole = each if whole <= each else whole | each
    return whole


def still_there(memory: UOp) -> list[UOp]:
    """The memory, in its present versions, and identities where gradients of memory ended."""
    return present(ended_at(memory))


class Pasts:
    """Count of the changes that replays have made to what memory was computed from."""

    count = 0


def present(homes: BufferSet) -> list[UOp]:
    """The memory with some homes, in its present versions, and the nodes of values and tensors."""
    return [node for home in versions.living(homes) for node in home.present()]


def ended_at(memory: UOp) -> BufferSet:
    """The BUFFERs that a realized one was computed from, where gradients end."""
    past = getattr(memory, "_past", NOBODY)
    if type(past) is not frozenset:
        made = kept_of(memory)
        return NOBODY if made is None or made_of(memory) is made else ended_below(made.sources)
    return past


def ended_below(memory: Iterable[UOp]) -> BufferSet:
    """The same for a node whose gradient goes to some BUFFERs first, also through kept graphs.

    Nobody can want a gradient of memory that is gone. So now and then that is left out, or
    each step of `x = f(x).realize()` would take longer than the one before.
    """
    found: set[weakref.ref[Home]] = set()
    most = 0
    stack = [*memory]
    seen = {*stack}
    while stack:
        if (made := kept_of(node := stack.pop())) is not None:
            new = [n for n in made.sources if n not in seen]
            seen.update(new)
            stack += new
        elif ended := ended_at(node):
            most = max(most, len(ended))
            found |= ended
    found |= versions.references(seen)
    if len(found) // FEWEST_DROPPED > most // FEWEST_DROPPED:
        return frozenset([reference for reference in found if reference() is not None])
    return frozenset(found)


def end_at(memory: UOp, origins: BufferSet, shown: Iterable[UOp] = ()) -> None:
    """Record what memory was computed from, at which gradients end: that is neither its former
    content, nor the tensor itself, by the identities `shown`.
    """
    buffers = buffers_below(memory)
    known = map(versions.homes.get, (*buffers, *shown))  # nothing ended at what has no home
    own = {weakref.ref(home) for home in known if home is not None}
    for buffer in buffers:
        buffer._past = origins - own


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
