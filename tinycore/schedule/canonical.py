"""The canonical graph: buffers and other identities replaced by numbered parameters.

Floor 3. Two steps of a training loop are the same graph over different buffers. Their canonical
graph, in which buffers and whatever else only keeps nodes distinct are numbered in the order of a
walk, is one interned node: the key of the schedule cache (`compiled.py`, `disk.py`). See
docs/decisions/0025-schedule-cache.md, and docs/decisions/0042-held-values.md for the value cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

from tinycore.dtype import dtypes
from tinycore.schedule.kernel import Kernel
from tinycore.uop.bindings import SIZED, Naming, exchanged, sizes_in
from tinycore.uop.node import UOp, interned
from tinycore.uop.op import Op

INTS: Final = frozenset({int})
TUPLES: Final = frozenset({tuple})
NUMBERED: Final = frozenset({Op.ASSIGN, Op.BUFFER_VIEW, Op.CALL, Op.CONTIGUOUS, Op.KERNEL})
"""Ops that are counted, or whose argument may be another one in a canonical graph."""
NONE_CACHED: Final[Mapping[UOp, UOp]] = {}


class CanonicalGraph(NamedTuple):
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
    """Nodes in the value cache, and the memory that is read instead of them."""

    @property
    def values(self) -> dict[str, int]:
        """The values of variables, by the names that launches know."""
        return self.naming.numbers

    @property
    def bound(self) -> set[tuple[str, int]]:
        """The bound variables of the graph, each with its value."""
        named = self.naming
        return {(node.arg[0], named.numbers[new.arg[0]]) for node, new in named.nodes.items()}

    @property
    def originals(self) -> dict[UOp, UOp]:
        """The node behind each canonical node; behind memory in the value cache, its value."""
        return dict(zip(self.nodes.values(), self.nodes, strict=True))


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
    stack: list[tuple[UOp, Iterator[UOp]]] = []
    get = canonical.__getitem__
    node, sources = sink, iter(sink.src)
    while True:
        for source in sources:
            if source in canonical:
                continue
            below = source.src
            if not below:
                canonical[source] = source
                continue
            op = source.op
            if op is Op.BUFFER:
                canonical[source] = parameter(source, len(memory))
                memory.append(source)
                continue
            if cached and source in cached:
                below = (cached[source],)
            elif op is Op.CALL:  # the other sources serve gradients only
                below = below[:1]
            stack.append((node, sources))
            node, sources = source, iter(below)
            break
        else:
            op, src, argument = node.op, node.src, node.arg
            if cached and node in cached:
                canonical[node] = canonical[cached[node]]
            elif op not in NUMBERED and not (op in SIZED and not plain(argument)):
                new = tuple(map(get, src))
                canonical[node] = node if new == src else interned(op, node.dtype, new, argument)
            else:
                if op in SIZED:
                    if any(sizes_in(argument)):
                        argument = exchanged(argument, naming.free)
                elif op is Op.ASSIGN:
                    assigned.append(node)
                elif op is Op.BUFFER_VIEW:
                    memory.append(node)
                elif op is Op.CALL:
                    src, argument, calls = src[:1], calls, calls + 1
                elif op is Op.CONTIGUOUS and type(argument) is int:  # kept apart from equal ones
                    argument, copies = copies, copies + 1
                elif type(argument) is Kernel:
                    argument = argument.without_gradient
                canonical[node] = interned(op, node.dtype, tuple(map(get, src)), argument)
            if not stack:
                break
            node, sources = stack.pop()
    return CanonicalGraph(
        roots, canonical[sink], tuple(memory), canonical, naming, assigned, cached
    )


def plain(argument: object) -> bool:
    """True if an argument is a tuple of plain ints, or of such tuples: then it holds no Size."""
    if type(argument) is not tuple:
        return False
    kinds = {*map(type, argument)}
    return kinds <= INTS or (
        kinds == TUPLES and INTS.issuperset(map(type, chain.from_iterable(argument)))
    )


@cache
def mark(number: int) -> UOp:
    """The UNIQUE of a parameter; no other one is negative."""
    return UOp(Op.UNIQUE, dtypes.void, (), -1 - number)


def parameter(buffer: UOp, number: int) -> UOp:
    """The BUFFER of a parameter."""
    return interned(Op.BUFFER, buffer.dtype, (buffer.src[0], mark(number)), buffer.arg)
