"""The canonical graph: buffers and other identities replaced by numbered parameters.

Floor 3. Two steps of a training loop are the same graph over different buffers. Their canonical
graph, in which buffers and whatever else only keeps nodes distinct are numbered in the order of a
walk, is one interned node: the key of the schedule cache (`compiled.py`, `disk.py`). See
docs/floors/schedule.md, and docs/decisions/0042-held-values.md for held values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import chain
from typing import Final, NamedTuple

from tinycore.dtype import DType, dtypes
from tinycore.schedule.comparisons import read_again
from tinycore.schedule.kernel import Kernel
from tinycore.uop.bindings import SIZED, Naming, exchanged, sizes_in
from tinycore.uop.node import Held, UOp, interned
from tinycore.uop.op import Op, Write
from tinycore.uop.size import are_ints

TUPLES: Final = frozenset({tuple})
NUMBERED: Final = SIZED | {Op.ASSIGN, Op.BUFFER_VIEW, Op.CALL, Op.CONTIGUOUS, Op.OWN, Op.KERNEL}
"""Ops that are counted, or whose argument may be another one in a canonical graph."""
KEPT_APART: Final = frozenset({Op.CONTIGUOUS, Op.OWN})
"""Ops of which those with a number are the copy, or the value, of one tensor."""
BUFFER, CALL, CONST, EXPAND = Op.BUFFER, Op.CALL, Op.CONST, Op.EXPAND
ASSIGN, BUFFER_VIEW, RESHAPE = Op.ASSIGN, Op.BUFFER_VIEW, Op.RESHAPE
NOWHERE: Final = object()
"""A scope in which no node holds memory."""


class CanonicalGraph(NamedTuple):
    """The canonical graph of some roots, and the binding of its parameters.

    `sink` is over the canonical nodes of the roots. `memory` binds each parameter, by number, to
    the BUFFER, or view of one, that it stands for.
    """

    roots: list[UOp]
    sink: UOp
    memory: tuple[UOp, ...]
    nodes: dict[UOp, UOp]
    """The canonical nodes of the roots and of every node below. Each is unique, except that a node
    in `cached` shares that of its memory."""
    naming: Naming
    """The canonical names of bound variables, whose Sizes are free there, and their values."""
    assigned: list[UOp]
    """The ASSIGNs below the roots, sources first."""
    cached: Mapping[UOp, UOp]
    """Nodes that hold their value, and the memory that is read instead of them."""
    apart: list[int]
    """The numbers that nodes of one tensor alone have, by those of their canonical nodes."""
    calls: list[UOp]
    """The CALLs, whose gradients go to sources that the canonical graph has no part in."""
    scope: object
    """The scope whose values are read."""
    shown: Collection[UOp] = ()
    """Values below the roots that tensors show, which may get memory of their own."""

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
        """The node behind each canonical node; behind memory that a node holds, that node."""
        return dict(zip(self.nodes.values(), self.nodes, strict=True))

    def behind(self, names: Iterable[UOp]) -> list[UOp]:
        """The nodes behind some canonical nodes, as far as they are in the graph."""
        originals = self.originals
        return [originals[node] for node in names if node in originals]


stale_choices: Final = read_again
"""Cached maxima and the like that roots compare with values which a run computes again."""


def canonicalize(
    roots: list[UOp],
    scope: object = NOWHERE,
    again: Collection[UOp] = (),
    begun: CanonicalGraph | None = None,
) -> CanonicalGraph:
    """The canonical graph of some roots, in one walk that visits each node once.

    It does not go below nodes that hold their value in a scope, which are read from memory, but
    for those that are computed `again`. The walk continues that of `begun`, the graph of the first
    of these roots in the same scope, which is used up by that.

    Raises ArgumentError for a variable that holds no number.
    """
    canonical: dict[UOp, UOp] = {}
    memory: list[UOp] = []
    assigned: list[UOp] = []
    cached: dict[UOp, UOp] = {}
    apart: list[int] = []
    calls: list[UOp] = []
    if begun is None:
        naming = Naming()
    else:
        _, _, known, canonical, naming, assigned, read, apart, calls, *_ = begun
        memory += known
        cached |= read
    get = canonical.__getitem__
    node: UOp | None = None  # above the roots, which are gone through like sources
    sources = iter(roots)
    stack: list[tuple[UOp | None, Iterator[UOp]]] = []
    while True:
        for source in sources:
            if source in canonical:
                continue
            below = source.src
            if not below:
                canonical[source] = source
                continue
            op = source.op
            if op is BUFFER:
                canonical[source] = parameter(source.dtype, below[0], source.arg, len(memory))
                memory.append(source)
                continue
            if (
                (held := source._memory) is not None
                and type(held) is Held
                and held.scope is scope
                and source not in again
            ):
                cached[source] = held.memory
                below = (held.memory,)
            elif op is CALL:  # the other sources serve gradients only
                below = below[:1]
            elif op is EXPAND and is_number(below[0]) and (number := repeated_number(source)):
                canonical.update(number)
                continue
            stack.append((node, sources))
            node, sources = source, iter(below)
            break
        else:
            if node is None:
                break
            op, src, argument = node.op, node.src, node.arg
            if cached and node in cached:
                canonical[node] = canonical[cached[node]]
            elif op not in NUMBERED or (op in SIZED and plain(argument)):
                new = tuple(map(get, src))
                canonical[node] = node if new == src else interned(op, node.dtype, new, argument)
            else:
                if op in SIZED:
                    if any(sizes_in(argument)):
                        argument = exchanged(argument, naming.free)
                elif op is ASSIGN:
                    assigned.append(node)
                    argument = argument.mark if type(argument) is Write else argument
                elif op is BUFFER_VIEW:
                    memory.append(node)
                elif op is CALL:
                    src, argument = src[:1], len(calls)
                    calls.append(node)
                elif op in KEPT_APART and type(argument) is int:  # kept apart from equal ones
                    apart.append(argument)
                    argument = len(apart) - 1
                elif type(argument) is Kernel:
                    argument = argument.without_gradient
                canonical[node] = interned(op, node.dtype, tuple(map(get, src)), argument)
            node, sources = stack.pop()
    sink = interned(Op.SINK, dtypes.void, tuple(map(get, roots)))
    return CanonicalGraph(
        roots, sink, tuple(memory), canonical, naming, assigned, cached, apart, calls, scope
    )


def plain(argument: object) -> bool:
    """True if an argument is a tuple of plain ints, or of such tuples: then it holds no Size."""
    if type(argument) is not tuple:
        return False
    if are_ints(argument):
        return True
    return TUPLES.issuperset(map(type, argument)) and are_ints(chain.from_iterable(argument))


def is_number(node: UOp) -> bool:
    """True if a node is a number in a shape of ones."""
    return node.op is RESHAPE and node.src[0].op is CONST


@lru_cache(1024)
def repeated_number(node: UOp) -> dict[UOp, UOp]:
    """The canonical nodes of a number that is repeated; none where its shape has Sizes."""
    if not (plain(node.arg) and plain(node.src[0].arg)):
        return {}
    return {below: below for below in node.toposort()}


@cache
def mark(number: int) -> UOp:
    """The UNIQUE of a parameter; no other one is negative."""
    return UOp(Op.UNIQUE, dtypes.void, (), -1 - number)


@lru_cache(4096)
def parameter(dtype: DType, device: UOp, argument: object, number: int) -> UOp:
    """The BUFFER of a parameter, by dtype, DEVICE and argument."""
    return interned(BUFFER, dtype, (device, mark(number)), argument)
