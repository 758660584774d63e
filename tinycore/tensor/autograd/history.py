"""Gradient history: what memory was computed by, retained for `backward`, and writes that are done.

Floor 5. Which values of a run keep their graph (`past.py`), where gradients end, and which
derivatives are refused as they need content that was overwritten. See docs/aliasing.md.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from tinycore._lru import Lru
from tinycore.dtype import dtypes
from tinycore.errors import GradientError
from tinycore.tensor import graph
from tinycore.tensor.aliases import base_of_view, buffers_below
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.grad import (
    ENDS,
    MARKED,
    end_at,
    ended_at,
    ended_below,
    homes_at,
    is_data_written,
    is_filled,
    origin,
    reached,
    reached_from,
    sources_at,
    still_there,
)
from tinycore.tensor.autograd.versions import (
    NOBODY,
    WRITTEN,
    Homes,
    Made,
    home_of_value,
    kept_of,
    known_of,
    lock,
    made_of,
)
from tinycore.tensor.storage.change_tracking import scope
from tinycore.tensor.storage.held_values import read_by
from tinycore.uop.movement import base_of
from tinycore.uop.node import Reads, UOp, is_gradient_leaf, likely_above, ordered
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.schedule.canonical import CanonicalGraph
    from tinycore.tensor.core import Core

BUFFER, UNIQUE = Op.BUFFER, Op.UNIQUE
MOST_HISTORY_NODES: Final = 50_000
"""Most nodes that gradients of one version of memory go through; beyond that they end."""


class GraphFacts(NamedTuple):
    """Facts of some graphs. Those of canonical graphs are the same for all runs of that form."""

    reached: Mapping[UOp, Collection[UOp]]
    """Nodes that a gradient of each goes to and through, as `reached_from` tells it."""
    inner: Mapping[UOp, Collection[UOp]]
    """For each graph, the others that are parts of it."""
    size: int
    """The number of nodes in all graphs."""
    is_canonical: bool = False
    """True if all nodes are canonical, and the numbers of identities those of the form."""


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


def record(values: Mapping[UOp, UOp], form: CanonicalGraph) -> None:
    """Keep the nodes of a run that stay differentiable, each by the memory with its value.

    A value that no gradient of memory flows through is differentiated by another of the run that it
    was made of. A write whose gradient goes to its own former content alone is left out, unless
    that has a graph: else a counter that is read again and again would keep all its former values.
    """
    if not any(dtypes.is_float(node.dtype) for node in values):
        return
    with lock:
        versions.references(form.shown)  # whose homes tell what they have memory for
        ends = Ends(form, values)
        size = ends.facts.size + longest_past(form, values.values())
        reads = read_by(form)
        targets = [*map(origin, form.assigned)]
        filled = done([n for n in form.assigned if is_filled(n) and targets.count(origin(n)) == 1])
        found = []
        for node, memory in values.items():
            reached = ends.reached(node)
            sources = tuple([n for n in reached if n.op in ENDS])
            marks = frozenset([n for n in (node, *reached) if n.op in MARKED or n.op is BUFFER])
            below = ends.bound(ends.facts.inner[ends.named(node)])
            inner = {n: values[n] for n in below if n in values}
            own = origin(node) if node.op is Op.ASSIGN else None
            if has_source(sources, own) or (own is None and inner):
                inner = {n.substitute(filled): m for n, m in inner.items()} if filled else inner
                node = node.substitute(filled)
                found.append((memory, Made(node, sources, inner, reads, size, marks)))
            elif inner:
                end_at(memory, ends.at(node))
        for value in versions.with_values() if filled else ():
            versions.move(value, value.substitute(filled))
        for each, made in found:
            if size > MOST_HISTORY_NODES or each.op is Op.MULTI:  # then its parts know the ends
                end_at(each, ended_below(made.sources))
            if size <= MOST_HISTORY_NODES:
                known = known_of(each)
                known.made, known.ended = made, NOBODY
                kept.add(each)


def renewed(written: Iterable[UOp]) -> dict[UOp, UOp]:
    """The next versions of BUFFERs that a replay has overwritten, where kept graphs read those
    before; gradients end at them.
    """
    with lock:
        graphs = [(m, made) for m in list(kept) if (made := kept_of(m))]
        read = Reads(chain(*[buffers_below(memory) for memory, _ in graphs])).buffers
        known = {made.reads for _, made in graphs}
        stack = [*known]
        while stack:
            reads = stack.pop()
            read |= reads.buffers
            stack += (more := {*reads.before} - known)
            known |= more
        new = versions.renewed([node for node in written if node.src[1].arg in read])
        for memory, made in graphs:
            if not new.keys().isdisjoint(buffers_below(memory)):
                end_at(memory.substitute(new), ended_below(made.sources))
        return new


# --- gradients that realize() ended


class Ends:
    """Ends of the gradients of some nodes of a run, which are known from other runs of its form,
    unless its canonical graph lacks something: what is cached, or for gradients only.
    """

    def __init__(self, form: CanonicalGraph, nodes: Iterable[UOp]) -> None:
        self.form = form
        self.told = told = {*form.shown}
        """Nodes that tensors show, or whose value they know."""
        if known := versions.values:
            told.update([n for n in form.nodes if id(n) in known])
        self.nodes = told.union(nodes)
        self.facts = facts_of_run(self.nodes, form)
        self.originals = form.originals

    def named(self, node: UOp) -> UOp:
        """The node by which the facts know one."""
        return self.form.nodes[node] if self.facts.is_canonical else node

    def bound(self, names: Collection[UOp]) -> Collection[UOp]:
        """The nodes of this run behind those that the facts know."""
        if not (self.facts.is_canonical and names):
            return names
        apart, originals = self.form.apart, self.originals
        return [graph.identity(apart[n.arg]) if n.op is UNIQUE else originals[n] for n in names]

    def reached(self, node: UOp) -> Collection[UOp]:
        """Nodes that a gradient of a node goes to and through."""
        return self.bound(self.facts.reached[self.named(node)])

    def at(self, node: UOp) -> Homes:
        """The memory that a gradient of a node goes to, or would if not ended, and the values that
        tensors show and that it goes through.
        """
        if node not in self.nodes:
            return Ends(self.form, [node]).at(node)
        base, told = base_of(node), self.told
        reached = self.reached(node)
        if {n.op for n in reached} <= ENDS and not any(map(kept_of, reached)):  # as mostly
            found = ended_below(reached)
        else:
            ends = [n for n in reached if n.op in ENDS]
            marks = [n for n in self.with_past(reached, node) if base_of(n) is not base]
            ends += [n for n in marks if n.op is Op.DETACH or n in told]
            detached = [base_of_view(n) for n in marks if n.op is Op.DETACH]
            shown = [
                m for value in detached if value.arg == graph.EQUAL for m in buffers_below(value)
            ]
            found = ended_below([*ends, *shown])  # which tensors show by other nodes than graphs
            written = [n for n in marks if n.op is Op.ASSIGN or made_of(n)]
            found |= versions.references(chain(*map(buffers_below, written)))
        equal = [base] if versions.values and home_of_value(base) else []
        if (value := base_of_view(node)).arg == graph.EQUAL:
            equal = buffers_below(value.src[0])
        # a value is computed from no other tensor of it
        return found - versions.references(equal) if equal else found

    def with_past(self, reached: Collection[UOp], node: UOp) -> Collection[UOp]:
        """The same with what gradients go through below memory."""
        stack = [made for n in reached if (made := made_of(n))]
        if not stack:
            return reached
        found = {*reached}
        roots: list[UOp] = []
        while stack:
            made = stack.pop()
            roots.append(made.node)
            new = made.marks - found
            found |= new
            stack += [before for n in new if (before := made_of(n))]
        self.told.update(versions.with_values())
        others = {n for n in self.told if n.op not in MARKED} - {node, base_of(node)}
        if others and (roots := likely_above(roots, others)):  # few runs have any
            known = reached_from([*roots, *others])
            found = found.union(*map(known.__getitem__, roots))
        return found


def end(replaced: Mapping[UOp, UOp], form: CanonicalGraph) -> None:
    """Record that the gradients of nodes end at the memory that kernels write for them."""
    ends = Ends(form, [n for n in replaced if n in form.nodes])
    with lock:
        for node, new in replaced.items():
            base = graph.differentiable_base(new)
            if is_filled(base) and (found := ends.at(node)):
                end_at(origin(base), found)


def begin(memory: UOp) -> None:
    """Record that memory is a leaf from now on, whatever it was computed from."""
    for buffer in buffers_below(memory):
        known_of(buffer).ended = NOBODY


# --- queries


def values_in(nodes: Iterable[UOp]) -> dict[UOp, UOp]:
    """The memory of computed nodes in what memory among some was computed by, in their shape.

    That which was overwritten is left out: equal values may be in memory that was not.
    """
    found: dict[UOp, UOp] = {}
    for memory in nodes:
        if made := made_of(memory):
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
    done = {memory(): (n,) for n in below if type(memory := n._memory) is weakref.ref}
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
        known = [*done.get(value, ()), *versions.known_as(value)]
        if (made := made_of(base)) and made.node in below:
            node = base_of(made.node)  # whose uses those of a RESHAPE of it are, too
        views = [view.over(graph.reshape(n, whole.shape)) for n in known]
        return [n for n in dict.fromkeys((node, *views)) if n in below]

    def before(node: UOp) -> list[UOp]:
        base = base_of(node)
        found = versions_at[homes_of(base)] if base.op in WRITTEN else ()
        present = base, *done.get(base, ()), source_of(base)
        return [n for n in found if n not in present]

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
    targets: Collection[UOp] | None = None,
    mark: Homes = NOBODY,
) -> None:
    """Raises GradientError where `realize` cut the way to memory off that wants a gradient.

    `nodes` are the root and those below it. `wanted` selects BUFFERs from some, and may give
    others; captures are told if it always gives the `targets`. Ends without the `mark` are none.
    """
    own = scope.owner
    if not (own or any(n.op is BUFFER and ended_at(n) for n in nodes)):
        return  # as mostly, without a look at which of them a gradient goes to
    origins = {
        memory: still_there(memory)
        for node in reached(root)
        if not is_gradient_leaf(node)
        for memory in sources_at(node)
        if mark <= ended_at(memory)
    }
    if own:
        own.note_slope(origins, targets)
    homes = homes_at(wanted([*chain(origins, *origins.values())]))
    for node, ended in origins.items():
        if not homes.isdisjoint(homes_at(ended)):
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
    while made := made_of(base):
        base = base_of_view(made.node)
    return base


def has_source(below: Collection[UOp], own: UOp | None) -> bool:
    """True if a gradient goes to memory other than its own, or its own has a graph."""
    if own is None or made_of(own):
        return bool(below)
    parts = buffers_below(own)
    return any(m not in parts or made_of(m) for m in below)


def longest_past(form: CanonicalGraph, results: Iterable[UOp]) -> int:
    """The most nodes that gradients go through below memory which a run reads."""
    memory = [*form.memory]
    if any(m.op is Op.MULTI for m in results):
        memory += [node for node in form.nodes if node.op is Op.MULTI]
    return max([made.size for m in memory if (made := made_of(m))], default=0)


def facts_of(nodes: Iterable[UOp]) -> GraphFacts:
    """The facts of some nodes."""
    asked = [*nodes]
    reached = reached_from(asked)
    places = {node: place for place, node in enumerate(asked)}
    masks: dict[UOp, int] = {}
    for node in UOp.sink(*asked).toposort()[:-1]:
        mask = 0
        for source in node.src:
            mask |= masks[source]
            if source in places:
                mask |= 1 << places[source]
        masks[node] = mask
    inner = {node: [n for n, place in places.items() if masks[node] >> place & 1] for node in asked}
    return GraphFacts({n: reached[n] - {n} for n in asked}, inner, len(masks))


known_facts: Final = Lru[object, GraphFacts](1024)
"""Facts of canonical nodes."""


def facts_of_run(nodes: Iterable[UOp], form: CanonicalGraph) -> GraphFacts:
    """The facts of some nodes of a run: canonical ones, which are known from other runs of its
    form, unless the canonical graph lacks what is below them.
    """
    names = form.nodes
    calls = form.calls
    called = [tuple(map(names.get, call.src[1:])) for call in calls] if calls else ()
    if form.cached or (calls and any(None in arguments for arguments in called)):
        return facts_of(nodes)
    key = (frozenset(map(names.get, nodes)), *called)
    if (found := known_facts.find(key)) is None:
        reached, inner, size, _ = facts_of(nodes)
        own = {graph.identity(n): graph.identity(place) for place, n in enumerate(form.apart)}
        name = (names | own).__getitem__
        reached, inner = [
            {name(n): [*map(name, below)] for n, below in known.items()}
            for known in (reached, inner)
        ]
        found = GraphFacts(reached, inner, size, is_canonical=True)
        known_facts.keep(key, found)
    return found


def homes_of(memory: UOp) -> object:
    """The homes of the BUFFERs that memory is made of, which all its versions have."""
    return tuple(map(versions.home, buffers_below(memory)))
