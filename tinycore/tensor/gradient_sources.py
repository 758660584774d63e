"""Gradient sources: the BUFFERs of floats that the gradient of a node goes to.

Floor 5. Walks over graphs for `history`, which knows what memory was computed from.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.grad import is_data_written, passes_gradient
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, is_gradient_leaf
from tinycore.uop.op import Op

NO_SOURCES: Final[frozenset[UOp]] = frozenset()
BufferSet = frozenset[weakref.ref[UOp]]
"""BUFFERs that are not kept alive by it."""
NOBODY: Final[BufferSet] = frozenset()


def parameters_of_gradient(node: UOp) -> tuple[int, ...] | None:
    """The numbers of the parameters that a gradient of a canonical node goes to.

    They are found once and kept with the node. None where not all are known: a canonical graph has
    a CALL without its arguments.
    """
    if not hasattr(node, "_gradient"):
        below = node.toposort(passes_gradient)
        is_known = not any(n.op is Op.CALL for n in below)
        places = tuple([-1 - m.src[1].arg for n in below if (m := source_at(n)) is not None])
        node._gradient = places if is_known else None
    return node._gradient


def sources(node: UOp) -> Iterator[UOp]:
    """The BUFFERs of floats that a gradient of a node goes to."""
    for below in node.toposort(passes_gradient):
        if (memory := source_at(below)) is not None:
            yield memory


def sources_below(nodes: Iterable[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For each node, the BUFFERs of floats that a gradient goes to: one walk for all, as the writes
    of a run share most of their graphs.
    """
    found: dict[UOp, frozenset[UOp]] = {}
    passing: set[UOp] = set()

    def enter(node: UOp) -> bool:
        if node.op is not SINK:
            if not passes_gradient(node):
                return False
            passing.add(node)
        return True

    for node in UOp.sink(*nodes).toposort(enter):
        if (memory := source_at(node)) is not None:
            found[node] = frozenset([memory])
        elif node not in passing:
            found[node] = NO_SOURCES
        elif len(node.src) == 1:
            found[node] = found[node.src[0]]
        else:
            found[node] = union([found[s] for s in node.src])
    return found


def union(sets: Iterable[frozenset[UOp]]) -> frozenset[UOp]:
    """The union of some sets: one of them, if that has all."""
    whole = NO_SOURCES
    for each in sets:
        if each is not whole and not each <= whole:
            whole = each if whole <= each else whole | each
    return whole


def still_there(buffers: BufferSet) -> list[UOp]:
    """The BUFFERs of a set that are still there, the oldest first."""
    found = [node for reference in buffers if (node := reference()) is not None]
    return sorted(found, key=lambda node: node.src[1].arg)


def ended_at(memory: UOp) -> BufferSet:
    """The BUFFERs that a realized one was computed from, where gradients end."""
    found: BufferSet = getattr(memory, "_ended", NOBODY)
    return found


def nodes_below(nodes: Collection[UOp], order: Sequence[UOp]) -> set[UOp]:
    """The nodes among some that others of them are computed from. `order` has all nodes below them,
    sources first.
    """
    if len(nodes) == 1:
        return set()
    below: set[UOp] = set()
    for node in reversed(order[:-1]):
        if node in nodes or node in below:
            below.update(node.src)
    return below.intersection(nodes)


def with_sources(memory: Mapping[UOp, UOp], changed: dict[UOp, UOp]) -> dict[UOp, UOp]:
    """For memory of nodes, their graphs over each other's memory, with others in the place of some
    nodes, where a gradient of them goes to any memory.
    """
    shown = {node: graph.reshape(buffer, node.shape) for node, buffer in memory.items()}
    inner_first = [node for node in UOp.sink(*memory).toposort() if node in memory]
    sources = iter(
        UOp.sink(*[s for n in inner_first for s in n.src]).substitute(changed | shown).src
    )
    own, arrives, seen = set(memory.values()), set[UOp](), set[UOp]()
    found: dict[UOp, UOp] = {}
    for node in inner_first:
        after = node.with_src(tuple([next(sources) for _ in node.src]))
        for step in after.toposort(lambda n: n not in seen and passes_gradient(n)):
            if step not in seen and passes_on(step, own, arrives):
                arrives.add(step)
            seen.add(step)
        if after in arrives:
            found[memory[node]] = after
            arrives.add(memory[node])
    return found


def origin(node: UOp) -> UOp:
    """The memory that a node is, or has written to in place."""
    while node.op is Op.ASSIGN:
        node = base_of(node.src[0])
    return node


def passes_on(node: UOp, own: set[UOp], arrives: set[UOp]) -> bool:
    """True if a gradient of a node arrives at memory not in `own`, or at a node in `arrives`."""
    if node.op is Op.BUFFER and dtypes.is_float(node.dtype):
        return node not in own
    if (node.op is Op.ASSIGN and is_data_written(node)) or is_gradient_leaf(node):
        return True  # content that a tensor with a gradient had before a later write
    return not arrives.isdisjoint(node.src) and passes_gradient(node)


def with_shape(node: UOp, known: tuple[Any, ...], shape: tuple[Any, ...]) -> UOp:
    """A node of a known shape, which need not be derived, in another."""
    return node if known == shape else UOp(Op.RESHAPE, node.dtype, (node,), shape)


def leads_to_leaf(node: UOp) -> bool:
    """True if a gradient of a node goes to one of a tensor alone."""
    return any(below.op is OWN for below in node.toposort(passes_gradient))


def is_filled(node: UOp) -> bool:
    """True if a node is memory that a kernel is to write, through which no gradient flows."""
    return node.op is Op.ASSIGN and node.src[1].op is Op.KERNEL


def source_at(node: UOp) -> UOp | None:
    """The BUFFER that a gradient goes to at a node: it is one, or a leaf that is written to, or is
    filled by a kernel, or is the first one below a detached leaf.
    """
    op, memory = node.op, node
    if op is ASSIGN and (is_data_written(node) or is_filled(node)):
        memory = origin(node)
    elif op is OWN and is_gradient_leaf(node):
        memory = next(iter(buffers_below(node)), node)
    return memory if memory.op is BUFFER and memory.dtype.kind == "float" else None


ASSIGN, BUFFER, OWN, SINK = Op.ASSIGN, Op.BUFFER, Op.OWN, Op.SINK
