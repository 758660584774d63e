"""Gradient history: what memory was computed by, retained for `backward`, and writes that are done.

Floor 5. Which values of a run keep their graph (`past.py`), where gradients end, and which
derivatives are refused as they need content that was overwritten. See docs/aliasing.md.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tinycore._locks import recursive_lock
from tinycore.dtype import dtypes
from tinycore.errors import GradientError
from tinycore.tensor import graph
from tinycore.tensor.aliases import base_of_view, buffers_below
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.grad import is_data_written
from tinycore.tensor.autograd.gradient_sources import (
    ENDING,
    NOBODY,
    BufferSet,
    Walked,
    end_at,
    ended_at,
    ended_below,
    is_filled,
    marked_below,
    origin,
    reached,
    sources_at,
    sources_below,
    still_there,
)
from tinycore.tensor.autograd.past import Made, kept_of, made_of
from tinycore.tensor.autograd.versions import WRITTEN
from tinycore.tensor.storage.held_values import read_by
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, is_gradient_leaf, likely_above, ordered
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.schedule.canonical import CanonicalGraph
    from tinycore.tensor.core import Core

BUFFER: Final = Op.BUFFER
MOST_HISTORY_NODES: Final = 50_000
"""Most nodes that gradients of one version of memory go through; beyond that they end."""


class GraphFacts(NamedTuple):
    """Facts of some graphs. Those of canonical graphs are the same for all runs of that form."""

    sources: Sequence[Collection[Any]]
    """For each graph, the BUFFERs, and identities of tensors, that a gradient goes to."""
    inner: Sequence[Sequence[int]]
    """For each graph, the places of the others that are parts of it."""
    size: int
    """The number of nodes in all graphs."""


lock: Final = recursive_lock()
kept: Final[weakref.WeakSet[UOp]] = weakref.WeakSet()
"""Memory that knows its graph."""


# --- finished writes


def mark_done(writes: Iterable[UOp], memory: Mapping[UOp, UOp]) -> None:
    """Record that writes are done; graphs that other threads build may refer to their nodes."""
    for node in writes:
        if (found := memory.get(node)) is not None:
            node._memory = weakref.ref(graph.differentiable_base(found))


def done(writes: Iterable[UOp]) -> dict[UOp, UOp]:
    """Finished writes among some, with the memory that has their values."""
    found = {}
    for node in writes:
        if type(known := node._memory) is weakref.ref:
            if (memory := known()) is None:  # which no tensor shows
                memory = versions.in_latest(origin(node))
            found[node] = graph.reshape(memory, node.shape)
    return found


# --- recording


def record(values: Mapping[UOp, UOp], ends: Ends) -> None:
    """Keep the nodes of a run that stay differentiable, each by the memory with its value.

    A value that no gradient of memory flows through is differentiated by another of the run that it
    was made of. A write whose gradient goes to its own former content alone is left out, unless
    that has a graph: else a counter that is read again and again would keep all its former values.
    """
    if not any(dtypes.is_float(node.dtype) for node in values):
        return
    form = ends.form
    with lock:
        deque(map(versions.home, form.shown), maxlen=0)  # which tell what they have memory for
        facts = facts_of_run([*values], form)
        nodes, memory = [*values], [*values.values()]
        size = facts.size + longest_past(form, memory)
        reads = read_by(form)
        found = []
        for place, (node, below) in enumerate(zip(nodes, facts.sources, strict=True)):
            own = origin(node) if node.op is Op.ASSIGN else None
            inner = {nodes[number]: memory[number] for number in facts.inner[place]}
            made = Made(node, tuple(below), inner, reads, size, [])
            if has_source(below, own) or (own is None and inner):
                found.append((memory[place], made))
            elif inner:
                end_at(memory[place], ends.at(node))
        for each, made in found:
            if size > MOST_HISTORY_NODES or each.op is Op.MULTI:  # then its parts know the ends
                end_at(each, ended_below(made.sources))
            if size <= MOST_HISTORY_NODES:
                each._past = made
                kept.add(each)


def renewed(written: Iterable[UOp]) -> dict[UOp, UOp]:
    """The next versions of BUFFERs that a replay has overwritten, where kept graphs read those
    before; gradients end at them.
    """
    with lock:
        graphs = [(m, made) for m in list(kept) if (made := kept_of(m)) is not None]
        read = {id(buffer) for memory, _ in graphs for buffer in buffers_below(memory)}
        known = {made.reads for _, made in graphs}
        stack = [*known]
        while stack:
            reads = stack.pop()
            read |= reads.buffers
            stack += (more := {*reads.before} - known)
            known |= more
        new = versions.renewed([memory for memory in written if id(memory) in read])
        for memory, made in graphs:
            if not new.keys().isdisjoint(buffers_below(memory)):
                end_at(memory.substitute(new), ended_below(made.sources))
        return new


# --- gradients that realize() ended


class Ends:
    """Ends of the gradients of a run's nodes. One walk for all of them: of past runs each is gone
    through once, and then known by its marks.
    """

    def __init__(self, form: CanonicalGraph) -> None:
        self.form = form
        self.is_told: Callable[[UOp], bool] = form.shown.__contains__
        """True for a node that tensors show, or whose value they know."""
        if versions.values:
            self.is_told = lambda n: n in form.shown or n in versions.values
        self.near: Walked = {}
        self.past: Walked = {}

    def at(self, node: UOp) -> BufferSet:
        """The memory that a gradient of a node goes to, or would if not ended, and the values that
        tensors show and that it goes through.
        """
        base = base_of(node)
        below = [n for n in self.marked(node) if base_of(n) is not base]
        through = [n for n in below if n.op is Op.DETACH or self.is_told(n)]
        equal = [base] if base in versions.values else []
        if (value := base_of_view(node)).arg == graph.EQUAL:
            equal = buffers_below(value.src[0])
        written = [n for n in below if n.op is Op.ASSIGN or made_of(n) is not None]
        found = ended_below([*sources_of_run(node, self.form), *through])
        found |= versions.references(chain.from_iterable(map(buffers_below, written)))
        return found - versions.references(equal)  # a value is computed from no other tensor of it

    def marked(self, node: UOp) -> set[UOp]:
        """The marked nodes that a gradient of a node reaches, also below memory."""
        found = {*marked_below(node, self.is_told, self.near)}
        roots: list[UOp] = []
        stack = [*found]
        while stack:
            if (made := made_of(stack.pop())) is not None:
                if not made.marks:
                    made.marks.append(marked_below(made.node, NOBODY.__contains__, self.past))
                roots.append(made.node)
                new = made.marks[0] - found
                found |= new
                stack += new
        if roots:
            known = (*self.form.shown, *versions.living(versions.values.keyrefs()))
            others = {n for n in known if n.op not in ENDING} - {node, base_of(node)}
            for root in likely_above(roots, others) if others else ():  # few runs have any
                found |= marked_below(root, self.is_told, self.near)
        return found


def end(replaced: Mapping[UOp, UOp], form: CanonicalGraph) -> None:
    """Record that the gradients of nodes end at the memory that kernels write for them."""
    ends = Ends(form)
    with lock:
        for node, new in replaced.items():
            base = graph.differentiable_base(new)
            if is_filled(base) and (found := ends.at(node)):
                end_at(origin(base), found)


def begin(memory: UOp) -> None:
    """Record that memory is a leaf from now on, whatever it was computed from."""
    for buffer in buffers_below(memory):
        if ended_at(buffer):
            buffer._past = NOBODY


# --- queries


def values_in(nodes: Iterable[UOp]) -> dict[UOp, UOp]:
    """The memory of computed nodes in what memory among some was computed by, in their shape.

    That which was overwritten is left out: equal values may be in memory that was not.
    """
    found: dict[UOp, UOp] = {}
    for memory in nodes:
        if (made := made_of(memory)) is not None:
            found |= {**made.inner, made.node: memory}
    return {
        node: graph.reshape(memory, node.shape)
        for node, memory in found.items()
        if not versions.is_former(memory)
    }


def parts_in(
    below: Collection[UOp],
) -> tuple[Callable[[Core], list[UOp]], Callable[[UOp], list[UOp]]]:
    """For a tensor, the nodes of a graph that have its value, and those that are its
    former content; they may have another shape.

    What memory was computed by stands for it: gradients of both arrive there.
    """
    versions_at: defaultdict[object, list[UOp]] = defaultdict(list)  # and nodes of one tensor
    homes: dict[UOp, object] = {}
    done = {memory(): n for n in below if type(memory := n._memory) is weakref.ref}
    for node in below:
        if node.op in WRITTEN:
            made = made_of(node)
            known = homes.get(base_of(node.src[0])) if node.op is Op.ASSIGN else None
            homes[node] = home = known or homes_of(node)
            versions_at[home].append(node if made is None else base_of(made.node))
        elif node.op is Op.OWN:
            versions_at[node.arg].append(node)

    def equal(tensor: Core) -> list[UOp]:
        node, view = tensor.uop, tensor._view
        base, whole = base_of(node), view.storage.value
        if base.op is Op.OWN:
            return versions_at[base.arg]
        value = base_of(whole)
        known = [done.get(value, value), *versions.known_as(value)]
        if (made := made_of(base)) is not None and made.node in below:
            node = base_of(made.node)  # whose uses those of a RESHAPE of it are, too
        views = [view.over(graph.reshape(n, whole.shape)) for n in known]
        return [n for n in dict.fromkeys((node, *views)) if n in below]

    def before(node: UOp) -> list[UOp]:
        base = base_of(node)
        found = versions_at[homes_of(base)] if base.op in WRITTEN else ()
        return [n for n in found if n is not base]

    return equal, before


def shows_data(node: UOp) -> bool:
    """True if a tensor that asks shows data, or memory, whose earlier uses count."""
    memory = base_of_view(node)
    is_plain = graph.is_buffer(memory) and made_of(memory) is None
    is_data = is_data_written(memory) or memory.arg == graph.EQUAL
    return node.op is not Op.OWN or is_plain or is_data or is_gradient_leaf(node)


def check(root: UOp) -> None:
    """Raises GradientError for a derivative that needs content which was overwritten.

    While the write waits, it is computed before.
    """
    # an ASSIGN has the value that was written last
    below = ordered(root, lambda node: node.op is not Op.ASSIGN) if versions.former else ()
    for node in below:
        if node.op in WRITTEN and versions.is_former(node):
            raise GradientError(
                f"backward: a derivative needs the values that memory of shape {node.shape} "
                "had before it was written to in place. Differentiate before the write, keep "
                "what was computed from them in a tensor, or compute with a copy: clone()"
            )


def check_ended(
    root: UOp,
    nodes: Iterable[UOp],
    wanted: Callable[[Sequence[UOp]], Iterable[UOp]],
) -> None:
    """Raises GradientError where `realize` cut the way to memory off that wants a gradient.

    `nodes` are the root and those below it. `wanted` selects BUFFERs from some, and may give
    others.
    """
    if not any(n.op is BUFFER and ended_at(n) for n in nodes):
        return  # as mostly, without a look at which of them a gradient goes to
    origins = {
        memory: still_there(memory)
        for node in reached(root)
        if not is_gradient_leaf(node)
        for memory in sources_at(node)
    }
    asked = wanted([*origins, *chain.from_iterable(origins.values())])
    known = versions.homes.get
    homes = {known(node, node) for node in asked}
    for node, ended in origins.items():
        if not homes.isdisjoint([known(n, n) for n in ended]):
            raise GradientError(
                f"backward: realize() ended the gradient at a tensor of {node.arg} elements, "
                "which was computed from one that wants it. Differentiate "
                "before realize() and kernelize(), or read the value without them (item, "
                "tolist, numpy); where the gradient is to end there, realize what detach() "
                "gives"
            )


def source_of(node: UOp) -> UOp:
    """The node whose elements a view shows; of memory, what that was computed by."""
    base = base_of_view(node)
    while (made := made_of(base)) is not None:
        base = base_of_view(made.node)
    return base


def has_source(below: Collection[UOp], own: UOp | None) -> bool:
    """True if a gradient goes to memory other than its own, or its own has a graph."""
    if own is None or made_of(own) is not None:
        return bool(below)
    parts = buffers_below(own)
    return any(m not in parts or made_of(m) is not None for m in below)


def longest_past(form: CanonicalGraph, results: Iterable[UOp]) -> int:
    """The most nodes that gradients go through below memory which a run reads."""
    memory = [*form.memory]
    if any(m.op is Op.MULTI for m in results):
        memory += [node for node in form.nodes if node.op is Op.MULTI]
    return max([made.size for m in memory if (made := made_of(m)) is not None], default=0)


def facts_of_run(nodes: Sequence[UOp], form: CanonicalGraph) -> GraphFacts:
    """The facts of nodes of a run.

    They are known from other runs of the form, unless its canonical graph lacks something: what is
    cached, or for gradients only.
    """
    if form.cached or form.calls:
        return facts_of(tuple(nodes))
    known = canonical_facts(tuple([form.nodes[n] for n in nodes]))
    sources = [sources_bound(found, form) for found in known.sources]
    return GraphFacts(sources, known.inner, known.size)


def sources_of_run(node: UOp, form: CanonicalGraph) -> Iterable[UOp]:
    """The sources of a node of a run alone."""
    if form.cached or form.calls:
        return sources_below([node])[node]
    return facts_of_run([node], form).sources[0]


def facts_of(nodes: tuple[UOp, ...]) -> GraphFacts:
    """The facts of some nodes."""
    order = UOp.sink(*nodes).toposort()[:-1]
    sources = sources_below(nodes)
    places = {node: place for place, node in enumerate(nodes)}
    masks: dict[UOp, int] = {}
    for node in order:
        mask = 0
        for source in node.src:
            mask |= masks[source]
            if source in places:
                mask |= 1 << places[source]
        masks[node] = mask
    inner = [[p for p in places.values() if masks[node] >> p & 1] for node in nodes]
    return GraphFacts([sources[node] for node in nodes], inner, len(order))


@lru_cache(1024)
def canonical_facts(nodes: tuple[UOp, ...]) -> GraphFacts:
    """The facts of canonical nodes; the sources are the numbers of their UNIQUEs."""
    found = facts_of(nodes)
    return found._replace(
        sources=[[(m.src or (m,))[-1].arg for m in below] for below in found.sources]
    )


def sources_bound(numbers: Iterable[int], form: CanonicalGraph) -> tuple[UOp, ...]:
    """The memory, or the identities, behind numbers of canonical UNIQUEs."""
    memory, apart = form.memory, form.apart
    return tuple([memory[-1 - n] if n < 0 else graph.identity(apart[n]) for n in numbers])


def homes_of(memory: UOp) -> object:
    """The homes of the BUFFERs that memory is made of, which all its versions have."""
    return tuple([versions.home(buffer) for buffer in buffers_below(memory)])
