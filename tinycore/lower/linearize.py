"""Linearization: a kernel's nodes in execution order.

Floor 3'. Every node belongs to the innermost loop it depends on, which hoists loop-invariant nodes.
Loops nest as their ENDs say. Within a loop, sources come before the nodes that use them, and stores
to memory come last, after all loads that may read the old content, unless a node is AFTER them.
Stores marked LATE are always last.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tinycore.dtype import dtypes
from tinycore.render.base import LATE, pointer_of
from tinycore.uop.instruction import Effect, states_order
from tinycore.uop.node import UOp
from tinycore.uop.op import COMPOUND, Op

Block = UOp | None
"""The loop that a node is in: its RANGE, or None outside all loops."""

EMPTY_GROUP: Final = UOp(Op.GROUP, dtypes.void)
"""Operand of the END of a linear kernel, in place of the nodes between it and its RANGE."""
DROPPED: Final = COMPOUND | {Op.AFTER, Op.RANGE}
UNLISTED: Final = COMPOUND | {Op.STORE, Op.INSTRUCTION}
"""Sources that what `states_order` has in a graph, and not in a list."""
DEFINITION_ORDER: Final = (
    Op.DEFINE_GLOBAL,
    Op.DEFINE_VAR,
    Op.DEFINE_LOCAL,
    Op.DEFINE_REG,
    Op.SPECIAL,
)


class Nest:
    """The loops of a kernel as a tree."""

    def __init__(self, order: list[UOp]) -> None:
        self.depth: dict[Block, int] = {None: 0}
        self.known: dict[frozenset[UOp], Block] = {}
        for end in reversed(order):  # outer ENDs come later in the order, so first here
            if end.op is Op.END:
                depth = self.depth[self.innermost(end.ranges)]
                for level, counter in enumerate(end.src[1:], 1):
                    assert counter not in self.depth, f"{counter!r} is closed twice"
                    self.depth[counter] = depth + level

    def innermost(self, ranges: frozenset[UOp]) -> Block:
        """The innermost of some loops that are all open at one place."""
        if (found := self.known.get(ranges)) is None and ranges:
            found = self.known[ranges] = max(ranges, key=self.depth.__getitem__)
        return found


def linearize(kernel: UOp) -> tuple[UOp, ...]:
    """The nodes of a kernel in order: definitions, then the body, each loop from RANGE to END."""
    order = kernel.toposort()
    nest = Nest(order)
    items: dict[Block, list[UOp]] = defaultdict(list)
    for node in order:
        if node.op not in DROPPED or node.op is Op.END:
            items[nest.innermost(node.ranges)].append(node)
    last = {n for n in order if writes_memory(n)} - awaited(order)
    last |= {n for n in order if n.op is Op.STORE and n.arg == LATE}
    if any(n.op is Op.BARRIER and n.arg for n in order):  # products under way come first
        last |= {n for n in order if isinstance(n.arg, Effect) and n.arg.is_background and n.ranges}
    body: list[UOp] = []
    emit(items, None, last, body)
    return resolved(body, order)


def awaited(order: list[UOp]) -> set[UOp]:
    """The STOREs that something comes AFTER."""
    below = UOp.sink(*[s for n in order if n.op is Op.AFTER for s in n.src[1:]])
    return set(below.toposort(lambda n: n.op in COMPOUND))


def emit(items: dict[Block, list[UOp]], block: Block, last: set[UOp], body: list[UOp]) -> None:
    """Append the nodes of a block, and the loops inside it."""
    for node in sorted(items[block], key=last.__contains__):
        if node.op is not Op.END:
            body.append(node)
            continue
        for counter in node.src[1:]:
            body.append(counter)
            emit(items, counter, last, body)
        body += [EMPTY_GROUP.end(counter) for counter in reversed(node.src[1:])]


def writes_memory(node: UOp) -> bool:
    """True if a node is a STORE to a buffer; registers have their own order."""
    return node.op is Op.STORE and pointer_of(node.src[0]).op is Op.DEFINE_GLOBAL


def resolved(body: list[UOp], order: list[UOp]) -> tuple[UOp, ...]:
    """The list without AFTER nodes, whose order it already has; definitions first.

    `order` has all nodes of the kernel, sources first.
    """
    what: dict[UOp, UOp] = {}  # what comes AFTER something
    for node in order:
        if node.op is Op.AFTER:
            what[node] = what.get(node.src[0], node.src[0])
    new = dict(what)
    changed, get = new.keys(), new.get
    for node in body:
        src = node.src
        if states_order(node):
            src = tuple([s for s in src if s.op not in UNLISTED])
        if src is not node.src or not changed.isdisjoint(src):
            new[node] = node.with_src(tuple([get(p := what.get(s, s), p) for s in src]))
    lines = [get(n, n) for n in body]
    front = [n for n in lines if n.op in DEFINITION_ORDER]
    front.sort(key=lambda n: (DEFINITION_ORDER.index(n.op), n.arg))
    return (*front, *(n for n in lines if n.op not in DEFINITION_ORDER))
