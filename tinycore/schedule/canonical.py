"""The canonical graph: buffers and other identities replaced by numbered parameters.

Floor 3. Two steps of a training loop are the same graph over different buffers. Their canonical
graph, in which buffers and all that only makes nodes unequal are numbered in the order of a walk,
is one interned node: the key of the schedule cache (`compiled.py`, `disk.py`).
See docs/decisions/0025-schedule-cache.md, and docs/decisions/0042-held-values.md for the value
cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tinycore.dtype import dtypes
from tinycore.schedule.kernel import Kernel
from tinycore.uop.bindings import SIZED, Naming, exchanged, sizes_in
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

INTS: Final = frozenset({int})
NONE_CACHED: Final[Mapping[UOp, UOp]] = {}


@dataclass(frozen=True)
class CanonicalGraph:
    """The canonical graph of some roots, and the binding of its parameters.

    `sink` is over the canonical nodes of the roots. `memory` binds each parameter, by number, to
    the BUFFER, or view of one, that it stands for.
    """

    roots: list[UOp]
    sink: UOp
    memory: tuple[UOp, ...]
    nodes: dict[UOp, UOp]
    """The canonical node of every node below the roots. It is unique, except that a node in
    `cached` shares that of its memory."""
    naming: Naming
    """The canonical names of bound variables, whose Sizes are free there, and their values."""
    assigned: list[UOp]
    """The ASSIGNs below the roots, sources first."""
    cached: Mapping[UOp, UOp]
    """Nodes in the value cache, and the memory that is read in their place."""

    @property
    def values(self) -> dict[str, int]:
        """The values of variables, by the names that launches know."""
        return self.naming.numbers

    @property
    def bound(self) -> set[tuple[str, int]]:
        """The bound variables of the graph, each with its value."""
        named = self.naming
        return {(node.arg[0], named.numbers[new.arg[0]]) for node, new in named.nodes.items()}

    @cached_property
    def originals(self) -> dict[UOp, UOp]:
        """The node behind each canonical node; behind memory in the value cache, its value."""
        return {found: node for node, found in self.nodes.items()}


def canonicalize(roots: list[UOp], cached: Mapping[UOp, UOp] = NONE_CACHED) -> CanonicalGraph:
    """The canonical graph of some roots, in one walk that visits each node once.

    It does not go below nodes of `cached`, which are read from their memory.

    Raises ArgumentError for a variable that holds no number.
    """
    sink = UOp.sink(*roots)
    canonical: dict[UOp, UOp] = {}
    memory: list[UOp] = []
    assigned: list[UOp] = []
    copies = calls = 0
    naming = Naming()
    stack = [sink]
    push = stack.append
    while stack:
        node = stack[-1]
        if node in canonical:
            stack.pop()
            continue
        op, src = node.op, node.src
        if node in cached:
            place = cached[node]
            if place in canonical:
                canonical[node] = canonical[place]
                stack.pop()
            else:
                push(place)
            continue
        if op is Op.CALL:  # the other sources serve gradients only
            src = src[:1]
        if op is Op.BUFFER:
            canonical[node] = parameter(node, len(memory))
            memory.append(node)
            stack.pop()
            continue
        height = len(stack)
        for source in src[::-1]:
            if source not in canonical:
                push(source)
        if len(stack) != height:
            continue
        stack.pop()
        argument = node.arg
        if op is Op.BUFFER_VIEW:
            memory.append(node)
        elif op is Op.CONTIGUOUS and type(argument) is int:  # a copy kept apart from equal ones
            argument, copies = copies, copies + 1
        elif op is Op.CALL:
            argument, calls = calls, calls + 1
        elif op is Op.ASSIGN:
            assigned.append(node)
        elif type(argument) is Kernel:
            argument = argument.without_gradient
        elif op in SIZED and not plain(argument) and any(sizes_in(argument)):
            argument = exchanged(argument, naming.free)
        found = tuple([canonical[s] for s in src])
        same = found == src and argument is node.arg
        canonical[node] = node if same else UOp(op, node.dtype, found, argument)
    return CanonicalGraph(
        roots, canonical[sink], tuple(memory), canonical, naming, assigned, cached
    )


def plain(argument: object) -> bool:
    """Whether an argument is a tuple of plain ints, as most are: then it holds no Size."""
    return type(argument) is tuple and INTS.issuperset(map(type, argument))


def parameter(buffer: UOp, number: int) -> UOp:
    """The BUFFER that stands for a parameter; no other one has a negative UNIQUE."""
    mark = UOp(Op.UNIQUE, dtypes.void, (), -1 - number)
    return UOp(Op.BUFFER, buffer.dtype, (buffer.src[0], mark), buffer.arg)
