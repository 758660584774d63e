"""Run graphs: the graphs that one run leaves for `backward`, made when one of them is asked for.

Floor 5. `history` retains them. Most are overwritten before anything asks, so they are kept in the
canonical form of the run, which is shared by all runs of that form, beside the memory that its
parameters stand for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.tensor.gradient_sources import leads_to_leaf, origin, sources_below
from tinycore.uop.bindings import SIZED, Naming, exchanged
from tinycore.uop.node import UOp, interned, made_anew
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.schedule.canonical import CanonicalGraph

BUFFER: Final = Op.BUFFER


class CanonicalWrites(NamedTuple):
    """The graphs of the writes of a run, over parameters: the same for all runs of that form."""

    graphs: tuple[UOp, ...]
    parameters: Mapping[int, UOp]
    """The canonical BUFFERs below them, by number."""
    reads: tuple[tuple[int, ...], ...]
    """For each graph the numbers of the parameters in it."""
    sources: tuple[tuple[int, ...], ...]
    """For each graph the numbers of those that a gradient goes to."""
    leads_to_leaf: tuple[bool, ...]
    """For each graph, whether a gradient goes to a node of one tensor alone."""
    size: int
    """The number of nodes in all graphs."""


class BoundWrites(NamedTuple):
    """The writes of one run: their canonical graphs, and what is apart from other runs there."""

    canonical: CanonicalWrites
    naming: Naming
    apart: Sequence[int]

    def graphs(self, places: Iterable[int], memory: Mapping[int, UOp]) -> list[UOp]:
        """Some of the graphs, over memory by the numbers of parameters."""
        canonical, naming, apart = self
        done = {canonical.parameters[number]: found for number, found in memory.items()}
        roots = [canonical.graphs[place] for place in places]
        for node in UOp.sink(*roots).toposort()[:-1]:
            if node in done:
                continue
            argument = node.arg
            if graph.is_alone(node) or node.op is Op.OWN:
                argument = apart[argument]
            elif naming.numbers and node.op in SIZED:
                argument = exchanged(argument, naming.back)
            sources = tuple([done[source] for source in node.src])
            done[node] = interned(node.op, node.dtype, sources, argument)
        return [done[root] for root in roots]


class RunGraphs:
    """The graphs that one run recorded, which share most of their nodes."""

    def __init__(
        self,
        reads: set[int],
        size: int,
        make: Callable[[], dict[UOp, UOp]] | None = None,
        writes: BoundWrites | None = None,
    ) -> None:
        self.reads = reads
        """The ids of the BUFFERs in them, which may be those of some of the graphs."""
        self.size = size
        """The number of their nodes."""
        self.keys: set[int] = set()
        """The ids of the BUFFERs whose graphs are still kept."""
        self.sources: dict[int, Collection[UOp]] = {}
        """By such an id the BUFFERs that a gradient of the graph goes to, once asked for."""
        self.make = make
        """Makes the graphs, by BUFFER, if none of them was asked for yet: most never are."""
        self.writes = writes
        """The graphs in canonical form, likewise, where they are writes of a known form."""

    @classmethod
    def of(
        cls, nodes: Collection[UOp], make: Callable[[], dict[UOp, UOp]] | None = None
    ) -> RunGraphs:
        """The group of graphs that have these nodes."""
        return cls({id(n) for n in nodes if n.op is BUFFER}, len(nodes), make)


class HistoryEntry(NamedTuple):
    """The graph that a BUFFER was computed by, in its shape; None until it is made."""

    memory: weakref.ref[UOp]
    graph: UOp | None
    group: RunGraphs
    reads: tuple[UOp, ...] = ()
    """Other memory that the graph may read, which must be retained until it is made."""
    place: int = 0
    """Its index among the writes of its run."""


class FormerContent:
    """Content of some BUFFERs before a run wrote to them."""

    def __init__(self, former: MutableMapping[UOp, weakref.ref[UOp]], written: set[UOp]) -> None:
        self.former, self.written = former, written

    @cached_property
    def stand_ins(self) -> dict[UOp, UOp]:
        """For each of them a BUFFER that is never computed, made where a graph needs it."""
        made = {memory: made_anew(memory) for memory in self.written}
        for memory, stand_in in made.items():
            self.former[stand_in] = weakref.ref(memory)
        return made


def canonical_writes(
    writes: Sequence[UOp], done: Mapping[UOp, UOp], form: CanonicalGraph
) -> CanonicalWrites | None:
    """The graphs of some writes of a run over its parameters, after which come the memory of those
    `done`. None where the canonical graph lacks something: what is cached, or for gradients only.
    """
    if form.cached or form.calls or any(origin(node) is not done[node] for node in done):
        return None
    nodes = form.nodes
    ends = tuple([nodes[node] for node in done])
    return over_parameters(tuple([nodes[node] for node in writes]), ends, len(form.memory))


@lru_cache(256)
def over_parameters(
    writes: tuple[UOp, ...], done: tuple[UOp, ...], count: int
) -> CanonicalWrites | None:
    """`canonical_writes` of canonical ASSIGNs. The memory that those `done` have written counts as
    parameters after the others, of which there are `count`.
    """
    shown = {}
    for number, node in enumerate(done, count):
        memory = origin(node)
        mark = UOp(Op.UNIQUE, dtypes.void, (), -1 - number)
        shown[node] = graph.reshape(memory.with_src((memory.src[0], mark)), node.shape)
    sources = iter(UOp.sink(*[s for node in writes for s in node.src]).substitute(shown).src)
    after = tuple([node.with_src(tuple([next(sources) for _ in node.src])) for node in writes])
    below = UOp.sink(*after).toposort()[:-1]
    if any(node.op is Op.KERNEL for node in below):
        return None
    gradients = sources_below(after)
    return CanonicalWrites(
        after,
        {number_of(node): node for node in below if node.op is BUFFER},
        tuple([tuple([number_of(m) for m in root.toposort() if m.op is BUFFER]) for root in after]),
        tuple([tuple([number_of(m) for m in gradients[node]]) for node in after]),
        tuple(map(leads_to_leaf, after)),
        len(below) + 1,
    )


def number_of(parameter: UOp) -> int:
    """The number of a parameter of a canonical graph, by its UNIQUE."""
    return -1 - int(parameter.src[1].arg)
